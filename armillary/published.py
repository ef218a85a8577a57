"""The numbers of a checkpoint's configs, in our words and back; those that none can have are refused."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from armillary import arguments
from armillary.errors import BadRequest
from armillary.model import Config

MOST = 2**31 - 1  # of any whole number in these files
MARGIN = "unified_3d_mrope_temporal_modality_margin"
WHOLE = {
    *("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads"),
    *("head_dim", "vocab_size", "patch_latent_dim", "num_embodiment_domains"),
}
POSITIVE = {"rms_norm_eps", "rope_theta", "timestep_scale"}


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

    def __post_init__(self) -> None:
        for name in ("latent_channel", "latent_patch_size"):
            arguments.whole(getattr(self, name), f"transformer.{name}", 1, MOST)
        for name in ("base_fps", "sound_latent_fps"):
            arguments.positive(getattr(self, name), f"transformer.{name}")


def network_config(published: Mapping[str, Any]) -> Config:
    """Our architecture numbers from the published `transformer/config.json`; absent keys mean Nano's
    values. Raises BadRequest for a number that no network has."""
    get = published.get
    for name in WHOLE & published.keys():
        arguments.whole(published[name], f"transformer.{name}", 1, MOST)
    for name in POSITIVE & published.keys():
        arguments.positive(published[name], f"transformer.{name}")
    features: dict[Any, int] = {"vision": get("patch_latent_dim", 192)}
    if get("sound_gen", False):
        features["sound"] = arguments.whole(published["sound_dim"], "transformer.sound_dim", 1, MOST)
    if get("action_gen", False):
        features["action"] = arguments.whole(published["action_dim"], "transformer.action_dim", 1, MOST)
    time, height, width = (
        get("rope_axes_dim") or (get("rope_scaling") or {}).get("mrope_section") or (24, 20, 20)
    )
    act = get("hidden_act", "silu")
    if act not in ("silu", "relu2"):
        raise BadRequest("hidden_act", act, "this architecture knows silu and relu2")
    text_norm = bool(get("qk_norm_for_text", True))
    shown_norm = bool(get("use_und_k_norm_for_gen", False)) and not text_norm
    if str(get("backbone_type", "")).startswith("cosmos3_edge") and not shown_norm:
        raise BadRequest("use_und_k_norm_for_gen", shown_norm, "Edge cannot draw without this norm")
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
        shown_norm=shown_norm,
        eps=get("rms_norm_eps", 1e-6),
        rope_theta=get("rope_theta", 5e6),
        rope_axes=(time, height, width),
        margin=arguments.whole(get(MARGIN, 15000), f"transformer.{MARGIN}", 0, MOST),
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
        MARGIN: c.margin,
        "use_und_k_norm_for_gen": c.shown_norm,
        "vocab_size": c.vocabulary,
        **asdict(traits),
    }


def reasoner_config(root: Mapping[str, Any]) -> dict[str, Any]:
    """What a reasoner's `config.json` says, in the words of `transformer/config.json`."""
    text = root["text_config"]
    rope = text.get("rope_parameters") or text.get("rope_scaling") or {}
    theta = rope.get("rope_theta", text.get("rope_theta", 5e6))
    normed = root["model_type"] != "cosmos3_edge"
    return {**text, "rope_scaling": rope, "rope_theta": theta, "qk_norm_for_text": normed}
