"""A checkpoint written back in the published layout: whole, or not there at all."""

import errno
import secrets
import shutil
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from armillary.adapters import Updates, adapted
from armillary.errors import BadRequest
from armillary.lowbit import LowBitLinear
from armillary.names import published_name
from armillary.quantised import mark
from armillary.shards import (
    SHARD_LIMIT,
    Source,
    Sources,
    Stored,
    read_tensor,
    stored,
    write_json,
    write_shards,
)
from armillary.tasks.parts import Parts, stored_sight
from armillary.weights import PIPELINE, TRANSFORMER, Checkpoint, published_state, write_towers

FOLDERS = ("transformer", "vision_encoder", "vae", "sound_tokenizer", "text_tokenizer", "scheduler", "assets")
WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".index.json", ".partial")
QUANTISED = ("hf_quant_config.json", "modelopt_state.pth")  # what is written is widened
DOCUMENTS = (".json", ".jinja", ".txt", ".model", ".md")


def save_parts(
    parts: Parts, folder: Path, *, dtype: torch.dtype | None = None, limit: int = SHARD_LIMIT
) -> None:
    """Write everything of `parts`, adapters folded in, and of the checkpoint what was not loaded.

    dtype: that of every floating number, or None for what each tensor had on disk; memory is cast to it.
    limit: bytes of tensors in a file. In other memory modes than "resident" tensors come from their files.
    Towers of few bits are written so. Raises BadRequest if the folder is there already.
    """
    checkpoint = parts.checkpoint
    with _whole(folder) as fresh:
        _copy_documents(checkpoint.folder, fresh)
        towers = _towers(parts, dtype)
        here = parts.memory == "resident"
        tower = parts.sight.tower.state_dict() if parts.sight and here else None
        sight = _sources(tower, stored_sight(checkpoint), dtype) if checkpoint.sees else {}
        if checkpoint.is_edge:
            sight = {f"model.{name}": source for name, source in sight.items()}
        if checkpoint.reads_only:
            stem = "model" if parts.weights is None else TRANSFORMER
            write_shards({**towers, **sight}, fresh, stem, limit)
        else:
            shared = parts.weights is None
            write_towers(fresh, towers, sight, edge=checkpoint.is_edge, limit=limit, shared=shared)
        for name, codec in (("vae", parts.video), ("sound_tokenizer", parts.audio)):
            if checkpoint.part(name) is not None:
                state = codec.state_dict() if codec and here else None
                written = _sources(state, stored(checkpoint.folder / name, TRANSFORMER), dtype)
                write_shards(written, fresh / name, TRANSFORMER, limit)
        _write_configs(checkpoint, fresh, dtype, mark(parts.weights))


@contextmanager
def _whole(folder: Path) -> Generator[Path]:
    """A hidden folder beside the final one, renamed to it at the end; a failure removes it.

    An empty folder is taken; not one that was filled meanwhile, nor a link or ".", which no folder replaces.
    """
    taken = BadRequest("folder", str(folder), "is there already; name another, or remove it first")
    filled = folder.exists() and (not folder.is_dir() or any(folder.iterdir()))
    if filled or folder.is_symlink() or not folder.name:
        raise taken
    if not folder.absolute().parent.is_dir():
        raise BadRequest("folder", str(folder), f"there is no folder {str(folder.parent)!r}")
    fresh = folder.with_name(f".{folder.name}.{secrets.token_hex(4)}.partial")
    try:
        fresh.mkdir()
    except OSError as error:
        raise BadRequest("folder", str(folder), f"cannot be made: {error.strerror}") from None
    try:
        yield fresh
        _rename(fresh, folder, taken)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


def _rename(fresh: Path, folder: Path, taken: BadRequest) -> None:
    try:
        fresh.rename(folder)
    except OSError as error:
        if error.errno in (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR):
            raise taken from None
        raise


def _copy_documents(source: Path, target: Path) -> None:
    """Configurations, tokenizers, templates: all but weights, their indexes, and what marks a checkpoint."""
    files = [f for f in source.iterdir() if f.is_file() and (f.suffix in DOCUMENTS or f.name == "LICENSE")]
    files += [f for part in FOLDERS for f in (source / part).rglob("*") if f.is_file()]
    for file in files:
        place = target / file.relative_to(source)
        marks = file.parent == source and file.name in ("model_index.json", "config.json")
        if not marks and not file.name.endswith(WEIGHTS) and file.name not in QUANTISED:
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, place)


def _towers(parts: Parts, dtype: torch.dtype | None) -> Sources:
    """The towers under their published names; a layer is merged and rounded when its turn comes."""
    found, here = parts.checkpoint.stored, parts.memory == "resident"
    state = _sources(published_state(parts.network) if here else None, found, dtype)
    changes = dict(adapted(parts.network))
    for module, layer in parts.network.named_modules():
        name = published_name(f"{module}.weight") if module in changes else ""
        if isinstance(layer, LowBitLinear):
            state |= _rounded(module, layer, state, changes.get(module))
        elif module in changes:
            state[name] = replace(state[name], read=partial(_merged, changes[module], state[name]))
    return state


def _rounded(module: str, layer: LowBitLinear, state: Sources, updates: Updates | None) -> Sources:
    """What a low-bit layer holds, where it is held already; else what its weight becomes.

    With adapters its weight is widened, changed and rounded once more.
    """
    kinds = layer.state_dict()
    names = {leaf: published_name(f"{module}.{leaf}") for leaf in kinds}
    held = {leaf: state[name].read for leaf, name in names.items() if name in state}

    def weight_OI() -> torch.Tensor:
        if held.keys() != kinds.keys():
            return held["weight"]()
        return layer.like({leaf: read() for leaf, read in held.items()}).weight_OI()

    def packed(leaf: str) -> torch.Tensor:
        return layer.pack(updates.merged(weight_OI()) if updates else weight_OI())[leaf]

    as_held = held.keys() == kinds.keys() and updates is None
    reads = held if as_held else {leaf: partial(packed, leaf) for leaf in kinds}
    return {names[leaf]: Source(tuple(t.shape), t.dtype, reads[leaf]) for leaf, t in kinds.items()}


def _sources(
    state: Mapping[str, torch.Tensor] | None, found: Stored, dtype: torch.dtype | None
) -> dict[str, Source]:
    """A part's tensors: from memory if they are there, else from its files."""
    kinds = {n: dtype if dtype and e.dtype.is_floating_point else e.dtype for n, e in found.items()}
    if state is None:
        return {n: Source(e.shape, kinds[n], partial(read_tensor, e)) for n, e in found.items()}
    return {n: Source.of(tensor, kinds.get(n)) for n, tensor in state.items()}


def _merged(updates: Updates, plain: Source) -> torch.Tensor:
    return updates.merged(plain.read())


def _write_configs(
    checkpoint: Checkpoint, folder: Path, dtype: torch.dtype | None, marks: dict[str, Any]
) -> None:
    """The configurations that name dtypes, heads and few bits; at the very end those that make it a
    checkpoint."""
    if not checkpoint.reads_only:
        write_json(_retyped(checkpoint.settings, dtype) | marks, folder / "transformer" / "config.json")
    if checkpoint.root:
        root = _retyped(checkpoint.root, dtype) | (marks if checkpoint.reads_only else {})
        write_json(root, folder / "config.json")
    if not checkpoint.reads_only:
        kept = {key: value for key, value in checkpoint.index.items() if key != "vision_encoder"}
        write_json({**kept, "_class_name": PIPELINE}, folder / "model_index.json")


def _retyped(config: Mapping[str, Any], dtype: torch.dtype | None) -> dict[str, Any]:
    """A configuration in which nothing is quantised and every dtype that is named is the one written."""
    config = {key: value for key, value in config.items() if key != "quantization_config"}
    if dtype is None:
        return config
    name = str(dtype).removeprefix("torch.")
    return {
        key: name
        if key in ("dtype", "torch_dtype") and isinstance(value, str)
        else _retyped(value, dtype)
        if isinstance(value, dict)
        else value
        for key, value in config.items()
    }
