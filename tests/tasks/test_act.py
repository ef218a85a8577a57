"""The tasks about a robot on a small random checkpoint: chunks, units, what is refused, how runs end."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from armillary.errors import BadRequest, Cancelled
from armillary.robots import Robot, robot
from armillary.tasks import act, denoise
from armillary.tasks.act import forward_dynamics, inverse_dynamics, policy
from armillary.tasks.denoise import SamplingOptions
from armillary.tasks.parts import Parts, load_parts
from armillary.tasks.segments import Latents
from tests.random_pocket import random_pocket

BODY = replace(robot("tabletop"), chunk=4)
QUICK = SamplingOptions(steps=2)


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> Parts:
    folder = random_pocket(tmp_path_factory.mktemp("pocket"))
    return load_parts(folder, device=torch.device("cpu"), dtype=torch.float32, want=("video",))


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Latents, SamplingOptions]]:
    """What every run of the sampler was given."""
    seen: list[tuple[Latents, SamplingOptions]] = []
    real = denoise.draw_many

    def draw_many(
        parts: Parts, latents: list[Latents], contexts: Any, options: SamplingOptions
    ) -> list[Latents]:
        seen.append((latents[0], options))
        return real(parts, latents, contexts, options)

    monkeypatch.setattr(denoise, "draw_many", draw_many)
    monkeypatch.setattr(act, "draw_many", draw_many)
    return seen


def pixels(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (*shape, 3), dtype=np.uint8)


def pushes(count: int) -> np.ndarray:
    return np.random.default_rng(1).uniform(-28, 28, (count, 2)).astype(np.float32)


@pytest.mark.parametrize("count", [1, 3, 4, 5, 9])
def test_every_action_gives_a_frame(parts: Parts, count: int) -> None:
    done = forward_dynamics(parts, pixels(16, 24), pushes(count), BODY, options=QUICK)
    assert done.frames.shape == (count + 1, 16, 24, 3)
    assert done.fps == 8


def test_chunks_go_on_from_the_last_frame(parts: Parts, runs: list[tuple[Latents, SamplingOptions]]) -> None:
    actions = pushes(6)
    done = forward_dynamics(parts, pixels(16, 16), actions, BODY, options=QUICK)
    (first, _), (second, _) = runs
    alone = forward_dynamics(parts, pixels(16, 16), actions[:4], BODY, options=QUICK)
    np.testing.assert_array_equal(done.frames[:5], alone.frames)
    later = forward_dynamics(parts, alone.frames[-1], actions[4:], BODY, options=replace(QUICK, chunk=1))
    np.testing.assert_array_equal(done.frames[4:][1:], later.frames[1:])
    assert torch.equal(first.actions_KD, torch.tensor(actions[:4] / 20))
    want = np.concatenate([actions[4:], actions[-1:], actions[-1:]]) / 20
    torch.testing.assert_close(second.actions_KD, torch.tensor(want))


def test_actions_change_what_is_seen(parts: Parts) -> None:
    one, other = (
        forward_dynamics(parts, pixels(16, 16), x, BODY, options=QUICK).latents[0].vision_ZThw
        for x in (pushes(4), -pushes(4))
    )
    assert not torch.equal(one, other)
    assert torch.equal(one[:, 0], other[:, 0])


@pytest.mark.parametrize("frames", [2, 5, 6, 10])
def test_every_move_gives_an_action(parts: Parts, frames: int) -> None:
    actions = inverse_dynamics(parts, pixels(frames, 16, 16), BODY, options=QUICK)
    assert actions.values.shape == (frames - 1, 2)
    assert (actions.domain, actions.fps, actions.names) == ("tabletop", 8, ("vx", "vy"))


def test_a_policy_gives_actions_and_what_they_look_like(parts: Parts) -> None:
    actions = policy(parts, "push it left", pixels(16, 16), BODY, options=QUICK)
    assert actions.values.shape == (4, 2)
    assert actions.clip is not None
    assert actions.clip.frames.shape == (5, 16, 16, 3)
    assert actions.receipt["tokens"]["action"] == 4
    blind = policy(parts, "push it left", pixels(16, 16), BODY, decode_clip=False, options=QUICK)
    assert blind.clip is None
    np.testing.assert_array_equal(blind.values, actions.values)


def test_answers_are_in_the_robots_units(parts: Parts) -> None:
    raw = replace(BODY, scaled=False)
    scaled, plain = (policy(parts, "", pixels(16, 16), b, options=QUICK).values for b in (BODY, raw))
    np.testing.assert_allclose(scaled, 20 * plain, rtol=1e-6)


def test_a_state_stands_before_the_actions(parts: Parts, runs: list[tuple[Latents, SamplingOptions]]) -> None:
    actions = policy(parts, "", pixels(16, 16), BODY, state=[10.0, -20.0], options=QUICK)
    latents = runs[0][0]
    assert actions.values.shape == (4, 2)
    assert latents.actions_KD is not None
    assert latents.actions_KD.shape == (5, 2)
    assert latents.actions_KD[0].tolist() == [0.5, -1.0]
    assert (latents.first_action, tuple(latents.clean_actions)) == (0, (0,))
    other = policy(parts, "", pixels(16, 16), BODY, state=[-10.0, 20.0], options=QUICK)
    assert not np.array_equal(actions.values, other.values)


def test_chunks_have_noise_of_their_own(parts: Parts, runs: list[tuple[Latents, SamplingOptions]]) -> None:
    still = np.repeat(pixels(1, 16, 16), 10, axis=0)
    done = inverse_dynamics(parts, still, BODY, options=replace(QUICK, seed=7)).values
    assert [(options.seed, options.chunk) for _, options in runs] == [(7, 0), (7, 1), (7, 2)]
    assert not np.array_equal(done[:4], done[4:8])


def test_progress_counts_all_chunks(parts: Parts) -> None:
    steps: list[tuple[int, int]] = []
    options = replace(QUICK, on_step=lambda done: steps.append((done.step, done.of)))
    forward_dynamics(parts, pixels(16, 16), pushes(8), BODY, options=options)
    assert steps == [(1, 4), (2, 4), (3, 4), (4, 4)]


def test_a_run_can_be_stopped(parts: Parts) -> None:
    options = replace(QUICK, on_step=lambda done: done.step < 3)
    with pytest.raises(Cancelled):
        forward_dynamics(parts, pixels(16, 16), pushes(8), BODY, options=options)


def test_published_bodies_use_a_canvas(parts: Parts) -> None:
    body = replace(robot("pusht"), chunk=4, tier=256)
    done = forward_dynamics(parts, pixels(50, 76), pushes(5), body, options=SamplingOptions(1))
    assert done.frames.shape == (6, 48, 72, 3)


REFUSED: dict[str, tuple[Robot, str, str]] = {
    "chunk": (replace(BODY, chunk=6), "chunk", "multiple of 4"),
    "view": (replace(BODY, view="from_the_moon"), "view", "ego_view"),
    "port": (replace(BODY, domain=32), "domain", "32"),
    "wide": (robot("umi"), "domain", "1 to 4"),
    "none": (robot("no_action"), "domain", "1 to 4"),
    "open": (robot("libero"), "domain", r"\.toml file with `like = \"libero\"` and `width`, or robot\("),
}


@pytest.mark.parametrize("case", REFUSED)
def test_bodies_that_do_not_fit_are_refused(parts: Parts, case: str) -> None:
    body, field, hint = REFUSED[case]
    with pytest.raises(BadRequest, match=hint) as caught:
        policy(parts, "", pixels(16, 16), body, options=QUICK)
    assert caught.value.field == field


def test_pictures_of_other_sizes_are_refused_without_a_canvas(parts: Parts) -> None:
    with pytest.raises(BadRequest, match=r"image='16x20': .*multiples of 8.*nearest: 16x16"):
        policy(parts, "", pixels(20, 16), BODY, options=QUICK)
    with pytest.raises(BadRequest, match=r"video='1x1': .*nearest: 8x8"):
        inverse_dynamics(parts, pixels(2, 1, 1), BODY, options=QUICK)


def test_one_frame_has_no_action(parts: Parts) -> None:
    with pytest.raises(BadRequest, match="at least 2"):
        inverse_dynamics(parts, pixels(1, 16, 16), BODY, options=QUICK)


def test_bad_actions_are_refused(parts: Parts) -> None:
    with pytest.raises(BadRequest, match="actions"):
        forward_dynamics(parts, pixels(16, 16), [[1.0, float("nan")]], BODY, options=QUICK)


def test_a_negative_needs_guidance(parts: Parts) -> None:
    with pytest.raises(BadRequest, match="guidance"):
        policy(parts, "", pixels(16, 16), BODY, negative="blurred", options=QUICK)
    policy(parts, "", pixels(16, 16), BODY, negative="x", options=replace(QUICK, guidance=2.0))
