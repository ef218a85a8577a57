"""In bf16 we are as near to the fp32 oracle as the oracle itself in bf16; time and angles stay in fp32.

Velocities, and the logits of words in Nano, are the bits of the oracle in bf16. Elsewhere roundings fall
differently, now nearer and now farther; deviations are root mean squares over many seeds and requests.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from armillary import convert, load
from armillary.lowbit import Form
from armillary.memory import MODES, Mode
from armillary.tasks.parts import load_parts
from armillary.weights import Checkpoint, is_time
from tests.oracles.fabricate import diffusers_pipeline, transformers_reasoner
from tests.oracles.test_layouts import transformer
from tests.oracles.test_reasoner import clip, logits, logits_of_transformers, say, show, user
from tests.oracles.test_velocities import LAYOUTS, Latents, ours, random, theirs

SEEDS, MANY = range(3), range(12)
NOISE = 1.02  # by how much the roundings of one processor's kernels move either deviation


@pytest.fixture(scope="module", params=["nano", "edge"])
def half(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint with weights in bf16, as the published ones have."""
    made = tmp_path_factory.mktemp("half") / "made"
    convert(request.getfixturevalue(f"{request.param}_folder"), made, dtype="bfloat16")
    return made


def deviation(found: Sequence[Tensor], wanted: Sequence[Tensor]) -> float:
    """Root mean square of the differences, relative to what is wanted."""
    differences = torch.cat([(a.float() - b).flatten() for a, b in zip(found, wanted, strict=True)])
    return float(differences.norm() / torch.cat([b.flatten() for b in wanted]).norm())


def requests(folder: Path) -> list[Latents]:
    """Every layout that the checkpoint has heads for, with several pictures each."""
    layouts = [x for x in LAYOUTS.values() if x.sound_SL is None or Checkpoint(folder).traits.sound_gen]
    return [replace(x, vision_ZThw=random(*x.vision_ZThw.shape, seed=s)) for x in layouts for s in SEEDS]


def test_velocities_deviate_no_more_than_the_oracles(half: Path) -> None:
    whole, rounded = diffusers_pipeline(half), diffusers_pipeline(half, torch.bfloat16)
    found: list[list[Tensor]] = [[], [], []]
    for latents in requests(half):
        got, sample = ours(half, latents, torch.bfloat16)
        answers = got, theirs(rounded, latents, sample), theirs(whole, latents, sample)
        for pool, answer in zip(found, answers, strict=True):
            pool += answer
    own, oracles = deviation(found[0], found[2]), deviation(found[1], found[2])
    assert 1e-3 < own <= NOISE * oracles, (own, oracles)


def test_logits_deviate_no_more_than_the_oracles(half: Path) -> None:
    parts = load_parts(half, device=torch.device("cpu"), dtype=torch.bfloat16, want=["sight"])
    whole, rounded = transformers_reasoner(half), transformers_reasoner(half, torch.bfloat16)
    found: list[list[Tensor]] = [[], [], []]
    for seed in MANY:
        for content in ([say(f"Where is disc {seed}?")], show((24 + seed, 40)), [clip(9, 8.0, seed)]):
            talk: list[dict[str, Any]] = [user(*content, say("What is this?"))]
            theirs_AV = (logits_of_transformers(parts, x, talk) for x in (rounded, whole))
            for pool, answer in zip(found, (logits(parts, talk), *theirs_AV), strict=True):
                pool.append(answer)
    own, oracles = deviation(found[0], found[2]), deviation(found[1], found[2])
    assert 1e-3 < own <= NOISE * oracles, (own, oracles)


FORMS: tuple[Form | None, ...] = (None, "int8")


@pytest.mark.parametrize("memory", MODES)
@pytest.mark.parametrize("weights", FORMS)
def test_time_stays_in_fp32_through_every_load(
    nano_folder: Path, tmp_path: Path, memory: Mode, weights: Form | None
) -> None:
    """What fp32 files hold is not rounded; what was written in bf16 is computed with in fp32."""
    convert(nano_folder, tmp_path / "half", dtype="bfloat16")
    for folder in (nano_folder, tmp_path / "half"):
        network = load(folder, device="cpu", dtype="bfloat16", memory=memory, weights=weights).parts.network
        assert network.head.weight.dtype == torch.bfloat16
        time = {n: t for n, t in network.state_dict().items() if is_time(n)}
        stored = load_parts(folder, device=torch.device("cpu"), dtype=None, want=()).network.state_dict()
        assert len(time) == 4
        assert all(t.dtype == torch.float32 and torch.equal(t, stored[n]) for n, t in time.items())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_time_and_angles_stay_in_fp32_through_every_cast(nano_folder: Path, dtype: torch.dtype) -> None:
    network = load(nano_folder, device="cpu", dtype="float32").parts.network
    time = {n: t.clone() for n, t in network.time.state_dict().items()}
    positions_3N = torch.tensor([[15010.25, 15010.5], [3, 4], [5, 6]])  # bf16 knows 14976 and 15040
    angles = network.rope(positions_3N)
    network.to(dtype)
    assert {p.dtype for n, p in network.named_parameters() if not is_time(n)} == {dtype}
    assert all(torch.equal(t, time[n]) for n, t in network.time.state_dict().items())
    assert {t.dtype for t in network.time.state_dict().values()} == {torch.float32}
    for one, other in zip(network.rope(positions_3N), angles, strict=True):
        assert torch.equal(one, other.to(dtype))
    network.to("meta").float()
    assert {(p.device.type, p.dtype) for p in network.parameters()} == {("meta", torch.float32)}


def test_a_world_in_bf16_writes_the_time_embedding_unrounded(nano_folder: Path, tmp_path: Path) -> None:
    load(nano_folder, device="cpu", dtype="bfloat16").save(tmp_path / "made")
    written, whole = (transformer(folder) for folder in (tmp_path / "made", nano_folder))
    time = [name for name in whole if name.startswith("time_embedder.")]
    assert len(time) == 4
    assert all(torch.equal(written[name], whole[name]) for name in time)
    assert not torch.equal(written["proj_in.weight"], whole["proj_in.weight"])
