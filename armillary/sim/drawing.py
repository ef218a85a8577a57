"""Anti-aliased pictures of the table-top, from signed distances, all frames of a clip at once.

Shapes in suffixes: T frames, H rows, W columns, C colours.
"""

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from armillary.sim.physics import EXTENTS, PUSHER_RADIUS, SIZE, WALL, Background, Floats, Object, Shape

Colour = tuple[int, int, int]
COLOURS: Final[dict[str, Colour]] = {
    "red": (220, 40, 40),
    "green": (40, 165, 70),
    "blue": (40, 90, 225),
    "yellow": (245, 205, 20),
    "purple": (150, 60, 190),
    "orange": (250, 130, 30),
}
GROUNDS: Final[dict[Background, Colour]] = {"table": (236, 226, 208), "ice": (214, 234, 244)}
WALL_COLOUR: Final[Colour] = (140, 140, 150)
PUSHER_COLOUR: Final[Colour] = (12, 12, 14)
TRAIL_COLOUR: Final[Colour] = (70, 110, 150)

# A sliding thing's trail reaches this far behind its middle, so that one picture tells where it goes, and how
# fast.
TRAIL_LENGTH: Final = 10.5  # px, and besides
TRAIL_SECONDS: Final = 0.2  # times its speed
_TRAIL_HALF_WIDTH = 5.0
_GRID = np.arange(SIZE, dtype=np.float32) + 0.5


def _offsets(centre_T2: Floats) -> tuple[Floats, Floats]:
    x_T1W = _GRID[None, None, :] - centre_T2[:, 0, None, None]
    y_TH1 = _GRID[None, :, None] - centre_T2[:, 1, None, None]
    return x_T1W, y_TH1


def distance(shape: Shape, centre_T2: Floats) -> Floats:
    """Signed distance [T, H, W] in px from each pixel's middle to the shape's edge, negative inside."""
    x_T1W, y_TH1 = _offsets(centre_T2)
    width, height = EXTENTS[shape]
    if shape == "disc":
        return np.sqrt(x_T1W**2 + y_TH1**2) - np.float32(width)
    if shape == "square":
        return np.maximum(np.abs(x_T1W) - np.float32(width), np.abs(y_TH1) - np.float32(height))
    slope = np.float32(np.hypot(2 * height, width))
    side = (np.abs(x_T1W) * np.float32(2 * height) - (y_TH1 + np.float32(height)) * np.float32(width)) / slope
    return np.maximum(side, y_TH1 - np.float32(height))


def trail(centre_T2: Floats, velocity_T2: Floats) -> Floats:
    """Opacity [T, H, W] of the streak behind a sliding object, fading with distance; none at rest."""
    speed_T = np.hypot(velocity_T2[:, 0], velocity_T2[:, 1])
    along_T2 = velocity_T2 / np.maximum(speed_T, np.float32(1e-6))[:, None]
    x_T1W, y_TH1 = _offsets(centre_T2)
    ux_T11, uy_T11 = along_T2[:, 0, None, None], along_T2[:, 1, None, None]
    behind_THW = -(x_T1W * ux_T11 + y_TH1 * uy_T11)
    across_THW = np.abs(x_T1W * uy_T11 - y_TH1 * ux_T11)
    reach_T11 = (np.float32(TRAIL_LENGTH) + speed_T * np.float32(TRAIL_SECONDS))[:, None, None]
    inside_THW = np.clip(np.float32(_TRAIL_HALF_WIDTH + 0.5) - across_THW, 0, 1)
    inside_THW *= np.clip(reach_T11 + np.float32(0.5) - behind_THW, 0, 1) * (behind_THW > 0).astype(
        np.float32
    )
    fade_THW = np.float32(0.85) - np.float32(0.5) * np.clip(behind_THW / reach_T11, 0, 1)
    shown_T11 = (speed_T > 1.0).astype(np.float32)[:, None, None]
    return np.asarray(inside_THW * fade_THW * shown_T11, np.float32)


def _paint(canvas_THWC: Floats, opacity_THW: Floats, colour: Colour) -> None:
    canvas_THWC += opacity_THW[..., None] * (np.asarray(colour, np.float32) - canvas_THWC)


def _cover(distance_THW: Floats) -> Floats:
    return np.clip(np.float32(0.5) - distance_THW, 0, 1)


def _walls(background: Background) -> Floats:
    ground_HWC = np.empty((SIZE, SIZE, 3), np.float32)
    ground_HWC[:] = WALL_COLOUR
    edge = int(WALL)
    ground_HWC[edge:-edge, edge:-edge] = GROUNDS[background]
    return ground_HWC


def draw(
    objects: Sequence[Object],
    positions: Floats,
    *,
    background: Background = "table",
    velocities: Floats | None = None,
    pusher: Floats | None = None,
    colours: Mapping[str, Colour] = COLOURS,
) -> NDArray[np.uint8]:
    """Pictures uint8 [T, 64, 64, 3] of objects at `positions` [T, n, 2].

    `velocities` [T, n, 2] draw a trail behind what slides on ice; `pusher` [T, 2] draws the pusher on top;
    `colours` are what the objects' colours look like.
    """
    ground_HWC = _walls(background)
    canvas_THWC = np.repeat(ground_HWC[None], len(positions), axis=0)
    if background == "ice" and velocities is not None:
        for i in range(len(objects)):
            if np.any(velocities[:, i]):
                _paint(canvas_THWC, trail(positions[:, i], velocities[:, i]), TRAIL_COLOUR)
        edge = int(WALL)
        inner_THWC = canvas_THWC[:, edge:-edge, edge:-edge].copy()
        canvas_THWC[:] = ground_HWC
        canvas_THWC[:, edge:-edge, edge:-edge] = inner_THWC
    for i, thing in enumerate(objects):
        _paint(canvas_THWC, _cover(distance(thing.shape, positions[:, i])), colours[thing.colour])
    if pusher is not None:
        x_T1W, y_TH1 = _offsets(pusher)
        _paint(canvas_THWC, _cover(np.sqrt(x_T1W**2 + y_TH1**2) - np.float32(PUSHER_RADIUS)), PUSHER_COLOUR)
    return np.rint(canvas_THWC).astype(np.uint8)
