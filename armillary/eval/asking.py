"""The suite of the reasoner: every kind of question, on pictures and clips that no training has seen.

Each figure asks one question an episode. Beside it stands the blind answer: the commonest one that training
episodes give to questions of the same words, whatever is seen.
"""

import json
import random
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count, islice
from typing import Any, Final

import numpy as np

from armillary.answers import Box, find_marks
from armillary.eval.batches import Asked, answer_many
from armillary.eval.bench import Bench, Example, Outcome
from armillary.eval.scores import Figure, Unit, mean, share
from armillary.sim.drawing import COLOURS
from armillary.sim.language import CELLS, Question, QuestionKind, cell
from armillary.sim.physics import EXTENTS, FPS, SIZE
from armillary.sim.recording import Kind
from armillary.sim.scenes import HELD_OUT_PAIRS, Episode, Split, episode

Mark = Callable[[str, str], float]  # (answer, right answer) -> 0..1

_CELL_WORDS = sorted((word for row in CELLS for word in row), key=len, reverse=True)
_NAMES = re.compile(rf"\b({'|'.join((*COLOURS, *EXTENTS, *_CELL_WORDS))})\b")
_NUMBER = re.compile(r"\d+\.\d+")
_TRAINED = (300, 60)  # training episodes that blind answers are counted on: full, and for few cases
_SHOWN = 2  # wrong answers of each figure that the report shows


def exact(answer: str, right: str) -> float:
    """1 for the same words."""
    return float(answer == right)


def near_in_time(answer: str, right: str) -> float:
    """1 for the same words, times with a decimal being allowed one frame more or less."""
    if _NUMBER.sub("#", answer) != _NUMBER.sub("#", right):
        return 0.0
    pairs = zip(_NUMBER.findall(answer), _NUMBER.findall(right), strict=True)
    return float(all(abs(round(float(a) * FPS) - round(float(b) * FPS)) <= 1 for a, b in pairs))


def same_json(answer: str, right: str) -> float:
    """1 for valid JSON that says the same, times being allowed one frame more or less."""
    try:
        found = json.loads(answer)
    except (json.JSONDecodeError, RecursionError):
        return 0.0
    return near_in_time(json.dumps(found, sort_keys=True), json.dumps(json.loads(right), sort_keys=True))


def overlap(answer: str, right: str) -> float:
    """Intersection over union of the first box answered and the right one; 0 without a box."""
    found, wanted = (find_marks(text, (SIZE, SIZE)).boxes for text in (answer, right))
    return _overlap(found[0], wanted[0]) if found and wanted else 0.0


def _overlap(a: Box, b: Box) -> float:
    wide, high = min(a.x2, b.x2) - max(a.x1, b.x1), min(a.y2, b.y2) - max(a.y1, b.y1)
    both = max(wide, 0.0) * max(high, 0.0)
    whole = sum((box.x2 - box.x1) * (box.y2 - box.y1) for box in (a, b)) - both
    return both / whole if whole > 0 else 0.0


@dataclass(frozen=True)
class Plan:
    """One figure: which questions it asks, of which episodes, how an answer is marked, and what is a good
    score."""

    name: str
    question: QuestionKind
    kinds: tuple[Kind, ...]
    bar: float | None = None
    mark: Mark = exact
    split: Split = "test"
    unit: Unit = "share"
    limit: int = 48  # tokens of an answer

    def usable(self, e: Episode) -> list[Question]:
        """The questions of this figure that an episode answers; of unseen pairs, those about such a pair."""
        found = [q for q in e.questions() if q.kind == self.question and not q.text.startswith("Find all")]
        return [q for q in found if self.split != "heldout_pairs" or _about_unseen(e, q)]

    def cases(self, split: Split, episodes: Sequence[Iterator[Episode]]) -> Iterator[Asked]:
        """Without end, one question an episode, the kinds in turn."""
        for number in count():
            e = next(episodes[number % len(episodes)])
            usable = self.usable(e)
            if usable:
                yield Asked(e, random.Random(f"{self.name} {split} {e.kind} {e.seed}").choice(usable))


_Kinds = tuple[Kind, ...]
_STILL: Final[_Kinds] = ("still",)
_SLIDE: Final[_Kinds] = ("slide",)
_MOVING: Final[_Kinds] = ("slide", "wander")
PLANS: Final[tuple[Plan, ...]] = (
    Plan("count", "count", _STILL, 0.99),
    Plan("place, nine cells", "where", _STILL, 0.99),
    Plan("colour", "colour", _STILL, 0.97),
    Plan("shape", "shape", _STILL, 0.95),
    Plan("what is there", "what", _STILL),
    Plan("colour, unseen pairs", "colour", _STILL, 0.80, split="heldout_pairs"),
    Plan("shape, unseen pairs", "shape", _STILL, 0.80, split="heldout_pairs"),
    Plan("box, IoU", "box", _STILL, 0.75, overlap, unit="IoU"),
    Plan("direction of motion", "which way", _MOVING, 0.92),
    Plan("did it hit", "did it hit", _MOVING, 0.92),
    Plan("when did it hit, ± 1 frame", "when", _MOVING, 0.80, near_in_time),
    Plan("will it hit", "will it hit", _SLIDE, 0.85),
    Plan("what does it hit", "what does it hit", _SLIDE),
    Plan("is it done, pushed as asked", "is it done", ("wander",)),
    Plan("caption of a picture", "caption", _STILL, 0.92),
    Plan("caption of a clip", "caption", _MOVING, 0.92),
    Plan("structured caption of a picture", "structured caption", _STILL, 0.88, same_json, limit=160),
    Plan("structured caption of a clip", "structured caption", _MOVING, 0.88, same_json, limit=256),
    Plan("events, ± 1 frame", "events", _MOVING, None, same_json, limit=128),
)


def reasoner(bench: Bench) -> Outcome:
    """Answers right, by kind of question."""
    trained = _TRAINED[bench.n < 100]
    blind = {kind: [episode(kind, seed) for seed in range(trained)] for kind in (*_STILL, *_MOVING)}
    figures, examples = list[Figure](), list[Example]()
    for plan in PLANS:
        asked = list(
            islice(plan.cases(plan.split, [_held_out(bench, k, plan.split) for k in plan.kinds]), bench.n)
        )
        answers = answer_many(bench.parts, asked, limit=plan.limit)
        guess = Blind.learnt(plan, [e for kind in plan.kinds for e in blind[kind]])
        marks = [plan.mark(answer, a.question.answer) for answer, a in zip(answers, asked, strict=True)]
        guessed = [plan.mark(guess(a.question), a.question.answer) for a in asked]
        figures += _figures(plan, marks, guessed)
        examples += _wrong(plan, asked, answers, marks)
    return Outcome(figures, examples=examples)


def _held_out(bench: Bench, kind: Kind, split: Split) -> Iterator[Episode]:
    """Every episode of a kind and split, as far as anyone reads."""
    for seed in count():
        yield bench.episodes(kind, seed + 1, split=split)[seed]


def _figures(plan: Plan, marks: Sequence[float], guessed: Sequence[float]) -> list[Figure]:
    if plan.unit == "share":
        score, blind = (share([m == 1 for m in values]) for values in (marks, guessed))
        return [Figure(plan.name, score, beside={"blind": blind}, bar=plan.bar)]
    over, blind_over = (share([m > 0.5 for m in values]) for values in (marks, guessed))
    return [
        Figure(f"{plan.name}, mean", mean(marks), plan.unit, {"blind": mean(guessed)}, plan.bar),
        Figure(f"{plan.name} above .5", over, "share", {"blind": blind_over}, 0.95),
    ]


def _wrong(
    plan: Plan, asked: Sequence[Asked], answers: Sequence[str], marks: Sequence[float]
) -> list[Example]:
    """The first answers of a figure that are not right."""
    bad = [i for i, mark in enumerate(marks) if mark < 0.5][:_SHOWN]
    return [
        Example(f"{plan.name}: {asked[i].question.text}", answers[i], asked[i].question.answer) for i in bad
    ]


def _about_unseen(e: Episode, question: Question) -> bool:
    """Is the question about an object whose colour and shape were never trained together?"""
    for thing, place in zip(e.objects, e.positions[0].tolist(), strict=True):
        pointed = (f"the {thing.colour} object?", f"the {thing.shape}?", f"at the {cell(place)}?")
        if question.answer in (thing.colour, thing.shape) and question.text.endswith(pointed):
            return thing in HELD_OUT_PAIRS
    return False


def mask(text: str) -> str:
    """The question with the names of colours, shapes and cells blotted out."""
    return _NAMES.sub("#", text)


@dataclass(frozen=True)
class Blind:
    """The commonest answer to each masked question."""

    answers: Mapping[str, str]
    commonest: str

    @classmethod
    def learnt(cls, plan: Plan, episodes: Sequence[Episode]) -> "Blind":
        """From training episodes; where answers are boxes, from the median of every edge."""
        heard: dict[str, list[str]] = defaultdict(list)
        for e in episodes:
            for q in e.questions():
                if q.kind == plan.question and not q.text.startswith("Find all"):
                    heard[mask(q.text)].append(q.answer)
        typical = _median_box if plan.unit == "IoU" else _commonest
        everything = [answer for answers in heard.values() for answer in answers]
        return cls({text: typical(answers) for text, answers in heard.items()}, typical(everything))

    def __call__(self, question: Question) -> str:
        return self.answers.get(mask(question.text), self.commonest)


def _commonest(answers: Sequence[str]) -> str:
    return Counter(answers).most_common(1)[0][0]


def _median_box(answers: Sequence[str]) -> str:
    boxes: list[Any] = [json.loads(answer)[0]["bbox_2d"] for answer in answers]
    return json.dumps([{"bbox_2d": np.median(boxes, axis=0).round().astype(int).tolist(), "label": ""}])
