"""Safetensors files, strictly: what a file claims is checked against its size before anything is allocated.

Reading: headers first (`stored`), tensors later and one at a time (`tensors`). Writing: tensors one at a time
too, into files of a limited size with an index. The format: huggingface.co/docs/safetensors. Weights that
ModelOpt wrote in FP8 are read with their scales, wherever those lie, and look like any others.
"""

import json
import math
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path, PurePosixPath
from typing import Any, cast

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from armillary.errors import BadRequest

HEADER_LIMIT = 100_000_000  # bytes; the format's own limit
SHARD_LIMIT = 5_000_000_000  # bytes of tensors in a file, as published
NAMED = 10  # examples in an error

_DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
_CODES = {dtype: code for code, dtype in _DTYPES.items()}
_FP8 = (torch.float8_e4m3fn, torch.float8_e5m2)
_SCALES = (".weight_scale", ".weight_quantizer._scale")  # as exported, and as in ModelOpt's own modules
_RANGES = (".input_scale", ".weight_quantizer._amax", ".input_quantizer._amax")  # for 8-bit activations


@dataclass(frozen=True)
class Entry:
    """A tensor in a file: what it is called there, and what it is.

    One with a scale is stored in FP8, and stands for scale * tensor; its dtype is what it stands for.
    """

    file: Path
    key: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    scale: "Entry | None" = None


Stored = dict[str, Entry]  # by the name that the reader uses


# -- json --------------------------------------------------------------------------------------------------


def read_json(path: Path) -> dict[str, Any]:
    """The object in a json file of a checkpoint. Raises BadRequest naming the file."""
    try:
        content: Any = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise BadRequest("model", str(path), "this file of the checkpoint is missing") from None
    except (ValueError, RecursionError) as error:
        raise BadRequest("model", str(path), f"not valid JSON ({error})") from None
    if not isinstance(content, dict):
        raise BadRequest("model", str(path), "must hold a JSON object, not a list or a bare value")
    return cast("dict[str, Any]", content)


@contextmanager
def whole(path: Path) -> Generator[Path]:
    """A name to write to, which becomes `path` at the end; after an error it is gone, and `path` as it was.

    Raises OSError naming `path`, as where the disk is full.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")  # a fixed name: what a kill leaves is overwritten
    try:
        yield partial
        partial.replace(path)
    except OSError as error:
        if error.errno is None or error.filename is not None:
            raise
        raise OSError(error.errno, error.strerror, str(path)) from error
    finally:
        partial.unlink(missing_ok=True)


def write_json(value: object, path: Path) -> None:
    """A JSON file, whole or not at all."""
    with whole(path) as partial:
        partial.write_text(json.dumps(value, indent=2) + "\n")


# -- reading -----------------------------------------------------------------------------------------------


def read_header(path: Path) -> Stored:
    """Every tensor that a file claims to hold. Raises BadRequest, naming file and tensor, unless it can."""
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or length > min(HEADER_LIMIT, size - 8):
            raise _bad(path, f"its header claims {length} bytes where {max(0, size - 8)} follow")
        try:
            header = cast("dict[str, Any]", json.loads(file.read(length)))
            header.pop("__metadata__", None)
            found = {name: _entry(path, name, told) for name, told in header.items()}
            places = sorted((*_offsets(told), name) for name, told in header.items())
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise _bad(path, f"its header cannot be read ({error!r})") from None
    _check_places(path, places, size - 8 - length)
    return found


def _entry(path: Path, name: str, told: Mapping[str, Any]) -> Entry:
    shape, (begin, end) = tuple(int(n) for n in told["shape"]), _offsets(told)
    dtype = _DTYPES.get(told["dtype"])
    if dtype is None:
        raise _bad(path, f"{name} is of a dtype {told['dtype']!r} that is not known here")
    if min(shape, default=0) < 0 or end - begin != math.prod(shape) * dtype.itemsize:
        raise _bad(path, f"{name} has {end - begin} bytes for {told['dtype']} {list(shape)}")
    return Entry(path, name, dtype, shape)


def _offsets(told: Mapping[str, Any]) -> tuple[int, int]:
    begin, end = told["data_offsets"]
    return int(begin), int(end)


def _check_places(path: Path, places: Sequence[tuple[int, int, str]], size: int) -> None:
    """Tensors must lie one after the other and end where the file ends."""
    cut = [name for _, end, name in places if end > size]
    if cut:
        raise _bad(path, f"the file is cut short; {listed(cut, 'truncated')}")
    at = 0
    for begin, end, name in places:
        if begin != at:
            raise _bad(path, f"{name} begins at byte {begin} where {at} is due")
        at = end
    if at != size:
        raise _bad(path, f"{size - at} bytes at its end belong to no tensor")


def _bad(path: Path, message: str) -> BadRequest:
    return BadRequest("model", str(path), f"not a whole safetensors file: {message}")


def listed(names: Iterable[str], label: str) -> str:
    """'2 missing: a, b', with no more than ten examples."""
    names = list(names)
    return f"{len(names)} {label}: {', '.join(names[:NAMED])}"


def stored(folder: Path, *stems: str, root: Path | None = None) -> Stored:
    """The tensors of one part: in the shards that its own index names, else in those that the index of the
    whole checkpoint in `root` names below `folder`, else in one file `stem`.safetensors.

    Raises BadRequest for files and tensors that an index names and the disk lacks, or the other way round.
    """
    return _scaled(_found(folder, *stems, root=root), folder)


def _found(folder: Path, *stems: str, root: Path | None) -> Stored:
    for stem in stems:
        index = folder / f"{stem}.safetensors.index.json"
        if index.is_file():
            return _indexed(index)
    index = (root or folder) / "model.safetensors.index.json"
    if root is not None and index.is_file():
        found = _indexed(index, below=folder.relative_to(root).as_posix() + "/")
        if found:
            return found
    for stem in stems:
        if (folder / f"{stem}.safetensors").is_file():
            return read_header(folder / f"{stem}.safetensors")
    raise BadRequest("model", str(folder), f"weight file {stems[0]}.safetensors is missing")


def _indexed(index: Path, *, below: str = "") -> Stored:
    """What an index names, checked against the disk; with `below` only files there, and all they hold."""
    named = cast("dict[str, str]", read_json(index).get("weight_map") or {})
    places = {name: file for name, file in named.items() if file.startswith(below)}
    files = sorted(set(places.values()))
    outside = [f for f in files if PurePosixPath(f).is_absolute() or ".." in PurePosixPath(f).parts]
    if outside:
        raise BadRequest("model", str(index), f"names a file outside its folder: {outside[0]}")
    missing = [f for f in files if not (index.parent / f).is_file()]
    if missing:
        count = f"{len(missing)} of {len(files)}"
        raise BadRequest("model", str(index), f"weight file {missing[0]} is missing ({count} are)")
    headers = {f: read_header(index.parent / f) for f in files}
    lacking = [name for name, file in places.items() if name not in headers[file]]
    beyond = [n for f, header in headers.items() for n in header if not below and places.get(n) != f]
    for names, label in (
        (lacking, "in the index only"),
        (beyond, "in a file only"),
    ):
        if names:
            raise BadRequest("model", str(index), f"does not fit its files; {listed(names, label)}")
    return join(headers.values(), index)


def join(parts: Iterable[Stored], where: Path) -> Stored:
    """All of `parts` together. Raises BadRequest for a tensor that is there twice."""
    whole: Stored = {}
    for part in parts:
        twice = whole.keys() & part.keys()
        if twice:
            raise BadRequest("model", str(where), f"holds a tensor twice; {listed(sorted(twice), 'twice')}")
        whole |= part
    return whole


def renamed(found: Stored, rename: Callable[[str], str], where: Path) -> Stored:
    """The same tensors under other names. Raises BadRequest if two get the same one."""
    return join(({rename(name): entry} for name, entry in found.items()), where)


def _scaled(found: Stored, where: Path) -> Stored:
    """FP8 weights joined with their scales; ranges of activations, which stay in 16 bits here, left out."""
    whole = dict(found)
    lost: list[str] = []
    for name in (n for n, entry in found.items() if entry.dtype in _FP8):
        module = name.removesuffix(".weight")
        scales = [whole.pop(module + end) for end in _SCALES if module + end in whole]
        for end in _RANGES:
            whole.pop(module + end, None)
        if scales:
            whole[name] = replace(found[name], dtype=torch.bfloat16, scale=scales[0])
        else:
            lost.append(name)
    if lost:
        raise BadRequest(
            "model", str(where), f"holds FP8 weights that mean nothing; {listed(lost, 'without a scale')}"
        )
    return whole


def _unscaled(tensor: Tensor, scale: Tensor, entry: Entry) -> Tensor:
    """What an FP8 weight [O, I] stands for, fp32. The scale is one number, or one a row."""
    if scale.numel() not in (1, len(tensor)):
        raise _bad(
            entry.file,
            f"{entry.key} has a scale of shape {list(scale.shape)}; one number or one a row is known",
        )
    codes = (
        torch.arange(256, dtype=torch.uint8).view(tensor.dtype).float()
    )  # torch's own cast takes 30 times as long
    wide = codes.index_select(0, tensor.view(torch.uint8).flatten().int()).view(tensor.shape)
    return wide.mul_(scale.float().reshape(-1, 1))


def tensors(found: Stored) -> Iterator[tuple[str, Tensor]]:
    """Every tensor, one at a time, memory-mapped unless it has a scale; each file is opened once."""
    by_file = sorted(found.items(), key=lambda item: str(item[1].file))
    for path, items in groupby(by_file, key=lambda item: item[1].file):
        try:
            with safe_open(path, framework="pt") as opened:
                for name, entry in items:
                    tensor = opened.get_tensor(entry.key)
                    yield (
                        name,
                        tensor if entry.scale is None else _unscaled(tensor, read_tensor(entry.scale), entry),
                    )
        except SafetensorError as error:
            raise _bad(path, str(error)) from None


def read_tensor(entry: Entry) -> Tensor:
    return next(tensor for _, tensor in tensors({entry.key: entry}))


def read_metadata(path: Path) -> dict[str, str]:
    """The notes in a file's header."""
    read_header(path)
    with safe_open(path, framework="pt") as opened:
        return opened.metadata() or {}


# -- writing -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Source:
    """A tensor to write: what it will be, and how to get it when its turn comes."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    read: Callable[[], Tensor]

    @classmethod
    def of(cls, tensor: Tensor, dtype: torch.dtype | None = None) -> "Source":
        return cls(tuple(tensor.shape), dtype or tensor.dtype, lambda: tensor)

    @property
    def size(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize

    def data(self) -> memoryview:
        """Its bytes, row by row."""
        tensor = self.read().detach().to("cpu", self.dtype).contiguous()
        return tensor.reshape(-1).view(torch.uint8).numpy().data


Sources = Mapping[str, Source]


def sources(state: Mapping[str, Tensor], dtype: torch.dtype | None = None) -> Sources:
    """Tensors as they are, or in another dtype."""
    return {name: Source.of(tensor, dtype) for name, tensor in state.items()}


def write_file(state: Sources, path: Path) -> None:
    """One safetensors file, whole or not at all; the widest numbers first, so that all lie aligned."""
    names = sorted(state, key=lambda name: (-state[name].dtype.itemsize, name))
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name in names:
        source = state[name]
        places = [at, at := at + source.size]
        header[name] = {"dtype": _CODES[source.dtype], "shape": source.shape, "data_offsets": places}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with whole(path) as partial, partial.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name in names:
            file.write(state[name].data())


def write_shards(state: Sources, folder: Path, stem: str, limit: int = SHARD_LIMIT) -> dict[str, str]:
    """One part in files of at most `limit` bytes of tensors, with an index if there are several.

    Returns the file name of every tensor. A tensor larger than the limit gets a file of its own.
    """
    groups = list(_groups(state, limit))
    files: dict[str, str] = {}
    for i, names in enumerate(groups, 1):
        several = f"-{i:05d}-of-{len(groups):05d}" if len(groups) > 1 else ""
        file = f"{stem}{several}.safetensors"
        write_file({name: state[name] for name in names}, folder / file)
        files |= dict.fromkeys(names, file)
    if len(groups) > 1:
        write_json(index_of(files, state), folder / f"{stem}.safetensors.index.json")
    return files


def index_of(files: Mapping[str, str], state: Sources) -> dict[str, Any]:
    """The content of an index: where each tensor lies."""
    size = sum(state[name].size for name in files)
    return {"metadata": {"total_size": size}, "weight_map": dict(sorted(files.items()))}


def _groups(state: Sources, limit: int) -> Iterator[list[str]]:
    group: list[str] = []
    size = 0
    for name, source in state.items():
        if group and size + source.size > limit:
            yield group
            group, size = [], 0
        group.append(name)
        size += source.size
    if group:
        yield group
