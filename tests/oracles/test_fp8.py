"""Checkpoints that ModelOpt wrote in FP8 (the `fp8` branches) are read as the numbers they stand for."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from armillary import convert, load
from armillary.errors import BadRequest
from armillary.shards import write_json
from armillary.weights import TRANSFORMER
from tests.oracles.test_layouts import edit, transformer
from tests.oracles.test_save import documents, loads_cleanly, stored

POLICY = {
    "schema_version": 1,
    "type": "first_last_n",
    "index_space": "denoising_loop_iteration",
    "first_steps": {"count": 3, "mode": "a16"},
    "last_steps": {"count": 3, "mode": "a16"},
    "overlap": "a16",
    "reasoner": "a16",
    "default_mode": "native",
}
QUANTISED = {
    "quant_method": "modelopt",
    "quant_algo": "FP8",
    "quant_type": "FP8_FP8",
    "producer": {"name": "modelopt", "version": "0.40"},
    "runtime": {"diffusion_step_policy": POLICY},
}
OWN = (".weight_quantizer._scale", ".weight_quantizer._amax", ".input_quantizer._amax")
EXPORTED = (".weight_scale", ".input_scale")


def fp8_like(whole: Path, folder: Path, ends: tuple[str, ...], *, rows: bool = False) -> dict[str, Tensor]:
    """`whole` with the linear layers of both towers in FP8 and their scales in another shard.

    Returns every tensor of the transformer as it should be read, fp32.
    """
    shutil.copytree(whole, folder)
    for file in (folder / "transformer").glob("*.safetensors*"):
        file.unlink()
    state, scales, due = transformer(whole), dict[str, Tensor](), dict[str, Tensor]()
    for name, tensor in state.items():
        if not (name.startswith("layers.") and tensor.ndim == 2):
            due[name] = state[name] = tensor if name.startswith("time_") else tensor.bfloat16()
            continue
        scale = (tensor.abs().amax(dim=1, keepdim=True) if rows else tensor.abs().max()) / 448
        state[name] = (tensor / scale).to(torch.float8_e4m3fn)
        due[name] = state[name].float() * scale
        module = name.removesuffix(".weight")
        scales |= {module + e: (scale if "amax" not in e else scale * 448).clone() for e in ends}
    files = {"00001-of-00002": state, "00002-of-00002": scales}
    places = {n: f"{TRANSFORMER}-{key}.safetensors" for key, part in files.items() for n in part}
    for key, part in files.items():
        save_file(part, folder / "transformer" / f"{TRANSFORMER}-{key}.safetensors", {"format": "pt"})
    write_json({"weight_map": places}, folder / "transformer" / f"{TRANSFORMER}.safetensors.index.json")
    (folder / "model.safetensors.index.json").unlink()
    edit(folder / "transformer" / "config.json", quantization_config=QUANTISED)
    write_json(QUANTISED, folder / "hf_quant_config.json")
    (folder / "modelopt_state.pth").write_bytes(b"a pickle, which nobody opens")
    return due


@pytest.mark.parametrize(
    ("ends", "rows"), [(OWN, False), (EXPORTED, False), (OWN + EXPORTED, False), (EXPORTED, True)]
)
def test_fp8_is_read_as_what_it_stands_for(
    nano_folder: Path, tmp_path: Path, ends: tuple[str, ...], rows: bool
) -> None:
    due = fp8_like(nano_folder, tmp_path / "fp8", ends, rows=rows)
    world = load(tmp_path / "fp8", device="cpu")
    held = {n: t for n, t in world.parts.network.state_dict().items() if n.startswith("blocks.")}
    assert {t.dtype for t in held.values()} == {torch.float32}
    wanted = {n: t for n, t in due.items() if n.startswith("layers.")}
    from armillary.names import published_name

    assert {published_name(n) for n in held} == wanted.keys()
    assert all(torch.equal(t, wanted[published_name(n)].float()) for n, t in held.items())
    assert "first 3 and last 3" in " ".join(world.notes)
    clip = world.generate("a disc", frames=1, size="32x32", steps=2)
    assert clip.frames.shape == (1, 32, 32, 3)


def test_converting_fp8_writes_a_plain_checkpoint(nano_folder: Path, tmp_path: Path) -> None:
    due = fp8_like(nano_folder, tmp_path / "fp8", OWN)
    edit(tmp_path / "fp8" / "config.json", quantization_config=QUANTISED)
    convert(tmp_path / "fp8", tmp_path / "plain", dtype="bfloat16")
    written = {n.removeprefix("transformer/"): t for n, t in stored(tmp_path / "plain").items()}
    assert all(torch.equal(written[n], t.bfloat16()) for n, t in due.items())
    assert "modelopt" not in json.dumps(documents(tmp_path / "plain"))
    assert not list((tmp_path / "plain").glob("modelopt*"))
    loads_cleanly(tmp_path / "plain")


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"quant_algo": "NVFP4"}, "quantised as modelopt NVFP4"),
        ({"quant_method": "bitsandbytes", "quant_algo": "nf4"}, "quantised as bitsandbytes nf4"),
    ],
)
def test_other_ways_to_quantise_are_refused(
    nano_folder: Path, tmp_path: Path, change: dict[str, Any], named: str
) -> None:
    folder = shutil.copytree(nano_folder, tmp_path / "other")
    edit(folder / "transformer" / "config.json", quantization_config=QUANTISED | change)
    with pytest.raises(BadRequest, match=named):
        load(folder, device="cpu")


def test_fp8_without_its_scales_is_refused(nano_folder: Path, tmp_path: Path) -> None:
    fp8_like(nano_folder, tmp_path / "fp8", EXPORTED[1:])
    with pytest.raises(BadRequest, match="FP8 weights that mean nothing; 56 without a scale: "):
        load(tmp_path / "fp8", device="cpu")


def test_a_scale_of_an_unknown_shape_is_refused(nano_folder: Path, tmp_path: Path) -> None:
    fp8_like(nano_folder, tmp_path / "fp8", EXPORTED[:1])
    shard = next((tmp_path / "fp8" / "transformer").glob("*-00002-of*.safetensors"))
    save_file({n: torch.ones(4, 4) for n in load_file(shard)}, shard)
    with pytest.raises(BadRequest, match=r"has a scale of shape \[4, 4\]"):
        load(tmp_path / "fp8", device="cpu")
