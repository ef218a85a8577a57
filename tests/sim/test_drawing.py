from itertools import pairwise

import numpy as np
import pytest

from armillary.sim.drawing import COLOURS, GROUNDS, PUSHER_COLOUR, WALL_COLOUR, draw
from armillary.sim.experts import DIRECTIONS, Direction
from armillary.sim.physics import EXTENTS, Object, Shape
from armillary.sim.scenes import episode


def trail(shape: Shape, velocity: tuple[float, float]) -> np.ndarray:
    """What the trail of a thing in the middle of the ice changes, [64, 64]."""
    place = np.full((1, 1, 2), 32, np.float32)
    pictures = [
        draw([Object("red", shape)], place, background="ice", velocities=np.array([[v]], np.float32))[0]
        for v in (velocity, (0.0, 0.0))
    ]
    return np.abs(pictures[0].astype(int) - pictures[1]).sum(-1)


def test_ground_walls_objects_and_pusher_have_their_colours():
    picture = draw(
        [Object("blue", "square")],
        np.array([[[20, 40]]], np.float32),
        pusher=np.array([[50, 20]], np.float32),
    )[0]
    assert tuple(picture[0, 30]) == tuple(picture[30, 63]) == WALL_COLOUR
    assert tuple(picture[10, 10]) == GROUNDS["table"]
    assert tuple(picture[40, 20]) == COLOURS["blue"]
    assert tuple(picture[20, 50]) == PUSHER_COLOUR


@pytest.mark.parametrize(("shape", "area"), [("disc", 283.5), ("square", 289), ("triangle", 189)])
def test_edges_are_smooth_so_that_the_covered_area_is_exact(shape: Shape, area: float):
    for offset in (0.0, 0.3, 0.77):
        place = np.array([[[32 + offset, 31 - offset]]], np.float32)
        red = draw([Object("blue", shape)], place)[0, 4:-4, 4:-4, 0].astype(float)
        ground, thing = GROUNDS["table"][0], COLOURS["blue"][0]
        assert ((ground - red) / (ground - thing)).sum() == pytest.approx(area, rel=0.03)


@pytest.mark.parametrize("shape", EXTENTS)
@pytest.mark.parametrize("way", DIRECTIONS)
def test_a_trail_shows_where_a_thing_goes_and_how_fast(shape: Shape, way: Direction):
    x, y = DIRECTIONS[way]
    amounts = []
    for speed in (8, 16, 24, 40):
        changed = trail(shape, (x * speed, y * speed))
        rows, columns = np.nonzero(changed)
        middle = np.array([columns.mean() - 31.5, rows.mean() - 31.5])
        assert middle @ (x, y) < -5
        assert abs(middle @ (y, x)) < 1
        amounts.append(changed.sum())
    assert all(b > 1.1 * a for a, b in pairwise(amounts))


def test_no_slide_starts_with_its_trail_in_the_wall():
    for seed in range(60):
        one = episode("slide", seed)
        mover = int(np.abs(one.velocities[0]).sum(1).argmax())
        velocity = one.velocities[0, mover]
        speed = np.hypot(*velocity)
        end = one.positions[0, mover] - velocity / speed * (10.5 + 0.2 * speed)
        assert (end > 1.9).all()
        assert (end < 62.1).all()
