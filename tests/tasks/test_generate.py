"""Pictures and clips on a small random checkpoint: what is refused, rounded, kept, and how runs end."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from armillary.codecs.wan_vae import WanVAE
from armillary.errors import BadRequest, Cancelled
from armillary.facts import Canvas
from armillary.flow import native_grid
from armillary.shards import write_json
from armillary.step import Step
from armillary.tasks.defaults import defaults
from armillary.tasks.denoise import SamplingOptions, choose_grid
from armillary.tasks.frames import Placement, cover
from armillary.tasks.generate import Given, Made, generate
from armillary.tasks.parts import Parts, load_parts
from armillary.weights import Checkpoint
from armillary.wording import Wording
from tests.random_pocket import random_pocket

CLIP, PICTURE = Canvas(5, 8.0, 16, 16), Canvas(1, 8.0, 16, 16)
QUICK = SamplingOptions(steps=2)


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> Parts:
    folder = random_pocket(tmp_path_factory.mktemp("pocket"))
    return load_parts(folder, device=torch.device("cpu"), dtype=torch.float32, want=("video", "audio"))


def pixels(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (*shape, 3), dtype=np.uint8)


def make(
    parts: Parts,
    canvas: Canvas = CLIP,
    options: SamplingOptions = QUICK,
    negative: str = "",
    **others: Any,
) -> Made:
    return generate(parts, Wording("a red disc", negative), canvas=canvas, options=options, **others)[0]


@pytest.mark.parametrize(("asked", "made"), [(1, 1), (2, 5), (5, 5), (6, 9)])
def test_frames_are_rounded_up(parts: Parts, asked: int, made: int) -> None:
    done = make(parts, replace(CLIP, frames=asked))
    assert done.frames.shape == (made, 16, 16, 3)
    assert done.frames.dtype == np.uint8
    assert done.clip().fps == 8


def test_sound_ends_with_the_frames(parts: Parts) -> None:
    done = make(parts, sound=True)
    assert done.sound is not None
    assert done.sound.shape == (2, 10_000)
    assert done.sound.dtype == np.float32
    assert done.sample_rate == 16_000
    assert done.clip().sound is done.sound


def test_tokens_are_counted(parts: Parts) -> None:
    done = make(parts, options=replace(QUICK, guidance=3.0), negative="blurred", sound=True)
    assert done.tokens["vision"] == 2
    assert done.tokens["sound"] == 10
    assert done.tokens["context"] != done.tokens["negative"]


def test_the_given_frames_stay(parts: Parts) -> None:
    video = pixels(9, 16, 16)
    done = make(parts, replace(CLIP, frames=13), given=Given(video=video, keep="last"))
    assert isinstance(parts.video, WanVAE)
    last = cover(video[-5:], 16, 16, parts.device)
    known = parts.video.encode(last.movedim(0, 1)[None])[0]
    drawn = done.latents[0].vision_ZThw
    torch.testing.assert_close(drawn[:, :2], known)
    assert drawn[:, 2:].abs().sum() > 0


def test_only_the_given_frames_are_encoded(parts: Parts, monkeypatch: pytest.MonkeyPatch) -> None:
    lengths: list[int] = []
    real = WanVAE.encode

    def encode(self: WanVAE, frames: torch.Tensor) -> torch.Tensor:
        lengths.append(frames.shape[2])
        return real(self, frames)

    monkeypatch.setattr(WanVAE, "encode", encode)
    make(parts, given=Given(image=pixels(16, 16)))
    make(parts, replace(CLIP, frames=13), given=Given(video=pixels(20, 16, 16)))
    make(parts)
    assert lengths == [1, 5]


def test_a_round_picture_stays_round() -> None:
    wide = np.full((50, 100, 3), 255, np.uint8)
    rows, columns = np.ogrid[:50, :100]
    wide[(rows - 24.5) ** 2 + (columns - 49.5) ** 2 < 20**2] = 0
    dark = cover(wide[None], 64, 64, torch.device("cpu"))[0, 0] < 0
    height, width = (int(dark.any(1 - axis).sum()) for axis in (0, 1))
    assert abs(height - width) <= 1
    assert abs(height - 40 * 64 / 50) <= 2


def test_a_seed_is_a_result(parts: Parts) -> None:
    first, again, other = (make(parts, options=replace(QUICK, seed=s)).latents[0] for s in (1, 1, 2))
    assert torch.equal(first.vision_ZThw, again.vision_ZThw)
    assert not torch.equal(first.vision_ZThw, other.vision_ZThw)


@pytest.mark.parametrize("change", [{"fps": 12.0}, {"guidance": 2.0}, {"shift": 9.0}, {"grid": "stock"}])
def test_every_option_changes_the_result(parts: Parts, change: dict[str, Any]) -> None:
    canvas = replace(CLIP, **change) if "fps" in change else CLIP
    options = QUICK if "fps" in change else replace(QUICK, **change)
    before, after = make(parts).latents[0], make(parts, canvas, options).latents[0]
    assert not torch.equal(before.vision_ZThw, after.vision_ZThw)


REFUSED: dict[str, tuple[Canvas, dict[str, Any], str]] = {
    "height": (replace(CLIP, height=20), {}, "16 or 24"),
    "width": (replace(CLIP, width=0), {}, "nearest: 8"),
    "frames": (replace(CLIP, frames=0), {}, "at least 1"),
    "fps": (replace(CLIP, fps=0.0), {}, "positive"),
    "image": (PICTURE, {"given": Given(image=pixels(8, 8))}, "frames=1"),
    "sound": (PICTURE, {"sound": True}, "frames=1"),
    "video": (CLIP, {"given": Given(image=pixels(8, 8), video=pixels(5, 8, 8))}, "not from both"),
    "clean_latents": (CLIP, {"given": Given(video=pixels(5, 8, 8), clean_latents=(0, 2))}, "0 to 1"),
    "keep": (CLIP, {"given": Given(video=pixels(5, 8, 8), keep="middle")}, "first or last"),
    "negative": (CLIP, {"negative": "blurred"}, "guidance"),
    "steps": (CLIP, {"options": SamplingOptions(0)}, "at least 1"),
    "shift": (CLIP, {"options": SamplingOptions(2, shift=3.0, grid="karras")}, "leave it out"),
    "grid": (CLIP, {"options": SamplingOptions(2, grid="fixed")}, "native, stock or karras"),
}


@pytest.mark.parametrize("field", REFUSED)
def test_what_cannot_be_made_is_refused(parts: Parts, field: str) -> None:
    canvas, others, hint = REFUSED[field]
    with pytest.raises(BadRequest, match=hint) as caught:
        make(parts, canvas, **others)
    assert caught.value.field == field


@pytest.mark.parametrize(
    "wrong", [pixels(8, 8).astype(float), pixels(2, 8, 8), pixels(8, 8)[..., :1], "a.png"]
)
def test_a_picture_is_uint8_rgb(parts: Parts, wrong: Any) -> None:
    with pytest.raises(BadRequest, match="uint8"):
        make(parts, given=Given(image=wrong))


@pytest.mark.parametrize(("part", "field"), [("video", "model"), ("audio", "sound")])
def test_a_missing_part_is_named(parts: Parts, part: str, field: str) -> None:
    with pytest.raises(BadRequest) as caught:
        make(replace(parts, **{part: None}), sound=True)
    assert caught.value.field == field


def test_a_run_can_be_followed_and_stopped(parts: Parts) -> None:
    steps: list[tuple[int, int]] = []

    def follow(done: Step) -> bool:
        steps.append((done.step, done.of))
        return done.step < 2

    with pytest.raises(Cancelled):
        make(parts, options=SamplingOptions(4, on_step=follow))
    assert steps == [(1, 4), (2, 4)]


@pytest.mark.parametrize(
    ("part", "method", "stage"),
    [
        ("video", "encode", "encoding the pictures"),
        ("video", "decode", "video"),
        ("audio", "decode", "sound"),
    ],
)
def test_nan_is_caught_where_it_appears(
    parts: Parts, part: str, method: str, stage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind = type(getattr(parts, part))
    real: Callable[..., torch.Tensor] = getattr(kind, method)
    monkeypatch.setattr(kind, method, lambda *a: real(*a) * float("nan"))
    with pytest.raises(FloatingPointError, match=stage):
        make(parts, given=Given(image=pixels(16, 16)), sound=True)


# -- grids and defaults --------------------------------------------------------------------------------------

FEW = [1.0, 0.9375, 0.8333333333333334, 0.625]


@pytest.fixture
def distilled(parts: Parts, tmp_path: Path) -> Checkpoint:
    for name in ("model_index.json", "transformer/config.json"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text((parts.checkpoint.folder / name).read_text())
    fixed = {"t_list": FEW, "sample_type": "sde"}
    write_json({"fixed_step_sampler_config": fixed}, tmp_path / "scheduler" / "scheduler_config.json")
    return Checkpoint(tmp_path)


def test_the_scheduler_file_sets_the_shift(parts: Parts) -> None:
    name, grid = choose_grid(parts.checkpoint, SamplingOptions(4))
    assert name == "native"
    assert torch.equal(grid.sigmas, native_grid(4, parts.checkpoint.scheduler["flow_shift"]).sigmas)


def test_a_distilled_checkpoint_has_its_own_steps(distilled: Checkpoint) -> None:
    name, grid = choose_grid(distilled, SamplingOptions(4))
    assert (name, grid.solver) == ("fixed", "sde")
    assert grid.times.tolist() == pytest.approx([1000, 937.5, 833.3333, 625])
    assert (defaults(distilled, "image").steps, defaults(distilled, "image").guidance) == (4, 1)


@pytest.mark.parametrize(
    ("options", "field"),
    [
        (SamplingOptions(35), "steps"),
        (SamplingOptions(4, guidance=6.0), "guidance"),
        (SamplingOptions(4, shift=5.0), "shift"),
        (SamplingOptions(4, grid="native"), "grid"),
    ],
)
def test_a_distilled_checkpoint_takes_no_other_schedule(
    distilled: Checkpoint, options: SamplingOptions, field: str
) -> None:
    with pytest.raises(BadRequest) as caught:
        choose_grid(distilled, options)
    assert caught.value.field == field


def test_a_distilled_checkpoint_draws(parts: Parts, distilled: Checkpoint) -> None:
    student = replace(parts, checkpoint=distilled)
    done = make(student, options=SamplingOptions(4), given=Given(image=pixels(16, 16)))
    again = make(student, options=SamplingOptions(4), given=Given(image=pixels(16, 16)))
    assert torch.equal(done.latents[0].vision_ZThw, again.latents[0].vision_ZThw)


def test_pocket_is_small_and_quick(parts: Parts) -> None:
    row = defaults(parts.checkpoint, "video")
    assert (row.frames, row.fps, row.height, row.width, row.guidance) == (9, 8, 64, 64, 2)
    assert defaults(parts.checkpoint, "image").frames == 1


@pytest.mark.parametrize(
    ("size", "tier", "want"),
    [
        ((240, 320), 256, (256, 320, 240, 320)),
        ((720, 1280), 480, (480, 832, 468, 832)),
        ((480, 640), 480, (544, 736, 480, 640)),
        ((64, 64), None, (64, 64, 64, 64)),
        ((16, 48), None, (16, 48, 16, 48)),
        ((600, 600), None, (64, 64, 64, 64)),
        ((1080, 1920), None, (32, 64, 32, 64)),
        ((10, 1000), None, (16, 64, 16, 64)),
    ],
)
def test_canvases(size: tuple[int, int], tier: int | None, want: tuple[int, ...]) -> None:
    assert tuple(vars(Placement.choose(*size, tier, 16, longest=64)).values()) == want


def test_an_unknown_tier_names_its_neighbours() -> None:
    with pytest.raises(BadRequest, match="480"):
        Placement.choose(64, 64, 500, 16, longest=64)
