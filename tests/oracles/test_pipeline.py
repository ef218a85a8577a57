"""Whole tasks against diffusers' pipeline from equal noise: latents, frames, sound, actions."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from armillary.facts import Canvas
from armillary.robots import Robot, robot
from armillary.tasks.act import forward_dynamics, inverse_dynamics, policy
from armillary.tasks.denoise import GridName, SamplingOptions
from armillary.tasks.frames import TIERS
from armillary.tasks.generate import Given, Made, generate
from armillary.tasks.parts import Parts, load_parts
from armillary.wording import Wording

KINDS = ("nano", "edge")
PROMPT, NEGATIVE = "a red disc rolls right", "blurred"
STEPS, SEED, SHIFT = 4, 5, 2.5
LATENTS, PIXELS = 1e-4, 1  # largest differences allowed
Diffusers = Callable[..., dict[str, Any]]


@pytest.fixture(scope="module", params=KINDS)
def folder(request: pytest.FixtureRequest, written: Callable[[str], tuple[Path, Path]]) -> Path:
    if request.param in KINDS:
        return request.getfixturevalue(f"{request.param}_folder")
    return written(request.param)[1]


@pytest.fixture(scope="module")
def parts(folder: Path) -> Parts:
    return load_parts(folder, device=torch.device("cpu"), dtype=torch.float32, want=("video", "audio"))


@pytest.fixture(scope="module")
def theirs(folder: Path, diffusers_pipeline: Callable[[Path], Any]) -> Diffusers:
    """Runs diffusers' pipeline; `latents` are those after the last step."""
    pipeline = diffusers_pipeline(folder)
    usual, own = pipeline.scheduler.config, pipeline.config.use_native_flow_schedule

    def run(grid: GridName | None = None, **arguments: Any) -> dict[str, Any]:
        seen: dict[str, Any] = {}
        plain = {"use_karras_sigmas": False, "flow_shift": SHIFT} if grid else {}
        pipeline.scheduler = type(pipeline.scheduler).from_config(usual, **plain)
        pipeline.register_to_config(use_native_flow_schedule=grid == "native" if grid else own)

        def look(_pipe: Any, _step: int, _time: Any, tensors: dict[str, Any]) -> dict[str, Any]:
            seen.update(tensors)
            return dict(tensors)

        result = pipeline(
            prompt=PROMPT,
            num_inference_steps=STEPS,
            generator=torch.Generator().manual_seed(SEED),
            callback_on_step_end=look,
            **arguments,
        )
        pipeline.scheduler = type(pipeline.scheduler).from_config(usual)  # it keeps the state of a run
        pipeline.register_to_config(use_native_flow_schedule=own)
        frames = np.stack([np.asarray(f) for f in result.video])
        return {"latents": seen["latents"], "frames": frames, "sound": result.sound, "actions": result.action}

    return run


def options(parts: Parts, guidance: float, grid: GridName | None = None) -> SamplingOptions:
    """As the checkpoint's own files tell diffusers to, or on another grid."""
    own: GridName = "native" if parts.checkpoint.is_edge else "karras"
    return SamplingOptions(
        STEPS, guidance, SHIFT if grid else None, seed=SEED, grid=grid or own, noise="diffusers"
    )


def picture(height: int, width: int, seed: int = 0) -> np.ndarray:
    """Smooth colours, so that resizing has something to keep."""
    rough = np.random.default_rng(seed).integers(0, 256, (6, 7, 3), dtype=np.uint8)
    return np.asarray(Image.fromarray(rough).resize((width, height), Image.Resampling.BICUBIC))


def clip(frames: int, height: int, width: int) -> np.ndarray:
    return np.stack([picture(height, width, seed) for seed in range(frames)])


def compare(ours: Made, want: dict[str, Any]) -> None:
    got = ours.latents[-1].vision_ZThw
    torch.testing.assert_close(got, want["latents"][0], atol=LATENTS, rtol=0)
    assert got.abs().max() > 0.5
    assert ours.frames.shape == want["frames"].shape
    assert np.abs(ours.frames.astype(int) - want["frames"]).max() <= PIXELS
    assert ours.frames.std() > 5


GENERATE: dict[str, tuple[tuple[int, int, int], Given]] = {
    "picture": ((1, 32, 48), Given()),
    "clip": ((9, 32, 48), Given()),
    "clip of odd latents": ((5, 24, 40), Given()),
    "from a picture": ((9, 32, 48), Given(image=picture(32, 48))),
    "from a large picture": ((5, 32, 48), Given(image=picture(77, 90))),
    "from a small tall picture": ((5, 40, 32), Given(image=picture(29, 13))),
    "continued": ((9, 32, 48), Given(video=clip(7, 32, 48), keep="last")),
    "continued from the start": (
        (13, 32, 32),
        Given(video=clip(7, 32, 32), clean_latents=(0,), keep="first"),
    ),
    "continued from too few frames": ((9, 32, 32), Given(video=clip(3, 32, 32))),
}


@pytest.mark.parametrize("folder", ["four-step"], indirect=True)
@pytest.mark.parametrize("case", ["picture", "from a picture"])
def test_a_saved_student_takes_the_same_four_steps(
    folder: Path, parts: Parts, diffusers_pipeline: Callable[[Path], Any], case: str
) -> None:
    from diffusers.modular_pipelines.cosmos.modular_blocks_cosmos3_distilled import Cosmos3DistilledBlocks

    (frames, height, width), given = GENERATE[case]
    options = SamplingOptions(4, seed=SEED, noise="diffusers")
    canvas = Canvas(frames=frames, fps=16.0, width=width, height=height)
    ours = generate(parts, Wording(PROMPT), canvas=canvas, given=given, options=options)[0]
    modular, loaded = Cosmos3DistilledBlocks().init_pipeline(str(folder)), diffusers_pipeline(folder)
    names = [name for name in modular.components if getattr(loaded, name, None) is not None]
    modular.update_components(**{name: getattr(loaded, name) for name in names})
    modular.disable_safety_checker()
    image = {} if given.image is None else {"image": Image.fromarray(given.image)}
    done = modular(
        prompt=PROMPT,
        num_frames=frames,
        height=height,
        width=width,
        fps=16.0,
        generator=torch.Generator().manual_seed(SEED),
        output_type="pt",
        **image,
    )
    torch.testing.assert_close(
        ours.latents[-1].vision_ZThw, done.get("latents")[0].float(), atol=LATENTS, rtol=0
    )
    assert ours.latents[-1].vision_ZThw.abs().max() > 0.5


@pytest.mark.parametrize("guidance", [1.0, 6.0])
@pytest.mark.parametrize("case", GENERATE)
def test_generation(parts: Parts, theirs: Diffusers, case: str, guidance: float) -> None:
    generates_the_same(parts, theirs, *GENERATE[case], guidance)


def generates_the_same(
    parts: Parts,
    theirs: Diffusers,
    size: tuple[int, int, int],
    given: Given,
    guidance: float,
    grid: GridName | None = None,
) -> None:
    """size: frames, height and width."""
    frames, height, width = size
    canvas = Canvas(frames=frames, fps=10.0, width=width, height=height)
    words, run = Wording(PROMPT, NEGATIVE if guidance != 1 else ""), options(parts, guidance, grid)
    ours = generate(parts, words, canvas=canvas, given=given, options=run)[0]
    conditions: dict[str, Any] = {}
    if given.image is not None:
        conditions = {"image": Image.fromarray(given.image)}
    if given.video is not None:
        conditions = {
            "video": [Image.fromarray(f) for f in given.video],
            "condition_frame_indexes_vision": list(given.clean_latents),
            "condition_video_keep": given.keep,
        }
    want = theirs(
        grid,
        negative_prompt=NEGATIVE,
        num_frames=frames,
        height=height,
        width=width,
        fps=10.0,
        guidance_scale=guidance,
        **conditions,
    )
    compare(ours, want)


@pytest.mark.parametrize("folder", ["nano"], indirect=True)
@pytest.mark.parametrize("guidance", [1.0, 6.0])
def test_a_clip_with_sound(parts: Parts, theirs: Diffusers, guidance: float) -> None:
    canvas = Canvas(frames=9, fps=24.0, width=48, height=32)
    given, run = Given(image=picture(32, 48)), options(parts, guidance)
    ours = generate(parts, Wording(PROMPT), canvas=canvas, given=given, sound=True, options=run)[0]
    size = {"num_frames": 9, "height": 32, "width": 48}
    image = Image.fromarray(picture(32, 48))
    want = theirs(**size, image=image, fps=24.0, guidance_scale=guidance, enable_sound=True)
    compare(ours, want)
    assert ours.sound is not None
    assert ours.sound.shape == (2, int(9 / 24 * 16000))
    np.testing.assert_allclose(ours.sound, want["sound"].numpy()[:, : ours.sound.shape[1]], atol=1e-4)
    assert ours.sound.std() > 1e-3


SMALL_TIER = ((64, 64), (48, 80), (80, 48))  # as 256 is, but quick to encode
BODIES = {
    "small picture": ((24, 40), robot("bridge_orig_lerobot")),  # the edge is repeated into most of the canvas
    "mirrored": ((40, 48), robot("umi")),
    "made smaller": ((72, 112), robot("pusht")),
}


def test_canvases_are_the_published_ones() -> None:
    from diffusers.pipelines.cosmos.pipeline_cosmos3_omni import _ACTION_RESOLUTION_BINS

    assert {int(tier): tuple(bins.values()) for tier, bins in _ACTION_RESOLUTION_BINS.items()} == TIERS


@pytest.fixture
def small_tier(monkeypatch: pytest.MonkeyPatch) -> None:
    from diffusers.pipelines.cosmos import pipeline_cosmos3_omni as published

    monkeypatch.setitem(TIERS, 256, SMALL_TIER)
    monkeypatch.setitem(published._ACTION_RESOLUTION_BINS, "256", {str(h / w): (h, w) for h, w in SMALL_TIER})


@pytest.mark.usefixtures("small_tier")
@pytest.mark.parametrize("guidance", [1.0, 6.0])
@pytest.mark.parametrize("case", BODIES)
def test_actions(parts: Parts, theirs: Diffusers, case: str, guidance: float) -> None:
    acts_the_same(parts, theirs, *BODIES[case], guidance)


def acts_the_same(
    parts: Parts,
    theirs: Diffusers,
    size: tuple[int, int],
    body: Robot,
    guidance: float,
    grid: GridName | None = None,
) -> None:
    """Forward dynamics, policy and inverse dynamics. size: height and width of what is seen."""
    from diffusers.pipelines.cosmos.pipeline_cosmos3_omni import CosmosActionCondition

    body = replace(body, chunk=4, tier=256, view="third_person_view")
    frames, run = clip(5, *size), options(parts, guidance, grid)
    given = np.random.default_rng(1).normal(size=(4, body.width or 0)).astype(np.float32)

    def want(mode: Any, **conditions: Any) -> dict[str, Any]:
        action = CosmosActionCondition(
            mode, 4, body.name, resolution_tier=256, view_point=body.view, **conditions
        )
        return theirs(grid, action=action, fps=body.fps, guidance_scale=guidance, use_system_prompt=False)

    image = Image.fromarray(frames[0])
    forward = forward_dynamics(parts, frames[0], given, body, prompt=PROMPT, options=run)
    compare(forward, want("forward_dynamics", image=image, raw_actions=torch.from_numpy(given)))

    drawn, wanted = policy(parts, PROMPT, frames[0], body, options=run), want("policy", image=image)
    np.testing.assert_allclose(drawn.values, wanted["actions"][0].numpy(), atol=LATENTS)
    assert drawn.clip is not None
    assert np.abs(drawn.clip.frames.astype(int) - wanted["frames"]).max() <= PIXELS

    found = inverse_dynamics(parts, frames, body, prompt=PROMPT, options=run)
    wanted = want("inverse_dynamics", video=[Image.fromarray(f) for f in frames])
    np.testing.assert_allclose(found.values, wanted["actions"][0].numpy(), atol=LATENTS)
    assert np.abs(found.values).max() > 0.1
