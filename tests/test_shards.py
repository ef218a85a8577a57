"""Safetensors files: a broken one is refused before anything is allocated; written ones are whole."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from armillary import shards
from armillary.errors import BadRequest
from armillary.shards import read_header, sources, stored, tensors, write_file, write_json, write_shards

STATE = {
    "a": torch.arange(6.0).view(2, 3),
    "b": torch.arange(4, dtype=torch.bfloat16),
    "c": torch.tensor(7),
    "d": torch.empty(0, 3),
}
ONE: dict[str, Any] = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}


def craft(path: Path, header: object, data: bytes = b"", length: int | None = None) -> Path:
    text = json.dumps(header).encode() if not isinstance(header, bytes) else header
    path.write_bytes((len(text) if length is None else length).to_bytes(8, "little") + text + data)
    return path


@pytest.mark.parametrize(
    ("header", "data", "length", "named"),
    [
        ({}, b"", 2**60, "header claims 1152921504606846976 bytes where 2 follow"),
        ({}, b"", 3, "header claims 3 bytes where 2 follow"),
        (b"[1]", b"", None, "header cannot be read"),
        (b"{nope", b"", None, "header cannot be read"),
        (b"\xff\xfe", b"", None, "header cannot be read"),
        ({"w": {"dtype": "F32"}}, b"", None, "header cannot be read"),
        ({"w": {**ONE, "dtype": "F31"}}, bytes(8), None, "w is of a dtype 'F31'"),
        ({"w": {**ONE, "shape": [3]}}, bytes(8), None, r"w has 8 bytes for F32 \[3\]"),
        ({"w": {**ONE, "shape": [-1, -2]}}, bytes(8), None, "w has 8 bytes"),
        ({"w": ONE}, bytes(7), None, "cut short; 1 truncated: w"),
        ({"w": ONE}, bytes(9), None, "1 bytes at its end belong to no tensor"),
        ({"v": ONE, "w": {**ONE, "data_offsets": [4, 12]}}, bytes(12), None, "w begins at byte 4 where 8"),
        ({"w": {**ONE, "data_offsets": [4, 12]}}, bytes(12), None, "w begins at byte 4 where 0"),
    ],
)
def test_a_malformed_file_is_refused(
    tmp_path: Path, header: object, data: bytes, length: int | None, named: str
) -> None:
    path = craft(tmp_path / "w.safetensors", header, data, length)
    with pytest.raises(BadRequest, match=named) as caught:
        read_header(path)
    assert str(path) == caught.value.value


def test_an_empty_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "w.safetensors").write_bytes(b"123")
    with pytest.raises(BadRequest, match="not a whole safetensors file"):
        read_header(tmp_path / "w.safetensors")


def test_every_truncated_tensor_is_named(tmp_path: Path) -> None:
    path = tmp_path / "w.safetensors"
    save_file({f"t{i:02d}": torch.ones(4) for i in range(20)}, path)
    path.write_bytes(path.read_bytes()[: -16 * 12 - 1])
    with pytest.raises(BadRequest, match="13 truncated: t07, t08") as caught:
        read_header(path)
    assert "t16" in str(caught.value)
    assert "t17" not in str(caught.value)


def test_an_index_may_not_lead_out_of_its_folder(tmp_path: Path) -> None:
    inside = tmp_path / "model"
    inside.mkdir()
    save_file(STATE, tmp_path / "secret.safetensors")
    for file in ("../secret.safetensors", str(tmp_path / "secret.safetensors")):
        write_json({"weight_map": dict.fromkeys(STATE, file)}, inside / "w.safetensors.index.json")
        with pytest.raises(BadRequest, match="outside its folder"):
            stored(inside, "w")


def test_a_file_is_what_safetensors_writes(tmp_path: Path) -> None:
    save_file(STATE, tmp_path / "theirs.safetensors", metadata={"format": "pt"})
    write_file(sources(STATE), tmp_path / "ours.safetensors")
    assert (tmp_path / "ours.safetensors").read_bytes() == (tmp_path / "theirs.safetensors").read_bytes()


def test_shards_hold_everything_once_and_keep_to_the_limit(tmp_path: Path) -> None:
    state = {f"t{i}": torch.full((i + 1, 4), float(i)) for i in range(7)}
    files = write_shards(sources(state), tmp_path, "model", limit=160)
    assert sorted(set(files.values())) == [f"model-{i:05d}-of-00004.safetensors" for i in range(1, 5)]
    for file in set(files.values()):
        assert sum(t.nbytes for t in load_file(tmp_path / file).values()) <= 160
    back = dict(tensors(stored(tmp_path, "model")))
    assert back.keys() == state.keys()
    assert all(torch.equal(back[name], tensor) for name, tensor in state.items())
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    assert index["metadata"]["total_size"] == sum(t.nbytes for t in state.values())


def test_another_dtype_is_written_as_asked(tmp_path: Path) -> None:
    write_file(sources({"a": STATE["a"]}, torch.float16), tmp_path / "w.safetensors")
    assert torch.equal(load_file(tmp_path / "w.safetensors")["a"], STATE["a"].half())


def test_a_failure_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(shards.Source, "data", fail)
    with pytest.raises(OSError, match="disk full"):
        write_file(sources(STATE), tmp_path / "w.safetensors")
    assert not (tmp_path / "w.safetensors").exists()
