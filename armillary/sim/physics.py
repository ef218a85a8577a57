"""The table-top: objects, walls and a pusher, moved by pymunk.

Lengths are pixels of a 64x64 picture, x to the right and y down; times are seconds; speeds px/s.
The *table* is quasi-static: friction is so heavy that a thing moves only while it is pushed. The *ice* has
none: things slide and bounce for ever. Nothing turns, so a position says all about where an object is.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np
import pymunk
from numpy.typing import NDArray
from pymunk.constraints import PivotJoint

from armillary.errors import BadRequest

SIZE: Final = 64
WALL: Final = 2.0
PUSHER_RADIUS: Final = 6.5
MAX_SPEED: Final = 40.0
FPS: Final = 8.0
SUBSTEPS: Final = 10

Shape = Literal["disc", "square", "triangle"]
Background = Literal["table", "ice"]
EventKind = Literal["pusher-object", "object-wall", "object-object"]
Point = tuple[float, float]
Floats = NDArray[np.float32]

# Half the width and half the height of each shape's bounding box, whose centre is the object's position.
EXTENTS: Final[dict[Shape, Point]] = {"disc": (9.5, 9.5), "square": (8.5, 8.5), "triangle": (10.5, 9.0)}

_PUSHER, _OBJECT, _WALL = 1, 2, 3
_QUIET_SPEED = 3.0  # slower contacts make no sound
_QUIET_TIME = 0.15  # a contact that reopens sooner is the same contact


@dataclass(frozen=True, slots=True)
class Object:
    """One coloured thing on the table."""

    colour: str
    shape: Shape

    @property
    def name(self) -> str:
        return f"{self.colour} {self.shape}"


@dataclass(frozen=True, slots=True)
class Event:
    """A collision: when (s), of what kind, between which objects, how fast (px/s), and at which x (px).

    `objects` are indices. There is one index when the other party is the pusher or a wall.
    """

    time: float
    kind: EventKind
    objects: tuple[int, ...]
    speed: float
    x: float

    def frame(self, fps: float = FPS) -> int:
        """The frame nearest to the collision."""
        return math.floor(self.time * fps + 0.5)


def bounds(shape: Shape) -> tuple[Point, Point]:
    """The least and greatest x and y at which an object of this shape stands inside the walls."""
    width, height = EXTENTS[shape]
    return (WALL + width, WALL + height), (SIZE - WALL - width, SIZE - WALL - height)


def check_velocity(action: Any, *, field: str = "action") -> Point:
    """The two finite numbers of a velocity. Raises BadRequest for others: NaN would never leave again."""
    try:
        x, y = (float(part) for part in np.asarray(action, np.float64).tolist())
    except (TypeError, ValueError):
        raise BadRequest(field, action, "must be two numbers, px/s") from None
    if not (math.isfinite(x) and math.isfinite(y)):
        raise BadRequest(field, action, "must be two finite numbers, px/s")
    return x, y


def clip_speed(action: Sequence[float]) -> Point:
    """The action (px/s) shortened to `MAX_SPEED` if it is longer."""
    x, y = float(action[0]), float(action[1])
    scale = min(1.0, MAX_SPEED / max(math.hypot(x, y), 1e-9))
    return x * scale, y * scale


class Tabletop:
    """A running world: `step` advances it by one frame; `positions`, `velocities`, `pusher` and `events` tell
    its state."""

    def __init__(
        self,
        shapes: Sequence[Shape],
        positions: Sequence[Point],
        *,
        background: Background = "table",
        velocities: Sequence[Point] | None = None,
        pusher: Point | None = None,
    ) -> None:
        ice = background == "ice"
        self._still = not ice
        self._space = pymunk.Space()
        self._space.damping = 1.0 if ice else 0.0
        self._space.collision_slop = 0.02
        self._space.collision_bias = 1e-5
        self._space.iterations = 20
        self._bodies = [_add_object(self._space, s, p, ice) for s, p in zip(shapes, positions, strict=True)]
        for body, velocity in zip(self._bodies, velocities or (), strict=False):
            body.velocity = velocity
        _add_walls(self._space, ice)
        self._index = {outline: i for i, body in enumerate(self._bodies) for outline in body.shapes}
        self._drive = pymunk.Body(body_type=pymunk.Body.KINEMATIC)
        self._pusher = None if pusher is None else _add_pusher(self._space, pusher, self._drive)
        self._parted: dict[tuple[object, object], float] = {}
        self._frame, self._substep = 0, 0
        self.events: list[Event] = []
        self._space.on_collision(begin=self._begin, separate=self._separate)

    @property
    def positions(self) -> list[Point]:
        return [(b.position.x, b.position.y) for b in self._bodies]

    @property
    def velocities(self) -> list[Point]:
        if self._still:
            return [(0.0, 0.0)] * len(self._bodies)
        return [(b.velocity.x, b.velocity.y) for b in self._bodies]

    @property
    def pusher(self) -> Point | None:
        return None if self._pusher is None else (self._pusher.position.x, self._pusher.position.y)

    def step(self, action: Sequence[float] = (0.0, 0.0)) -> None:
        """Move the pusher at velocity `action` (px/s, shortened to `MAX_SPEED`) for one frame of 1/8 s."""
        velocity = clip_speed(action)
        if self._still:  # a frame's outcome depends on places and this action alone, not on what came before
            for body in self._bodies:
                body.velocity = (0.0, 0.0)
        if self._pusher is not None:
            self._drive.velocity = self._pusher.velocity = velocity
        for self._substep in range(SUBSTEPS):
            self._space.step(1 / (FPS * SUBSTEPS))
        self._frame += 1

    def _now(self) -> float:
        # Bodies have moved by the time pymunk reports a contact, so it belongs to the end of the substep.
        return (self._frame + (self._substep + 1) / SUBSTEPS) / FPS

    def _begin(self, arbiter: pymunk.Arbiter, space: pymunk.Space, data: object) -> None:
        first, second = sorted(arbiter.shapes, key=lambda s: s.collision_type)
        now = self._now()
        if now - self._parted.get((first, second), -1.0) < _QUIET_TIME:
            return
        kind = _kind(first.collision_type, second.collision_type)
        one, other = arbiter.bodies
        speed = abs((one.velocity - other.velocity).dot(arbiter.normal))
        if kind is None or speed < _QUIET_SPEED:
            return
        objects = tuple(sorted(self._index[s] for s in (first, second) if s in self._index))
        x = arbiter.contact_point_set.points[0].point_a.x
        self.events.append(Event(now, kind, objects, speed, min(max(x, WALL), SIZE - WALL)))

    def _separate(self, arbiter: pymunk.Arbiter, space: pymunk.Space, data: object) -> None:
        first, second = sorted(arbiter.shapes, key=lambda s: s.collision_type)
        self._parted[first, second] = self._now()


def _kind(first: int, second: int) -> EventKind | None:
    if second == _WALL:
        return "object-wall" if first == _OBJECT else None
    return "pusher-object" if first == _PUSHER else "object-object"


def _add_object(space: pymunk.Space, shape: Shape, position: Point, ice: bool) -> pymunk.Body:
    body = pymunk.Body(1.0, math.inf)
    body.position = position
    width, height = EXTENTS[shape]
    if shape == "disc":
        outline: pymunk.Shape = pymunk.Circle(body, width)
    elif shape == "square":
        outline = pymunk.Poly(body, [(-width, -height), (width, -height), (width, height), (-width, height)])
    else:
        outline = pymunk.Poly(body, [(0.0, -height), (width, height), (-width, height)])
    outline.collision_type = _OBJECT
    outline.elasticity = 1.0 if ice else 0.0
    outline.friction = 0.0 if ice else 0.6
    space.add(body, outline)
    return body


def _add_pusher(space: pymunk.Space, position: Point, drive: pymunk.Body) -> pymunk.Body:
    """The pusher follows `drive` with great but finite strength, so that walls stop it and its burden."""
    body = pymunk.Body(1.0, math.inf)
    body.position = position
    outline = pymunk.Circle(body, PUSHER_RADIUS)
    outline.collision_type = _PUSHER
    outline.friction = 2.0  # grips: what it pushes goes along, also by a slanting side
    motor = PivotJoint(drive, body, (0.0, 0.0), (0.0, 0.0))
    motor.max_bias = 0.0
    motor.max_force = 5 * MAX_SPEED * FPS * SUBSTEPS
    space.add(drive, body, outline, motor)
    return body


def _add_walls(space: pymunk.Space, ice: bool) -> None:
    thick = 20.0
    low, high = WALL - thick, SIZE - WALL + thick
    corners = [(low, low), (high, low), (high, high), (low, high)]
    for start, end in zip(corners, corners[1:] + corners[:1], strict=True):
        wall = pymunk.Segment(space.static_body, start, end, thick)
        wall.collision_type = _WALL
        wall.elasticity = 1.0 if ice else 0.0
        space.add(wall)


@dataclass(frozen=True, slots=True)
class Start:
    """A state to start from. `velocities` are px/s and matter on ice only."""

    objects: tuple[Object, ...]
    positions: tuple[Point, ...]
    background: Background = "table"
    velocities: tuple[Point, ...] | None = None
    pusher: Point | None = None

    def table(self) -> Tabletop:
        """A world in this state."""
        shapes: list[Shape] = [thing.shape for thing in self.objects]
        return Tabletop(
            shapes,
            self.positions,
            background=self.background,
            velocities=self.velocities,
            pusher=self.pusher,
        )


@dataclass(frozen=True, slots=True, eq=False)
class Rollout:
    """What happened: one row a frame, except actions (px/s, as carried out), one a transition."""

    positions: Floats  # [T, n, 2]
    velocities: Floats  # [T, n, 2]
    pusher: Floats | None  # [T, 2]
    actions: Floats | None  # [T - 1, 2]
    events: tuple[Event, ...]


Controller = Callable[[list[Point], Point], Point]  # positions and pusher to action


def simulate(start: Start, frames: int, controller: Controller | None = None) -> Rollout:
    """Run `frames` frames from `start`; `controller(positions, pusher)` gives each action in px/s."""
    table = start.table()
    positions, velocities = [table.positions], [table.velocities]
    pushers, actions = [table.pusher], list[Point]()
    for _ in range(frames - 1):
        pusher = table.pusher
        action = clip_speed(controller(table.positions, pusher)) if controller and pusher else (0.0, 0.0)
        table.step(action)
        actions.append(action)
        positions.append(table.positions)
        velocities.append(table.velocities)
        pushers.append(table.pusher)
    driven = start.pusher is not None
    return Rollout(
        np.asarray(positions, np.float32),
        np.asarray(velocities, np.float32),
        np.asarray(pushers, np.float32) if driven else None,
        np.asarray(actions, np.float32).reshape(-1, 2) if driven else None,
        tuple(table.events),
    )


def replay(start: Start, actions: Sequence[Sequence[float]] | Floats) -> Rollout:
    """What the given actions (px/s, one a frame) do from `start`. Raises BadRequest for other things."""
    steps = iter([check_velocity(action, field=f"actions[{i}]") for i, action in enumerate(actions)])

    def controller(_positions: list[Point], _pusher: Point) -> Point:
        return next(steps)

    return simulate(start, len(actions) + 1, controller)
