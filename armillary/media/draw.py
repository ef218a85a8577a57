"""Marks on a picture, for people: boxes, points, paths, and the text beside them; contact sheets, timelines.

Legend: T frames, H height, W width, C channels.
"""

import math
from bisect import bisect_right
from collections.abc import Sequence
from itertools import pairwise
from typing import TypeAlias

from PIL import Image, ImageDraw, ImageFont

from armillary import arguments
from armillary.errors import BadRequest
from armillary.media.pictures import PictureSource, read_picture
from armillary.media.source import MAX_PIXELS, Pixels

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
CELL = 192
"""Longer side of a contact sheet's pictures, in pixels, unless a scale is given."""
TIME_WIDTH, TIME_HEIGHT, GAP = 56, 24, 8
DARK, GRID, LIGHT = (24, 24, 24), (58, 58, 58), (220, 220, 220)
LINE = 1000  # letters of a label, more are never measured
TIMELINE, ROW = 640, 44  # pixels: narrowest timeline, height of one event


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


def draw_paths(
    image: PictureSource,
    paths: Sequence[Sequence[Sequence[float]]],
    *,
    labels: Sequence[str] | None = None,
) -> Image.Image:
    """The picture with paths of points (x, y), from a ring to an arrow head; otherwise as `draw_boxes`."""
    canvas, factor = enlarged(image)
    names = _labels(labels, len(paths))
    draw, text = ImageDraw.Draw(canvas), font(16)
    for path, name, colour in zip(paths, names, _colours(names), strict=True):
        if len(path) < 2 or any(len(p) != 2 or not all(map(math.isfinite, p)) for p in path):
            raise BadRequest("paths", [list(p) for p in path], "a path is two points x, y or more")
        line = [(p[0] * factor, p[1] * factor) for p in path]
        for width, ink in ((7, (0, 0, 0)), (4, colour)):
            draw.line(line, fill=ink, width=width, joint="curve")
        for x, y in line[1:-1]:
            draw.ellipse((x - 4, y - 4, x + 4, y + 4), fill=colour, outline=(0, 0, 0))
        x, y = line[0]
        draw.ellipse((x - 7, y - 7, x + 7, y + 7), fill=(255, 255, 255), outline=(0, 0, 0), width=2)
        _arrow(draw, line, colour)
        _label(draw, (round(x) + 10, round(y) - 8), name, colour, text)
    return canvas


def _arrow(draw: ImageDraw.ImageDraw, line: Sequence[tuple[float, float]], colour: Colour) -> None:
    """A head at the end of a line, along its last stretch that has a length."""
    x, y = line[-1]
    angle = next(
        (math.atan2(b[1] - a[1], b[0] - a[0]) for a, b in reversed([*pairwise(line)]) if a != b), 0.0
    )
    corners = [(x + 9 * math.cos(angle), y + 9 * math.sin(angle))]
    corners += [(x + 13 * math.cos(angle + t), y + 13 * math.sin(angle + t)) for t in (2.5, -2.5)]
    draw.polygon(corners, fill=colour, outline=(0, 0, 0), width=2)


def contact_sheet(
    frames_THWC: Pixels, times_s: Sequence[float], *, columns: int | None = None, scale: float | None = None
) -> Image.Image:
    """Frames in reading order, each with its time in seconds below.

    `scale` multiplies the frames' size; without it they are brought to about 192 pixels, small ones by a
    whole factor with sharp pixels so that they can be judged. Without `columns` the sheet is roughly 4:3.
    """
    count, (height, width) = len(frames_THWC), frames_THWC.shape[1:3]
    scale = _sheet_scale(max(height, width)) if scale is None else arguments.positive(scale, "scale")
    largest = math.sqrt(MAX_PIXELS / (count * height * width))
    if scale > max(largest, 1.0):
        raise BadRequest("scale", scale, f"the sheet would be too large; at most {max(largest, 1.0):.3g}")
    cell = (max(1, round(width * scale)), max(1, round(height * scale)))
    step_x, step_y = max(cell[0], TIME_WIDTH) + GAP, cell[1] + TIME_HEIGHT
    if columns is None:
        columns = min(count, math.ceil(math.sqrt(count * step_y / step_x * 4 / 3)))
    columns = arguments.whole(columns, "columns", 1, max(count, 1))
    rows = math.ceil(count / columns)
    sheet = Image.new("RGB", (GAP + columns * step_x, GAP + rows * step_y), DARK)
    draw, text = ImageDraw.Draw(sheet), font(13)
    method = Image.Resampling.NEAREST if scale >= 1 else Image.Resampling.LANCZOS
    for index, (frame_HWC, time_s) in enumerate(zip(frames_THWC, times_s, strict=True)):
        x, y = GAP + index % columns * step_x, GAP + index // columns * step_y
        sheet.paste(Image.fromarray(frame_HWC).resize(cell, method), (x, y))
        draw.text((x, y + cell[1] + 3), f"{time_s:.3f} s", fill=LIGHT, font=text)
    return sheet


def _sheet_scale(longer_side: int) -> float:
    scale = CELL / longer_side
    return float(math.floor(scale)) if scale >= 1 else scale


def draw_events(
    frames_THWC: Pixels,
    times_s: Sequence[float],
    spans_s: Sequence[tuple[float, float]],
    *,
    labels: Sequence[str],
) -> Image.Image:
    """A contact sheet, and below it the time as an axis with a bar and a label for each (start, end) in
    seconds. Ticks on the axis stand where the frames of the sheet do."""
    sheet = contact_sheet(frames_THWC, times_s)
    width = max(sheet.width, TIMELINE)
    most = (MAX_PIXELS // width - sheet.height - 46) // ROW
    if len(spans_s) > most:
        raise BadRequest("events", f"{len(spans_s)} events", f"at most {most} can be drawn on one picture")
    canvas = Image.new("RGB", (width, sheet.height + 46 + ROW * len(spans_s)), DARK)
    canvas.paste(sheet, ((width - sheet.width) // 2, 0))
    draw, text, left, top = ImageDraw.Draw(canvas), font(13), 24, sheet.height + 12
    end_s = max([1e-3, *times_s, *(end for _, end in spans_s)])

    def place(time_s: float) -> float:
        return left + time_s / end_s * (width - 2 * left)

    for tick_s in ticks(end_s):
        x = place(tick_s)
        draw.line((x, top + 20, x, canvas.height - 8), fill=GRID)
        draw.text((x, top), f"{tick_s:g} s", fill=LIGHT, font=text, anchor="ma")
    draw.line((left, top + 20, width - left, top + 20), fill=LIGHT)
    for time_s in times_s:
        draw.line((place(time_s), top + 16, place(time_s), top + 24), fill=LIGHT, width=2)
    rows = zip(spans_s, labels, _colours(_labels(labels, len(spans_s))), strict=True)
    for row, ((start, end), name, colour) in enumerate(rows):
        y = top + 32 + row * ROW
        bar = (place(start), y + 18, max(place(end), place(start) + 3), y + 32)
        draw.rounded_rectangle(bar, 3, fill=colour)
        words = _shortened(draw, f"{start:g} to {end:g} s   {name}", width - 2 * left, text)
        draw.text((min(place(start), width - left - draw.textlength(words, text)), y), words, LIGHT, text)
    return canvas


def _shortened(draw: ImageDraw.ImageDraw, words: str, width: float, text: Font) -> str:
    """The words in one line, or as many letters of them as fit."""
    words = " ".join(words.split("\n"))
    if draw.textlength(words[:LINE], text) <= width and len(words) <= LINE:
        return words
    count = bisect_right(
        range(1, LINE + 1), width, key=lambda letters: draw.textlength(f"{words[:letters]}...", text)
    )
    return f"{words[:count]}..."


def ticks(duration_s: float) -> list[float]:
    """About eight round numbers of seconds, from 0 to the duration."""
    power = 10.0 ** math.floor(math.log10(max(duration_s, 1e-3) / 8))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= max(duration_s, 1e-3) / 8)
    return [tick * step for tick in range(int(duration_s / step + 1e-9) + 1)]


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
    canvas_width, canvas_height = draw.im.size
    name = _shortened(draw, name, max(canvas_width, READABLE) - 8, text)
    width, height = math.ceil(draw.textlength(name, text)) + 8, 22
    x = min(max(corner[0], 0), max(canvas_width - width, 0))
    y = min(corner[1] - height if corner[1] >= height else corner[1], canvas_height - height)
    draw.rectangle((x, y, x + width, y + height), fill=colour, outline=(0, 0, 0))
    draw.text((x + 4, y + height // 2), name, fill=(0, 0, 0), font=text, anchor="lm")
