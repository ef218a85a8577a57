"""Shapes put down once, written as SVG or painted as a picture: both look the same."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Literal

from PIL import Image, ImageColor, ImageDraw

from armillary.media.draw import font

Point = tuple[float, float]
Anchor = Literal["start", "middle", "end"]

HATCH = 6  # units from stripe to stripe
PALE = 0.28  # how much of its colour lies between the stripes
INK, SHEET = "#22262e", "#ffffff"
LETTERS = "-apple-system, 'Segoe UI', Helvetica, Arial, sans-serif"


@dataclass(frozen=True)
class Area:
    """A filled polygon; hatched, it is striped in its colour on a pale ground of it."""

    corners: tuple[Point, ...]
    fill: str
    hatched: bool = False


@dataclass(frozen=True)
class Line:
    """A thin line through points."""

    points: tuple[Point, ...]
    colour: str
    width: float


@dataclass(frozen=True)
class Dot:
    """A small disc."""

    centre: Point
    radius: float
    colour: str


@dataclass(frozen=True)
class Words:
    """Text on a baseline."""

    at: Point
    text: str
    anchor: Anchor
    size: int
    colour: str
    bold: bool


@dataclass
class Canvas:
    """A white card of so many units a side, to put shapes on; later ones cover earlier ones."""

    width: int
    height: int = 0
    shapes: list[Area | Line | Dot | Words] = field(default_factory=list[Area | Line | Dot | Words])

    def area(self, corners: Sequence[Point], fill: str, *, hatched: bool = False) -> None:
        self.shapes.append(Area(tuple(corners), fill, hatched))

    def box(self, corner: Point, size: Point, fill: str, *, hatched: bool = False) -> None:
        (x, y), (width, height) = corner, size
        self.area([(x, y), (x + width, y), (x + width, y + height), (x, y + height)], fill, hatched=hatched)

    def line(self, points: Sequence[Point], colour: str = INK, width: float = 1) -> None:
        self.shapes.append(Line(tuple(points), colour, width))

    def dot(self, centre: Point, radius: float, colour: str) -> None:
        self.shapes.append(Dot(centre, radius, colour))

    def text(
        self,
        at: Point,
        text: str,
        *,
        anchor: Anchor = "start",
        size: int = 14,
        colour: str = INK,
        bold: bool = False,
    ) -> None:
        self.shapes.append(Words(at, text, anchor, size, colour, bold))

    def svg(self) -> str:
        """As an SVG file."""
        hatched = sorted({s.fill for s in self.shapes if isinstance(s, Area) and s.hatched})
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width} {self.height}" '
            f'width="{self.width}" height="{self.height}" font-family="{LETTERS}">'
        )
        card = f'<rect width="{self.width}" height="{self.height}" rx="12" fill="{SHEET}"/>'
        defs = f"<defs>{''.join(_pattern(colour) for colour in hatched)}</defs>"
        return "\n".join([head, defs, card, *map(_svg, self.shapes), "</svg>"]) + "\n"

    def image(self, *, scale: int = 2) -> Image.Image:
        """As a picture, `scale` pixels a unit."""
        image = Image.new("RGB", (self.width * scale, self.height * scale), SHEET)
        draw = ImageDraw.Draw(image)
        for shape in self.shapes:
            _paint(image, draw, shape, scale)
        return image


def words_width(text: str, size: int) -> float:
    """About how many units wide text is, whatever the letters."""
    return font(size).getlength(text) * 1.08


# -- SVG ---------------------------------------------------------------------------------------------


def _pattern(colour: str) -> str:
    half = HATCH / 2
    return (
        f'<pattern id="{_name(colour)}" width="{HATCH}" height="{HATCH}" patternUnits="userSpaceOnUse" '
        f'patternTransform="rotate(45)"><rect width="{HATCH}" height="{HATCH}" fill="{_pale(colour)}"/>'
        f'<rect width="{half:g}" height="{HATCH}" fill="{colour}"/></pattern>'
    )


def _name(colour: str) -> str:
    return f"hatch{colour.removeprefix('#')}"


def _points(points: Sequence[Point]) -> str:
    return " ".join(f"{x:.6g},{y:.6g}" for x, y in points)


def _svg(shape: Area | Line | Dot | Words) -> str:
    match shape:
        case Area(corners, fill, hatched):
            paint = f"url(#{_name(fill)})" if hatched else fill
            return f'<polygon points="{_points(corners)}" fill="{paint}"/>'
        case Line(points, colour, width):
            style = f'fill="none" stroke="{colour}" stroke-width="{width:g}"'
            return f'<polyline points="{_points(points)}" {style}/>'
        case Dot((x, y), radius, colour):
            return f'<circle cx="{x:.6g}" cy="{y:.6g}" r="{radius:g}" fill="{colour}"/>'
        case Words((x, y), text, anchor, size, colour, bold):
            style = f'text-anchor="{anchor}" font-size="{size}" fill="{colour}"'
            style += ' font-weight="600"' if bold else ""
            return f'<text x="{x:.6g}" y="{y:.6g}" {style}>{escape(text)}</text>'


# -- pixels ------------------------------------------------------------------------------------------


def _paint(
    image: Image.Image, draw: ImageDraw.ImageDraw, shape: Area | Line | Dot | Words, scale: int
) -> None:
    match shape:
        case Area(corners, fill, hatched):
            pixels = [(round(x * scale), round(y * scale)) for x, y in corners]
            if hatched:
                _paint_hatched(image, pixels, fill, scale)
            else:
                _fill(draw, pixels, fill)
        case Line(points, colour, width):
            pixels = [(x * scale, y * scale) for x, y in points]
            draw.line(pixels, fill=colour, width=max(1, round(width * scale)), joint="curve")
        case Dot((x, y), radius, colour):
            x, y, radius = x * scale, y * scale, radius * scale
            draw.ellipse((x - radius, y - radius, x + radius, y + radius), fill=colour)
        case Words((x, y), text, anchor, size, colour, bold):
            place = {"start": "ls", "middle": "ms", "end": "rs"}[anchor]
            stroke = 0.025 * size * scale if bold else 0
            letters = font(size * scale)
            draw.text((x * scale, y * scale), text, colour, font=letters, anchor=place, stroke_width=stroke)


def _fill(draw: ImageDraw.ImageDraw, corners: list[tuple[int, int]], fill: str | int) -> None:
    """A polygon without its last row and column: neighbours then meet and do not overlap."""
    (left, top), (right, bottom) = map(min, zip(*corners, strict=True)), map(max, zip(*corners, strict=True))
    if len(corners) == 4 and {*corners} == {(left, top), (right, top), (right, bottom), (left, bottom)}:
        if right > left and bottom > top:
            draw.rectangle((left, top, right - 1, bottom - 1), fill=fill)
    else:
        draw.polygon(corners, fill=fill)


def _paint_hatched(image: Image.Image, corners: list[tuple[int, int]], colour: str, scale: int) -> None:
    left, top = (min(side) for side in zip(*corners, strict=True))
    right, bottom = (max(side) for side in zip(*corners, strict=True))
    if right <= left or bottom <= top:
        return
    mask = Image.new("L", (right - left, bottom - top))
    _fill(ImageDraw.Draw(mask), [(x - left, y - top) for x, y in corners], 255)
    image.paste(_stripes(mask.size, colour, scale), (left, top), mask)


def _stripes(size: tuple[int, int], colour: str, scale: int) -> Image.Image:
    """Stripes that rise to the right, drawn four times as large and made smaller to be smooth."""
    step = HATCH * scale * 2**0.5  # from stripe to stripe along a row
    tile = Image.new("RGB", (round(step) * 4, round(step) * 4), _pale(colour))
    draw, side = ImageDraw.Draw(tile), tile.width
    for start in range(-side, side, side):
        half = side / 2
        draw.polygon(
            [(start, side), (start + half, side), (start + half + side, 0), (start + side, 0)], fill=colour
        )
    small = tile.resize((round(step), round(step)), Image.Resampling.LANCZOS)
    stripes = Image.new("RGB", size)
    for x in range(0, size[0], small.width):
        for y in range(0, size[1], small.height):
            stripes.paste(small, (x, y))
    return stripes


def _pale(colour: str) -> str:
    """The colour thinned with white."""
    red, green, blue = ImageColor.getrgb(colour)[:3]
    mixed = (round(255 - (255 - level) * PALE) for level in (red, green, blue))
    return "#" + "".join(f"{level:02x}" for level in mixed)
