"""What the reasoner answers: text, and the boxes, points, paths and events in it, in a person's units."""

import json
import math
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple, cast

from PIL import Image

from armillary import arguments
from armillary.errors import BadRequest
from armillary.media.draw import DARK, GAP, draw_boxes, draw_events, draw_paths, draw_points
from armillary.media.encode import replacing
from armillary.media.source import Pixels
from armillary.tools import ToolCall

SCALE = 1000  # the model counts each side of a picture from 0 to this
OPENING = re.compile(r"[\[{\s]+")
RUN = 64  # characters of such a run, at most, that are looked at one by one
LARGEST_SIDE = {".jpg": 65500, ".jpeg": 65500, ".webp": 16383}  # pixels
SUFFIXES = (".png", ".jpg", ".jpeg", ".webp")
TRAJECTORY = "trajectory"  # points whose label says so are one path, in their order


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
class Trajectory:
    """A labelled path through points (x, y) in pixels of the source picture, first to last."""

    points: tuple[tuple[float, float], ...]
    label: str = ""


@dataclass(frozen=True)
class Event:
    """Something that happens in a clip, from `start` to `end` in seconds."""

    start: float
    end: float
    caption: str = ""


class Film(NamedTuple):
    """Frames of a clip that were looked at, few and small, uint8 [T, H, W, 3], and their times in seconds."""

    frames: Pixels
    times_s: tuple[float, ...]


@dataclass(frozen=True)
class Usage:
    """Tokens read and tokens written, thinking included."""

    prompt_tokens: int
    completion_tokens: int


@dataclass(frozen=True)
class TokenLogprob:
    """A token that was written and its log-probability; `top` are the likeliest ones in its place."""

    id: int
    spelling: bytes  # often no whole character
    logprob: float
    top: tuple["TokenLogprob", ...] = ()

    @property
    def text(self) -> str:
        """The spelling, U+FFFD where it is no whole character."""
        return self.spelling.decode(errors="replace")


@dataclass(frozen=True, eq=False)
class Answer:
    """An answer of the reasoner. Boxes, points and trajectories lie on `picture`: the last one shown, or a
    clip's first frame. `film` is the last clip, as far as it was looked at."""

    text: str
    usage: Usage
    finish_reason: Literal["stop", "length"]
    thinking: str = ""
    boxes: tuple[Box, ...] = ()
    points: tuple[Point, ...] = ()
    trajectories: tuple[Trajectory, ...] = ()
    events: tuple[Event, ...] = ()
    receipt: Mapping[str, Any] = field(default_factory=dict[str, Any])
    picture: Pixels | None = field(default=None, repr=False)
    film: Film | None = field(default=None, repr=False)
    others: tuple["Answer", ...] = ()  # to the same question, if `n` were asked for
    tool_calls: tuple[ToolCall, ...] = ()  # what it asks to be called, if it was shown `tools`
    parsed: Any = None  # by the `schema`; None for text that was cut: the receipt's `parsed` says why
    logprobs: tuple[TokenLogprob, ...] = ()  # of all tokens, thinking and end included, if asked for

    def draw(self, path: str | os.PathLike[str]) -> None:
        """Paint what was found and save it: boxes, points and trajectories on the picture, events as a
        timeline under the frames of the clip. Raises BadRequest if there are none, or for a path that is no
        picture's."""
        path = arguments.path(path, "path")
        if self.picture is None:
            raise BadRequest("picture", None, "the question came without a picture or clip to draw on")
        parts: list[Image.Image] = []
        if self.boxes or self.points or self.trajectories:
            parts.append(self._marked(self.picture))
        if self.events and self.film:
            spans_s = [(e.start, e.end) for e in self.events]
            parts.append(draw_events(*self.film, spans_s, labels=[e.caption for e in self.events]))
        if not parts:
            raise BadRequest("answer", self.text, "holds no boxes, points or events to draw")
        _save(_stacked(parts), path)

    def _marked(self, picture: Pixels) -> Image.Image:
        boxes = [(b.x1, b.y1, b.x2, b.y2) for b in self.boxes]
        canvas = draw_boxes(picture, boxes, labels=[b.label for b in self.boxes])
        factor = canvas.width / picture.shape[1]
        paths = [[(x * factor, y * factor) for x, y in t.points] for t in self.trajectories]
        canvas = draw_paths(canvas, paths, labels=[t.label for t in self.trajectories])
        points = [(p.x * factor, p.y * factor) for p in self.points]
        return draw_points(canvas, points, labels=[p.label for p in self.points])


def _stacked(parts: list[Image.Image]) -> Image.Image:
    """Pictures one below the other."""
    if len(parts) == 1:
        return parts[0]
    height = sum(part.height for part in parts) + GAP * (len(parts) - 1)
    canvas, top = Image.new("RGB", (max(part.width for part in parts), height), DARK), 0
    for part in parts:
        canvas.paste(part, ((canvas.width - part.width) // 2, top))
        top += part.height + GAP
    return canvas


def _save(canvas: Image.Image, path: Path) -> None:
    if path.suffix.lower() not in SUFFIXES:
        raise BadRequest("path", str(path), "the name of a picture ends in .png, .jpg or .webp")
    most = LARGEST_SIDE.get(path.suffix.lower())
    if most and max(canvas.size) > most:
        size = f"{canvas.width}x{canvas.height}"
        raise BadRequest(
            "path", str(path), f"{size} pixels; a {path.suffix} has {most} a side at most: use .png"
        )
    with replacing(path) as temporary:
        canvas.save(temporary)


@dataclass(frozen=True)
class Marks:
    """What was found in a text."""

    boxes: tuple[Box, ...] = ()
    points: tuple[Point, ...] = ()
    trajectories: tuple[Trajectory, ...] = ()
    events: tuple[Event, ...] = ()


def find_marks(text: str, size: tuple[int, int] | None) -> Marks:
    """Boxes, points, trajectories and events in the JSON of an answer, fenced or bare, whole or cut off.

    `size` is (height, width) of the source picture in pixels; without it there are events only. Coordinates
    0-1000 become pixels, each axis for itself, in the picture. Points that share a label with the word
    "trajectory" are one. Malformed marks are passed over.
    """
    items = [item for value in _json_values(text) for item in _items(value)]
    boxes = (_box(item, size) for item in items if size)
    points = [point for item in items if size and (point := _point(item, size))]
    paths: dict[str, list[tuple[float, float]]] = {}
    for point in points:
        if TRAJECTORY in point.label.lower():
            paths.setdefault(point.label, []).append((point.x, point.y))
    trajectories = tuple(Trajectory(tuple(path), label) for label, path in paths.items() if len(path) > 1)
    on_paths = {trajectory.label for trajectory in trajectories}
    return Marks(
        tuple(filter(None, boxes)),
        tuple(point for point in points if point.label not in on_paths),
        trajectories,
        tuple(filter(None, map(_event, items))),
    )


def _json_values(text: str) -> Iterator[Any]:
    """Every outermost JSON list or object in the text; of a broken one, the whole values inside."""
    decoder, at = json.JSONDecoder(), 0
    while at < len(text):
        if text[at] in "[{":
            try:
                value, at = decoder.raw_decode(text, at)
            except ValueError:  # no JSON, or a number longer than Python reads
                pass
            except RecursionError:  # of a run of brackets only the last may hold something that ends
                at = max(at, OPENING.match(text, at).end() - RUN)  # pyright: ignore[reportOptionalMemberAccess]
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
    numbers = [_number(v) for v in cast("list[Any]", value)]
    return [n for n in numbers if n is not None] if None not in numbers else None


def _number(value: Any) -> float | None:
    """A finite number, as a float; None for what is none, and for whole numbers that no float holds."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    with suppress(OverflowError):
        return float(value) if math.isfinite(value) else None
    return None


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
    number = _number(value)
    return number if number is not None and number >= 0 else None
