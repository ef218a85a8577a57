"""A copy of few bits on disk computes what the original computes when it is rounded as it is read."""

import json
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from typer.testing import CliRunner

from armillary import convert, doctor, load, plan, validate
from armillary.cli import app
from armillary.errors import BadRequest
from armillary.lowbit import Form, LowBitLinear
from armillary.memory import MODES, Mode
from armillary.shards import write_json
from armillary.world import World
from tests.random_pocket import random_pocket
from tests.test_lowbit import lora

FORMS: tuple[Form, ...] = ("int8", "int4")
ASKED: dict[str, Any] = {"prompt": "a red disc", "frames": 1, "size": "16x16", "steps": 2, "guidance": 2.0}


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pocket's shape with random bf16 towers."""
    folder = random_pocket(tmp_path_factory.mktemp("original"))
    for file in (folder / "transformer").glob("*.safetensors"):
        save_file({n: t.bfloat16() for n, t in load_file(file).items()}, file, {"format": "pt"})
    return folder


@pytest.fixture(scope="module")
def copies(original: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[Form, Path]:
    folder = tmp_path_factory.mktemp("copies")
    for form in FORMS:
        convert(original, folder / form, weights=form, shard_bytes=1_000_000)
    return {form: folder / form for form in FORMS}


def numbers(world: World) -> dict[str, Tensor]:
    return dict(world.parts.network.state_dict())


def equal(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    same = (t.dtype == other[n].dtype and torch.equal(t, other[n]) for n, t in one.items())
    return one.keys() == other.keys() and all(same)


def files(folder: Path) -> dict[str, Tensor]:
    found = folder.glob("**/*.safetensors")
    return {f"{f.parent.name}/{n}": t for f in found for n, t in load_file(f).items()}


# -- the numbers


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_it_holds_the_bits_that_rounding_at_loading_gives(
    original: Path, copies: dict[Form, Path], form: Form, dtype: str
) -> None:
    due = load(original, device="cpu", dtype=dtype, weights=form, memory="resident")
    assert equal(numbers(load(copies[form], device="cpu", dtype=dtype, memory="resident")), numbers(due))


@pytest.mark.parametrize("form", FORMS)
def test_it_computes_the_same_in_every_memory_mode(
    original: Path, copies: dict[Form, Path], form: Form
) -> None:
    def made(folder: Path, mode: Mode, weights: Form | None) -> tuple[Any, ...]:
        world = load(folder, device="cpu", dtype="bfloat16", memory=mode, weights=weights)
        clip = world.generate(**ASKED)
        assert clip.receipt["weights"] == form
        return clip.frames.tobytes(), world.reason("What?", max_tokens=3).text

    due = made(original, "resident", form)
    assert all(made(copies[form], mode, None) == due for mode in MODES)
    assert made(copies[form], "stream", form) == due  # saying what it is changes nothing


def test_streamed_it_is_used_where_it_lies(copies: dict[Form, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("rounded anew")

    monkeypatch.setattr(LowBitLinear, "pack", refuse)
    world = load(copies["int8"], device="cpu", dtype="bfloat16", memory="stream")
    mapped: list[bool] = []

    def look(layer: Any, _: object) -> None:
        address = layer.get_buffer("weight").data_ptr()
        mapped.append(any(low <= address < high for low, high in _mapped(copies["int8"])))

    for block in world.parts.network.blocks:
        block.get_submodule("dm.q").register_forward_pre_hook(look)
    world.generate(**ASKED)
    assert len(mapped) == ASKED["steps"] * len(world.parts.network.blocks)
    assert all(mapped)


def _mapped(folder: Path) -> list[tuple[int, int]]:
    """Where files of a folder are in this process's memory."""
    lines = [line.split() for line in Path("/proc/self/maps").read_text().splitlines()]
    places = [words[0].split("-") for words in lines if str(folder) in words[-1]]
    return [(int(low, 16), int(high, 16)) for low, high in places]


# -- in and out


@pytest.mark.parametrize(("form", "share"), [("int8", 0.52), ("int4", 0.3)])
def test_its_blocks_take_a_fraction_of_the_disk(
    original: Path, copies: dict[Form, Path], form: Form, share: float
) -> None:
    sizes = [
        sum(t.nbytes for n, t in files(folder).items() if n.startswith("transformer/layers."))
        for folder in (copies[form], original)
    ]
    assert sizes[0] < share * sizes[1]


@pytest.mark.parametrize("form", FORMS)
def test_only_linear_layers_of_blocks_are_rounded(
    original: Path, copies: dict[Form, Path], form: Form
) -> None:
    before, after = files(original), files(copies[form])
    rounded = {n for n, t in before.items() if n.startswith("transformer/layers.") and t.ndim == 2}
    assert {n for n, t in before.items() if not torch.equal(t, after[n])} == rounded
    beside = ("_scale",) if form == "int8" else ("_scale", "_low")
    assert after.keys() - before.keys() == {n + end for n in rounded for end in beside}


@pytest.mark.parametrize("form", FORMS)
def test_it_is_copied_bit_by_bit_and_a_loaded_one_is_saved_so(
    original: Path, copies: dict[Form, Path], form: Form, tmp_path: Path
) -> None:
    convert(copies[form], tmp_path / "again")
    convert(copies[form], tmp_path / "wide", dtype="float32")
    load(copies[form], device="cpu", memory="tower").save(tmp_path / "saved")
    load(original, device="cpu", weights=form, memory="resident").save(tmp_path / "rounded")
    due = files(copies[form])
    for name in ("again", "saved", "rounded"):
        assert equal(files(tmp_path / name), due)
    for name, tensor in files(tmp_path / "wide").items():
        kept = name.startswith("transformer/layers.") and due[name].ndim == 2
        assert tensor.dtype == (due[name].dtype if kept else torch.float32)


def test_an_adapter_is_folded_in_before_rounding(original: Path, tmp_path: Path) -> None:
    change = lora(tmp_path / "lora.safetensors")
    convert(original, tmp_path / "merged", adapters=[(change, 0.5)])
    convert(tmp_path / "merged", tmp_path / "due", weights="int8")
    convert(original, tmp_path / "made", adapters=[(change, 0.5)], weights="int8")
    assert equal(files(tmp_path / "made"), files(tmp_path / "due"))


def test_an_adapter_of_a_rounded_one_is_folded_in_and_rounded_once_more(
    original: Path, copies: dict[Form, Path], tmp_path: Path
) -> None:
    change, name = lora(tmp_path / "lora.safetensors"), "transformer/layers.0.self_attn.to_q.weight"
    load(copies["int8"], device="cpu", memory="resident", adapters=[change]).save(tmp_path / "one")
    load(copies["int8"], device="cpu", memory="stream", adapters=[change]).save(tmp_path / "other")
    changed, plain = files(tmp_path / "one"), files(original)[name].float()
    assert equal(changed, files(tmp_path / "other"))
    update = load_file(change)
    due = plain + update["blocks.0.ar.q.lora_B.weight"] @ update["blocks.0.ar.q.lora_A.weight"]
    assert (due - plain).norm() > 0.1 * plain.norm()
    assert (changed[name] * changed[f"{name}_scale"] - due).norm() < 0.02 * due.norm()


# -- what is said of it


def test_it_is_known_without_an_option(copies: dict[Form, Path]) -> None:
    told = doctor.describe(str(copies["int8"]))
    assert "stored in int8" in told["variant"]
    assert told["notes"] == ["its towers are stored in int8, which only Armillary reads"]
    assert validate("generate", copies["int8"], **ASKED).weights == "int8"
    assert list(doctor.check(str(copies["int8"]))) == ["bfloat16"]


@pytest.mark.parametrize("mode", MODES)
def test_a_plan_counts_it_as_mapped(original: Path, copies: dict[Form, Path], mode: Mode) -> None:
    asked = {"device": "cpu", "dtype": "bfloat16", **ASKED}
    plain, copy, anew = (
        {stage.name: stage for stage in plan("generate", folder, weights=form, **asked).stages[mode]}["draw"]
        for folder, form in ((original, None), (copies["int8"], None), (original, "int8"))
    )
    assert copy.weights == plain.weights
    assert copy.mapped < plain.mapped
    assert anew.weights > copy.weights
    assert anew.weights + anew.mapped == copy.weights + copy.mapped


def test_other_bits_than_it_has_are_refused(copies: dict[Form, Path], tmp_path: Path) -> None:
    message = r"^weights='int4': this checkpoint is stored in int8; leave it out"
    with pytest.raises(BadRequest, match=message):
        load(copies["int8"], weights="int4")
    with pytest.raises(BadRequest, match=message):
        plan("reason", copies["int8"], prompt="what?", weights="int4")
    with pytest.raises(BadRequest, match=message):
        convert(copies["int8"], tmp_path / "made", weights="int4")
    assert not list(tmp_path.iterdir())


def test_damage_is_named(copies: dict[Form, Path], tmp_path: Path) -> None:
    folder = shutil.copytree(copies["int8"], tmp_path / "damaged")
    config = folder / "transformer" / "config.json"
    told = json.loads(config.read_text())
    write_json({**told, "quantization_config": {"quant_method": "armillary", "weights": "int3"}}, config)
    for refused in (
        partial(load, device="cpu"),
        partial(validate, "reason", prompt="a"),
        partial(plan, "reason", prompt="a"),
    ):
        with pytest.raises(BadRequest, match="quantised as armillary int3"):
            refused(source=folder)
    (note,) = doctor.describe(str(folder))["notes"]
    assert note.startswith("its weights are quantised as armillary int3")
    write_json({**told, "quantization_config": {"quant_method": "armillary", "weights": "int4"}}, config)
    with pytest.raises(BadRequest, match=r"missing: .*weight_low.*of another shape.*of a wrong dtype"):
        load(folder, device="cpu")
    write_json({n: t for n, t in told.items() if n != "quantization_config"}, config)
    with pytest.raises(BadRequest, match=r"unexpected: layers.0\.\S*weight_scale.*of a wrong dtype"):
        load(folder, device="cpu")


def test_the_command_writes_it(original: Path, tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["convert", str(original), str(tmp_path / "made"), "--weights", "int8"])
    assert done.exit_code == 0, done.output
    assert load(tmp_path / "made", device="cpu").facts.weights == "int8"
    wrong = CliRunner().invoke(app, ["convert", str(original), str(tmp_path / "other"), "--weights", "int5"])
    assert wrong.exit_code == 2
    assert "nearest are int8 or int4" in wrong.output
    assert [f.name for f in tmp_path.iterdir()] == ["made"]


def test_a_failure_leaves_nothing(original: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(LowBitLinear, "pack", fail)
    with pytest.raises(OSError, match="disk full"):
        convert(original, tmp_path / "made", weights="int8")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("there", ["link to a folder", "link to nothing", "link to itself", "this folder"])
def test_what_no_folder_can_replace_is_refused_before_anything_is_written(
    original: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, there: str
) -> None:
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    target = Path() if there == "this folder" else tmp_path / "made"
    if target.name:
        to = {"link to a folder": "empty", "link to nothing": "nowhere", "link to itself": "made"}[there]
        target.symlink_to(tmp_path / to)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(BadRequest, match="is there already"):
        convert(original, target, weights="int8")
    assert sorted(tmp_path.rglob("*")) == before


def test_a_folder_that_cannot_be_made_is_refused(original: Path, tmp_path: Path) -> None:
    with pytest.raises(BadRequest, match=r"^folder='.*n': cannot be made: File name too long"):
        convert(original, tmp_path / ("n" * 255), weights="int8")


def test_of_two_conversions_into_one_folder_the_first_to_end_stays(
    original: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pack, begun = LowBitLinear.pack, list[int]()

    def convert_the_other_first(layer: LowBitLinear, weight_OI: Tensor) -> dict[str, Tensor]:
        begun.append(1)
        if len(begun) == 1:
            convert(original, tmp_path / "made")
        return pack(layer, weight_OI)

    monkeypatch.setattr(LowBitLinear, "pack", convert_the_other_first)
    with pytest.raises(BadRequest, match="is there already"):
        convert(original, tmp_path / "made", weights="int8")
    assert [f.name for f in tmp_path.iterdir()] == ["made"]
    assert load(tmp_path / "made", device="cpu").facts.weights is None
