"""Episodes: every start, instruction and outcome of the world, a pure function of kind, seed and split.

Layouts are drawn so that they do not give answers away: directions are drawn before places, hits and misses
are equally many, and each instruction has a twin that asks something else of the very same start.
"""

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, Literal

from armillary.errors import BadRequest, nearest
from armillary.sim import language
from armillary.sim.drawing import COLOURS, TRAIL_LENGTH, TRAIL_SECONDS
from armillary.sim.experts import (
    DIRECTIONS,
    OPPOSITE,
    Direction,
    Goal,
    behind,
    expert,
    progress,
    reached,
    straight,
    wander,
)
from armillary.sim.physics import (
    EXTENTS,
    FPS,
    PUSHER_RADIUS,
    SIZE,
    WALL,
    Object,
    Point,
    Rollout,
    Shape,
    Start,
    bounds,
    simulate,
)
from armillary.sim.recording import KINDS, Kind, Recording

Split = Literal["train", "test", "heldout_pairs"]
SPLITS: Final[tuple[Split, ...]] = ("train", "test", "heldout_pairs")

# Colour-shape pairs that no episode of "train" or "test" shows.
HELD_OUT_PAIRS: Final = (Object("red", "triangle"), Object("blue", "square"))
TRAINED_PAIRS: Final = tuple(
    pair for pair in (Object(c, s) for c in COLOURS for s in EXTENTS) if pair not in HELD_OUT_PAIRS
)

_PUSHER_LOW, _PUSHER_HIGH = WALL + PUSHER_RADIUS, SIZE - WALL - PUSHER_RADIUS
_DEMANDING_SHARE = 0.6  # of push starts at which driving straight at the nearest object must fail


@dataclass(frozen=True, eq=False)
class Episode(Recording):
    """A recording and everything that can be said about it."""

    def __repr__(self) -> str:
        things = ", ".join(thing.name for thing in self.objects)
        count = len(self.positions)
        return f"Episode({self.kind} {self.seed}: {things}; {count} {'frame' if count == 1 else 'frames'})"

    @cached_property
    def caption(self) -> str:
        return language.caption(self)

    @cached_property
    def structured(self) -> dict[str, Any]:
        return language.structured(self)

    @property
    def instruction(self) -> str | None:
        """What the pusher was told, in "push" only."""
        return None if self.goal is None else language.instruction(self.objects, self.goal)

    def questions(self) -> list[language.Question]:
        """Every question that has one certain answer."""
        return language.questions(self)


def episode(kind: Kind, seed: int, *, frames: int = 9, split: Split = "train") -> Episode:
    """The episode of this name: equal arguments give bit-equal episodes, on any machine of one kind.

    "still" is one frame whatever `frames` says. "push" seeds come in twins: 2k and 2k + 1 share their start
    and differ in their instruction. The splits draw from unrelated random streams; "heldout_pairs" shows in
    every episode an object whose colour and shape were never trained together. Raises BadRequest.
    """
    if kind not in KINDS:
        raise BadRequest(
            "kind", kind, f"must be one of {', '.join(KINDS)}; nearest: {nearest(kind, KINDS)[0]}"
        )
    if split not in SPLITS:
        raise BadRequest(
            "split", split, f"must be one of {', '.join(SPLITS)}; nearest: {nearest(split, SPLITS)[0]}"
        )
    if kind != "still" and frames < 5:
        raise BadRequest("frames", frames, "a clip needs at least 5 frames")
    start_seed = seed // 2 if kind == "push" else seed
    rng = random.Random(f"{kind} {split} {start_seed}")  # text seeds are hashed alike in every process
    if kind == "still":
        return _record(kind, seed, *_still(rng, split))
    if kind == "push":
        return _push(rng, seed, frames, split)
    make = _wander if kind == "wander" else _slide
    return _record(kind, seed, *make(rng, frames, split))


def corpus(seed: int = 0) -> Iterator[str]:
    """Every text of episode after episode of the training split, without end: to train a tokenizer on."""
    rng = random.Random(seed)
    while True:
        made = episode(rng.choice(KINDS), rng.randrange(1 << 30))
        yield made.caption
        if made.instruction:
            yield made.instruction
        for question in made.questions():
            yield f"{question.text} {question.answer}"


def _record(kind: Kind, seed: int, start: Start, run: Rollout, goal: Goal | None = None) -> Episode:
    return Episode(
        kind, seed, start, run.positions, run.velocities, run.pusher, run.actions, run.events, goal
    )


def _objects(rng: random.Random, count: int, split: Split) -> tuple[Object, ...]:
    """Objects of unlike colours; shapes may repeat, so that one shape does not tell another."""
    chosen = [rng.choice(HELD_OUT_PAIRS)] if split == "heldout_pairs" else []
    while len(chosen) < count:
        shape: Shape = rng.choice(list(EXTENTS))
        pair = Object(rng.choice(list(COLOURS)), shape)
        if pair in TRAINED_PAIRS and all(pair.colour != other.colour for other in chosen):
            chosen.append(pair)
    return tuple(chosen)


def _all_apart(objects: tuple[Object, ...], places: list[Point]) -> bool:
    """Is there a pixel or more between any two objects' bounding boxes?"""
    for i, (x, y) in enumerate(places):
        width, height = EXTENTS[objects[i].shape]
        for j in range(i):
            other_width, other_height = EXTENTS[objects[j].shape]
            beside = abs(x - places[j][0]) - width - other_width
            above = abs(y - places[j][1]) - height - other_height
            if max(beside, above) < 1.0:
                return False
    return True


def _inside(shape: Shape, x: float, y: float) -> Point:
    (x_low, y_low), (x_high, y_high) = bounds(shape)
    return min(max(x, x_low), x_high), min(max(y, y_low), y_high)


def _anywhere(rng: random.Random, shape: Shape) -> Point:
    (x_low, y_low), (x_high, y_high) = bounds(shape)
    return rng.uniform(x_low, x_high), rng.uniform(y_low, y_high)


# Stills


def _still(rng: random.Random, split: Split) -> tuple[Start, Rollout]:
    objects = _objects(rng, rng.randint(1, 3), split)
    while True:
        cells = rng.sample([(column, row) for row in range(3) for column in range(3)], len(objects))
        for _ in range(60):  # neighbouring cells need luck; dropping them at once would favour the corners
            places = [
                _inside(
                    thing.shape, 14 + 18 * column + rng.uniform(-4, 4), 14 + 18 * row + rng.uniform(-4, 4)
                )
                for thing, (column, row) in zip(objects, cells, strict=True)
            ]
            if _all_apart(objects, places):
                start = Start(objects, tuple(places))
                return start, simulate(start, 1)


# Clips with a pusher


def _driven_start(rng: random.Random, objects: tuple[Object, ...]) -> Start:
    while True:
        places = [_anywhere(rng, thing.shape) for thing in objects]
        pusher = rng.uniform(_PUSHER_LOW, _PUSHER_HIGH), rng.uniform(_PUSHER_LOW, _PUSHER_HIGH)
        if _all_apart(objects, places) and all(
            _clear(pusher, o, p) for o, p in zip(objects, places, strict=True)
        ):
            return Start(objects, tuple(places), pusher=pusher)


def _clear(pusher: Point, thing: Object, place: Point) -> bool:
    width, height = EXTENTS[thing.shape]
    beside, above = max(abs(pusher[0] - place[0]) - width, 0), max(abs(pusher[1] - place[1]) - height, 0)
    return math.hypot(beside, above) > PUSHER_RADIUS + 0.5


def _wander(rng: random.Random, frames: int, split: Split) -> tuple[Start, Rollout]:
    start = _driven_start(rng, _objects(rng, rng.randint(1, 2), split))
    return start, simulate(start, frames, wander(rng))


def _push(rng: random.Random, seed: int, frames: int, split: Split) -> Episode:
    """A start that allows two instructions, and the run of the one that this seed asks for."""
    demanding, speed = rng.random() < _DEMANDING_SHARE, rng.uniform(32.0, 40.0)
    objects = _objects(rng, rng.choice((1, 2, 2)), split)
    goals = [Goal(index, direction) for index in range(len(objects)) for direction in DIRECTIONS]
    while True:
        start = _driven_start(rng, objects)
        possible = [goal for goal in goals if _within_reach(start, goal, frames)]
        if len(possible) < 2:
            continue
        rng.shuffle(possible)
        if demanding:
            obvious = simulate(start, frames, straight()).positions
            hidden = [goal for goal in possible if not reached(goal, obvious)]
            # A lone object that driving straight does not push one way, it pushes another: one must do.
            shown = [goal for goal in possible if goal not in hidden] if len(objects) == 1 else []
            possible = hidden + shown if hidden else []
        pair = _successes(start, possible, frames, speed)
        if len(pair) == 2:
            goal, run = rng.sample(pair, 2)[seed % 2]
            return _record("push", seed, start, run, goal)


def _within_reach(start: Start, goal: Goal, frames: int) -> bool:
    """At a glance: is there room to push, and is the place to push from inside the walls and near enough?"""
    thing, (x, y) = start.objects[goal.index], start.positions[goal.index]
    step_x, step_y = DIRECTIONS[goal.direction]
    target = x + 9 * step_x, y + 9 * step_y
    place = behind(thing, (x, y), goal.direction)
    near = 30.0 * (frames - 1) / 8  # px; the rest of the time is for pushing
    return (
        _inside(thing.shape, *target) == target
        and all(_PUSHER_LOW <= value <= _PUSHER_HIGH for value in place)
        and start.pusher is not None
        and math.dist(start.pusher, place) <= near
    )


def _successes(start: Start, goals: list[Goal], frames: int, speed: float) -> list[tuple[Goal, Rollout]]:
    """The first two goals, with the expert's runs, that it clearly reaches without moving anything else."""
    found = list[tuple[Goal, Rollout]]()
    for tried, goal in enumerate(goals):
        if len(found) == 2 or len(found) + len(goals) - tried < 2:
            break
        run = simulate(start, frames, expert(start.objects[goal.index], goal, speed))
        moves = (run.positions[-1] - run.positions[0]).tolist()
        alone = all(math.hypot(*move) < 2.0 for i, move in enumerate(moves) if i != goal.index)
        along, aside = progress(goal, run.positions)
        if alone and along > 7.0 and aside < 0.4 * along:
            found.append((goal, run))
    return found


# Clips on ice


def _slide(rng: random.Random, frames: int, split: Split) -> tuple[Start, Rollout]:
    """One object slides. Alone it hits a wall in half the clips; in company, the other object in half."""
    alone, hit = rng.random() < 0.5, rng.random() < 0.5
    objects = _objects(rng, 1 if alone else 2, split)
    seconds = (frames - 1) / FPS
    if not alone:
        objects = tuple(rng.sample(objects, 2))
    while True:
        direction: Direction = rng.choice(list(DIRECTIONS))
        start = (_slide_alone if alone else _slide_at_other)(rng, objects, direction, hit, seconds)
        if start is None:
            continue
        run = simulate(start, frames)
        event = run.events[0] if run.events else None
        wanted = "object-wall" if alone else "object-object"
        if hit and event and event.kind == wanted and 0.15 * seconds < event.time < 0.9 * seconds:
            return start, run
        if not hit and (event is None or (not alone and _only_walls(run) and event.time < 0.9 * seconds)):
            return start, run


def _only_walls(run: Rollout) -> bool:
    return all(event.kind == "object-wall" for event in run.events)


def _room(thing: Object, place: Point, direction: Direction) -> float:
    """How far the object can go before it meets the wall."""
    (x_low, y_low), (x_high, y_high) = bounds(thing.shape)
    x, y = place
    return {"left": x - x_low, "right": x_high - x, "up": y - y_low, "down": y_high - y}[direction]


def _velocity(direction: Direction, speed: float) -> Point:
    x, y = DIRECTIONS[direction]
    return x * speed, y * speed


def _speed(
    rng: random.Random,
    mover: Object,
    place: Point,
    direction: Direction,
    gap: float,
    hit: bool,
    seconds: float,
) -> float | None:
    """A speed that covers `gap` px in time, or clearly does not; None if too slow, or too fast to show."""
    low, high = (gap / (0.85 * seconds), gap / (0.2 * seconds)) if hit else (0.0, (gap - 2.0) / seconds)
    behind_it = _room(mover, place, OPPOSITE[direction]) + _half(mover, direction)
    low, high = max(low, 7.0 / seconds), min(high, 44.0, (behind_it - TRAIL_LENGTH) / TRAIL_SECONDS)
    return rng.uniform(low, high) if low < high else None


def _slide_alone(
    rng: random.Random, objects: tuple[Object, ...], direction: Direction, hit: bool, seconds: float
) -> Start | None:
    # Near the middle every direction has room both to hit and to miss, so the place tells nothing of either.
    place = 32 + rng.uniform(-10, 10), 32 + rng.uniform(-10, 10)
    gap = _room(objects[0], place, direction)
    speed = _speed(rng, objects[0], place, direction, gap, hit, seconds)
    if speed is None:
        return None
    return Start(objects, (place,), "ice", (_velocity(direction, speed),))


def _slide_at_other(
    rng: random.Random, objects: tuple[Object, ...], direction: Direction, hit: bool, seconds: float
) -> Start | None:
    """The other object lies in the way; what misses it is too slow, or goes elsewhere."""
    mover, other = objects
    place, target = _anywhere(rng, mover.shape), _anywhere(rng, other.shape)
    ux, uy = DIRECTIONS[direction]
    dx, dy = target[0] - place[0], target[1] - place[1]
    ahead, aside = dx * ux + dy * uy, abs(dx * uy) + abs(dy * ux)
    gap = ahead - _half(mover, direction) - _half(other, direction)
    if gap < 5.0 or aside > 6.0:
        return None
    if not hit and rng.random() < 0.5:
        direction = rng.choice([d for d in DIRECTIONS if d != direction])
        gap = _room(mover, place, direction)
        hit = rng.random() < 0.5
    speed = _speed(rng, mover, place, direction, gap, hit, seconds)
    if speed is None:
        return None
    return Start(objects, (place, target), "ice", (_velocity(direction, speed), (0.0, 0.0)))


def _half(thing: Object, direction: Direction) -> float:
    width, height = EXTENTS[thing.shape]
    return width if direction in ("left", "right") else height
