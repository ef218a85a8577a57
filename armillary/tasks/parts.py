"""Everything a task needs of one loaded checkpoint."""

import re
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
from armillary.names import canonical, is_sight
from armillary.shards import Stored, read_json, renamed, stored
from armillary.weights import TRANSFORMER, Checkpoint, load_network, load_part

Part = Literal["sight", "video", "audio"]
NESTED = re.compile(r"^visual\.(?:\w+\.)?(?=visual\.|projector\.)")  # the framework nests Edge's deeper
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
    folder: Path, *, device: torch.device, dtype: torch.dtype | None, want: Collection[Part] = EVERY_PART
) -> Parts:
    """Load a checkpoint in a published layout: its towers and the text codec, of the rest what is wanted.

    `dtype` None keeps what the files hold. Raises BadRequest for a missing file and for any tensor that does
    not fit its config.
    """
    checkpoint = Checkpoint(folder)
    require_listed(checkpoint)
    network = load_network(checkpoint, device=device, dtype=dtype)
    return Parts(
        checkpoint,
        device,
        dtype or network.head.weight.dtype,
        network,
        TextCodec.load(checkpoint.text),
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


def load_sight(checkpoint: Checkpoint, *, device: torch.device, dtype: torch.dtype | None) -> Sight | None:
    """The vision tower, or None."""
    if not checkpoint.sees:
        return None
    with torch.device("meta"):
        tower = (
            EdgeVision(EdgeVisionConfig.from_dict(checkpoint.root))
            if checkpoint.is_edge
            else QwenViT(QwenViTConfig.from_dict(checkpoint.root["vision_config"]))
        )
    folder, patch = checkpoint.folder, tower.config.patch_size
    load_part(tower, stored_sight(checkpoint), device=device, dtype=dtype, where=folder)
    return Sight(tower, *sight_rules(checkpoint, patch))


def sight_rules(checkpoint: Checkpoint, patch: int) -> tuple[PictureRules, ClipRules]:
    """How pictures and clips are prepared for a tower with patches of so many pixels a side."""
    folder = checkpoint.folder
    rules = {"patch_size": patch, "temporal_patch_size": 1 if checkpoint.is_edge else 2}
    return (
        PictureRules.from_dict(rules | _read_if_there(folder / "preprocessor_config.json")),
        ClipRules.from_dict(rules | _read_if_there(folder / "video_preprocessor_config.json")),
    )


def stored_sight(checkpoint: Checkpoint) -> Stored:
    """The vision tower's tensors by our names: Edge's `visual.` and `projector.`, the others' bare ones."""
    folder = checkpoint.folder if checkpoint.reads_only else checkpoint.folder / "vision_encoder"
    found = renamed(stored(folder, "model", TRANSFORMER, root=checkpoint.folder), canonical, folder)
    if checkpoint.reads_only:
        found = {name: entry for name, entry in found.items() if is_sight(name)}
    if not checkpoint.is_edge:
        return renamed(found, lambda name: name.removeprefix("visual."), folder)
    return renamed(found, lambda name: NESTED.sub("", name), folder)


def _read_if_there(path: Path) -> dict[str, Any]:
    return read_json(path) if path.exists() else {}


def load_video(checkpoint: Checkpoint, *, device: torch.device, dtype: torch.dtype | None) -> WanVAE | None:
    """The video autoencoder, or None if the checkpoint has none."""
    config = checkpoint.part("vae")
    if config is None:
        return None
    with torch.device("meta"):
        network = WanVAE(WanVAEConfig.from_dict(config))
    folder = checkpoint.folder / "vae"
    return load_part(network, stored(folder, TRANSFORMER), device=device, dtype=dtype, where=folder)


def load_audio(checkpoint: Checkpoint, *, device: torch.device, dtype: torch.dtype | None) -> AudioVAE | None:
    """The audio autoencoder, or None if the checkpoint has none; some are published without their encoder."""
    config = checkpoint.part("sound_tokenizer")
    if config is None:
        return None
    folder = checkpoint.folder / "sound_tokenizer"
    found = stored(folder, TRANSFORMER)
    with torch.device("meta"):
        network = AudioVAE(AudioVAEConfig.from_dict(config | {"encoder_enabled": has_encoder(found)}))
    return load_part(network, found, device=device, dtype=dtype, where=folder)
