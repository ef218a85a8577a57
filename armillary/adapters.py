"""Adapters: low-rank changes of linear layers (LoRA, Hu et al. 2021), in the spellings in use.

Read are the files of PEFT (`base_model.model.`), diffusers (`transformer.`), ComfyUI (`diffusion_model.`) and
those with our own module paths. An adapter that does not fit whole is refused.

Shape letters: R rank, I numbers in, O numbers out, N tokens.
"""

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Real
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from armillary import arguments
from armillary.errors import BadRequest
from armillary.lowbit import LowBitLinear
from armillary.model import Network
from armillary.names import canonical, published_name
from armillary.shards import listed, read_header, read_json, read_metadata, tensors

FILES = ("adapter_model.safetensors", "pytorch_lora_weights.safetensors")  # in a folder of PEFT or diffusers
_WRAPPERS = ("base_model.model.", "diffusion_model.", "transformer.")
_DOWN, _UP = ("lora_A", "lora_down", "lora.down"), ("lora_B", "lora_up", "lora.up")
_KEY = re.compile(
    r"^(?P<module>.+)\.(?:(?P<part>lora_[AB]|lora_down|lora_up|lora\.down|lora\.up)(?:\.[^.]+)?\.weight|(?P<alpha>alpha))$"
)


@dataclass(frozen=True)
class Update:
    """What is added to one layer's weight: scale * up @ down."""

    down_RI: Tensor
    up_OR: Tensor
    scale: float

    def delta(self) -> Tensor:
        """The change of the weight [O, I], fp32."""
        return self.scale * (self.up_OR.float() @ self.down_RI.float())


@dataclass(frozen=True)
class Adapter:
    """A file's updates by the module names in it."""

    path: Path
    updates: dict[str, Update]


class Updates(nn.Module):
    """The updates of one linear layer. A hook adds what they give to what the layer gives.

    The layer stays as it was, whatever form its own weight has and wherever that is.
    """

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.scales: list[float] = []
        self.hook = layer.register_forward_hook(lambda _, inputs, y_NO: self(inputs[0], y_NO))

    def add(self, update: Update, device: torch.device, dtype: torch.dtype) -> None:
        i = len(self.scales)
        self.register_buffer(f"down_{i}", update.down_RI.to(device, dtype), persistent=False)
        self.register_buffer(f"up_{i}", update.up_OR.to(device, dtype), persistent=False)
        self.scales.append(update.scale)

    def each(self) -> list[Update]:
        return [
            Update(self.get_buffer(f"down_{i}"), self.get_buffer(f"up_{i}"), scale)
            for i, scale in enumerate(self.scales)
        ]

    def forward(self, x_NI: Tensor, y_NO: Tensor) -> Tensor:
        """The layer's output for its input, with every update in it."""
        for update in self.each():
            y_NO = y_NO + update.scale * F.linear(F.linear(x_NI, update.down_RI), update.up_OR)
        return y_NO

    def merged(self, weight_OI: Tensor) -> Tensor:
        """The layer's weight with every update in it, in its own dtype and place."""
        deltas = (update.delta().to(weight_OI.device) for update in self.each())
        return sum(deltas, weight_OI.float()).to(weight_OI.dtype)


# -- reading -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Settings:
    """What PEFT notes beside the tensors: how strongly each module's update counts."""

    alpha: float | None = None
    rank_scaled: bool = False  # alpha over the root of the rank (Kalajdzievski 2023)
    alphas: Mapping[str, float] = field(default_factory=dict[str, float])
    ranks: Mapping[str, int] = field(default_factory=dict[str, int])

    def scale(self, module: str, rank: int, alpha: float | None) -> float:
        """`alpha` is the file's own for this module, and counts most."""
        alpha = alpha if alpha is not None else _match(self.alphas, module, self.alpha)
        if alpha is None:
            return 1.0
        return alpha / math.sqrt(rank) if self.rank_scaled else alpha / rank


def _match(patterns: Mapping[str, Any], module: str, otherwise: Any) -> Any:
    """The value of the first pattern (a regular expression) that is the module's name or its end."""
    found = (value for key, value in patterns.items() if re.match(rf"(.*\.)?({key})$", module))
    return next(found, otherwise)


def read_adapter(source: str | Path) -> Adapter:
    """An adapter's file, or the folder in which PEFT or diffusers saved it.

    Raises BadRequest for a file that is missing or broken and for tensors that are no LoRA's.
    """
    path = _find(Path(source))
    halves: dict[str, dict[str, Tensor]] = {}
    strange: list[str] = []
    for key, tensor in tensors(read_header(path)):
        found = _KEY.match(key)
        if found is None:
            strange.append(key)
            continue
        part = "alpha" if found["alpha"] else "down" if found["part"] in _DOWN else "up"
        halves.setdefault(_unwrapped(found["module"]), {})[part] = tensor
    if strange or not halves:
        raise _bad(path, f"is no LoRA; {listed(strange, 'tensors of another kind')}")
    settings = _settings(path)
    return Adapter(path, {m: _update(path, m, half, settings) for m, half in halves.items()})


def _find(path: Path) -> Path:
    candidates = [path / name for name in FILES] if path.is_dir() else [path]
    found = next((file for file in candidates if file.is_file()), None)
    if found is None:
        wanted = " or ".join(FILES)
        raise _bad(path, f"this folder holds no {wanted}" if path.is_dir() else "there is no such file")
    return found


def _unwrapped(module: str) -> str:
    while module.startswith(_WRAPPERS):
        module = next(module.removeprefix(w) for w in _WRAPPERS if module.startswith(w))
    return module


def _settings(path: Path) -> _Settings:
    """From `adapter_config.json` beside the file, or from the note that diffusers leaves in its header."""
    beside = path.with_name("adapter_config.json")
    try:
        noted = dict(json.loads(read_metadata(path).get("lora_adapter_metadata", "{}")))
    except (TypeError, ValueError):
        raise _bad(path, "holds settings (lora_adapter_metadata) that are no JSON object") from None
    told = {key.removeprefix("transformer."): value for key, value in noted.items()}
    told = read_json(beside) if beside.is_file() else told
    for key in ("use_dora", "modules_to_save", "megatron_config"):
        if told.get(key):
            raise _bad(path, f"uses {key}, which is more than a LoRA")
    return _Settings(
        told.get("lora_alpha"),
        bool(told.get("use_rslora", False)),
        {_unwrapped(k): v for k, v in (told.get("alpha_pattern") or {}).items()},
        {_unwrapped(k): v for k, v in (told.get("rank_pattern") or {}).items()},
    )


def _update(path: Path, module: str, half: Mapping[str, Tensor], settings: _Settings) -> Update:
    lacking = [part for part in ("down", "up") if part not in half]
    if lacking:
        raise _bad(path, f"{module} has no {lacking[0]} projection")
    down_RI, up_OR = half["down"], half["up"]
    rank = len(down_RI)
    if down_RI.ndim != 2 or up_OR.ndim != 2 or up_OR.shape[1] != rank:
        raise _bad(path, f"{module} joins {list(down_RI.shape)} with {list(up_OR.shape)}")
    if _match(settings.ranks, module, rank) != rank:
        raise _bad(path, f"{module} has rank {rank} where its config says otherwise")
    alpha = half.get("alpha")
    return Update(down_RI, up_OR, settings.scale(module, rank, None if alpha is None else float(alpha)))


def _bad(path: Path, message: str) -> BadRequest:
    return BadRequest("adapter", str(path), message)


# -- using -------------------------------------------------------------------------------------------------


def apply(network: Network, adapter: Adapter, *, weight: float = 1.0) -> None:
    """Put an adapter beside the layers it changes, `weight` times as strong; several add up.

    Raises BadRequest, with the network unchanged, unless every update fits a linear layer of this network.
    """
    layers = {n: m for n, m in network.named_modules() if isinstance(m, nn.Linear | LowBitLinear)}
    ours = {published_name(f"{name}.weight").removesuffix(".weight"): name for name in layers}
    places = {m: m if m in layers else ours.get(canonical(m)) for m in adapter.updates}
    unknown = [module for module, place in places.items() if place is None]
    pairs = [(layers[place], module) for module, place in places.items() if place is not None]
    shapes = [
        (
            [len((u := adapter.updates[module]).up_OR), u.down_RI.shape[1]],
            [layer.out_features, layer.in_features],
        )
        for layer, module in pairs
    ]
    misfits = [f"{m} {own} for {due}" for (_, m), (own, due) in zip(pairs, shapes, strict=True) if own != due]
    _refuse(adapter, unknown, misfits, example=next(iter(ours)))
    for layer, module in pairs:
        update = adapter.updates[module]
        scaled = Update(update.down_RI, update.up_OR, weight * update.scale)
        usual = network.norm_ar.weight  # a layer's own weight may be elsewhere, or rounded
        dtype = layer.weight.dtype if isinstance(layer, nn.Linear) else usual.dtype
        _beside(layer).add(scaled, usual.device, dtype)


def _beside(layer: nn.Module) -> Updates:
    """The updates of a layer, which it gets with the first."""
    found = _updates(layer)
    if found is None:
        found = Updates(layer)
        layer.add_module("updates", found)
    return found


def _updates(layer: nn.Module) -> Updates | None:
    found = dict(layer.named_children()).get("updates")
    return found if isinstance(found, Updates) else None


def _refuse(adapter: Adapter, unknown: Sequence[str], misfits: Sequence[str], *, example: str) -> None:
    total = len(adapter.updates)
    for names, label in (
        (unknown, f"of its {total} modules unknown here (one here is {example})"),
        (misfits, f"of its {total} modules of another shape"),
    ):
        if names:
            raise _bad(adapter.path, f"does not fit this model; {listed(names, label)}")


def merge(network: Network) -> None:
    """Fold every adapter that was applied into the weights; a low-bit weight is rounded once more."""
    for name, updates in adapted(network):
        layer = network.get_submodule(name)
        if isinstance(layer, LowBitLinear):
            layer.load_state_dict(layer.pack(updates.merged(layer.weight_OI())), assign=True)
        else:
            weight = updates.merged(layer.get_parameter("weight"))
            layer.register_parameter("weight", nn.Parameter(weight, requires_grad=False))
        updates.hook.remove()
        del layer.updates


def adapted(network: Network) -> list[tuple[str, Updates]]:
    """The layers that adapters change, by name, and how."""
    found = ((name, _updates(module)) for name, module in network.named_modules())
    return [(name, updates) for name, updates in found if updates is not None]


AdapterSource = str | Path | tuple[str | Path, float]


def apply_all(network: Network, sources: Sequence[AdapterSource]) -> None:
    """Apply files, or pairs of a file and how strongly it counts."""
    for path, weight in weighted(sources):
        apply(network, read_adapter(path), weight=weight)


def weighted(sources: Sequence[AdapterSource]) -> list[tuple[Path, float]]:
    """Each file with how strongly it counts. Raises BadRequest for what is neither file nor pair."""
    found: list[tuple[Path, float]] = []
    told = "must be a list of files, or of pairs of a file and how strongly it counts"
    for i, source in enumerate(arguments.several(sources, "adapters", told)):
        path, weight = source if isinstance(source, tuple) and len(source) == 2 else (source, 1.0)
        if isinstance(weight, bool) or not isinstance(weight, Real) or not math.isfinite(weight):
            raise BadRequest(f"adapters[{i}]", arguments.kind(weight), "must be a finite number")
        found.append((arguments.path(path, f"adapters[{i}]"), float(weight)))
    return found
