"""Weights in and out: the published layout on disk, our names in memory, one table between.

`Checkpoint` is what a folder says about itself: its json files and the headers of its weights. Loading
builds modules on the meta device and assigns tensors one at a time; every missing, unexpected or mis-shaped
tensor is named before any is read, and nothing falls back.
"""

from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from armillary import arguments
from armillary.errors import BadRequest
from armillary.lowbit import LowBitLinear, lower
from armillary.model import Config, Network
from armillary.names import HEADS, SHOWN, UNUSED, canonical, is_drawing, is_sight, published_name
from armillary.published import MOST, Traits, network_config, published_config, reasoner_config
from armillary.quantised import Quantised
from armillary.shards import (
    SHARD_LIMIT,
    Sources,
    Stored,
    index_of,
    listed,
    read_json,
    read_tensor,
    renamed,
    stored,
    tensors,
    write_json,
    write_shards,
)

TRANSFORMER = "diffusion_pytorch_model"  # the stem of weight files in diffusers' folders
PIPELINE = "Cosmos3OmniPipeline"
ACTION_PORT = ("in.bias", "out.bias", "in.fc", "out.fc")  # a row of each for every robot


KNOWN = {*published_config(Config(), Traits()), *UNUSED, "quantization_config"}


def is_reasoner(folder: Path) -> bool:
    """Whether a folder holds a reasoner alone: its `config.json` names a Cosmos 3 reasoner."""
    path = folder / "config.json"
    alone = not (folder / "model_index.json").exists() and path.is_file()
    return alone and str(read_json(path).get("model_type", "")).startswith("cosmos3_")


@dataclass(frozen=True)
class Checkpoint:
    """A folder in a published layout, known by its json files and the headers of its weights.

    Either a whole model (`model_index.json` and one folder a part) or a reasoner alone (`config.json` and
    `model.safetensors`, whole or in shards).
    """

    folder: Path

    @cached_property
    def reads_only(self) -> bool:
        """A reasoner without the tower that draws."""
        return not (self.folder / "transformer").is_dir() and is_reasoner(self.folder)

    @cached_property
    def index(self) -> dict[str, Any]:
        """`model_index.json`: the parts and the pipeline's switches."""
        if self.reads_only:
            return {}
        return read_json(self.folder / "model_index.json")

    @cached_property
    def transformer(self) -> dict[str, Any]:
        """`transformer/config.json`, or what the reasoner's own configuration says in those words."""
        if self.reads_only:
            return reasoner_config(self.root)
        return read_json(self.folder / "transformer" / "config.json")

    @cached_property
    def root(self) -> dict[str, Any]:
        """The reasoner's configuration (vision tower, special token ids); empty if there is none."""
        path = self.folder / "config.json"
        return read_json(path) if path.exists() else {}

    @cached_property
    def scheduler(self) -> dict[str, Any]:
        """How its sampler steps; empty for a reasoner."""
        if self.reads_only:
            return {}
        found = read_json(self.folder / "scheduler" / "scheduler_config.json")
        if "flow_shift" in found:
            arguments.positive(found["flow_shift"], "scheduler.flow_shift")
        for sigma in (found.get("fixed_step_sampler_config") or {}).get("t_list") or ():
            arguments.positive(sigma, "scheduler.fixed_step_sampler_config.t_list")
        return found

    @cached_property
    def stops(self) -> list[int]:
        """The tokens that end an answer, by `generation_config.json`."""
        path = self.folder / "generation_config.json"
        named: Any = read_json(path).get("eos_token_id") if path.exists() else None
        ids: list[Any] = named if isinstance(named, list) else [] if named is None else [named]
        return [
            arguments.whole(i, "generation_config.eos_token_id", 0, self.config.vocabulary - 1) for i in ids
        ]

    @cached_property
    def stored(self) -> Stored:
        """The towers' tensors under their published names, whatever their spelling on disk."""
        stems = ("model", TRANSFORMER) if self.reads_only else (TRANSFORMER, "model")
        folder = self.folder if self.reads_only else self.folder / "transformer"
        found = renamed(stored(folder, *stems, root=self.folder), canonical, folder)
        if not self.reads_only:
            return found
        return {name: entry for name, entry in found.items() if not (is_sight(name) or is_drawing(name))}

    @cached_property
    def dtype(self) -> torch.dtype:
        """That of the towers' plain weights: as stored, or as the config says where no weights are."""
        with suppress(BadRequest, KeyError):
            return self.stored["embed_tokens.weight"].dtype
        named = self.transformer.get("dtype") or self.transformer.get("torch_dtype") or "bfloat16"
        return getattr(torch, str(named), torch.bfloat16)

    @cached_property
    def absent_heads(self) -> tuple[str, ...]:
        """Sound and action, where the config promises them and no tensor of theirs is stored.

        Checkpoints made for one task may be published so (spec of the framework's exporter).
        """
        promised = [kind for kind in ("sound", "action") if self.transformer.get(f"{kind}_gen", False)]
        if not promised or not any((self.folder / "transformer").glob("*.safetensors")):
            return ()  # a request can be validated before any weights are there
        return tuple(k for k in promised if not any(n.startswith(HEADS[k]) for n in self.stored))

    @cached_property
    def untaught(self) -> frozenset[int]:
        """Action ports that no training has touched: they are all alike to the bit, with biases of zero.

        Any step of training moves the biases. Where all are zero nothing can be told, and none is named.
        """
        if not self.settings.get("action_gen", False) or not any(
            (self.folder / "transformer").glob("*.safetensors")
        ):
            return frozenset()
        found = [self.stored.get(f"action_proj_{name}.weight") for name in ACTION_PORT]
        if not all(entry and len(entry.shape) == 2 for entry in found):
            return frozenset()  # refused when it is loaded
        *biases, enter, leave = (read_tensor(entry) for entry in found if entry)
        ports = range(min(len(rows) for rows in (*biases, enter, leave)))
        still = [port for port in ports if not any(rows[port].any() for rows in biases)]
        if len(still) == len(ports):
            return frozenset()
        told = {port: _bytes(enter[port]) + _bytes(leave[port]) for port in still}
        alike = Counter(told.values())
        return frozenset(port for port, numbers in told.items() if alike[numbers] > 1)

    @cached_property
    def settings(self) -> dict[str, Any]:
        """`transformer` without the heads that are absent."""
        return self.transformer | {f"{kind}_gen": False for kind in self.absent_heads}

    @cached_property
    def config(self) -> Config:
        return network_config(self.settings)

    @cached_property
    def traits(self) -> Traits:
        known = {f.name for f in fields(Traits)}
        return Traits(**{k: v for k, v in self.settings.items() if k in known})

    @property
    def longest(self) -> int | None:
        """Tokens that the reasoner was made to read, if its config is here and says so."""
        count = self.root.get("text_config", {}).get("max_position_embeddings")
        field = "config.text_config.max_position_embeddings"
        return None if count is None else arguments.whole(count, field, 1, MOST)

    @property
    def is_edge(self) -> bool:
        return not self.config.gated

    @property
    def starts_from_state(self) -> bool:
        """A policy trained for one robot: its actions follow a clean row that holds the robot's state.

        Of the published repositories only these have a `checkpoint.json`.
        """
        return (self.folder / "checkpoint.json").is_file()

    @property
    def sees(self) -> bool:
        """Whether there is a vision tower."""
        return "vision_config" in self.root if self.reads_only else (self.folder / "vision_encoder").is_dir()

    @property
    def text(self) -> Path:
        """The folder of the tokenizer."""
        own = self.folder / "text_tokenizer"
        return own if own.is_dir() else self.folder

    @property
    def notes(self) -> list[str]:
        """What a person should know who loads it."""
        notes = [f"its config promises {kind}, but it holds no {kind} head" for kind in self.absent_heads]
        strange = self.transformer.keys() - KNOWN
        if strange and not self.reads_only:
            notes.append(f"its config has keys that mean nothing here: {', '.join(sorted(strange))}")
        notes += self.quantised.notes
        return notes

    @property
    def quantised(self) -> Quantised:
        """What its config says of weights in few bits."""
        config = self.root if self.reads_only else self.transformer
        return Quantised(config.get("quantization_config") or {})

    def check_family(self) -> None:
        """Refuse a folder of diffusers that holds another kind of model."""
        kind = str(self.index.get("_class_name", PIPELINE))
        if not kind.startswith("Cosmos3"):
            raise BadRequest("model", str(self.folder), f"holds a {kind}, which is no Cosmos 3 model")

    def check_answers(self) -> None:
        """Refuse numbers by which no answer could be begun or ended."""
        _ = self.longest, self.stops

    def part(self, name: str) -> dict[str, Any] | None:
        """The config of a codec folder, or None if the checkpoint has no such part."""
        path = self.folder / name / "config.json"
        return read_json(path) if path.exists() else None


def _bytes(row: Tensor) -> bytes:
    return row.contiguous().view(torch.uint8).numpy().tobytes()


def check(module: nn.Module, found: Stored, where: Path) -> None:
    """Before one is read, refuse tensors that are missing, unexpected, or of another shape or kind than the
    module's."""
    wanted = module.state_dict()
    both = [(name, found[name], wanted[name]) for name in wanted if name in found]
    problems = (
        ([name for name in wanted if name not in found], "missing"),
        ([name for name in found if name not in wanted], "unexpected"),
        (
            [f"{n} {list(e.shape)} for {list(w.shape)}" for n, e, w in both if e.shape != w.shape],
            "of another shape",
        ),
        (
            [f"{n} {e.dtype} for {w.dtype}" for n, e, w in both if not _fits(e.dtype, w.dtype)],
            "of a wrong dtype",
        ),
    )
    told = [listed(names, label) for names, label in problems if names]
    if told:
        raise BadRequest("model", str(where), "tensors do not fit the config; " + "; ".join(told))


def fill(
    module: nn.Module,
    found: Stored,
    *,
    device: torch.device,
    dtype: torch.dtype | None,
    keep_fp32: Callable[[str], bool] = lambda name: False,
) -> None:
    """Give a meta-built module tensors that were checked, one at a time.

    `dtype` None keeps what the file holds; names for which `keep_fp32` holds become fp32 whatever `dtype` is.
    """
    for name, tensor in tensors(found):
        kind = torch.float32 if keep_fp32(name) else dtype
        module.load_state_dict(ready(module, name, tensor, device, kind), strict=False, assign=True)


def ready(
    module: nn.Module, name: str, tensor: Tensor, device: torch.device, dtype: torch.dtype | None
) -> dict[str, Tensor]:
    """A tensor of a module where and as it is computed with: itself, or what a low-bit layer holds for it."""
    path, _, leaf = name.rpartition(".")
    layer = module.get_submodule(path)
    if not isinstance(layer, LowBitLinear):
        return {name: tensor.to(device, dtype if tensor.is_floating_point() else None)}
    if leaf != "weight" or not tensor.is_floating_point():  # stored as the layer holds it
        return {name: tensor.to(device)}
    return {f"{path}.{own}": packed for own, packed in layer.pack(tensor.to(device)).items()}


def _fits(dtype: torch.dtype, wanted: torch.dtype) -> bool:
    """Floating numbers of any width for floating ones; whole numbers are what they should be."""
    return dtype == wanted or (dtype.is_floating_point and wanted.is_floating_point)


def build_network(checkpoint: Checkpoint) -> Network:
    """The towers without numbers, on the meta device."""
    checkpoint.quantised.check(checkpoint.folder)
    with torch.device("meta"):
        network = Network(checkpoint.config)
        if checkpoint.reads_only:
            network.keep_reader()
    if checkpoint.quantised.form is not None:
        lower(network, checkpoint.quantised.form)
    return network


def stored_network(checkpoint: Checkpoint, network: Network) -> Stored:
    """Where the towers' tensors lie, by our names; one that the network does not have keeps its published
    one."""
    ours = {published_name(n): n for n in network.state_dict()}
    return renamed(checkpoint.stored, lambda name: ours.get(name, name), checkpoint.folder)


def is_time(name: str) -> bool:
    """Whether a tensor of ours belongs to the time embedding, which stays in fp32."""
    return name.startswith("time.")


def published_state(network: Network) -> dict[str, Tensor]:
    """The network's tensors under their published names."""
    return {published_name(n): t for n, t in network.state_dict().items()}


def write_towers(
    folder: Path,
    towers: Sources,
    sight: Sources,
    *,
    edge: bool = False,
    limit: int = SHARD_LIMIT,
    shared: bool = True,
) -> None:
    """`transformer/`, `vision_encoder/`, and the index over both by which a reasoner is loaded from them.

    Edge's index leaves out what only drawing needs, but for the norm of the keys that are shown. shared:
    whether there is one; transformers would take rounded weights for what they stand for.
    """
    files = write_shards(towers, folder / "transformer", TRANSFORMER, limit)
    named = {n: f"transformer/{f}" for n, f in files.items() if not (edge and is_drawing(n)) or SHOWN in n}
    if sight:
        files = write_shards(sight, folder / "vision_encoder", "model", limit)
        named |= {n: f"vision_encoder/{f}" for n, f in files.items()}
    if shared:
        write_json(index_of(named, {**towers, **sight}), folder / "model.safetensors.index.json")
