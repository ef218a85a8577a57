import numpy as np
import pytest

from armillary.sim.physics import (
    EXTENTS,
    PUSHER_RADIUS,
    SIZE,
    WALL,
    Controller,
    Object,
    Point,
    Start,
    replay,
    simulate,
)

SINK = 0.55  # px; how far a thing at full speed may be inside another before the next substep moves it out


def steady(x: float, y: float) -> Controller:
    return lambda _positions, _pusher: (x, y)


def on_table(shape: str, place: Point, pusher: Point) -> Start:
    return Start((Object("red", shape),), (place,), pusher=pusher)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("shape", EXTENTS)
def test_a_pushed_object_goes_along_and_stops_when_the_pusher_does(shape: str):
    start = on_table(shape, (30.0, 32.0), (53.0, 32.0))
    run = replay(start, [(-40, 0)] * 4 + [(0, 0)] * 4)
    moved = run.positions[:, 0] - run.positions[0, 0]
    assert moved[4, 0] < -6
    assert abs(moved[4, 1]) < 0.2
    np.testing.assert_allclose(moved[4:], moved[4:5].repeat(5, 0), atol=0.1)


def test_the_free_pusher_does_exactly_what_its_action_says():
    actions = [(40, 0), (0, 24), (-16, -8), (90, 0)]
    run = replay(on_table("disc", (50.0, 50.0), (12.0, 12.0)), actions)
    assert run.pusher is not None
    steps = np.diff(run.pusher, axis=0) * 8
    np.testing.assert_allclose(steps, [(40, 0), (0, 24), (-16, -8), (40, 0)], atol=1e-3)


@pytest.mark.parametrize("shape", EXTENTS)
def test_nothing_leaves_the_table_or_overlaps_when_squeezed_against_a_wall(shape: str):
    for way in ((-40, 0), (40, 0), (0, -40), (0, 40), (28, 28)):
        pusher = 32 - 0.55 * way[0], 32 - 0.55 * way[1]
        run = simulate(on_table(shape, (32.0, 32.0), pusher), 17, steady(*way))
        width, height = EXTENTS[shape]  # pyright: ignore[reportArgumentType]
        low, high = np.array([width, height]) + WALL, SIZE - WALL - np.array([width, height])
        assert run.pusher is not None
        assert (run.positions >= low - SINK).all()
        assert (run.positions <= high + SINK).all()
        assert (run.pusher >= WALL + PUSHER_RADIUS - SINK).all()
        assert (run.pusher <= SIZE - WALL - PUSHER_RADIUS + SINK).all()
        if shape == "disc":
            gap = np.hypot(*(run.positions[:, 0] - run.pusher).T) - PUSHER_RADIUS - width
            assert gap.min() > -0.6


def test_on_ice_speed_is_kept_and_walls_throw_back():
    start = Start((Object("red", "disc"),), ((20.0, 32.0),), "ice", ((40.0, 0.0),))
    run = simulate(start, 11)
    np.testing.assert_allclose(np.abs(run.velocities[:, 0, 0]), 40, rtol=1e-3)
    assert run.velocities[-1, 0, 0] < 0
    assert [(e.kind, e.objects) for e in run.events] == [("object-wall", (0,))]
    assert run.events[0].time == pytest.approx(32.5 / 40, abs=0.03)
    assert run.events[0].speed == pytest.approx(40, rel=0.01)


def test_on_ice_a_head_on_hit_hands_the_speed_over():
    things = Object("red", "disc"), Object("blue", "disc")
    start = Start(things, ((15.0, 32.0), (40.0, 32.0)), "ice", ((24.0, 0.0), (0.0, 0.0)))
    run = simulate(start, 5)
    np.testing.assert_allclose(run.velocities[-1], [(0, 0), (24, 0)], atol=0.2)
    assert run.events[0].objects == (0, 1)


def test_one_long_push_is_one_event():
    run = simulate(on_table("square", (25.0, 32.0), (43.0, 33.0)), 9, steady(-10, 0))
    assert [event.kind for event in run.events] == ["pusher-object"]
