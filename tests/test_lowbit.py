"""Weights of few bits stay near the numbers they stand for, and compute what their own weight says."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from armillary import load
from armillary.errors import BadRequest
from armillary.lowbit import BUFFER, Int4Linear, Int8Linear, LowBitLinear, check_form, lower
from armillary.sequence import Sample, pack, text_context
from armillary.tasks.parts import weigh
from armillary.world import World

FORMS = {"int8": Int8Linear, "int4": Int4Linear}


def layer_of(form: str, weight_OI: torch.Tensor) -> LowBitLinear:
    out_features, in_features = weight_OI.shape
    with torch.device("meta"):
        layer = FORMS[form](in_features, out_features)
    layer.load_state_dict(layer.pack(weight_OI), assign=True)
    return layer


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("shape", [(24, 128), (3, 64), (5, 96), (1, 2)])
def test_every_number_is_within_half_a_step(form: str, shape: tuple[int, int]) -> None:
    weight_OI = normal(*shape) + 0.3
    layer = layer_of(form, weight_OI)
    step = layer.get_buffer("weight_scale").float()
    each = step.repeat_interleave(shape[1] // step.shape[1], dim=1)
    slack = 0.51 if form == "int8" else 0.65  # scales and lowest values of int4 are themselves rounded
    assert ((layer.weight_OI() - weight_OI).abs() <= slack * each + 1e-7).all()


@pytest.mark.parametrize(("form", "least"), [("int8", 0.01), ("int4", 0.1)])
def test_the_error_of_gaussian_weights(form: str, least: float) -> None:
    weight_OI = normal(256, 512)
    error = (layer_of(form, weight_OI).weight_OI() - weight_OI).norm() / weight_OI.norm()
    assert least / 3 < error < least


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_it_computes_what_its_weight_says(form: str, dtype: torch.dtype) -> None:
    layer, x_NI = layer_of(form, normal(24, 128)), normal(2, 7, 128, seed=1).to(dtype)
    y_NO, due = layer(x_NI), x_NI.float() @ layer.weight_OI().T
    assert (y_NO.dtype, y_NO.shape) == (dtype, (2, 7, 24))
    limit = 1e-5 if dtype is torch.float32 else 1e-2
    assert (y_NO.float() - due).norm() <= limit * due.norm()


@pytest.mark.parametrize("form", FORMS)
def test_many_rows_are_taken_a_few_at_a_time(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    weight_OI, x_NI = normal(23, 64), normal(5, 64, seed=1)
    whole = layer_of(form, weight_OI)
    assert BUFFER > 23 * 64
    monkeypatch.setattr("armillary.lowbit.BUFFER", 3 * 64)
    pieces = layer_of(form, weight_OI)
    assert all(torch.equal(t, pieces.get_buffer(n)) for n, t in whole.state_dict().items())
    torch.testing.assert_close(pieces(x_NI), (x_NI @ whole.weight_OI().T), atol=1e-4, rtol=1e-5)
    assert pieces(x_NI[:0]).shape == (0, 23)


@pytest.mark.parametrize("form", FORMS)
def test_constant_and_empty_rows_are_exact(form: str) -> None:
    weight_OI = torch.zeros(4, 64)
    weight_OI[1] = 1.5
    torch.testing.assert_close(layer_of(form, weight_OI).weight_OI(), weight_OI)


@pytest.mark.parametrize(("form", "bits"), [("int8", 8.3), ("int4", 4.6)])
def test_a_number_takes_few_bits(form: str, bits: float) -> None:
    layer = layer_of(form, normal(256, 512))
    assert 8 * sum(t.nbytes for t in layer.state_dict().values()) < bits * 256 * 512


def test_only_linear_layers_of_the_towers_are_lowered() -> None:
    network = nn.ModuleDict({"blocks": nn.ModuleList([nn.Linear(4, 4, bias=False)]), "head": nn.Linear(4, 4)})
    lower(network, "int4")
    assert isinstance(network.get_submodule("blocks.0"), Int4Linear)
    assert isinstance(network["head"], nn.Linear)


def test_an_unknown_form_is_refused() -> None:
    check_form(None)
    with pytest.raises(BadRequest, match=r"weights=.int5.: nearest are int8 or int4"):
        check_form("int5")


# -- a whole world

MODES: tuple[Any, ...] = ("resident", "tower", "stream")


@pytest.fixture(scope="module", params=FORMS)
def worlds(request: pytest.FixtureRequest) -> list[World]:
    return [load("pocket", device="cpu", weights=request.param, memory=mode) for mode in MODES]


def test_a_lowered_world_draws_nearly_the_same_in_every_memory_mode(worlds: list[World]) -> None:
    asked: Any = {"prompt": "a red disc", "frames": 1, "steps": 3}
    plain, clips = load("pocket", device="cpu").generate(**asked), [w.generate(**asked) for w in worlds]
    assert all(np.array_equal(clip.frames, clips[0].frames) for clip in clips)
    difference = np.abs(clips[0].frames.astype(int) - plain.frames).mean()
    assert 0 < difference < (3 if worlds[0].facts.weights == "int8" else 30)
    assert clips[0].receipt["weights"] == worlds[0].facts.weights
    assert plain.receipt["weights"] is None


def test_a_lowered_world_reasons(worlds: list[World]) -> None:
    answers = {world.reason("What is this?", max_tokens=4).text for world in worlds}
    assert len(answers) == 1


def test_its_weights_are_counted(worlds: list[World]) -> None:
    network, form = worlds[0].parts.network, worlds[0].facts.weights
    assert form in ("int8", "int4")
    blocks = [t for n, t in network.state_dict().items() if n.startswith("blocks.")]
    counted = weigh(worlds[0].parts.checkpoint, torch.float32, form)
    assert sum(t.nbytes for t in blocks) == counted.layers * (counted.ar + counted.dm)
    assert isinstance(network.get_submodule("head"), nn.Linear)


def lora(path: Path) -> Path:
    """A change of one layer in each tower of pocket."""
    network = load("pocket", device="cpu", memory="stream").parts.network
    state: dict[str, torch.Tensor] = {}
    for i, name in enumerate(("blocks.0.ar.q", "blocks.1.dm.down")):
        rows, columns = network.get_parameter(f"{name}.weight").shape
        state[f"{name}.lora_A.weight"] = normal(2, columns, seed=i) / 4
        state[f"{name}.lora_B.weight"] = normal(rows, 2, seed=i + 2) / 4
    save_file(state, path)
    return path


def test_adapters_change_a_lowered_world_as_they_change_a_plain_one(tmp_path: Path) -> None:
    path = lora(tmp_path / "lora.safetensors")
    context = pack([Sample(text_context(torch.arange(30, 37)))])

    def read(**options: Any) -> torch.Tensor:
        hidden = load("pocket", device="cpu", **options).parts.network.read(context).hidden_AE
        assert hidden is not None
        return hidden

    change = read(adapters=[(path, 0.5)]) - read()
    for options in ({}, {"memory": "tower"}, {"merge": True}):
        lowered = read(weights="int8", adapters=[(path, 0.5)], **options) - read(weights="int8")
        assert (lowered - change).norm() < 0.1 * change.norm()
    world = load("pocket", device="cpu", weights="int8", adapters=[(path, 0.5)])
    assert world.reason("What?", max_tokens=1).receipt["adapters"] == [[str(path), 0.5]]
