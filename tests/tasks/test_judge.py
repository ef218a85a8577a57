"""Imagine, judge, choose on a small random checkpoint: scores are the reasoner's own, the best is kept."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from armillary.errors import BadRequest, Cancelled
from armillary.loading import load
from armillary.media import Clip
from armillary.robots import robot
from armillary.sequence import Context, Sample, pack
from armillary.tasks.act import forward_dynamics, policy
from armillary.tasks.denoise import SamplingOptions
from armillary.tasks.judge import Choice, Judge, choose_policy, judge_clips, likelihoods
from armillary.tasks.messages import converse
from armillary.tasks.parts import Parts
from armillary.world import World
from tests.random_pocket import random_pocket

BODY = replace(robot("tabletop"), chunk=4)
QUICK = SamplingOptions(steps=2, seed=5)
JUDGE = Judge("Where is the red disc?")


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return load(random_pocket(tmp_path_factory.mktemp("pocket")), device="cpu", dtype="float32")


@pytest.fixture
def parts(world: World) -> Parts:
    return world.parts


def clip(seed: int, frames: int = 5) -> Clip:
    pixels = np.random.default_rng(seed).integers(0, 256, (frames, 64, 64, 3), dtype=np.uint8)
    return Clip(pixels, 8.0)


def context(parts: Parts, seed: int, frames: int = 5) -> Context:
    content = [{"type": "video", "video": clip(seed, frames)}, {"type": "text", "text": JUDGE.question}]
    return converse(parts, [{"role": "user", "content": content}]).context


def said(parts: Parts, seen: Context, text: str) -> float:
    """The log-probability of a text after a context, each of its tokens read with all before it."""
    total = 0.0
    for token in parts.text.encode(text):
        hidden_AE = parts.network.read(pack([Sample(seen)])).hidden_AE
        assert hidden_AE is not None
        total += float(parts.network.logits(hidden_AE[-1]).log_softmax(-1)[token])
        place = torch.full((3, 1), float(seen.end))
        ids_A, positions_3A = torch.cat([seen.ids_A, torch.tensor([token])]), seen.positions_3A
        seen = replace(seen, ids_A=ids_A, positions_3A=torch.cat([positions_3A, place], 1), end=seen.end + 1)
    return total


@pytest.mark.parametrize("wanted", ["left", "red disc"])
def test_a_score_is_the_probability_that_the_answer_begins_so(parts: Parts, wanted: str) -> None:
    contexts = [context(parts, seed, frames) for seed, frames in ((0, 5), (1, 9))]
    scores = likelihoods(parts, contexts, wanted)
    spelled = wanted, wanted[0].upper() + wanted[1:]
    alone = [sum(np.exp(said(parts, c, text)) for text in spelled) for c in contexts]
    np.testing.assert_allclose(scores, alone, rtol=1e-4)


def test_yes_and_no_are_weighed_against_each_other(parts: Parts) -> None:
    contexts = [context(parts, seed) for seed in range(3)]
    yes, no = (likelihoods(parts, contexts, wanted) for wanted in ("yes", "no"))
    np.testing.assert_allclose(np.add(yes, no), 1, atol=1e-6)
    for_it, against = (
        np.logaddexp(*(said(parts, contexts[0], t) for t in ts)) for ts in (("yes", "Yes"), ("no", "No"))
    )
    assert yes[0] == pytest.approx(1 / (1 + np.exp(against - for_it)), abs=1e-5)
    assert likelihoods(parts, contexts, "Yes") == pytest.approx(yes)


def test_one_frame_is_judged_as_a_picture(parts: Parts) -> None:
    one = clip(0, 1)
    content = [{"type": "image", "image": one.frames[0]}, {"type": "text", "text": JUDGE.question}]
    seen = converse(parts, [{"role": "user", "content": content}]).context
    assert judge_clips(parts, [one], JUDGE) == pytest.approx(likelihoods(parts, [seen], "yes"))


def test_the_best_candidate_is_kept_and_every_one_can_be_made_again(parts: Parts) -> None:
    picture, words = clip(3, 1).frames[0], "push it left"
    chosen, choice = choose_policy(parts, words, picture, BODY, judge=JUDGE, count=3, options=QUICK)
    assert choice.seeds == (5, 6, 7)
    assert choice.scores[choice.best] == max(choice.scores)
    for seed, score in zip(choice.seeds, choice.scores, strict=True):
        own = replace(QUICK, seed=seed)
        actions = policy(parts, words, picture, BODY, decode_clip=False, options=own)
        made = forward_dynamics(parts, picture, actions.values, BODY, options=own)
        assert judge_clips(parts, [Clip(made.frames, 8.0)], JUDGE)[0] == pytest.approx(score, abs=1e-3)
        if seed == choice.seeds[choice.best]:
            np.testing.assert_allclose(chosen.values, actions.values, atol=1e-3)
            assert chosen.clip is not None
            assert np.abs(chosen.clip.frames.astype(int) - made.frames).max() <= 1


def test_a_receipt_tells_scores_and_losers() -> None:
    told = Choice(Judge("Is it left?"), (4, 5), (0.25, 0.75)).to_dict()
    assert told == {
        "judge": "Is it left?",
        "wanted": "yes",
        "chosen": 1,
        "candidates": [{"seed": 4, "score": 0.25}, {"seed": 5, "score": 0.75}],
    }


def test_progress_counts_acting_and_imagining_and_both_can_be_stopped(parts: Parts) -> None:
    steps: list[tuple[int, int]] = []
    told = replace(QUICK, on_step=lambda done: steps.append((done.step, done.of)))
    picture = clip(3, 1).frames[0]
    choose_policy(parts, "push it", picture, BODY, judge=JUDGE, count=2, options=told)
    assert steps == [(1, 4), (2, 4), (3, 4), (4, 4)]
    stopped = replace(QUICK, on_step=lambda done: done.step < 3)
    with pytest.raises(Cancelled):
        choose_policy(parts, "push it", picture, BODY, judge=JUDGE, count=2, options=stopped)


def test_a_world_keeps_the_candidate_that_its_receipt_names(world: World) -> None:
    judged: Any = {"candidates": 3, "judge": JUDGE.question, "wanted": "left", "steps": 2, "seed": 3}
    picture = clip(3, 1).frames[0]
    chosen = world.policy("push it", picture, domain="tabletop", **judged)
    drawn = world.generate("a red disc", frames=5, **judged)
    for receipt in (chosen.receipt, drawn.receipt):
        choice = receipt["choice"]
        assert [c["seed"] for c in choice["candidates"]] == [3, 4, 5]
        assert choice["candidates"][choice["chosen"]]["score"] == max(
            c["score"] for c in choice["candidates"]
        )
    seeds = (
        r["choice"]["candidates"][r["choice"]["chosen"]]["seed"] for r in (chosen.receipt, drawn.receipt)
    )
    alone = world.policy("push it", picture, domain="tabletop", decode=False, steps=2, seed=next(seeds))
    np.testing.assert_allclose(chosen.values, alone.values, atol=1e-3)
    again = world.generate("a red disc", frames=5, steps=2, seed=next(seeds))
    assert np.abs(drawn.frames.astype(int) - again.frames).max() <= 1
    assert "choice" not in alone.receipt
    with pytest.raises(BadRequest, match=r"^n=2: a judge keeps one"):
        world.generate("a red disc", n=2, **judged)


@pytest.mark.parametrize("words", [{"judge": "disc " * 5000}, {"judge": "Is it?", "wanted": "yes " * 5000}])
def test_more_words_than_the_reasoner_reads_are_refused_before_anything_is_drawn(
    world: World, words: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(world.parts.network, "draw", lambda *_: pytest.fail("something was drawn"))
    field, picture = [*words][-1], np.zeros((16, 16, 3), np.uint8)
    with pytest.raises(BadRequest, match=f"^{field}=.*4096 tokens"):
        world.policy("push", picture, domain="tabletop", candidates=2, **words)
    with pytest.raises(BadRequest, match=f"^{field}=.*4096 tokens"):
        world.generate("a disc", frames=1, candidates=2, **words)


def test_a_wanted_answer_must_fit_after_what_is_looked_at(parts: Parts) -> None:
    long = "yes " * ((4096 - len(context(parts, 0))) // len(parts.text.encode("yes ")) + 1)
    with pytest.raises(BadRequest, match=r"^wanted=.*4096 tokens"):
        judge_clips(parts, [clip(0)], Judge(JUDGE.question, long))
