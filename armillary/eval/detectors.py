"""Classical detectors: which objects a picture of the table-top shows, and which tones a sound holds.

They know the world's palette, shapes and pitches, and nothing of any model. A picture is cut by colour;
each piece is compared with templates of the three shapes. A sound is followed in three narrow bands; an
onset is where one rises.

Shape letters: T frames, H W height and width, G colours of the palette, M templates, C audio channels, N
samples, S steps of an envelope, B pitch bands.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from armillary.media.source import Pixels
from armillary.sim.audio import PITCHES, SAMPLE_RATE
from armillary.sim.drawing import COLOURS, GROUNDS, PUSHER_COLOUR, TRAIL_COLOUR, WALL_COLOUR, distance
from armillary.sim.physics import EXTENTS, PUSHER_RADIUS, Event, Floats, Object, Point, Shape

_LIKE = 80.0  # RGB distance within which a pixel has a colour of the palette
_ON_LINE = 50.0  # RGB distance from the mixtures of ground and colour within which an edge pixel is one
_LEAST_AREA = 60.0  # px; the smallest object has 189
_DARK, _BLACK = 105.0, 14.0  # the brightest channel of what may be the pusher's edge, and of its middle
_REACH = np.arange(-1.5, 1.6, 0.5)  # px around the centre of mass that templates are tried at
_HALF = 13  # px; half the side of the window that holds any object

# Where the middle of the bounding box lies from the centre of mass: a triangle is heavy at its base.
_BOX_FROM_MASS: Final[dict[Shape, float]] = {
    "disc": 0.0,
    "square": 0.0,
    "triangle": -EXTENTS["triangle"][1] / 3,
}


@dataclass(frozen=True, slots=True)
class Seen:
    """An object in a picture: `x`, `y` in px are the middle of its bounding box; `fit` (0..1) is the best
    template's."""

    colour: str
    shape: Shape
    x: float
    y: float
    fit: float

    @property
    def kind(self) -> Object:
        return Object(self.colour, self.shape)

    @property
    def place(self) -> Point:
        return self.x, self.y


@dataclass(frozen=True, slots=True)
class Scene:
    """What a picture shows: objects from left to right, and the pusher's middle in px if it is there."""

    objects: tuple[Seen, ...]
    pusher: Point | None

    def of_colour(self, colour: str) -> Seen | None:
        """The best fitting object of that colour."""
        return max((o for o in self.objects if o.colour == colour), key=lambda o: o.fit, default=None)


def look(picture_HW3: Pixels) -> Scene:
    """Objects and pusher of one picture, uint8 [64, 64, 3]."""
    frame_HW3 = picture_HW3.astype(np.float32)
    label_HW, ground_3 = _labels(frame_HW3), _ground(frame_HW3)
    found = list[Seen]()
    for number, colour in enumerate(COLOURS):
        for piece_HW in _pieces(label_HW == number):
            mass_HW = _mass(frame_HW3, piece_HW, label_HW, ground_3, number)
            if mass_HW.sum() >= _LEAST_AREA:
                found.append(_fit(colour, mass_HW))
    return Scene(tuple(sorted(found, key=lambda o: o.x)), find_pusher(frame_HW3))


def watch(frames_THW3: Pixels) -> list[Scene]:
    """`look` at every frame of a clip."""
    return [look(frame_HW3) for frame_HW3 in frames_THW3]


_PALETTE: Final = np.array(
    [*COLOURS.values(), *GROUNDS.values(), WALL_COLOUR, PUSHER_COLOUR, TRAIL_COLOUR], np.float32
)


def _labels(frame_HW3: Floats) -> NDArray[np.int64]:
    """The nearest palette colour of each pixel, -1 where none is near."""
    squares_HWG = _squares(frame_HW3, _PALETTE)
    return np.where(squares_HWG.min(-1) < _LIKE**2, squares_HWG.argmin(-1), -1)


def _squares(frame_HW3: Floats, colours_G3: Floats) -> Floats:
    """Squared RGB distance of each pixel from each colour."""
    own_HW1 = (frame_HW3**2).sum(-1, keepdims=True)
    return own_HW1 - 2 * frame_HW3 @ colours_G3.T + (colours_G3**2).sum(-1)


def _ground(frame_HW3: Floats) -> Floats:
    """The colour of the ground that more pixels are like."""
    grounds = np.array(list(GROUNDS.values()), np.float32)
    squares_HWG = _squares(frame_HW3, grounds)
    return grounds[np.bincount(squares_HWG.argmin(-1)[squares_HWG.min(-1) < 40**2], minlength=2).argmax()]


def _pieces(mask_HW: NDArray[np.bool_]) -> Iterable[NDArray[np.bool_]]:
    """Connected pieces of a mask, four neighbours a pixel, crumbs left out."""
    left = {(int(y), int(x)) for y, x in zip(*mask_HW.nonzero(), strict=True)}
    while left:
        waiting, piece = [left.pop()], list[tuple[int, int]]()
        while waiting:
            y, x = waiting.pop()
            piece.append((y, x))
            near = {(y - 1, x), (y + 1, x), (y, x - 1), (y, x + 1)} & left
            left -= near
            waiting += near
        if len(piece) >= _LEAST_AREA / 2:
            piece_HW = np.zeros_like(mask_HW)
            piece_HW[tuple(np.array(piece).T)] = True
            yield piece_HW


def _mass(
    frame_HW3: Floats, piece_HW: NDArray[np.bool_], label_HW: NDArray[np.int64], ground_3: Floats, number: int
) -> Floats:
    """How much of each pixel the object covers, 0..1: its piece, and at its edge the share of its colour."""
    line_3 = _PALETTE[number] - ground_3
    from_ground_HW3 = frame_HW3 - ground_3
    share_HW = np.clip(from_ground_HW3 @ line_3 / (line_3 @ line_3), 0, 1)
    aside_HW = np.sqrt(((from_ground_HW3 - share_HW[..., None] * line_3) ** 2).sum(-1))
    others_HW = (label_HW >= 0) & (label_HW != number) & (label_HW < len(COLOURS)) & (aside_HW > _ON_LINE / 2)
    edge_HW = _grown(piece_HW) & ~piece_HW & ~others_HW & (aside_HW < _ON_LINE)
    return np.where(piece_HW, np.maximum(share_HW, 0.75), share_HW * edge_HW).astype(np.float32)


def _grown(mask_HW: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """The mask and its neighbours, corners included."""
    wide = np.pad(mask_HW, 1)
    rows = wide[:-2] | wide[1:-1] | wide[2:]
    return rows[:, :-2] | rows[:, 1:-1] | rows[:, 2:]


def _fit(colour: str, mass_HW: Floats) -> Seen:
    """The shape whose template covers the mass best (intersection over union), and where."""
    y, x = _centre(mass_HW)
    best = ("disc", x, y, -1.0)
    for shape in EXTENTS:
        middle = y + _BOX_FROM_MASS[shape]
        left, top = math.floor(x) - _HALF, math.floor(middle) - _HALF
        window_HW = np.pad(mass_HW, _HALF + 4)[top + _HALF + 4 :, left + _HALF + 4 :]
        window_HW = window_HW[: 2 * _HALF + 1, : 2 * _HALF + 1]
        places_M2, covers_MHW = _templates(shape, _eighth(x), _eighth(middle))
        both = np.minimum(covers_MHW, window_HW).sum((1, 2))
        fit_M = both / np.maximum(covers_MHW, window_HW).sum((1, 2))
        m = int(fit_M.argmax())
        if fit_M[m] > best[3]:
            best = (shape, left + float(places_M2[m, 0]), top + float(places_M2[m, 1]), float(fit_M[m]))
    shape, x, y, fit = best
    return Seen(colour, shape, x, y, fit)  # pyright: ignore[reportArgumentType] - a key of EXTENTS


def _centre(mass_HW: Floats) -> Point:
    total = mass_HW.sum()
    rows, columns = (np.arange(n, dtype=np.float32) + 0.5 for n in mass_HW.shape)
    return float((mass_HW.sum(1) * rows).sum() / total), float((mass_HW.sum(0) * columns).sum() / total)


def _eighth(value: float) -> float:
    """The part of a coordinate behind the point, in eighths: so few templates are ever made."""
    return min(round((value - math.floor(value)) * 8), 7) / 8


@cache
def _templates(shape: Shape, x: float, y: float) -> tuple[Floats, Floats]:
    """Places [M, 2] within a window around (_HALF + x, _HALF + y), and what the shape covers there [M, H,
    W]."""
    places_M2 = np.array(
        [(_HALF + x + right, _HALF + y + down) for down in _REACH for right in _REACH], np.float32
    )
    side = 2 * _HALF + 1
    covers_MHW = np.clip(0.5 - distance(shape, places_M2)[:, :side, :side], 0, 1)
    return places_M2, covers_MHW


def find_pusher(frame_HW3: Floats | Pixels) -> Point | None:
    """The middle of the largest dark piece, if it is about as large as the pusher."""
    dark_HW = np.clip((_DARK - frame_HW3.max(-1)) / (_DARK - _BLACK), 0, 1)
    piece_HW = max(_pieces(dark_HW > 0.3), key=lambda p: p.sum(), default=None)
    if piece_HW is None or not 0.45 < (dark_HW * piece_HW).sum() / (math.pi * PUSHER_RADIUS**2) < 1.8:
        return None
    y, x = _centre(dark_HW * _grown(piece_HW))
    return x, y


# Sound

_STEP, _WINDOW = 0.005, 0.02  # seconds
_RISE = 0.05  # amplitude that a band must gain; the quietest collision has 0.15
_SHARE = 0.45  # of the loudest band's gain, below which a gain is only leakage from that band
_APART = 0.131  # seconds within which a pitch that begins again only rings on
_TOGETHER = 0.03  # seconds within which tones make one onset


@dataclass(frozen=True, slots=True)
class Onset:
    """A moment at which one or more tones begin: time in seconds, and the shapes whose pitch they have."""

    time: float
    shapes: frozenset[Shape]


def onsets(sound_CN: Floats, sample_rate: int = SAMPLE_RATE) -> list[Onset]:
    """The onsets of a sound float32 [C, N], earliest first."""
    level_BS = _envelopes(sound_CN, sample_rate)
    lag = round(1.25 * _WINDOW / _STEP)
    rise_BS = np.maximum(level_BS - np.pad(level_BS, ((0, 0), (lag, 0)))[:, :-lag], 0.0)
    near = round(_TOGETHER / _STEP)
    loudest_S = _running_max(rise_BS.max(0), near)
    tones: list[tuple[float, Shape]] = [
        (step * _STEP, shape)
        for shape, rise_S in zip(PITCHES, rise_BS, strict=True)
        for step in _peaks(np.where(rise_S >= _SHARE * loudest_S, rise_S, 0.0))
    ]
    return gather(tones)


def gather(tones: Iterable[tuple[float, Shape]]) -> list[Onset]:
    """Tones (seconds, shape) as an ear parts them: those that begin together make one onset, and a pitch
    that begins again while it still rings makes none."""
    found, begun = list[tuple[float, set[Shape]]](), dict[Shape, float]()
    for time, shape in sorted(tones):
        if time - begun.get(shape, -1.0) <= _APART:
            continue
        begun[shape] = time
        if found and time - found[-1][0] <= _TOGETHER:
            found[-1][1].add(shape)
        else:
            found.append((time, {shape}))
    return [Onset(time, frozenset(shapes)) for time, shapes in found]


def heard(events: Sequence[Event], objects: Sequence[Object]) -> list[Onset]:
    """The onsets that a recording's collisions make."""
    return gather((event.time, objects[i].shape) for event in events for i in event.objects)


def _envelopes(sound_CN: Floats, sample_rate: int) -> Floats:
    """Amplitude of each pitch, both channels together, [B, S]; step s looks at the window that begins at s
    * _STEP."""
    hop, width = round(_STEP * sample_rate), round(_WINDOW * sample_rate)
    padded_CN = np.pad(sound_CN, ((0, 0), (0, width)))
    windows_CSW = np.lib.stride_tricks.sliding_window_view(padded_CN, width, axis=1)[:, ::hop]
    time_W = np.arange(width) / sample_rate
    hann_W = np.hanning(width)
    waves_WB = hann_W[:, None] * np.exp(-2j * math.pi * np.outer(time_W, list(PITCHES.values())))
    level_CSB = np.abs(windows_CSW @ waves_WB) * (2 / hann_W.sum())
    return np.sqrt((level_CSB**2).sum(0)).T.astype(np.float32)


def _running_max(values_S: Floats, reach: int) -> Floats:
    padded = np.pad(values_S, reach)
    return np.lib.stride_tricks.sliding_window_view(padded, 2 * reach + 1).max(-1)


def _peaks(rise_S: Floats) -> Iterable[int]:
    """Steps at which the sound begins to rise: half way up to each peak."""
    top_S = _running_max(rise_S, round(_TOGETHER / _STEP))
    for peak in np.flatnonzero((rise_S >= top_S) & (rise_S >= _RISE)).tolist():
        start = peak
        while start and rise_S[start - 1] >= rise_S[peak] / 2:
            start -= 1
        yield start + round(_WINDOW / _STEP / 2)


def score_onsets(
    found: Sequence[Onset], wanted: Sequence[Onset], tolerance: float
) -> tuple[int, int, int, int]:
    """Found rightly, found wrongly, missed, and of the rightly found those with exactly the right pitches.

    Each wanted onset takes the nearest free one within `tolerance` seconds.
    """
    free, right, pitched = list(found), 0, 0
    for onset in wanted:
        match = min(free, key=lambda o: abs(o.time - onset.time), default=None)
        if match is not None and abs(match.time - onset.time) <= tolerance:
            free.remove(match)
            right += 1
            pitched += match.shapes == onset.shapes
    return right, len(free), len(wanted) - right, pitched
