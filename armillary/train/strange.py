"""Pictures of things that have no name: known shapes in any colour, blobs in known colours.

Some colours and shapes are never trained together. Who has seen shapes only in the other colours takes the
colour for a sign of the shape; who has seen them in every colour does not. The colours never come near the
one that would make such a pair.
"""

import colorsys
import math
from random import Random
from typing import Final

import numpy as np
from numpy.typing import NDArray

from armillary.sim.drawing import COLOURS, GROUNDS, Colour, draw
from armillary.sim.physics import SIZE, Shape
from armillary.sim.scenes import HELD_OUT_PAIRS, Episode

_UNLIKE_GROUND: Final = 90.0  # least distance in RGB
_OTHER_HUE: Final = 25 / 360  # least distance of hues, where there is enough colour to see one
_COLOURFUL: Final = 0.25
_LOBES: Final = (2, 5, 6, 8)  # neither three nor four: those are like triangles and squares
_GRID = np.arange(SIZE) + 0.5


def in_strange_colours(e: Episode, rng: Random) -> NDArray[np.uint8]:
    """The first frame, uint8 [64, 64, 3], with each object in any colour."""
    colours = {o.colour: strange_colour(o.shape, rng) for o in e.objects}
    return draw(e.objects, e.positions[:1], background=e.background, colours=colours)[0]


def strange_colour(shape: Shape, rng: Random) -> Colour:
    """Any colour that stands out, and with this shape is unlike every pair never trained together."""
    apart = [_hsv(COLOURS[pair.colour])[0] for pair in HELD_OUT_PAIRS if pair.shape == shape]
    while True:
        hue, saturation, value = rng.random(), rng.random() ** 0.5, rng.uniform(0.3, 1.0)
        red, green, blue = (round(255 * x) for x in colorsys.hsv_to_rgb(hue, saturation, value))
        found = red, green, blue
        if min(math.dist(found, ground) for ground in GROUNDS.values()) > _UNLIKE_GROUND and (
            saturation < _COLOURFUL or all(_turn(hue, other) > _OTHER_HUE for other in apart)
        ):
            return found


def _hsv(colour: Colour) -> tuple[float, float, float]:
    red, green, blue = (x / 255 for x in colour)
    return colorsys.rgb_to_hsv(red, green, blue)


def _turn(a: float, b: float) -> float:
    """The distance of two hues, 0 to 0.5."""
    return abs((a - b + 0.5) % 1 - 0.5)


def in_strange_shapes(e: Episode, rng: Random) -> NDArray[np.uint8]:
    """The first frame, uint8 [64, 64, 3], with a blob in the place and colour of each object."""
    canvas_HW3 = draw((), e.positions[:1], background=e.background)[0].astype(np.float64)
    for thing, place in zip(e.objects, e.positions[0].tolist(), strict=True):
        cover_HW1 = _blob(place, rng)[..., None]
        canvas_HW3 += cover_HW1 * (np.array(COLOURS[thing.colour]) - canvas_HW3)
    return np.rint(canvas_HW3).astype(np.uint8)


def _blob(place: list[float], rng: Random) -> NDArray[np.float64]:
    """Opacity [H, W] of a closed curve with a few lobes."""
    x, y = _GRID[None] - place[0], _GRID[:, None] - place[1]
    lobes, depth, turn = rng.choice(_LOBES), rng.uniform(0.2, 0.45), rng.uniform(0, 2 * math.pi)
    radius = rng.uniform(6.5, 8.0) * (1 + depth * np.cos(lobes * np.arctan2(y, x) + turn))
    return np.clip(0.5 + radius - np.hypot(x, y), 0, 1)
