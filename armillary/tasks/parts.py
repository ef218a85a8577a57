"""Everything a task needs of one loaded checkpoint."""

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from armillary.codecs.audio_vae import AudioVAE, AudioVAEConfig, has_encoder
from armillary.codecs.qwen_vit import QwenViT, QwenViTConfig
from armillary.codecs.sight import ClipRules, PictureRules
from armillary.codecs.siglip import EdgeVision, EdgeVisionConfig
from armillary.codecs.text import TextCodec
from armillary.codecs.wan_vae import WanVAE, WanVAEConfig
from armillary.errors import BadRequest
from armillary.model import Network
from armillary.weights import (
    TRANSFORMER,
    Checkpoint,
    assign,
    load_network,
    load_part,
    read_json,
    tensors,
    weight_files,
)

Part = Literal["sight", "video", "audio"]
EVERY_PART: tuple[Part, ...] = ("sight", "video", "audio")


@dataclass(frozen=True)
class Sight:
    """The reasoner's eye: a vision tower and how pictures and clips are prepared for it."""

    tower: QwenViT | EdgeVision
    pictures: PictureRules
    clips: ClipRules

    @property
    def merge(self) -> int:
        """Patches on a side of one token."""
        return self.pictures.merge_size


@dataclass(frozen=True)
class Parts:
    """One checkpoint's networks and text codec; None for a part that it lacks or that nobody asked for."""

    checkpoint: Checkpoint
    device: torch.device
    dtype: torch.dtype
    network: Network
    text: TextCodec
    sight: Sight | None = None
    video: WanVAE | None = None
    audio: AudioVAE | None = None


def load_parts(
    folder: Path, *, device: torch.device, dtype: torch.dtype, want: Collection[Part] = EVERY_PART
) -> Parts:
    """Load a checkpoint in the published layout: both towers and the text codec, of the rest what is wanted.

    Raises BadRequest for a missing file and for any tensor that does not fit its config.
    """
    checkpoint = Checkpoint(folder)
    require_listed(checkpoint)
    return Parts(
        checkpoint,
        device,
        dtype,
        load_network(checkpoint, device=device, dtype=dtype),
        TextCodec.load(folder / "text_tokenizer"),
        load_sight(checkpoint, device=device, dtype=dtype) if "sight" in want else None,
        load_video(checkpoint, device=device, dtype=dtype) if "video" in want else None,
        load_audio(checkpoint, device=device, dtype=dtype) if "audio" in want else None,
    )


def require_listed(checkpoint: Checkpoint) -> None:
    """Raises BadRequest for a part of which the config is missing, though `model_index.json` lists it.

    Without this the part would be taken for one that the checkpoint never had. The vision tower may not be
    listed: there its folder counts.
    """
    folder, needed = checkpoint.folder, list[str]()
    for part in ("vae", "sound_tokenizer"):
        entry = checkpoint.index.get(part)
        if entry is not None and entry != [None, None]:
            needed.append(f"{part}/config.json")
    if (folder / "vision_encoder").is_dir():
        needed.append("preprocessor_config.json")
    for name in needed:
        if not (folder / name).is_file():
            raise BadRequest("model", str(folder / name), "this file is missing: the checkpoint is not whole")


def load_sight(checkpoint: Checkpoint, *, device: torch.device, dtype: torch.dtype) -> Sight | None:
    """The vision tower, or None. Edge's tensors are named with the prefix `model.`, the others bare."""
    folder = checkpoint.folder / "vision_encoder"
    if not folder.is_dir():
        return None
    with torch.device("meta"):
        tower = (
            EdgeVision(EdgeVisionConfig.from_dict(checkpoint.root))
            if checkpoint.is_edge
            else QwenViT(QwenViTConfig.from_dict(checkpoint.root["vision_config"]))
        )
    source = ((n.removeprefix("model."), t) for n, t in tensors(_sight_files(checkpoint.folder)))
    assign(tower, source, device=device, dtype=dtype, where=str(folder))
    rules = {"patch_size": tower.config.patch_size, "temporal_patch_size": 1 if checkpoint.is_edge else 2}
    return Sight(
        tower.requires_grad_(False).eval(),
        PictureRules.from_dict(rules | _read_if_there(checkpoint.folder / "preprocessor_config.json")),
        ClipRules.from_dict(rules | _read_if_there(checkpoint.folder / "video_preprocessor_config.json")),
    )


def _sight_files(folder: Path) -> list[Path]:
    """The vision tower's files as the root index names them: published folders have no index of their own."""
    index = _read_if_there(folder / "model.safetensors.index.json")
    named = sorted({n for n in index.get("weight_map", {}).values() if n.startswith("vision_encoder/")})
    if named and all((folder / n).is_file() for n in named):
        return [folder / n for n in named]
    own = folder / "vision_encoder"
    return weight_files(own, TRANSFORMER if list(own.glob(f"{TRANSFORMER}.safetensors*")) else "model")


def _read_if_there(path: Path) -> dict[str, Any]:
    return read_json(path) if path.exists() else {}


def load_video(checkpoint: Checkpoint, *, device: torch.device, dtype: torch.dtype) -> WanVAE | None:
    """The video autoencoder, or None if the checkpoint has none."""
    config = checkpoint.part("vae")
    if config is None:
        return None
    with torch.device("meta"):
        network = WanVAE(WanVAEConfig.from_dict(config))
    return load_part(network, checkpoint.folder / "vae", TRANSFORMER, device=device, dtype=dtype)


def load_audio(checkpoint: Checkpoint, *, device: torch.device, dtype: torch.dtype) -> AudioVAE | None:
    """The audio autoencoder, or None if the checkpoint has none; some are published without their encoder."""
    config = checkpoint.part("sound_tokenizer")
    if config is None:
        return None
    folder = checkpoint.folder / "sound_tokenizer"
    files = weight_files(folder, TRANSFORMER)
    whole = has_encoder(name for name, _ in tensors(files))
    with torch.device("meta"):
        network = AudioVAE(AudioVAEConfig.from_dict(config | {"encoder_enabled": whole}))
    return load_part(network, folder, TRANSFORMER, device=device, dtype=dtype)
