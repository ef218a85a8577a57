"""Weights in and out: the published layout on disk, our names in memory, one table between.

`Checkpoint` is what a folder says about itself, read from its json files alone. Loading builds modules on
the meta device and
assigns tensors shard by shard; every missing, unexpected or mis-shaped tensor is named, and nothing falls
back.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar, cast

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from armillary.errors import BadRequest
from armillary.model import Config, Network

Module = TypeVar("Module", bound=nn.Module)
TRANSFORMER = "diffusion_pytorch_model"  # the stem of weight files in diffusers' folders

# our module path -> the published one
_TOP = {
    "embed": "embed_tokens",
    "norm_ar": "norm",
    "norm_dm": "norm_moe_gen",
    "head": "lm_head",
    "time.first": "time_embedder.linear_1",
    "time.second": "time_embedder.linear_2",
    "ports.vision.enter": "proj_in",
    "ports.vision.leave": "proj_out",
    "ports.sound.enter": "audio_proj_in",
    "ports.sound.leave": "audio_proj_out",
    "ports.sound.mark": "audio_modality_embed",
    "ports.action.enter.weight": "action_proj_in.fc",
    "ports.action.enter.bias": "action_proj_in.bias",
    "ports.action.leave.weight": "action_proj_out.fc",
    "ports.action.leave.bias": "action_proj_out.bias",
    "ports.action.mark": "action_modality_embed",
}
_LAYER = {
    "ar.q": "self_attn.to_q",
    "ar.k": "self_attn.to_k",
    "ar.v": "self_attn.to_v",
    "ar.o": "self_attn.to_out",
    "ar.norm_q": "self_attn.norm_q",
    "ar.norm_k": "self_attn.norm_k",
    "ar.norm_shown": "self_attn.k_norm_und_for_gen",
    "ar.norm_in": "input_layernorm",
    "ar.norm_mlp": "post_attention_layernorm",
    "ar.gate": "mlp.gate_proj",
    "ar.up": "mlp.up_proj",
    "ar.down": "mlp.down_proj",
    "dm.q": "self_attn.add_q_proj",
    "dm.k": "self_attn.add_k_proj",
    "dm.v": "self_attn.add_v_proj",
    "dm.o": "self_attn.to_add_out",
    "dm.norm_q": "self_attn.norm_added_q",
    "dm.norm_k": "self_attn.norm_added_k",
    "dm.norm_in": "input_layernorm_moe_gen",
    "dm.norm_mlp": "post_attention_layernorm_moe_gen",
    "dm.gate": "mlp_moe_gen.gate_proj",
    "dm.up": "mlp_moe_gen.up_proj",
    "dm.down": "mlp_moe_gen.down_proj",
}


def published_name(ours: str) -> str:
    """The name on disk of one of our transformer parameters."""
    if ours in _TOP:  # a bare parameter
        return _TOP[ours]
    path, leaf = ours.rsplit(".", 1)
    if path.startswith("blocks."):
        _, number, rest = path.split(".", 2)
        return f"layers.{number}.{_LAYER[rest]}.{leaf}"
    return f"{_TOP[path]}.{leaf}"


@dataclass(frozen=True)
class Traits:
    """What `transformer/config.json` says beyond the network's numbers: how tokens are cut and placed."""

    latent_channel: int = 48
    latent_patch_size: int = 2
    base_fps: float = 24.0
    enable_fps_modulation: bool = True
    action_gen: bool = False
    action_dim: int | None = None
    sound_gen: bool = False
    sound_dim: int | None = None
    sound_latent_fps: float = 25.0


def network_config(published: Mapping[str, Any]) -> Config:
    """Our architecture numbers from the published `transformer/config.json`; absent keys mean Nano's
    values."""
    get = published.get
    features: dict[Any, int] = {"vision": get("patch_latent_dim", 192)}
    if get("sound_gen", False):
        features["sound"] = int(published["sound_dim"])
    if get("action_gen", False):
        features["action"] = int(published["action_dim"])
    time, height, width = (
        get("rope_axes_dim") or (get("rope_scaling") or {}).get("mrope_section") or (24, 20, 20)
    )
    act = get("hidden_act", "silu")
    if act not in ("silu", "relu2"):
        raise BadRequest("hidden_act", act, "this architecture knows silu and relu2")
    text_norm = bool(get("qk_norm_for_text", True))
    return Config(
        width=get("hidden_size", 4096),
        layers=get("num_hidden_layers", 36),
        heads=get("num_attention_heads", 32),
        kv_heads=get("num_key_value_heads", 8),
        head_size=get("head_dim", 128),
        mlp=get("intermediate_size", 12288),
        vocabulary=get("vocab_size", 151936),
        features=features,
        domains=get("num_embodiment_domains", 32),
        gated=act == "silu",
        text_norm=text_norm,
        shown_norm=bool(get("use_und_k_norm_for_gen", False)) and not text_norm,
        eps=get("rms_norm_eps", 1e-6),
        rope_theta=get("rope_theta", 5e6),
        rope_axes=(time, height, width),
        margin=get("unified_3d_mrope_temporal_modality_margin", 15000),
        time_scale=get("timestep_scale", 1e-3),
    )


def published_config(c: Config, traits: Traits) -> dict[str, Any]:
    """The inverse of `network_config`: the dictionary that `transformer/config.json` holds."""
    return {
        "_class_name": "Cosmos3OmniTransformer",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "head_dim": c.head_size,
        "hidden_act": "silu" if c.gated else "relu2",
        "hidden_size": c.width,
        "intermediate_size": c.mlp,
        "num_attention_heads": c.heads,
        "num_embodiment_domains": c.domains,
        "num_hidden_layers": c.layers,
        "num_key_value_heads": c.kv_heads,
        "patch_latent_dim": c.features["vision"],
        "qk_norm_for_text": c.text_norm,
        "rms_norm_eps": c.eps,
        "rope_scaling": {
            "mrope_section": list(c.rope_axes),
            "mrope_interleaved": True,
            "rope_type": "default",
        },
        "rope_theta": c.rope_theta,
        "timestep_scale": c.time_scale,
        "unified_3d_mrope_reset_spatial_ids": True,
        "unified_3d_mrope_temporal_modality_margin": c.margin,
        "use_und_k_norm_for_gen": c.shown_norm,
        "vocab_size": c.vocabulary,
        **asdict(traits),
    }


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


@dataclass(frozen=True)
class Checkpoint:
    """A folder in the published layout, known by its json files; no tensor is read."""

    folder: Path

    @cached_property
    def index(self) -> dict[str, Any]:
        return read_json(self.folder / "model_index.json")

    @cached_property
    def transformer(self) -> dict[str, Any]:
        return read_json(self.folder / "transformer" / "config.json")

    @cached_property
    def root(self) -> dict[str, Any]:
        """The reasoner's configuration (vision tower, special token ids)."""
        return read_json(self.folder / "config.json")

    @cached_property
    def scheduler(self) -> dict[str, Any]:
        return read_json(self.folder / "scheduler" / "scheduler_config.json")

    @cached_property
    def config(self) -> Config:
        return network_config(self.transformer)

    @cached_property
    def traits(self) -> Traits:
        known = {f.name for f in fields(Traits)}
        return Traits(**{k: v for k, v in self.transformer.items() if k in known})

    @property
    def longest(self) -> int | None:
        """Tokens that the reasoner was made to read, if its config is here and says so."""
        root = self.root if (self.folder / "config.json").exists() else {}
        return root.get("text_config", {}).get("max_position_embeddings")

    @property
    def is_edge(self) -> bool:
        return not self.config.gated

    def part(self, name: str) -> dict[str, Any] | None:
        """The config of a codec folder, or None if the checkpoint has no such part."""
        path = self.folder / name / "config.json"
        return read_json(path) if path.exists() else None


def weight_files(folder: Path, stem: str) -> list[Path]:
    """The safetensors files of a part: one, or the shards its index names."""
    index = folder / f"{stem}.safetensors.index.json"
    if index.exists():
        names = sorted(set(read_json(index)["weight_map"].values()))
    else:
        names = [f"{stem}.safetensors"]
    missing = [n for n in names if not (folder / n).is_file()]
    if missing:
        raise BadRequest("model", str(folder), f"weight file {missing[0]} is missing ({len(missing)} in all)")
    return [folder / n for n in names]


def tensors(files: Iterable[Path]) -> Iterator[tuple[str, Tensor]]:
    """Every tensor of the files, one at a time, memory-mapped."""
    for path in files:
        try:
            with safe_open(path, framework="pt") as opened:
                for name in opened.keys():  # noqa: SIM118 - not a dictionary
                    yield name, opened.get_tensor(name)
        except SafetensorError as error:
            raise BadRequest("model", str(path), f"not a whole safetensors file ({error})") from None


def assign(
    module: nn.Module,
    source: Iterable[tuple[str, Tensor]],
    *,
    device: torch.device,
    dtype: torch.dtype | None,
    where: str,
    keep_fp32: Callable[[str], bool] = lambda name: False,
) -> None:
    """Give a meta-built module its tensors; refuse any missing, unexpected or of another shape or kind.

    `dtype` None keeps what the file holds; names for which `keep_fp32` holds become fp32 whatever `dtype` is.
    """
    wanted = module.state_dict()
    seen: set[str] = set()
    unexpected: list[str] = []
    misshaped: list[str] = []
    for name, tensor in source:
        if name not in wanted:
            unexpected.append(name)
        elif tensor.shape != wanted[name].shape:
            misshaped.append(f"{name} {list(tensor.shape)} for {list(wanted[name].shape)}")
        elif tensor.is_floating_point() != wanted[name].is_floating_point():
            misshaped.append(f"{name} {tensor.dtype} for {wanted[name].dtype}")
        else:
            kind = torch.float32 if keep_fp32(name) else dtype
            value = tensor.to(device=device, dtype=kind) if tensor.is_floating_point() else tensor.to(device)
            module.load_state_dict({name: value}, strict=False, assign=True)
            seen.add(name)
    missing = [n for n in wanted if n not in seen and not any(m.startswith(n + " ") for m in misshaped)]
    problems = [
        f"{len(names)} {label}: {', '.join(names[:10])}"
        for label, names in (
            ("missing", missing),
            ("unexpected", unexpected),
            ("of another shape or kind", misshaped),
        )
        if names
    ]
    if problems:
        raise BadRequest("model", where, "tensors do not fit the config; " + "; ".join(problems))


def load_network(checkpoint: Checkpoint, *, device: torch.device, dtype: torch.dtype) -> Network:
    """Both towers, strictly; the time MLP stays in fp32."""
    with torch.device("meta"):
        network = Network(checkpoint.config)
    ours = {published_name(n): n for n in network.state_dict()}
    folder = checkpoint.folder / "transformer"
    source = ((ours.get(n, n), t) for n, t in tensors(weight_files(folder, TRANSFORMER)))
    assign(
        network,
        source,
        device=device,
        dtype=dtype,
        where=str(folder),
        keep_fp32=lambda name: name.startswith("time."),
    )
    return network.requires_grad_(False).eval()


def load_part(
    module: Module, folder: Path, stem: str, *, device: torch.device, dtype: torch.dtype, prefix: str = ""
) -> Module:
    """A codec network built on the meta device, strictly from its own folder; `prefix` is cut off the names
    on disk."""
    source = ((n.removeprefix(prefix), t) for n, t in tensors(weight_files(folder, stem)))
    assign(module, source, device=device, dtype=dtype, where=str(folder))
    return module.requires_grad_(False).eval()


def published_state(network: Network, dtype: torch.dtype) -> dict[str, Tensor]:
    """The network's tensors under their published names, in the dtype they are written in."""
    return {
        published_name(n): t.detach().to("cpu", dtype).contiguous() for n, t in network.state_dict().items()
    }


def write_tensors(state: dict[str, Tensor], path: Path) -> None:
    """One safetensors file, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    save_file(state, partial, metadata={"format": "pt"})
    partial.replace(path)


def write_json(value: object, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    partial.write_text(json.dumps(value, indent=2) + "\n")
    partial.replace(path)
