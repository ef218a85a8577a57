"""What the reasoner answers: text, and the boxes, points and events that it wrote, in a person's units."""

import json
import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from PIL import Image

from armillary.errors import BadRequest
from armillary.media.draw import draw_boxes, draw_points
from armillary.media.source import Pixels

SCALE = 1000  # the model counts each side of a picture from 0 to this


@dataclass(frozen=True)
class Box:
    """A labelled box in pixels of the source picture, origin at the top left."""

    x1: float
    y1: float
    x2: float
    y2: float
    label: str = ""


@dataclass(frozen=True)
class Point:
    """A labelled point in pixels of the source picture."""

    x: float
    y: float
    label: str = ""


@dataclass(frozen=True)
class Event:
    """Something that happens in a clip, from `start` to `end` in seconds."""

    start: float
    end: float
    caption: str = ""


@dataclass(frozen=True)
class Usage:
    """Tokens read and tokens written, thinking included."""

    prompt_tokens: int
    completion_tokens: int


@dataclass(frozen=True, eq=False)
class Answer:
    """An answer of the reasoner. Boxes and points lie on `picture`: the last one, or a clip's first frame."""

    text: str
    usage: Usage
    finish_reason: Literal["stop", "length"]
    thinking: str = ""
    boxes: tuple[Box, ...] = ()
    points: tuple[Point, ...] = ()
    events: tuple[Event, ...] = ()
    receipt: Mapping[str, Any] = field(default_factory=dict[str, Any])
    picture: Pixels | None = field(default=None, repr=False)

    def draw(self, path: str | os.PathLike[str]) -> None:
        """Paint boxes and points on the picture and save it. Raises BadRequest if there are none."""
        if self.picture is None:
            raise BadRequest("picture", None, "the question came without a picture or clip to draw on")
        if not self.boxes and not self.points:
            raise BadRequest("answer", self.text, "holds no boxes and no points to draw")
        canvas = draw_boxes(
            self.picture, [(b.x1, b.y1, b.x2, b.y2) for b in self.boxes], labels=[b.label for b in self.boxes]
        )
        if self.points:
            factor = canvas.width / self.picture.shape[1]
            places = [(p.x * factor, p.y * factor) for p in self.points]
            canvas = draw_points(canvas, places, labels=[p.label for p in self.points])
        _save(canvas, path)


def _save(canvas: Image.Image, path: str | os.PathLike[str]) -> None:
    legal = Image.registered_extensions()
    if Path(path).suffix.lower() not in legal:
        raise BadRequest("path", str(path), "the name of a picture ends in .png, .jpg or .webp")
    canvas.save(path)


@dataclass(frozen=True)
class Marks:
    """What was found in a text."""

    boxes: tuple[Box, ...]
    points: tuple[Point, ...]
    events: tuple[Event, ...]


def find_marks(text: str, size: tuple[int, int] | None) -> Marks:
    """Boxes, points and events in the JSON of an answer, fenced or bare, whole or cut off by the token limit.

    `size` is (height, width) of the source picture in pixels; without it there are no boxes or points.
    Coordinates 0-1000 become pixels, each axis for itself, in the picture. Malformed ones are passed over.
    """
    items = [item for value in _json_values(text) for item in _items(value)]
    boxes = (_box(item, size) for item in items if size)
    points = (_point(item, size) for item in items if size)
    events = (_event(item) for item in items)
    return Marks(tuple(filter(None, boxes)), tuple(filter(None, points)), tuple(filter(None, events)))


def _json_values(text: str) -> Iterator[Any]:
    """Every outermost JSON list or object in the text; of a broken one, the whole values inside."""
    decoder, at = json.JSONDecoder(), 0
    while at < len(text):
        if text[at] in "[{":
            try:
                value, at = decoder.raw_decode(text, at)
            except (json.JSONDecodeError, RecursionError):
                pass
            else:
                yield value
                continue
        at += 1


def _items(value: Any) -> Iterator[Mapping[str, Any]]:
    """Every object in a JSON value, outermost first."""
    waiting = [value]
    while waiting:
        value = waiting.pop(0)
        if isinstance(value, Mapping):
            yield value
            waiting += [v for v in value.values() if isinstance(v, Mapping | list)]
        elif isinstance(value, list):
            waiting += value


def _numbers(value: Any, count: int) -> list[float] | None:
    if not isinstance(value, list) or len(value) != count:
        return None
    if not all(isinstance(v, int | float) and not isinstance(v, bool) and math.isfinite(v) for v in value):
        return None
    return [float(v) for v in value]


def _pixel(value: float, side: int) -> float:
    return min(max(value, 0.0), SCALE) / SCALE * side


def _box(item: Mapping[str, Any], size: tuple[int, int]) -> Box | None:
    numbers = _numbers(item.get("bbox_2d"), 4)
    if numbers is None:
        return None
    x1, x2 = sorted(_pixel(v, size[1]) for v in numbers[::2])
    y1, y2 = sorted(_pixel(v, size[0]) for v in numbers[1::2])
    return Box(x1, y1, x2, y2, str(item.get("label", "")))


def _point(item: Mapping[str, Any], size: tuple[int, int]) -> Point | None:
    numbers = _numbers(item.get("point_2d"), 2)
    if numbers is None:
        return None
    return Point(_pixel(numbers[0], size[1]), _pixel(numbers[1], size[0]), str(item.get("label", "")))


def _event(item: Mapping[str, Any]) -> Event | None:
    start, end = (_seconds(item.get(key)) for key in ("start", "end"))
    if start is None or end is None:
        return None
    return Event(start, end, str(item.get("caption", item.get("label", ""))))


def _seconds(value: Any) -> float | None:
    """Seconds from a number, or from "ss.ff", "mm:ss.ff", "hh:mm:ss"."""
    if isinstance(value, str):
        try:
            parts = [float(part) for part in value.strip().removesuffix("s").split(":")]
        except ValueError:
            return None
        value = (
            sum(part * 60**power for power, part in enumerate(reversed(parts))) if len(parts) <= 3 else None
        )
    known = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if known and math.isfinite(value) and value >= 0 else None
