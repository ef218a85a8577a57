"""Imagine, judge, choose: the reasoner looks at what the generator made, and its best is kept.

What a judge says is read from its scores for the next tokens, not from its words: a probability, no verdict.
Shape letters: N things judged, A tokens of contexts, T of wanted words, E width, V vocabulary.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from armillary.errors import BadRequest
from armillary.media import Clip
from armillary.media.source import Pixels
from armillary.model import Memory, Network, Pass
from armillary.robots import Actions, Robot
from armillary.sequence import Context, Sample, pack
from armillary.step import Step
from armillary.tasks.act import proposals, roll_out
from armillary.tasks.denoise import SamplingOptions
from armillary.tasks.messages import converse
from armillary.tasks.parts import Parts

_OPPOSITES = {"yes": "no", "no": "yes"}


@dataclass(frozen=True)
class Judge:
    """A question about a picture or clip, and how its answer begins where all is as it should be."""

    question: str
    wanted: str = "yes"

    def choose(self, parts: Parts, clips: Sequence[Clip], seed: int) -> "Choice":
        """What it makes of clips that were drawn from `seed`, `seed` + 1, ..."""
        seeds = range(seed, seed + len(clips))
        return Choice(self, tuple(seeds), tuple(judge_clips(parts, clips, self)))


def asked_judge(parts: Parts, question: str | None, wanted: str) -> Judge | None:
    """The judge of a request, or None. Raises BadRequest for more words than the reasoner reads."""
    if question is None:
        return None
    for field, text in (("judge", question), ("wanted", wanted)):
        parts.text.check_size(len(text.encode()), parts.checkpoint.longest, field)
    asked = len(parts.text.render([{"role": "user", "content": question}]))
    _check_room(parts, asked, "judge", question)
    _check_room(parts, asked + len(parts.text.encode(wanted)), "wanted", wanted)
    return Judge(question, wanted)


@dataclass(frozen=True)
class Choice:
    """What a judge made of several candidates: candidate i was drawn from `seeds[i]`."""

    judge: Judge
    seeds: tuple[int, ...]
    scores: tuple[float, ...]

    @property
    def best(self) -> int:
        """The candidate with the highest score; of equal ones the first."""
        return self.scores.index(max(self.scores))

    def to_dict(self) -> dict[str, Any]:
        """For a receipt: every candidate can be made again from its seed."""
        scored = zip(self.seeds, self.scores, strict=True)
        return {
            "judge": self.judge.question,
            "wanted": self.judge.wanted,
            "chosen": self.best,
            "candidates": [{"seed": seed, "score": round(score, 4)} for seed, score in scored],
        }


def choose_policy(
    parts: Parts,
    prompt: str,
    image: Pixels,
    robot: Robot,
    *,
    judge: Judge,
    count: int,
    negative: str = "",
    options: SamplingOptions,
) -> tuple[Actions, Choice]:
    """Of `count` policy answers the one whose consequences the judge likes best; its clip shows them.

    The consequences are drawn by forward dynamics from the actions alone, without the instruction: a policy
    imagines what it was asked for, even where its actions would not do it. Candidate i is what the seed of
    `options` + i gives, in both. Raises as `policy` does.
    """
    halves = [_half(options, 0), replace(_half(options, 1), guidance=1.0)]  # no words to be guided by
    drawn = proposals(parts, prompt, image, robot, negative=negative, options=halves[0], count=count)
    rows = [proposal.actions.values for proposal in drawn]
    made = roll_out(parts, image, rows, robot, options=halves[1])
    clips = [Clip(m.frames, m.fps) for m in made]
    choice = judge.choose(parts, clips, options.seed)
    return replace(drawn[choice.best].actions, clip=clips[choice.best]), choice


def _half(options: SamplingOptions, half: int) -> SamplingOptions:
    """The same, its progress counted as the first or second half of a whole."""
    on_step = options.on_step

    def counted(done: Step) -> bool | None:
        return on_step(replace(done, step=half * done.of + done.step, of=2 * done.of)) if on_step else None

    return replace(options, on_step=counted)


def judge_clips(parts: Parts, clips: Sequence[Clip], judge: Judge) -> list[float]:
    """How probable the wanted answer is about each clip, or about the picture that one frame is.

    0 to 1: the probability that the answer begins with the wanted words, small or capitalised first letter. A
    wanted yes or no is weighed against its opposite alone. Raises BadRequest as `reason` does.
    """
    contexts = [converse(parts, _asked(clip, judge.question)).context for clip in clips]
    longest = max(len(context) for context in contexts)
    _check_room(parts, longest + len(parts.text.encode(judge.wanted)), "wanted", judge.wanted)
    return likelihoods(parts, contexts, judge.wanted)


def _check_room(parts: Parts, count: int, field: str, text: str) -> None:
    """Refuse a text with which the reasoner would read `count` tokens, if it cannot."""
    limit = parts.checkpoint.longest
    if limit and count > limit:
        message = f"takes {count} of this checkpoint's {limit} tokens, with what it is asked about"
        raise BadRequest(field, text, f"{message}; make it shorter")


@torch.no_grad()
def likelihoods(parts: Parts, contexts: Sequence[Context], wanted: str) -> list[float]:
    """The probability, 0 to 1, that the answer to each context begins with `wanted`; see `judge_clips`."""
    done = parts.network.read(pack([Sample(c) for c in contexts]))
    last = [end - 1 for end in accumulate(len(c) for c in contexts)]
    read = _Read(done.memory, parts.network.logits(_hidden(done)[last]), [c.end for c in contexts])
    for_it_N, other = _log_chances(parts, read, wanted), _OPPOSITES.get(wanted.lower())
    if other is None:
        return for_it_N.exp().tolist()
    return (for_it_N - _log_chances(parts, read, other)).sigmoid().tolist()


@dataclass(frozen=True)
class _Read:
    """Contexts that were read: what the blocks remember, scores of each next token, and where it stands."""

    memory: Memory
    logits_NV: Tensor
    places: list[int]


def _hidden(done: Pass) -> Tensor:
    if done.hidden_AE is None:
        raise AssertionError("reading always gives hidden states")
    return done.hidden_AE


def _asked(clip: Clip, question: str) -> list[dict[str, Any]]:
    shown = {"type": "video", "video": clip}
    if len(clip.frames) == 1:
        shown = {"type": "image", "image": clip.frames[0]}
    return [{"role": "user", "content": [shown, {"type": "text", "text": question}]}]


def _log_chances(parts: Parts, read: _Read, wanted: str) -> Tensor:
    """Log-probability [N] that each answer begins with the wanted words, capitalised or not."""
    spelled = sorted({wanted, wanted[:1].swapcase() + wanted[1:]})
    chances = [_log_chance(parts.network, read, parts.text.encode(text)) for text in spelled]
    return torch.stack(chances).logsumexp(0)


def _log_chance(network: Network, read: _Read, ids: Sequence[int]) -> Tensor:
    """Log-probability [N] that these tokens come next, one after the other."""
    ids_T, logits_NTV = torch.tensor(ids, device=read.logits_NV.device), read.logits_NV[:, None]
    if len(ids) > 1:
        steps_T = torch.arange(len(ids) - 1, dtype=torch.float32, device=ids_T.device)
        said = [
            Sample(Context(ids_T[:-1], (steps_T + p).expand(3, -1), p + len(steps_T))) for p in read.places
        ]
        copied = [past.pick(list(range(len(said)))) for past in read.memory]
        later_AV = network.logits(_hidden(network.read(pack(said), copied)))
        logits_NTV = torch.cat([logits_NTV, later_AV.unflatten(0, (len(said), -1))], dim=1)
    return logits_NTV.float().log_softmax(-1)[:, range(len(ids)), ids_T].sum(1)
