"""Marks on a picture, for people: boxes, points, and the text beside them.

Legend: H height, W width.
"""

import math
from collections.abc import Sequence
from typing import TypeAlias

from PIL import Image, ImageDraw, ImageFont

from armillary.errors import BadRequest
from armillary.media.decode import PictureSource, read_picture

Colour: TypeAlias = tuple[int, int, int]
Font: TypeAlias = ImageFont.FreeTypeFont | ImageFont.ImageFont

# Okabe and Ito (2008): tell apart also with colour-blind eyes.
COLOURS: tuple[Colour, ...] = (
    (230, 159, 0),
    (86, 180, 233),
    (0, 158, 115),
    (240, 228, 66),
    (0, 114, 178),
    (213, 94, 0),
    (204, 121, 167),
)
READABLE = 512
"""Pictures whose longer side is shorter than this are enlarged before they are drawn on."""


def draw_boxes(
    image: PictureSource,
    boxes: Sequence[Sequence[float]],
    *,
    labels: Sequence[str] | None = None,
) -> Image.Image:
    """The picture with boxes (x0, y0, x1, y1) in its own pixels and a label on each.

    Small pictures are enlarged by a whole factor first, so that labels can be read. Equal labels share a
    colour. Raises BadRequest for boxes that are not four finite numbers in order, or another number of labels
    than boxes.
    """
    canvas, factor = enlarged(image)
    names = _labels(labels, len(boxes))
    draw, text = ImageDraw.Draw(canvas), font(16)
    for box, name, colour in zip(boxes, names, _colours(names), strict=True):
        if len(box) != 4 or not all(map(math.isfinite, box)) or box[0] > box[2] or box[1] > box[3]:
            raise BadRequest("boxes", list(box), "a box is x0, y0, x1, y1 with x0 <= x1 and y0 <= y1")
        left, top, right, bottom = (round(side * factor) for side in box)
        draw.rectangle((left - 1, top - 1, right + 1, bottom + 1), outline=(0, 0, 0), width=5)
        draw.rectangle((left, top, right, bottom), outline=colour, width=3)
        _label(draw, (left, top), name, colour, text)
    return canvas


def draw_points(
    image: PictureSource,
    points: Sequence[Sequence[float]],
    *,
    labels: Sequence[str] | None = None,
) -> Image.Image:
    """The picture with points (x, y) in its own pixels and a label beside each; otherwise as `draw_boxes`."""
    canvas, factor = enlarged(image)
    names = _labels(labels, len(points))
    draw, text = ImageDraw.Draw(canvas), font(16)
    for point, name, colour in zip(points, names, _colours(names), strict=True):
        if len(point) != 2 or not all(map(math.isfinite, point)):
            raise BadRequest("points", list(point), "a point is x, y")
        x, y = (round(side * factor) for side in point)
        draw.ellipse((x - 8, y - 8, x + 8, y + 8), fill=colour, outline=(0, 0, 0), width=2)
        _label(draw, (x + 10, y - 8), name, colour, text)
    return canvas


def enlarged(image: PictureSource) -> tuple[Image.Image, int]:
    """The picture enlarged by the smallest whole factor that makes it READABLE, and the factor."""
    picture = Image.fromarray(read_picture(image))
    factor = max(1, math.ceil(READABLE / max(picture.size)))
    size = (picture.width * factor, picture.height * factor)
    return picture.resize(size, Image.Resampling.NEAREST), factor


def font(size: int) -> Font:
    """Pillow's own font: the same letters on every machine."""
    return ImageFont.load_default(size)


def _labels(labels: Sequence[str] | None, count: int) -> Sequence[str]:
    if labels is not None and len(labels) != count:
        raise BadRequest("labels", list(labels), f"{len(labels)} labels for {count} marks")
    return [""] * count if labels is None else labels


def _colours(names: Sequence[str]) -> list[Colour]:
    """A colour for each name, equal for equal names; without names a new one each time."""
    order = list(dict.fromkeys(names))
    places = range(len(names)) if order == [""] else [order.index(name) for name in names]
    return [COLOURS[place % len(COLOURS)] for place in places]


def _label(draw: ImageDraw.ImageDraw, corner: tuple[int, int], name: str, colour: Colour, text: Font) -> None:
    """The name on a patch of its colour, above the corner if there is room, always inside the picture."""
    if not name:
        return
    width, height = math.ceil(draw.textlength(name, text)) + 8, 22
    canvas_width, canvas_height = draw.im.size
    x = min(max(corner[0], 0), max(canvas_width - width, 0))
    y = min(corner[1] - height if corner[1] >= height else corner[1], canvas_height - height)
    draw.rectangle((x, y, x + width, y + height), fill=colour, outline=(0, 0, 0))
    draw.text((x + 4, y + height // 2), name, fill=(0, 0, 0), font=text, anchor="lm")
