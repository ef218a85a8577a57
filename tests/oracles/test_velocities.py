"""Velocities of every task's layout against diffusers' transformer; positions and time as published."""

from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from armillary.memory import Keeper, load_network
from armillary.model import TimeEmbedding
from armillary.sequence import Context, Sample, Segment, pack, text_context
from armillary.tasks.segments import Latents, sound_segment
from armillary.weights import Checkpoint, Traits

TOKENS, TIME = 7, 700
LIMIT = 1e-5


@pytest.fixture(scope="module")
def folder(request: pytest.FixtureRequest, written: Callable[[str], tuple[Path, Path]]) -> Path:
    if request.param in ("nano", "edge"):
        return request.getfixturevalue(f"{request.param}_folder")
    return written(request.param)[1]


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def vision(frames: int, height: int = 4, width: int = 6) -> Tensor:
    return random(4, frames, height, width)


LAYOUTS = {
    "picture": Latents(vision(1), 24.0),
    "clip": Latents(vision(3), 24.0),
    "clip at 10 a second": Latents(vision(3), 10.0),
    "clip of odd size": Latents(vision(2, 5, 7), 16.0),
    "first frame": Latents(vision(3), 24.0, (0,)),
    "continuation": Latents(vision(4), 30.0, (0, 1)),
    "clip with sound": Latents(vision(3), 24.0, sound_SL=random(6, 9, seed=1)),
    "first frame with sound": Latents(vision(3), 15.0, (0,), sound_SL=random(6, 9, seed=1)),
    "given sound": Latents(vision(3), 24.0, (0,), sound_SL=random(6, 9, seed=1), clean_sound=True),
    "edited picture": Latents(vision(1), 24.0, reference=random(4, 1, 4, 6, seed=3)),
    "two controls": Latents(
        vision(3), 15.0, controls=(random(4, 3, 4, 6, seed=3), random(4, 3, 4, 6, seed=4))
    ),
    "forward dynamics": Latents(
        vision(2), 5.0, (0,), actions_KD=random(4, 7, seed=2), clean_actions=range(4), domain=7
    ),
    "inverse dynamics": Latents(vision(2), 10.0, (0, 1), actions_KD=random(4, 2, seed=2), domain=4),
    "policy": Latents(vision(3, 5, 4), 15.0, (0,), actions_KD=random(8, 10, seed=2), domain=8),
    "policy from a state": Latents(
        vision(3), 15.0, (0,), actions_KD=random(9, 10, seed=2), clean_actions=(0,), domain=8, first_action=0
    ),
}


def ours(folder: Path, latents: Latents, dtype: torch.dtype = torch.float32) -> tuple[list[Tensor], Sample]:
    """Velocities of each segment's noisy tokens, [M, F]."""
    checkpoint = Checkpoint(folder)
    network = load_network(checkpoint, Keeper("resident", device=torch.device("cpu"), dtype=dtype))
    sample = Sample(text_context(torch.arange(3, 3 + TOKENS)), latents.segments(checkpoint.traits))
    both = pack([sample])
    with torch.no_grad():
        velocity_X = network.draw(both, torch.tensor([float(TIME)]), network.read(both).memory)[0]
    parts = velocity_X.split(sample.sizes)
    return [x.view(-1, s.tokens_NF.shape[1]) for x, s in zip(parts, sample.segments, strict=True)], sample


def theirs(pipeline: Any, latents: Latents, sample: Sample) -> list[Tensor]:
    """The transformer's velocities of each segment's noisy tokens, [M, F], fp32."""
    traits = Traits(**{f.name: pipeline.transformer.config[f.name] for f in fields(Traits)})
    segments = velocities(pipeline, latents, sample).segments(traits)
    return [s.mask(v.tokens_NF[s.rows_M]).float() for s, v in zip(sample.segments, segments, strict=True)]


def velocities(pipeline: Any, latents: Latents, sample: Sample) -> Latents:
    """Those of all tokens in the shapes of latents; the pipeline itself lays out the sequence."""
    text = pipeline._prepare_text_segment(sample.context.ids_A.tolist(), "cpu")
    start, length = text["vision_start_temporal_offset"], text["und_len"]
    layout = {**text, **_vision(pipeline, latents, start, length)}
    positions, length = (
        [text["text_mrope_ids"], layout["vision_mrope_ids"]],
        length + layout["num_vision_tokens"],
    )
    if latents.sound_SL is not None:
        fps = float(pipeline.transformer.config.sound_latent_fps)
        sound = pipeline._prepare_sound_segment(latents.sound_SL, start, fps, length, "cpu")
        layout |= {**sound, "sound_tokens": [latents.sound_SL]}
        layout["sound_timesteps"] = torch.full((sound["sound_len"],), TIME)
        if latents.clean_sound:
            none = torch.zeros(0, dtype=torch.long)
            layout |= {"sound_noisy_frame_indexes": [none], "sound_mse_loss_indexes": none}
            layout["sound_timesteps"] = torch.zeros(0)
        positions.append(sound["sound_mrope_ids"])
        length += sound["sound_len"]
    if latents.actions_KD is not None:
        rows = sample.segments[-1].tokens_NF
        clean = list(latents.clean_actions)
        action = pipeline._prepare_action_segment(rows, clean, start, latents.fps, length, "cpu")
        if not latents.first_action:
            action["action_mrope_ids"] = _from_frame_0(pipeline, len(rows), latents.fps, start)
        layout |= {**action, "action_tokens": [rows], "action_domain_ids": [torch.tensor([latents.domain])]}
        layout["action_timesteps"] = torch.full((action["num_noisy_action_tokens"],), TIME)
        positions.append(action["action_mrope_ids"])
        length += action["action_len"]
    given = {
        k: v
        for k, v in layout.items()
        if not k.endswith(("_mrope_ids", "_len", "_offset")) and "num_" not in k
    }
    with torch.no_grad():
        out = pipeline.transformer(
            **given,
            und_len=text["und_len"],
            position_ids=torch.cat(positions, dim=1),
            sequence_length=length,
            return_dict=False,
        )
    vision_1ZThw, sound_SL, actions_KD = (None if x is None else x[-1] for x in out)
    return replace(latents, vision_ZThw=vision_1ZThw[0], sound_SL=sound_SL, actions_KD=actions_KD)


def _from_frame_0(pipeline: Any, count: int, fps: float, start: int) -> Tensor:
    """Positions of action rows of which the first is the state; the pipeline lays out only those without."""
    from diffusers.pipelines.cosmos.pipeline_cosmos3_omni import get_3d_mrope_ids_vae_tokens

    config = pipeline.transformer.config
    return get_3d_mrope_ids_vae_tokens(
        *(count, 1, 1, start, config.unified_3d_mrope_reset_spatial_ids),
        fps=fps,
        base_fps=float(config.base_fps),
        temporal_compression_factor=1,
        base_temporal_compression_factor=4,
        start_frame_offset=0,
    )[0]


def _vision(pipeline: Any, latents: Latents, start: int, length: int) -> dict[str, Any]:
    """Every picture and clip in one vision segment, as the modular blocks for transfer lay them out."""
    items: list[tuple[Tensor, list[int], int]] = [
        (x, list(range(x.shape[1])), start) for x in latents.controls
    ]
    if latents.reference is not None:
        items.append((latents.reference, [0], start))
    items.append((latents.vision_ZThw, list(latents.clean_frames), start + (latents.reference is not None)))
    laid: list[dict[str, Any]] = []
    for x, clean, place in items:
        laid.append(
            pipeline._prepare_vision_segment(x[None], bool(clean), place, latents.fps, length, "cpu", clean)
        )
        length += laid[-1]["num_vision_tokens"]
    both: dict[str, Any] = {
        "vision_mrope_ids": torch.cat([x["vision_mrope_ids"] for x in laid], dim=1),
        "num_vision_tokens": sum(x["num_vision_tokens"] for x in laid),
    }
    for name in ("vision_sequence_indexes", "vision_mse_loss_indexes"):
        both[name] = torch.cat([x[name] for x in laid])
    for name in ("vision_token_shapes", "vision_noisy_frame_indexes"):
        both[name] = [entry for x in laid for entry in x[name]]
    dtype = pipeline.transformer.proj_in.weight.dtype
    times = torch.full((sum(x["num_noisy_vision_tokens"] for x in laid),), TIME)
    return {**both, "vision_tokens": [x[None].to(dtype) for x, _, _ in items], "vision_timesteps": times}


CASES = [("nano", name) for name in LAYOUTS]
CASES += [("edge", name) for name, layout in LAYOUTS.items() if layout.sound_SL is None]
CASES += [("image-to-video", name) for name in ("picture", "first frame", "clip of odd size")]
CASES += [("four-step", "first frame")]
CASES += [(f, n) for f in ("policy", "edge-policy") for n in ("policy from a state", "forward dynamics")]


@pytest.mark.parametrize(("folder", "layout"), CASES, indirect=["folder"])
def test_velocities(folder: Path, diffusers_pipeline: Callable[[Path], Any], layout: str) -> None:
    latents = LAYOUTS[layout]
    got, sample = ours(folder, latents)
    want = theirs(diffusers_pipeline(folder), latents, sample)
    for velocity_MF, wanted_MF in zip(got, want, strict=True):
        torch.testing.assert_close(velocity_MF, wanted_MF, atol=LIMIT, rtol=0)
        assert not len(wanted_MF) or wanted_MF.abs().max() > 0.05


def times(segment: Segment, context: Context) -> list[float]:
    """Temporal positions, one a step of time."""
    start = pack([Sample(context, (segment,))]).positions_3D(15000)[0]
    return start.unique_consecutive().tolist()


@pytest.mark.parametrize(
    ("fps", "base", "want"),
    [
        (24, 24, [15010, 15011, 15012]),
        (16, 24, [15010, 15011.5, 15013]),
        (30, 24, [15010, 15010.7998, 15011.5996]),
        (10, 24, [15010, 15012.4004, 15014.7998]),
        (24, 16, [15010, 15010.667, 15011.333]),
        (16, 16, [15010, 15011, 15012]),
    ],
)
def test_positions_of_clips(fps: float, base: float, want: list[float]) -> None:
    segment = Latents(vision(3, 4, 4), fps).segments(Traits(base_fps=base))[0]
    assert times(segment, text_context(torch.arange(10))) == pytest.approx(want, abs=6e-4)
    assert segment.positions_3N[1, :4].tolist() == [0, 0, 1, 1]
    assert segment.positions_3N[2, :4].tolist() == [0, 1, 0, 1]


def test_positions_of_pictures() -> None:
    segment = Latents(vision(1, 4, 6), 10.0).segments(Traits())[0]
    assert times(segment, text_context(torch.arange(10))) == [15010]
    assert segment.positions_3N[1:].tolist() == [[0, 0, 0, 1, 1, 1], [0, 1, 2, 0, 1, 2]]


def test_positions_of_sound() -> None:
    segment = sound_segment(random(6, 4), clean=False, traits=Traits())
    want = [15010, 15010.96, 15011.92, 15012.88]
    assert times(segment, text_context(torch.arange(10))) == pytest.approx(want, abs=6e-4)


@pytest.mark.parametrize(
    ("fps", "first", "want"),
    [
        (24, 1, [15010.25, 15010.5, 15010.75, 15011.0]),
        (15, 1, [15010.4, 15010.8, 15011.2, 15011.6]),
        (10, 1, [15010.6, 15011.2, 15011.8, 15012.4]),
        (5, 1, [15011.2, 15012.4, 15013.6, 15014.8]),
        (15, 0, [15010, 15010.4, 15010.8, 15011.2]),
    ],
)
def test_positions_of_actions(fps: float, first: int, want: list[float]) -> None:
    latents = Latents(vision(2), fps, actions_KD=random(4, 2), first_action=first)
    segment = latents.segments(Traits(action_gen=True, action_dim=10))[1]
    assert times(segment, text_context(torch.arange(10))) == pytest.approx(want, abs=6e-4)


def test_time_embedding_starts_with_cosines() -> None:
    embedding = TimeEmbedding(4)
    seen: list[Tensor] = []
    embedding.first.register_forward_hook(lambda _m, inputs, _out: seen.append(inputs[0]))
    embedding(torch.tensor([0.7]))
    wave = seen[0][0]
    assert wave[:2].tolist() == pytest.approx([0.764842, 0.795236], abs=1e-6)
    assert wave[128:130].tolist() == pytest.approx([0.644218, 0.606301], abs=1e-6)
