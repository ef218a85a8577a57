"""Adapters of every spelling change the network as PEFT changes diffusers' transformer, or are refused."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from torch import Tensor

from armillary import load
from armillary.adapters import adapted, apply, apply_all, merge, read_adapter
from armillary.errors import BadRequest
from armillary.memory import Keeper, load_network
from armillary.model import Network
from armillary.sequence import Sample, pack, text_context
from armillary.shards import write_json
from armillary.weights import Checkpoint
from tests.oracles.fabricate import diffusers_pipeline
from tests.oracles.test_velocities import LAYOUTS, TIME, TOKENS, theirs

LATENTS = LAYOUTS["first frame with sound"]
TARGETS = ["to_q", "to_out", "add_q_proj", "add_v_proj", "down_proj", "proj_in"]
PATTERNS: dict[str, Any] = {
    "r": 3,
    "lora_alpha": 6,
    "rank_pattern": {"layers.1.self_attn.to_q": 5, r"layers\.[23]\.mlp_moe_gen\.down_proj": 2},
    "alpha_pattern": {"add_q_proj": 9, "proj_in": 1},
}
RANDOM = torch.Generator().manual_seed(0)


def network_of(folder: Path) -> Network:
    return load_network(
        Checkpoint(folder), Keeper("resident", device=torch.device("cpu"), dtype=torch.float32)
    )


def draw(network: Network, folder: Path) -> tuple[Tensor, Sample]:
    sample = Sample(text_context(torch.arange(3, 3 + TOKENS)), LATENTS.segments(Checkpoint(folder).traits))
    both = pack([sample])
    with torch.no_grad():
        return network.draw(both, torch.tensor([float(TIME)]), network.read(both).memory)[0], sample


@pytest.fixture(scope="module", params=[False, True], ids=["plain", "rank-scaled"])
def trained(
    request: pytest.FixtureRequest, nano_folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Tensor]:
    """An adapter that PEFT saved, and the velocities of the model under it."""
    pipeline = diffusers_pipeline.__wrapped__(nano_folder)
    config = LoraConfig(target_modules=TARGETS, use_rslora=request.param, **PATTERNS)
    model = get_peft_model(pipeline.transformer, config)
    for name, parameter in model.named_parameters():
        if "lora_" in name:
            torch.nn.init.normal_(parameter, std=0.2, generator=RANDOM)
    folder = tmp_path_factory.mktemp("peft")
    model.save_pretrained(folder)
    _, sample = draw(network_of(nano_folder), nano_folder)
    return folder, torch.cat([x.flatten() for x in theirs(pipeline, LATENTS, sample)])


def test_an_adapter_does_what_peft_does(trained: tuple[Path, Tensor], nano_folder: Path) -> None:
    folder, wanted = trained
    network = network_of(nano_folder)
    names, (before, _) = list(network.state_dict()), draw(network, nano_folder)
    apply(network, read_adapter(folder))
    beside, _ = draw(network, nano_folder)
    assert list(network.state_dict()) == names  # nothing of the adapter is taken for a weight
    merge(network)
    inside, _ = draw(network, nano_folder)
    torch.testing.assert_close(beside, wanted, atol=1e-5, rtol=0)
    torch.testing.assert_close(inside, wanted, atol=1e-5, rtol=0)
    assert (before - wanted).abs().max() > 0.05
    assert not adapted(network)
    assert list(network.state_dict()) == names


def test_nothing_else_is_touched(trained: tuple[Path, Tensor], nano_folder: Path) -> None:
    network, plain = network_of(nano_folder), network_of(nano_folder).state_dict()
    apply(network, read_adapter(trained[0]))
    assert len(adapted(network)) == 4 * (4 + 2) + 1
    assert any(name.startswith("blocks.3.") for name, _ in adapted(network))  # up to the last layer
    merge(network)
    changed = {n for n, t in network.state_dict().items() if not torch.equal(t, plain[n])}
    leaves = ("ar.q", "ar.o", "dm.q", "dm.v", "ar.down", "dm.down")
    layers = {f"blocks.{i}.{leaf}.weight" for i in range(4) for leaf in leaves}
    assert changed == layers | {"ports.vision.enter.weight"}


# -- spellings

MODULES = (
    "layers.0.self_attn.to_q",
    "layers.3.self_attn.add_k_proj",
    "layers.1.mlp_moe_gen.up_proj",
    "lm_head",
)
OURS = ("blocks.0.ar.q", "blocks.3.dm.k", "blocks.1.dm.up", "head")
FRAMEWORK = (
    "net.language_model.model.layers.0.self_attn.q_proj",
    "net.language_model.model.layers.3.self_attn.k_proj_moe_gen",
    "net.language_model.model.layers.1.mlp_moe_gen.up_proj",
    "net.language_model.lm_head",
)
SHAPES = ((32, 32), (16, 32), (64, 32), (320, 32))
ALPHA, RANK = 5.0, 2


def halves() -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(1)
    return [
        (torch.randn(RANK, n, generator=generator), torch.randn(m, RANK, generator=generator))
        for m, n in SHAPES
    ]


def written(path: Path, modules: tuple[str, ...], lead: str = "", style: str = "lora_A lora_B") -> Path:
    a, b = style.split()
    state = {f"{lead}{m}.{a}.weight": down for m, (down, _) in zip(modules, halves(), strict=True)}
    state |= {f"{lead}{m}.{b}.weight": up for m, (_, up) in zip(modules, halves(), strict=True)}
    save_file(state, path)
    return path


def with_alphas(path: Path) -> Path:
    """As ComfyUI and kohya keep alpha: a tensor beside each pair."""
    state = load_file(path)
    modules = {key.rsplit(".", 2)[0] for key in state}
    save_file({**state, **{f"{m}.alpha": torch.tensor(ALPHA) for m in modules}}, path)
    return path


def peft_style(folder: Path) -> Path:
    config = {"peft_type": "LORA", "r": RANK, "lora_alpha": ALPHA}
    write_json(config, folder / "adapter_config.json")
    written(folder / "adapter_model.safetensors", MODULES, "base_model.model.")
    return folder


def peft_inside_diffusers(folder: Path) -> Path:
    write_json({"lora_alpha": ALPHA}, folder / "adapter_config.json")
    return written(folder / "x.safetensors", MODULES, "base_model.model.", "lora_A.default lora_B.default")


def diffusers_style(folder: Path) -> Path:
    path = written(folder / "pytorch_lora_weights.safetensors", MODULES, "transformer.")
    note = {"transformer.r": RANK, "transformer.lora_alpha": ALPHA, "transformer.rank_pattern": {}}
    metadata = {"format": "pt", "lora_adapter_metadata": json.dumps(note)}
    save_file(load_file(path), path, metadata=metadata)
    return folder


STYLES: dict[str, Callable[[Path], Path]] = {
    "peft": peft_style,
    "peft with a name": peft_inside_diffusers,
    "diffusers": diffusers_style,
    "comfyui": lambda f: with_alphas(written(f / "x.safetensors", MODULES, "diffusion_model.")),
    "comfyui, up and down": lambda f: with_alphas(
        written(f / "x.safetensors", MODULES, "diffusion_model.", "lora_down lora_up")
    ),
    "comfyui, framework": lambda f: with_alphas(written(f / "x.safetensors", FRAMEWORK, "diffusion_model.")),
    "ours": lambda f: with_alphas(written(f / "x.safetensors", OURS)),
}


@pytest.fixture(scope="module")
def plain(nano_folder: Path) -> dict[str, Tensor]:
    return network_of(nano_folder).state_dict()


@pytest.mark.parametrize("style", STYLES)
def test_every_spelling_is_the_same_adapter(
    style: str, nano_folder: Path, tmp_path: Path, plain: dict[str, Tensor]
) -> None:
    network = network_of(nano_folder)
    apply_all(network, [STYLES[style](tmp_path)])
    merge(network)
    for ours, (down, up) in zip(OURS, halves(), strict=True):
        name = f"{ours}.weight"
        torch.testing.assert_close(network.state_dict()[name], plain[name] + ALPHA / RANK * up @ down)


def test_without_alpha_the_product_is_added_as_it_is(
    nano_folder: Path, tmp_path: Path, plain: dict[str, Tensor]
) -> None:
    network = network_of(nano_folder)
    apply_all(network, [written(tmp_path / "x.safetensors", MODULES)])
    merge(network)
    down, up = halves()[0]
    got = network.state_dict()["blocks.0.ar.q.weight"]
    torch.testing.assert_close(got, plain["blocks.0.ar.q.weight"] + up @ down)


def test_several_add_up_by_their_weights(nano_folder: Path, tmp_path: Path) -> None:
    one = written(tmp_path / "one.safetensors", MODULES)
    other = with_alphas(written(tmp_path / "other.safetensors", MODULES))
    beside = load(nano_folder, device="cpu", adapters=[(one, 0.25), other, (one, -1.0)]).parts.network
    inside = load(nano_folder, device="cpu", adapters=[(other, 1.0), (one, -0.75)], merge=True).parts.network
    assert len(adapted(beside)) == 4
    assert not adapted(inside)
    limit = 1e-4 * float(draw(inside, nano_folder)[0].abs().max())
    torch.testing.assert_close(draw(beside, nano_folder)[0], draw(inside, nano_folder)[0], atol=limit, rtol=0)


# -- what does not fit


def test_an_adapter_for_another_model_is_refused(nano_folder: Path, tmp_path: Path) -> None:
    modules = tuple(f"single_blocks.{i}.linear" for i in range(4))
    path = written(tmp_path / "x.safetensors", modules, "transformer.")
    with pytest.raises(BadRequest, match=r"4 of its 4 modules unknown here .*: single_blocks\.0\.linear, "):
        load(nano_folder, device="cpu", adapters=[path])


def test_a_partial_match_is_refused_and_changes_nothing(nano_folder: Path, tmp_path: Path) -> None:
    network = network_of(nano_folder)
    path = written(tmp_path / "x.safetensors", (*MODULES[:3], "layers.9.self_attn.to_q"))
    with pytest.raises(BadRequest, match=r"1 of its 4 modules unknown here .*: layers\.9\.self_attn\.to_q"):
        apply_all(network, [path])
    path = written(tmp_path / "x.safetensors", (*MODULES[:3], "layers.1.self_attn.to_q"))
    with pytest.raises(BadRequest, match=r"1 of its 4 modules of another shape: .*to_q \[320, 32\] for"):
        apply_all(network, [path])
    assert not adapted(network)


def test_one_layers_of_the_vision_tower_is_not_one_of_the_towers(nano_folder: Path, tmp_path: Path) -> None:
    modules = ("visual.blocks.0.attn.proj", "blocks.0.attn.proj", "embed_tokens", "action_proj_in.fc")
    with pytest.raises(BadRequest, match="4 of its 4 modules unknown"):
        apply_all(network_of(nano_folder), [written(tmp_path / "x.safetensors", modules)])


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"a.lora_A.weight": torch.ones(2, 3)}, "a has no up projection"),
        ({"a.lora_B.weight": torch.ones(2, 3)}, "a has no down projection"),
        ({"a.lora_A.weight": torch.ones(2, 3), "a.lora_B.weight": torch.ones(3, 1)}, "a joins"),
        ({"a.lora_magnitude_vector": torch.ones(2)}, "is no LoRA; 1 tensors of another kind: a.lora_magn"),
        ({"norm.weight": torch.ones(2)}, "is no LoRA"),
        ({}, "is no LoRA"),
    ],
)
def test_files_that_are_no_lora_are_refused(tmp_path: Path, change: dict[str, Tensor], named: str) -> None:
    save_file(change, tmp_path / "x.safetensors")
    with pytest.raises(BadRequest, match=named):
        read_adapter(tmp_path / "x.safetensors")


@pytest.mark.parametrize(
    ("config", "named"),
    [
        ({"use_dora": True}, "uses use_dora"),
        ({"modules_to_save": ["norm"]}, "uses modules_to_save"),
        ({"rank_pattern": {"to_q": 7}}, "to_q has rank 2 where its config says otherwise"),
    ],
)
def test_more_than_a_lora_is_refused(tmp_path: Path, config: dict[str, Any], named: str) -> None:
    peft_style(tmp_path)
    write_json(config, tmp_path / "adapter_config.json")
    with pytest.raises(BadRequest, match=named):
        read_adapter(tmp_path)


def test_missing_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BadRequest, match="holds no adapter_model"):
        read_adapter(tmp_path)
    with pytest.raises(BadRequest, match="there is no such file"):
        read_adapter(tmp_path / "x.safetensors")


def test_a_rank_scaled_alpha_is_divided_by_the_root_of_the_rank(tmp_path: Path) -> None:
    peft_style(tmp_path)
    write_json({"lora_alpha": ALPHA, "use_rslora": True}, tmp_path / "adapter_config.json")
    scales = {update.scale for update in read_adapter(tmp_path).updates.values()}
    assert scales == {ALPHA / math.sqrt(RANK)}
