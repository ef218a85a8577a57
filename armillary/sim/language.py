"""All the words: captions, structured captions, instructions, and questions with their answers.

Sentences are short and regular on purpose, so that a small model can learn every one of them.
"""

import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from armillary.sim.experts import DIRECTIONS, SUCCESS_DISTANCE, Direction, Goal, progress, reached
from armillary.sim.physics import (
    SIZE,
    Background,
    Event,
    Floats,
    Object,
    Point,
    Shape,
)
from armillary.sim.recording import Recording

CELLS: Final = (
    ("top left", "top", "top right"),
    ("left", "center", "right"),
    ("bottom left", "bottom", "bottom right"),
)
PITCH_WORDS: Final[dict[Shape, str]] = {"disc": "low", "square": "middle", "triangle": "high"}
GROUND_WORDS: Final[dict[Background, str]] = {"table": "a table", "ice": "a sheet of ice"}
NUMBER_WORDS: Final = ("zero", "one", "two", "three")
STILL_DISTANCE: Final = 4.0  # an object that goes less far, in px, is said to stay

BORDERS = (23.0, 41.0)  # between the three columns, and rows, of cells
_CLEAR = 2.0  # an object nearer to a border than this has no certain cell
_SURE_DISTANCE = 0.5  # px from the distance of a success within which it is not asked for
_MAIN_SHARE = 0.4  # a motion with a smaller part across counts as straight

QuestionKind = Literal[
    "colour",
    "shape",
    "where",
    "what",
    "count",
    "which way",
    "will it hit",
    "did it hit",
    "is it done",
    "when",
    "what does it hit",
    "caption",
    "structured caption",
    "box",
    "events",
]
_CLIP_KINDS: Final[frozenset[QuestionKind]] = frozenset(
    ("which way", "did it hit", "is it done", "when", "what does it hit", "events")
)


@dataclass(frozen=True, slots=True)
class Question:
    """A question about a recording and its only right answer."""

    kind: QuestionKind
    text: str
    answer: str
    needs_clip: bool  # False: the first frame alone must suffice


def an(words: str) -> str:
    """The words with "a" or "an" before them."""
    return f"{'an' if words[0] in 'aeiou' else 'a'} {words}"


def joined(parts: Sequence[str]) -> str:
    """a / a and b / a, b and c."""
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"


def seconds(time: float, fps: float) -> str:
    """A time as the nearest frame's, with one decimal: 0.5."""
    return f"{math.floor(time * fps + 0.5) / fps:.1f}"


def cell(position: Sequence[float]) -> str:
    """The one of nine cells that a position [x, y] in px lies in."""
    column, row = (sum(value >= border for border in BORDERS) for value in position)
    return CELLS[row][column]


def certain(position: Sequence[float]) -> bool:
    """Is the position clear of every border between cells?"""
    return all(abs(value - border) >= _CLEAR for value in position for border in BORDERS)


def compass(move: Sequence[float]) -> str:
    """The direction of a motion [x, y]: left, up, up and left ..."""
    x, y = move
    sideways, upright = ("left" if x < 0 else "right"), ("up" if y < 0 else "down")
    if abs(y) < abs(x) * _MAIN_SHARE:
        return sideways
    return upright if abs(x) < abs(y) * _MAIN_SHARE else f"{upright} and {sideways}"


def instruction(objects: Sequence[Object], goal: Goal) -> str:
    """push the red disc left"""
    return f"push the {objects[goal.index].name} {goal.direction}"


def outcome_question(objects: Sequence[Object], goal: Goal) -> tuple[str, str]:
    """What to ask about a clip to know whether an instruction was followed, and the answer if it was."""
    return f"Is the {objects[goal.index].name} pushed {goal.direction}?", "yes"


def success(recording: Recording, positions: Floats | Sequence[Sequence[Point]]) -> bool:
    """Did the named object go the asked way, by more than 5 px and mainly so, in `positions` [T, n, 2]?

    Raises ValueError for a recording without an instruction.
    """
    if recording.goal is None:
        raise ValueError(f"a recording of kind {recording.kind!r} has no instruction")
    return reached(recording.goal, positions)


# What happened, in facts


def _reading_order(recording: Recording) -> list[int]:
    places = recording.positions[0].tolist()
    return sorted(range(len(places)), key=lambda i: (sum(places[i][1] >= b for b in BORDERS), places[i][0]))


def _moves(recording: Recording) -> list[Point]:
    moves = (recording.positions[-1] - recording.positions[0]).tolist()
    return [(x, y) for x, y in moves]


def _movers(recording: Recording) -> list[int]:
    """The objects that went somewhere, the farthest first."""
    lengths = [math.hypot(*move) for move in _moves(recording)]
    return sorted(
        (i for i, length in enumerate(lengths) if length >= STILL_DISTANCE), key=lambda i: -lengths[i]
    )


def _slider(recording: Recording) -> int:
    """The object that slides in the first frame."""
    speeds = [math.hypot(x, y) for x, y in recording.velocities[0].tolist()]
    return speeds.index(max(speeds))


def _first_hit(recording: Recording, index: int) -> Event | None:
    return next((event for event in recording.events if index in event.objects), None)


def _struck(recording: Recording, event: Event, index: int, article: Callable[[str], str]) -> str:
    """What the object `index` met in `event`."""
    others = [recording.objects[i].name for i in event.objects if i != index]
    return article(others[0]) if others else "the wall"


def _the(words: str) -> str:
    return f"the {words}"


# Captions


def caption(recording: Recording) -> str:
    """One short sentence about the whole recording."""
    if recording.kind == "still":
        return joined(_placed(recording))
    return _caption_slide(recording) if recording.kind == "slide" else _caption_pusher(recording)


def _placed(recording: Recording) -> list[str]:
    places = recording.positions[0].tolist()
    return [f"{an(recording.objects[i].name)} at the {cell(places[i])}" for i in _reading_order(recording)]


def _caption_slide(recording: Recording) -> str:
    index = _slider(recording)
    event = _first_hit(recording, index)
    target = "nothing" if event is None else _struck(recording, event, index, an)
    way = compass(recording.velocities[0, index].tolist())
    text = f"{an(recording.objects[index].name)} slides {way} and hits {target}"
    rest = [
        an(o.name)
        for i, o in enumerate(recording.objects)
        if i != index and (not event or i not in event.objects)
    ]
    return f"{text}, {joined(rest)} stays" if rest else text


def _caption_pusher(recording: Recording) -> str:
    moves, movers = _moves(recording), _movers(recording)
    moved = [f"the {recording.objects[i].name} {compass(moves[i])}" for i in movers]
    stayed = [f"the {recording.objects[i].name}" for i in _reading_order(recording) if i not in movers]
    text = f"the pusher pushes {joined(moved)}" if moved else "the pusher moves"
    return f"{text}, {joined(stayed)} {'stays' if len(stayed) == 1 else 'stay'}" if stayed else text


def audio_description(recording: Recording) -> str:
    """What is heard and when: a low tone at 0.5 seconds."""
    tones = [
        f"{an(PITCH_WORDS[recording.objects[i].shape])} tone at {seconds(event.time, recording.fps)} seconds"
        for event in recording.events
        for i in event.objects
    ]
    return joined(tones) if tones else "silence"


def _spans(recording: Recording) -> list[tuple[float, float, str]]:
    """The clip cut at its main collision: start and end in seconds, and what goes on between them."""
    end = (len(recording.positions) - 1) / recording.fps
    index, before, after = _phases(recording)
    event = None if index is None else _first_hit(recording, index)
    if event is None:
        return [(0.0, end, before)]
    cut = event.frame(recording.fps) / recording.fps
    return [span for span in ((0.0, cut, before), (cut, end, after)) if span[0] < span[1]]


def _phases(recording: Recording) -> tuple[int | None, str, str]:
    """The object whose first collision matters, and what goes on before and after it."""
    if recording.kind == "slide":
        index = _slider(recording)
        name = recording.objects[index].name
        event = _first_hit(recording, index)
        before = f"the {name} slides {compass(recording.velocities[0, index].tolist())}"
        frame = min(math.floor(event.time * recording.fps) + 1, len(recording.positions) - 1) if event else 0
        after = recording.velocities[frame, index].tolist()
        return (
            index,
            before,
            f"the {name} {f'slides {compass(after)}' if math.hypot(*after) > 1 else 'stops'}",
        )
    movers = _movers(recording)
    if not movers:
        return None, "the pusher moves", ""
    way = compass(_moves(recording)[movers[0]])
    return movers[0], "the pusher moves", f"the pusher pushes the {recording.objects[movers[0]].name} {way}"


def structured(recording: Recording) -> dict[str, Any]:
    """The caption as the published schema has it, with the keys this world needs, in that schema's order."""
    places = recording.positions[0].tolist()
    found: dict[str, Any] = {
        "subjects": [
            {"description": recording.objects[i].name, "location": cell(places[i])}
            for i in _reading_order(recording)
        ],
        "background_setting": GROUND_WORDS[recording.background],
    }
    size = {"resolution": {"H": SIZE, "W": SIZE}, "aspect_ratio": "1,1"}
    if not recording.moving:
        return found | size
    return (
        found
        | {
            "actions": [
                {"time": f"{a:.1f}s-{b:.1f}s", "description": text} for a, b, text in _spans(recording)
            ],
            "temporal_caption": caption(recording),
            "audio_description": audio_description(recording),
        }
        | size
        | {"duration": f"{int(len(recording.positions) / recording.fps)}s", "fps": recording.fps}
    )


# Questions


def questions(recording: Recording) -> list[Question]:
    """Every question that has one certain answer."""
    asked = [*_questions_of_picture(recording), *_questions_of_words(recording)]
    if recording.kind == "slide":
        asked += _questions_of_slide(recording)
    elif recording.moving:
        asked += _questions_of_push(recording)
    return [Question(kind, text, answer, _needs_clip(recording, kind)) for kind, text, answer in asked]


_Asked = tuple[QuestionKind, str, str]


def _needs_clip(recording: Recording, kind: QuestionKind) -> bool:
    return recording.moving and (kind in _CLIP_KINDS or kind in ("caption", "structured caption"))


def _questions_of_picture(recording: Recording) -> Iterator[_Asked]:
    places, objects = recording.positions[0].tolist(), recording.objects
    shapes = [thing.shape for thing in objects]
    yield "count", "How many objects are there?", NUMBER_WORDS[len(objects)]
    for i, thing in enumerate(objects):
        yield "shape", f"What shape is the {thing.colour} object?", thing.shape
        if shapes.count(thing.shape) == 1:
            yield "colour", f"What colour is the {thing.shape}?", thing.colour
        if certain(places[i]):
            where = cell(places[i])
            yield "where", f"Where is the {thing.name}?", where
            if not any(cell(other) == where for j, other in enumerate(places) if j != i):
                yield "what", f"What is at the {where}?", thing.name
                yield "colour", f"What colour is the object at the {where}?", thing.colour
                yield "shape", f"What shape is the object at the {where}?", thing.shape
        yield "box", f"Where is the {thing.name}? Answer with a box.", boxes_json(recording, [i])
    yield "box", "Find all objects. Answer with boxes.", boxes_json(recording, _reading_order(recording))


def _questions_of_words(recording: Recording) -> Iterator[_Asked]:
    yield "caption", "Describe this.", caption(recording)
    yield "structured caption", "Describe this as JSON.", json.dumps(structured(recording))
    if recording.moving:
        spans = [{"start": a, "end": b, "caption": text} for a, b, text in _rounded(_spans(recording))]
        yield "events", "What happens when? Answer with events.", json.dumps(spans)


def _rounded(spans: list[tuple[float, float, str]]) -> list[tuple[float, float, str]]:
    return [(float(f"{a:.1f}"), float(f"{b:.1f}"), text) for a, b, text in spans]


def _questions_of_slide(recording: Recording) -> Iterator[_Asked]:
    index = _slider(recording)
    name = recording.objects[index].name
    event = _first_hit(recording, index)
    # Alone it may hit the wall, in company the other object: each is true of half the clips.
    targets = [f"the {thing.name}" for i, thing in enumerate(recording.objects) if i != index] or ["the wall"]
    struck = "nothing" if event is None else _struck(recording, event, index, _the)
    yield "which way", f"Which way does the {name} slide?", compass(recording.velocities[0, index].tolist())
    yield "what does it hit", f"What does the {name} hit?", struck
    for target in targets:
        answer = "yes" if target == struck else "no"
        yield "will it hit", f"Will the {name} hit {target}?", answer
        yield "did it hit", f"Did the {name} hit {target}?", answer
    if event is not None:
        yield "when", f"When did the {name} hit {struck}?", f"{seconds(event.time, recording.fps)} seconds"


def _questions_of_push(recording: Recording) -> Iterator[_Asked]:
    moves, movers = _moves(recording), _movers(recording)
    pushed = [event for event in recording.events if event.kind == "pusher-object"]
    touched = {event.objects[0] for event in pushed}
    for i, thing in enumerate(recording.objects):
        way = compass(moves[i]) if i in movers else "it stays"
        if way in DIRECTIONS or (way == "it stays" and movers):  # were all that stay asked, few would move
            yield "which way", f"Which way does the {thing.name} go?", way
        if 0 < len(touched) < len(recording.objects):  # one yes and one no: balanced
            yield "did it hit", f"Did the pusher hit the {thing.name}?", "yes" if i in touched else "no"
    for i, move in enumerate(moves):
        for goal in _likely_goals(i, move):
            if abs(progress(goal, recording.positions)[0] - SUCCESS_DISTANCE) > _SURE_DISTANCE:
                done = "yes" if reached(goal, recording.positions) else "no"
                yield "is it done", outcome_question(recording.objects, goal)[0], done
    for i in sorted(touched):
        first = next(event for event in pushed if event.objects[0] == i)
        time = seconds(first.time, recording.fps)
        yield "when", f"When did the pusher hit the {recording.objects[i].name}?", f"{time} seconds"


def _likely_goals(index: int, move: Sequence[float]) -> list[Goal]:
    """The goals that a motion [x, y] of more than a pixel may have reached: along it, and across."""
    x, y = move
    ways: tuple[Direction, Direction] = ("left" if x < 0 else "right", "up" if y < 0 else "down")
    return [Goal(index, way) for way in ways] if math.hypot(x, y) > 1.0 else []


def boxes_json(recording: Recording, indices: Sequence[int], frame: int = 0) -> str:
    """Bounding boxes as grounding answers have them: integers 0-1000 of the picture's width and height."""
    boxes = recording.boxes(frame)
    return json.dumps(
        [
            {"bbox_2d": [round(edge / SIZE * 1000) for edge in boxes[i]], "label": recording.objects[i].name}
            for i in indices
        ]
    )
