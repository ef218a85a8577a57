"""Clips under controls against diffusers' modular blocks for transfer, from equal noise."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from armillary.facts import Canvas
from armillary.tasks.controls import Control
from armillary.tasks.denoise import SamplingOptions
from armillary.tasks.generate import Given, generate
from armillary.tasks.parts import Parts, load_parts
from armillary.wording import Wording
from tests.oracles.test_pipeline import LATENTS, NEGATIVE, PIXELS, PROMPT, clip

STEPS, SEED, HEIGHT, WIDTH = 3, 5, 24, 40
Diffusers = Callable[..., Any]


@pytest.fixture(scope="module", params=("nano", "edge"))
def folder(request: pytest.FixtureRequest) -> Path:
    return request.getfixturevalue(f"{request.param}_folder")


@pytest.fixture(scope="module")
def parts(folder: Path) -> Parts:
    return load_parts(folder, device=torch.device("cpu"), dtype=torch.float32, want=("video",))


@pytest.fixture(scope="module")
def theirs(folder: Path, diffusers_pipeline: Callable[[Path], Any]) -> Diffusers:
    from diffusers.modular_pipelines.cosmos.modular_blocks_cosmos3 import Cosmos3OmniBlocks

    pipeline = diffusers_pipeline(folder)

    def run(**arguments: Any) -> Any:
        modular = Cosmos3OmniBlocks().init_pipeline()
        names = [name for name in modular.components if name not in ("guider", "safety_checker")]
        found = {name: getattr(pipeline, name) for name in names if getattr(pipeline, name, None) is not None}
        scheduler = type(pipeline.scheduler).from_config(pipeline.scheduler.config)
        modular.update_components(**{**found, "scheduler": scheduler})
        modular.disable_safety_checker()
        return modular(
            prompt=PROMPT,
            num_inference_steps=STEPS,
            generator=torch.Generator().manual_seed(SEED),
            height=HEIGHT,
            width=WIDTH,
            fps=10.0,
            output_type="pt",
            **arguments,
        )

    return run


CASES: dict[str, tuple[int, int | None, tuple[str, ...], dict[str, float]]] = {
    # frames, chunk, controls, guidance
    "one control": (9, None, ("depth",), {"guidance": 1.0, "control_guidance": 1.0}),
    "guided": (9, None, ("depth",), {"guidance": 3.0, "control_guidance": 1.5}),
    "not a multiple of four": (7, None, ("seg",), {"guidance": 1.0, "control_guidance": 1.5}),
    "in chunks": (12, 5, ("edge",), {"guidance": 2.0, "control_guidance": 1.0}),
    "two in one attention": (5, None, ("depth", "blur"), {"guidance": 3.0, "control_guidance": 2.0}),
}


@pytest.mark.parametrize("case", CASES)
def test_a_controlled_clip_is_that_of_the_modular_blocks(parts: Parts, theirs: Diffusers, case: str) -> None:
    frames, chunk, hints, scales = CASES[case]
    maps = {hint: clip(frames + i, HEIGHT, WIDTH)[i:] for i, hint in enumerate(hints)}
    words = Wording(PROMPT, NEGATIVE if scales["guidance"] != 1 else "", "plain", verbatim=True)
    ordered = [hint for hint in ("edge", "blur", "depth", "seg", "wsm") if hint in hints]
    grid: Any = "stock" if parts.checkpoint.is_edge else "karras"  # these blocks know no native grid
    ours = generate(
        parts,
        words,
        canvas=Canvas(frames, 10.0, WIDTH, HEIGHT, chunk),
        given=Given(controls=tuple(Control(hint, maps[hint]) for hint in ordered)),  # pyright: ignore[reportArgumentType]
        options=SamplingOptions(STEPS, seed=SEED, grid=grid, noise="diffusers", **scales),
    )[0]
    want = theirs(
        negative_prompt=NEGATIVE,
        control_videos={hint: [Image.fromarray(f) for f in x] for hint, x in maps.items()},
        num_frames=frames,
        num_video_frames_per_chunk=chunk,
        guidance_scale=scales["guidance"],
        control_guidance=scales["control_guidance"],
    )
    torch.testing.assert_close(
        ours.latents[-1].vision_ZThw, want.get("latents")[0].float(), atol=LATENTS, rtol=0
    )
    made = np.asarray(want.get("videos")).reshape(-1, 3, HEIGHT, WIDTH).transpose(0, 2, 3, 1) * 255
    assert ours.frames.shape == made.shape
    assert np.abs(ours.frames - made).max() <= PIXELS
    assert ours.frames.std() > 5
