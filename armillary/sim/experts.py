"""Ways to drive the pusher: the expert that obeys an instruction, and those it is measured against.

Each function returns a fresh `Controller` for one run.
"""

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from armillary.sim.physics import (
    EXTENTS,
    FPS,
    MAX_SPEED,
    PUSHER_RADIUS,
    SIZE,
    WALL,
    Controller,
    Floats,
    Object,
    Point,
)

Direction = Literal["left", "right", "up", "down"]
DIRECTIONS: Final[dict[Direction, Point]] = {
    "left": (-1.0, 0.0),
    "right": (1.0, 0.0),
    "up": (0.0, -1.0),
    "down": (0.0, 1.0),
}
OPPOSITE: Final[dict[Direction, Direction]] = {"left": "right", "right": "left", "up": "down", "down": "up"}
SUCCESS_DISTANCE: Final = 5.0


@dataclass(frozen=True, slots=True)
class Goal:
    """Push object number `index` in `direction`."""

    index: int
    direction: Direction


def progress(goal: Goal, positions: Floats | Sequence[Sequence[Point]]) -> tuple[float, float]:
    """How far (px) the goal's object went the asked way, and aside, from first to last row of [T, n, 2]."""
    ux, uy = DIRECTIONS[goal.direction]
    first, last = positions[0][goal.index], positions[-1][goal.index]
    dx, dy = float(last[0] - first[0]), float(last[1] - first[1])
    return dx * ux + dy * uy, abs(dx * uy) + abs(dy * ux)


def reached(goal: Goal, positions: Floats | Sequence[Sequence[Point]]) -> bool:
    """Did the object go more than 5 px the asked way, and more that way than aside?"""
    along, aside = progress(goal, positions)
    return along > SUCCESS_DISTANCE and along > aside


def _reach(thing: Object, direction: Direction) -> tuple[float, float]:
    """Distances from the object's middle at which the pusher touches its box: behind it, and beside it."""
    width, height = EXTENTS[thing.shape]
    along, beside = (width, height) if direction in ("left", "right") else (height, width)
    return along + PUSHER_RADIUS, beside + PUSHER_RADIUS


def behind(thing: Object, position: Point, direction: Direction) -> Point:
    """Where the pusher starts to push the object in `direction`."""
    ux, uy = DIRECTIONS[direction]
    distance = _reach(thing, direction)[0] + 0.5
    return position[0] - ux * distance, position[1] - uy * distance


def expert(thing: Object, goal: Goal, speed: float = MAX_SPEED) -> Controller:
    """Goes round the object without touching it, lines up behind it, and pushes at `speed` px/s."""
    ux, uy = DIRECTIONS[goal.direction]
    back, beside = _reach(thing, goal.direction)

    def control(positions: list[Point], pusher: Point) -> Point:
        x, y = positions[goal.index]
        along = (pusher[0] - x) * ux + (pusher[1] - y) * uy
        lateral_x, lateral_y = pusher[0] - x - along * ux, pusher[1] - y - along * uy
        lateral = math.hypot(lateral_x, lateral_y)
        if along < -5.0 and lateral < 3.5:  # in line: push, and drift to the middle
            return ux * speed - lateral_x * FPS * 0.5, uy * speed - lateral_y * FPS * 0.5
        if along > 1.0 - back:  # beside or ahead: out of the way first, then back
            if lateral < beside + 0.5 and lateral > 1e-6:
                outward = MAX_SPEED / lateral
                return lateral_x * outward, lateral_y * outward
            return -ux * MAX_SPEED, -uy * MAX_SPEED
        return _toward(pusher, behind(thing, (x, y), goal.direction))

    return control


def _toward(pusher: Point, place: Point) -> Point:
    """The velocity that reaches `place` within the frame, or full speed if it is farther."""
    dx, dy = place[0] - pusher[0], place[1] - pusher[1]
    scale = min(FPS, MAX_SPEED / max(math.hypot(dx, dy), 1e-6))
    return dx * scale, dy * scale


def straight() -> Controller:
    """Full speed at the nearest object: what the layout alone suggests."""

    def control(positions: list[Point], pusher: Point) -> Point:
        x, y = min(positions, key=lambda p: math.dist(p, pusher))
        angle = math.atan2(y - pusher[1], x - pusher[0])
        return MAX_SPEED * math.cos(angle), MAX_SPEED * math.sin(angle)

    return control


def wander(rng: random.Random) -> Controller:
    """A smooth random walk that mostly heads for an object, turned back by the walls."""
    aimed, offset = rng.random() < 0.85, rng.uniform(-0.4, 0.4)
    speed, turn, heading = (
        rng.uniform(16.0, MAX_SPEED),
        rng.uniform(-0.2, 0.2),
        rng.uniform(-math.pi, math.pi),
    )
    low, high = WALL + PUSHER_RADIUS, SIZE - WALL - PUSHER_RADIUS

    def control(positions: list[Point], pusher: Point) -> Point:
        nonlocal heading, aimed
        if aimed:
            aimed = False
            x, y = min(positions, key=lambda place: math.dist(place, pusher))
            heading = math.atan2(y - pusher[1], x - pusher[0]) + offset
        heading += turn + rng.gauss(0.0, 0.15)
        velocity = [speed * math.cos(heading), speed * math.sin(heading)]
        for axis in (0, 1):
            if not low <= pusher[axis] + velocity[axis] / FPS <= high:
                velocity[axis] = -velocity[axis]
        heading = math.atan2(velocity[1], velocity[0])
        return velocity[0], velocity[1]

    return control


def random_policy(rng: random.Random) -> Controller:
    """Independent uniform actions: the policy that knows nothing."""

    def control(_positions: list[Point], _pusher: Point) -> Point:
        return rng.uniform(-MAX_SPEED, MAX_SPEED), rng.uniform(-MAX_SPEED, MAX_SPEED)

    return control
