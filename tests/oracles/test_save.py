"""What is written is the published layout: bit-equal to what was read, and loaded by both libraries."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from armillary import convert, load
from armillary.errors import BadRequest
from armillary.lowbit import Form
from armillary.shards import Source, write_json
from armillary.tasks import save
from armillary.tasks.parts import load_parts
from armillary.weights import TRANSFORMER
from tests.oracles.fabricate import VARIANTS, quiet, transformers_reasoner
from tests.oracles.test_layouts import (
    edit,
    in_framework_words,
    reasoner_alone,
    rewrite,
    transformer,
    transformers_words,
)

PARTS = ("transformer", "vision_encoder", "vae", "sound_tokenizer")


def stored(folder: Path) -> dict[str, Tensor]:
    """Every tensor of a checkpoint by part and name."""
    files = [f for part in PARTS for f in (folder / part).glob("*.safetensors")]
    return {f"{f.parent.name}/{n}": t for f in files for n, t in load_file(f).items()}


def equal(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(
        t.dtype == other[n].dtype and torch.equal(t, other[n]) for n, t in one.items()
    )


def documents(folder: Path) -> dict[str, Any]:
    files = [f for f in folder.rglob("*.json") if not f.name.endswith(".index.json")]
    return {f.relative_to(folder).as_posix(): json.loads(f.read_text()) for f in files}


def loads_cleanly(folder: Path, *, sees: bool = True) -> None:
    from diffusers import Cosmos3OmniPipeline, Cosmos3OmniTransformer

    with quiet():
        _, report = Cosmos3OmniTransformer.from_pretrained(folder / "transformer", output_loading_info=True)
        Cosmos3OmniPipeline.from_pretrained(folder)
    assert not any(report.values()), report
    transformers_reasoner(folder, sees=sees)  # raises for a missing or unexpected key


@pytest.fixture(params=["nano", "edge"])
def original(request: pytest.FixtureRequest) -> Path:
    return request.getfixturevalue(f"{request.param}_folder")


def test_a_conversion_is_bit_equal_and_loads_everywhere(original: Path, tmp_path: Path) -> None:
    made = tmp_path / "made"
    convert(original, made, shard_bytes=60_000)
    assert equal(stored(made), stored(original))
    assert documents(made) == documents(original)
    assert (made / "chat_template.jinja").read_bytes() == (original / "chat_template.jinja").read_bytes()
    index = json.loads((made / "model.safetensors.index.json").read_text())["weight_map"]
    assert (
        index.keys()
        == json.loads((original / "model.safetensors.index.json").read_text())["weight_map"].keys()
    )
    assert len(set(index.values())) > 2
    for file in (made / "transformer").glob("*.safetensors"):
        tensors = load_file(file)
        assert sum(t.nbytes for t in tensors.values()) <= 60_000 or len(tensors) == 1
    loads_cleanly(made)


def test_a_world_saves_what_it_read(original: Path, tmp_path: Path) -> None:
    load(original, device="cpu").save(tmp_path / "made")
    assert equal(stored(tmp_path / "made"), stored(original))


@pytest.mark.parametrize("kind", VARIANTS)
def test_every_variant_is_written_as_it_was_and_loads_everywhere(
    written: Callable[[str], tuple[Path, Path]], kind: str, tmp_path: Path
) -> None:
    before, saved = written(kind)
    convert(before, tmp_path / "converted")
    for made in (saved, tmp_path / "converted"):
        assert equal(stored(made), stored(before))
        assert documents(made) == documents(before)
    loads_cleanly(saved, sees=(before / "vision_encoder").is_dir())


def test_bf16_stays_bf16_through_fp32_memory(nano_folder: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(nano_folder, tmp_path / "half")
    rewrite(folder, {n: t.bfloat16() for n, t in transformer(folder).items()})
    load(folder, device="cpu", dtype="float32").save(tmp_path / "made")
    assert equal(stored(tmp_path / "made"), stored(folder))


def test_another_dtype_is_written_and_named(original: Path, tmp_path: Path) -> None:
    folder, made = shutil.copytree(original, tmp_path / "copy"), tmp_path / "made"
    edit(folder / "config.json", dtype="float32")
    edit(folder / "transformer" / "config.json", dtype="float32")
    convert(folder, made, dtype="bfloat16")
    assert equal(stored(made), {n: t.bfloat16() for n, t in stored(original).items()})
    for config in (made / "config.json", made / "transformer" / "config.json"):
        assert json.loads(config.read_text())["dtype"] == "bfloat16"
    loads_cleanly(made)


def test_older_layouts_become_the_published_one(nano_folder: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(nano_folder, tmp_path / "older")
    state = transformer(folder)
    heads = {n: t for n, t in state.items() if n.startswith("audio_")}
    rewrite(folder, {in_framework_words(n, "net."): t for n, t in state.items() if n not in heads})
    index = json.loads((folder / "model_index.json").read_text())
    older = {"_class_name": "Cosmos3OmniDiffusersPipeline"}
    write_json({**index, **older, "vision_encoder": ["transformers", "Qwen3VL"]}, folder / "model_index.json")
    made = tmp_path / "made"
    convert(folder, made)
    published = {n: t for n, t in stored(nano_folder).items() if n.partition("/")[2] not in heads}
    assert equal(stored(made), published)
    loads_cleanly(made)


@pytest.mark.parametrize("limit", [10**9, 60_000])
def test_a_reasoner_alone_stays_one(original: Path, tmp_path: Path, limit: int) -> None:
    alone = reasoner_alone(original, tmp_path / "alone", shards=1, words=transformers_words)
    convert(alone, tmp_path / "made", shard_bytes=limit)
    transformers_reasoner(tmp_path / "made")
    one, other = (load(f, device="cpu").parts.network.state_dict() for f in (alone, tmp_path / "made"))
    assert equal(one, other)


def test_other_libraries_refuse_what_is_rounded(original: Path, tmp_path: Path) -> None:
    from diffusers import Cosmos3OmniPipeline

    made = tmp_path / "made"
    convert(original, made, weights="int8")
    with pytest.raises(ValueError, match="Unknown quantization type, got armillary"), quiet():
        Cosmos3OmniPipeline.from_pretrained(made)
    with pytest.raises(OSError, match="no file named"):
        transformers_reasoner(made)


@pytest.mark.parametrize("form", ["int8", "int4"])
def test_a_reasoner_alone_is_rounded_too(original: Path, tmp_path: Path, form: Form) -> None:
    alone = reasoner_alone(original, tmp_path / "alone", shards=1, words=transformers_words)
    convert(alone, tmp_path / "made", weights=form)
    one, other = (load(f, device="cpu", weights=form) for f in (alone, tmp_path / "made"))
    assert equal(one.parts.network.state_dict(), other.parts.network.state_dict())
    assert load(tmp_path / "made", device="cpu").facts.weights == form
    with pytest.raises(OSError, match="no file named"):
        transformers_reasoner(tmp_path / "made")


def test_parts_that_were_not_loaded_are_copied(nano_folder: Path, tmp_path: Path) -> None:
    parts = load_parts(nano_folder, device=torch.device("cpu"), dtype=torch.float32, want=())
    save.save_parts(parts, tmp_path / "made")
    assert equal(stored(tmp_path / "made"), stored(nano_folder))


def test_what_is_there_is_not_overwritten(nano_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "made").mkdir()
    (tmp_path / "made" / "mine.txt").write_text("x")
    with pytest.raises(BadRequest, match="is there already"):
        convert(nano_folder, tmp_path / "made")
    with pytest.raises(BadRequest, match="there is no folder"):
        convert(nano_folder, tmp_path / "no" / "made")
    assert [f.name for f in tmp_path.iterdir()] == ["made"]


def test_a_failure_leaves_nothing(nano_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(Source, "data", fail)
    with pytest.raises(OSError, match="disk full"):
        convert(nano_folder, tmp_path / "made")
    assert not list(tmp_path.iterdir())


KILLED = """
import os, sys
from armillary import shards, convert
whole, count = shards.write_file, [0]
def write(state, path):
    count[0] += 1
    if count[0] > int(sys.argv[3]):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.with_name(path.name + ".partial").write_bytes(b"half")
        os._exit(9)
    whole(state, path)
shards.write_file = write
convert(sys.argv[1], sys.argv[2], shard_bytes=60_000, weights=sys.argv[4] or None)
"""


@pytest.mark.parametrize(("after", "weights"), [(1, ""), (7, ""), (3, "int8")])
def test_killing_a_conversion_leaves_nothing_that_looks_complete(
    nano_folder: Path, tmp_path: Path, after: int, weights: str
) -> None:
    made = tmp_path / "made"
    words = [sys.executable, "-c", KILLED, str(nano_folder), str(made), str(after), weights]
    assert subprocess.run(words, check=False, timeout=120).returncode == 9
    assert not made.exists()
    left = next(tmp_path.iterdir())
    assert left.name.endswith(".partial")
    with pytest.raises(BadRequest, match="no checkpoint"):
        load(left, device="cpu")
    convert(nano_folder, made)
    assert equal(stored(made), stored(nano_folder))


def test_an_adapter_is_folded_in(nano_folder: Path, tmp_path: Path) -> None:
    draw = torch.Generator().manual_seed(0)
    down, up = torch.randn(2, 32, generator=draw), torch.randn(32, 2, generator=draw)
    key = "transformer.layers.2.self_attn.to_q"
    save_file({f"{key}.lora_A.weight": down, f"{key}.lora_B.weight": up}, tmp_path / "lora.safetensors")
    convert(nano_folder, tmp_path / "made", adapters=[(tmp_path / "lora.safetensors", 0.5)])
    before, after = stored(nano_folder), stored(tmp_path / "made")
    name = "transformer/layers.2.self_attn.to_q.weight"
    assert torch.allclose(after[name], before[name] + 0.5 * up @ down)
    assert [n for n in before if not torch.equal(before[n], after[n])] == [name]
    loads_cleanly(tmp_path / "made")
    assert (tmp_path / "made" / "transformer" / f"{TRANSFORMER}.safetensors").is_file()
