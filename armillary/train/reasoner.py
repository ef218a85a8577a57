"""The reasoner's training: questions about pictures, clips and captions; loss on the answers alone.

A picture is looked at and read once; each of its questions then goes on from that memory, so that no
question sees another's answer. Long answers weigh little more than short ones, and shapes are asked more
often: they are learnt last. First most lessons only ask what stands where; the rest needs that anyway.

Shape letters: A tokens of a context, V visual tokens, E width.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer

from armillary.codecs.qwen_vit import Grid
from armillary.codecs.sight import (
    POCKET_CLIPS,
    POCKET_PICTURES,
    Patches,
    clip_patches,
    picture_patches,
    reasoner_positions,
    sample_frames,
    slice_text,
    tokens,
)
from armillary.codecs.text import TextCodec
from armillary.model import Past
from armillary.sequence import Context, Sample, Visual, pack
from armillary.sim.language import Question
from armillary.sim.scenes import Episode, Kind, episode
from armillary.train.dense import Truth, dense_loss, truth
from armillary.train.layout import Pocket
from armillary.train.loop import Draw, Metrics
from armillary.train.muon import Muon
from armillary.train.strange import in_strange_colours, in_strange_shapes

LENGTH = 0.6  # an answer of n tokens weighs n^(1 - LENGTH); spec/training 1.7 calls it e
SEEING = {"shape": 4.0, "where": 2.0, "what": 1.0, "colour": 1.0, "count": 0.5}
TELLING = {"shape": 0.5, "where": 0.5, "caption": 3.0, "structured caption": 3.0, "events": 0.7, "box": 1.0}
WATCHING = ("which way", "did it hit", "is it done", "will it hit", "when", "what does it hit")
DESCRIBING = ("caption", "structured caption")
READING = {"shape": 1.0, "where": 2.0, "what": 2.0, "colour": 1.0, "count": 0.5, "structured caption": 2.0}
READING_MOTION = {"shape": 1.0, "colour": 1.0, "which way": 2.0, "what does it hit": 2.0} | {
    "structured caption": 3.0
}
STRANGE = 0.5  # share of the lessons on what stands where that show things without a name
DENSE = 0.3  # weight of what is told of every visual token
SEEING_FIRST = 0.45  # share of the run in which most lessons only ask what stands where


@dataclass
class Speller:
    """Ids of short texts, remembered: training says the same words again and again."""

    codec: TextCodec
    known: dict[str, list[int]] = field(default_factory=dict)

    def __call__(self, text: str) -> list[int]:
        if text not in self.known:
            self.known[text] = self.codec.encode(text)
        return self.known[text]

    def control(self, name: str) -> int:
        return self.codec.special(name)


@dataclass(frozen=True)
class Shown:
    """What is given of an episode: one picture or a clip with its slices' times, and words before the
    question."""

    patches: Patches | None
    truth: Truth | None = None  # about every visual token
    times: tuple[float, ...] | None = None
    words: str = ""


def show(e: Episode, *, clip: bool) -> Shown:
    if not clip:
        return Shown(picture_patches(e.picture(0), POCKET_PICTURES), truth(e, [[0]]))
    chosen = list(sample_frames(len(e.positions), e.fps, POCKET_CLIPS))
    patches, times = clip_patches(e.frames[chosen], [i / e.fps for i in chosen], POCKET_CLIPS)
    together = POCKET_CLIPS.temporal_patch_size
    slices = [chosen[i : i + together] for i in range(0, len(chosen), together)]
    return Shown(patches, truth(e, slices), tuple(times))


def show_strange(e: Episode, rng: Random, *, shape: bool) -> Shown:
    """Its first frame with strange colours, of which only each `shape` is told, or with strange shapes."""
    picture = (in_strange_colours if shape else in_strange_shapes)(e, rng)
    right = truth(e, [[0]], shapes=shape, colours=not shape)
    return Shown(picture_patches(picture, POCKET_PICTURES), right)


def opening(shown: Shown, spell: Speller) -> tuple[list[int], list[int | Grid], list[int]]:
    """Ids of a user turn up to its question, the runs they consist of, and the rows of the placeholders."""
    pad = spell.control("<|image_pad|>" if shown.times is None else "<|video_pad|>")
    ids, runs, rows = [spell.control("<|im_start|>"), *spell("user\n")], list[int | Grid](), list[int]()
    if shown.patches is None:
        ids += spell(f"{shown.words}\n")
        return ids, [len(ids)], rows
    slice_grid = (1, *shown.patches.grid[1:])
    count = tokens(slice_grid, 2)
    start = 0
    for time in shown.times or (None,):
        ids += [*(spell(slice_text(time)) if time is not None else []), spell.control("<|vision_start|>")]
        runs += [len(ids) - start, slice_grid]
        rows += range(len(ids), len(ids) + count)
        ids += [pad] * count + [spell.control("<|vision_end|>")]
        start = len(ids) - 1
    ids += spell(f"{shown.words}\n") if shown.words else []
    return ids, [*runs, len(ids) - start], rows


def closing(question: Question, spell: Speller) -> tuple[list[int], int]:
    """Ids from the question to the end of the answer, and how many of them are the answer (with its end of
    turn)."""
    end = spell.control("<|im_end|>")
    asked = [*spell(question.text), end, *spell("\n"), spell.control("<|im_start|>"), *spell("assistant\n")]
    answer = [*spell(question.answer), end]
    return asked + answer, len(answer)


def choose(
    e: Episode, count: int, rng: Random, *, clip: bool = False, odds: Mapping[str, float] | None = None
) -> list[Question]:
    """`count` questions that what is shown can answer; `odds` by kind, all kinds alike without them."""
    usable = [q for q in e.questions() if clip or not q.needs_clip]
    weights = [1.0 if odds is None else odds.get(q.kind, 0.0) for q in usable]
    return rng.choices(usable, weights, k=count)


def watching(e: Episode, *, clip: bool) -> list[Question]:
    """Every question about what moves that what is shown can answer, and of a clip its captions."""
    kinds = {*WATCHING, *DESCRIBING} if clip else {*WATCHING}
    return [q for q in e.questions() if q.kind in kinds and (clip or not q.needs_clip)]


Marked = tuple[Question, bool]


@dataclass(frozen=True)
class Lesson:
    """Episodes of one shape, and the questions asked of each."""

    shown: list[Shown]
    questions: list[list[Question]]


@dataclass(frozen=True)
class Read:
    """What the towers made of a lesson's openings."""

    memory: list[Past]
    ends: list[int]  # the position at which each opening goes on
    seen_VE: tuple[Tensor, ...]  # of every visual token: by the vision tower, by the AR tower; () for none


def read_shown(model: Pocket, shown: Sequence[Shown], spell: Speller) -> Read:
    seen = [s.patches for s in shown if s.patches is not None]
    visuals = iter(look(model, seen) if seen else [])
    samples: list[Sample] = []
    for s in shown:
        ids, runs, rows = opening(s, spell)
        positions_3A, delta = reasoner_positions(runs, 2)
        visual = None
        if s.patches is not None:
            features, *deep = next(visuals)
            visual = Visual(torch.tensor(rows), features, tuple(deep))
        samples.append(Sample(Context(torch.tensor(ids), positions_3A, len(ids) + delta, visual)))
    packed = pack(samples)
    done, visual = model.network.read(packed), packed.visual()
    assert done.hidden_AE is not None
    seen_VE = () if visual is None else (visual.features_VE, done.hidden_AE[visual.rows_V])
    return Read(done.memory, [s.context.end for s in samples], seen_VE)


def look(model: Pocket, seen: Sequence[Patches]) -> list[tuple[Tensor, ...]]:
    """The features [V, E] of each, and after them those of its deepstack levels."""
    sizes = [tokens(p.grid, 2) for p in seen]
    features_VE, deepstack = model.sight(torch.cat([p.pixels_NP for p in seen]), [p.grid for p in seen])
    return list(zip(features_VE.split(sizes), *(d.split(sizes) for d in deepstack), strict=True))


def lesson_loss(model: Pocket, lesson: Lesson, spell: Speller) -> tuple[Tensor, Tensor, list[Marked]]:
    """The loss of the answers, that of what is told of every visual token, and which answers are right."""
    read = read_shown(model, lesson.shown, spell)
    loss, marks = answer_loss(model, lesson, read, spell)
    truths = [s.truth for s in lesson.shown if s.truth is not None]
    dense = loss.new_zeros(())
    if truths:
        right = Truth.join(truths)
        seen_VX, thought_VX = (tell(x) for tell, x in zip(model.tell, read.seen_VE, strict=True))
        dense = dense_loss(seen_VX, right, watched=False) + dense_loss(thought_VX, right, watched=True)
    return loss, dense, marks


def answer_loss(model: Pocket, lesson: Lesson, read: Read, spell: Speller) -> tuple[Tensor, list[Marked]]:
    """The weighted loss of every answer, and whether each would be given right (greedily, its own past
    being right)."""
    memory, ends = read.memory, read.ends
    asked = [(i, q, *closing(q, spell)) for i, qs in enumerate(lesson.questions) for q in qs]
    # equal lengths side by side share one attention call
    asked.sort(key=lambda a: (memory[0].own.lengths[a[0]], len(a[2])))
    samples = [Sample(follow(torch.tensor(ids[:-1]), ends[i])) for i, _, ids, _ in asked]
    past = [m.pick([i for i, *_ in asked]) for m in memory]
    hidden_AE = model.network.read(pack(samples), past).hidden_AE
    assert hidden_AE is not None
    rows, targets, counts, start = list[int](), list[int](), list[int](), 0
    for _, _, ids, n in asked:
        rows += range(start + len(ids) - 1 - n, start + len(ids) - 1)
        targets += ids[-n:]
        counts.append(n)
        start += len(ids) - 1
    logits = model.network.logits(hidden_AE[torch.tensor(rows)])
    target = torch.tensor(targets)
    weight = torch.cat([torch.full((n,), n**-LENGTH) for n in counts])
    loss = (F.cross_entropy(logits.float(), target, reduction="none") * weight).sum() / sum(
        n ** (1 - LENGTH) for n in counts
    )
    right = (logits.argmax(-1) == target).split(counts)
    return loss, [(q, bool(r.all())) for (_, q, *_), r in zip(asked, right, strict=True)]


def follow(ids_A: Tensor, start: int) -> Context:
    """A text context that goes on at position `start`."""
    count = ids_A.shape[0]
    return Context(ids_A, (start + torch.arange(count)).float().expand(3, -1), start + count)


class ReasonerJob:
    """Stills mostly; first frames and clips of moving episodes for the rest."""

    def __init__(
        self, model: Pocket, codec: TextCodec, *, pictures: int = 16, clips: int = 8, asked: int = 4
    ) -> None:
        self.model, self.spell = model, Speller(codec)
        self.pictures, self.clips, self.asked = pictures, clips, asked
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(not draws(name))

    def optimizers(self, rate: float) -> list[Optimizer]:
        return optimizers(self.model, rate)

    def lesson(self, rng: Random, done: float) -> Lesson:
        """Stills; with growing share all questions, clips, first frames of slides, and captions alone."""
        if rng.random() < (0.75 if done < SEEING_FIRST else 0.17):
            if rng.random() < STRANGE:
                return self._strange(rng)
            return self._seen(("still",), SEEING, self.asked + 2, rng)
        pick = rng.random()
        if pick < 0.16:
            return self._seen(("still",), SEEING | TELLING, self.asked, rng)
        if pick < 0.28:
            return self._seen(("slide",), SEEING | TELLING, self.asked - 1, rng)
        if pick < 0.85:
            others = {kind: odds for kind, odds in TELLING.items() if kind not in DESCRIBING}
            return self._seen(("slide", "wander"), others, self.asked - 3, rng, clip=True)
        return self._read(rng)

    def _seen(
        self, kinds: Sequence[Kind], odds: Mapping[str, float], asked: int, rng: Random, *, clip: bool = False
    ) -> Lesson:
        count = self.clips if clip else self.pictures
        episodes = [episode(rng.choice(kinds), rng.randrange(1 << 40)) for _ in range(count)]
        questions = [
            [*watching(e, clip=clip), *choose(e, asked, rng, clip=clip, odds=odds)] for e in episodes
        ]
        return Lesson([show(e, clip=clip) for e in episodes], questions)

    def _strange(self, rng: Random) -> Lesson:
        """Shapes in any colour, or colours on any shape: each must be known whatever the other is."""
        shape = rng.random() < 0.5
        asked = f"What {'shape' if shape else 'colour'} is the object at"
        shown, questions = list[Shown](), list[list[Question]]()
        while len(shown) < self.pictures:
            e = episode("still", rng.randrange(1 << 40))
            usable = [q for q in e.questions() if q.text.startswith(asked)]
            if usable:
                shown.append(show_strange(e, rng, shape=shape))
                questions.append(usable)
        return Lesson(shown, questions)

    def _read(self, rng: Random) -> Lesson:
        """Captions, alone or with the first frame: what they say, and the structured caption they become.

        The generator tower sees a prompt only as this tower reads it.
        """
        shown, questions = list[Shown](), list[list[Question]]()
        for _ in range(self.pictures):
            e = episode(rng.choice(("still", "still", "slide", "wander", "push")), rng.randrange(1 << 40))
            odds = READING_MOTION if e.moving else READING
            questions.append(choose(e, self.asked - 1, rng, clip=True, odds=odds))
            words = e.instruction if e.instruction and rng.random() < 0.3 else e.caption
            look = rng.random() < 0.25
            shown.append(replace(show(e, clip=False), words=words) if look else Shown(None, words=words))
        return Lesson(shown, questions)

    def loss(self, draw: Draw, done: float) -> tuple[Tensor, Metrics]:
        loss, dense, marks = lesson_loss(self.model, self.lesson(draw.python, done), self.spell)
        told = {"loss": float(loss.detach()), "dense": float(dense.detach())}
        return loss + DENSE * dense, told | scores(marks)


def scores(marks: Sequence[Marked]) -> dict[str, float]:
    kinds: dict[str, list[bool]] = defaultdict(list)
    for question, right in marks:
        kinds[question.kind].append(right)
    return {kind: sum(r) / len(r) for kind, r in kinds.items()}


def optimizers(model: Pocket, rate: float, *, reasoner: float = 1.0) -> list[Optimizer]:
    """Muon (Jordan 2024) for the matrices of blocks, AdamW for whatever else learns.

    reasoner: the share of the rate at which the AR tower, its vision tower and the embedding learn.
    """
    groups: dict[tuple[bool, bool], list[nn.Parameter]] = defaultdict(list)
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            hidden = parameter.dim() == 2 and ".blocks." in name
            groups[hidden, not draws(name)].append(parameter)

    def chosen(hidden: bool) -> list[dict[str, Any]]:
        shares = ((False, 1.0), (True, reasoner))
        return [{"params": groups[hidden, reads], "share": s} for reads, s in shares if groups[hidden, reads]]

    return [
        Muon(chosen(True), lr=rate, weight_decay=0.02),
        AdamW(chosen(False), lr=rate, betas=(0.9, 0.97), weight_decay=0.0),
    ]


def draws(name: str) -> bool:
    """Does a parameter of `Pocket` belong to the generator?"""
    return ".dm." in name or name.startswith(
        ("network.norm_dm", "network.ports", "network.time", "tell_drawn")
    )
