"""Everything a task needs of one loaded checkpoint."""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypeVar, cast

import torch
from torch import nn

from armillary.codecs.audio_vae import AudioVAE, AudioVAEConfig, has_encoder
from armillary.codecs.qwen_vit import QwenViT, QwenViTConfig
from armillary.codecs.sight import ClipRules, PictureRules
from armillary.codecs.siglip import EdgeVision, EdgeVisionConfig
from armillary.codecs.text import TextCodec
from armillary.codecs.wan_vae import WanVAE, WanVAEConfig
from armillary.errors import BadRequest
from armillary.lowbit import Form, LowBitLinear, lower
from armillary.memory import Keeper, Mode, Weights, load_network
from armillary.model import Block, Network
from armillary.names import canonical, is_sight
from armillary.shards import Stored, read_json, renamed, stored
from armillary.weights import TRANSFORMER, Checkpoint

Part = Literal["sight", "video", "audio"]
NESTED = re.compile(r"^visual\.(?:\w+\.)?(?=visual\.|projector\.)")  # the framework nests Edge's deeper
Rules = TypeVar("Rules", bound=PictureRules)
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
    memory: Mode = "resident"
    weights: Form | None = None


def load_parts(
    folder: Path,
    *,
    device: torch.device,
    dtype: torch.dtype | None,
    want: Collection[Part] = EVERY_PART,
    memory: Mode = "resident",
    weights: Form | None = None,
) -> Parts:
    """Load a checkpoint in a published layout: its towers and the text codec, of the rest what is wanted.

    `dtype` None keeps what the files hold. weights: how the towers' linear layers are rounded, unless the
    checkpoint is stored so. Raises BadRequest for a missing file and for any tensor that does not fit its
    config.
    """
    checkpoint = Checkpoint(folder)
    require_listed(checkpoint)
    weights = checkpoint.quantised.settle(weights)
    keeper = Keeper(memory, device=device, dtype=dtype, weights=weights)
    network = load_network(checkpoint, keeper)
    return Parts(
        checkpoint,
        device,
        dtype or network.head.weight.dtype,
        network,
        TextCodec.load(checkpoint.text),
        load_sight(checkpoint, keeper) if "sight" in want else None,
        load_video(checkpoint, keeper) if "video" in want else None,
        load_audio(checkpoint, keeper) if "audio" in want else None,
        memory,
        weights,
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


def load_sight(checkpoint: Checkpoint, keeper: Keeper) -> Sight | None:
    """The vision tower, or None."""
    tower, folder = build_sight(checkpoint), checkpoint.folder
    if tower is None:
        return None
    keeper.load(tower, stored_sight(checkpoint), where=folder, pages=[("", "reader")])
    return Sight(tower, *sight_rules(checkpoint, tower.config))


def sight_rules(
    checkpoint: Checkpoint, tower: QwenViTConfig | EdgeVisionConfig
) -> tuple[PictureRules, ClipRules]:
    """How pictures and clips are prepared for a tower. Raises BadRequest where it takes others."""
    own = {
        "patch_size": tower.patch_size,
        "temporal_patch_size": 1 if isinstance(tower, EdgeVisionConfig) else tower.temporal_patch_size,
        "merge_size": tower.spatial_merge_size,
    }
    return _rules(PictureRules, checkpoint, own), _rules(ClipRules, checkpoint, own)


def _rules(kind: type[Rules], checkpoint: Checkpoint, own: Mapping[str, int]) -> Rules:
    rules = kind.from_dict({**own, **_read_if_there(checkpoint.folder / f"{kind.file}.json")})
    for name, due in own.items():
        found = getattr(rules, name)
        if found != due:
            raise BadRequest(f"{kind.file}.{name}", found, f"the vision tower takes {due}")
    return rules


def build_sight(checkpoint: Checkpoint) -> QwenViT | EdgeVision | None:
    """The vision tower without numbers, on the meta device, as are the next two."""
    if not checkpoint.sees:
        return None
    with torch.device("meta"):
        if checkpoint.is_edge:
            return EdgeVision(EdgeVisionConfig.from_dict(checkpoint.root))
        return QwenViT(QwenViTConfig.from_dict(checkpoint.root["vision_config"]))


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


def load_video(checkpoint: Checkpoint, keeper: Keeper) -> WanVAE | None:
    """The video autoencoder, or None if the checkpoint has none."""
    network, folder = build_video(checkpoint), checkpoint.folder / "vae"
    if network is None:
        return None
    pages = [("encoder", "encoder"), ("decoder", "decoder")]
    return keeper.load(network, stored(folder, TRANSFORMER), where=folder, pages=pages)


def build_video(checkpoint: Checkpoint) -> WanVAE | None:
    config = checkpoint.part("vae")
    with torch.device("meta"):
        return None if config is None else WanVAE(WanVAEConfig.from_dict(config))


def load_audio(checkpoint: Checkpoint, keeper: Keeper) -> AudioVAE | None:
    """The audio autoencoder, or None if the checkpoint has none; some are published without their encoder."""
    config, folder = checkpoint.part("sound_tokenizer"), checkpoint.folder / "sound_tokenizer"
    if config is None:
        return None
    found = stored(folder, TRANSFORMER)
    network, pages = build_audio(config | {"encoder_enabled": has_encoder(found)}), [("decoder", "sound")]
    if network.encoder is not None:
        pages.append(("encoder", "hearing"))
    return keeper.load(network, found, where=folder, pages=pages)


def build_audio(config: Mapping[str, Any]) -> AudioVAE:
    with torch.device("meta"):
        return AudioVAE(AudioVAEConfig.from_dict(config))


def weigh(checkpoint: Checkpoint, dtype: torch.dtype, weights: Form | None = None) -> Weights:
    """What every part weighs, by the json files alone."""
    return _weigh(checkpoint, weights, rounded=1, plain=dtype.itemsize, time=4)


def weigh_mapped(
    checkpoint: Checkpoint, dtype: torch.dtype, weights: Form | None, device: torch.device
) -> Weights:
    """What of it is used where it lies in files: on a CPU, numbers stored as they are computed with."""
    here, stored_so = device.type == "cpu", checkpoint.quantised
    same = here and checkpoint.dtype == dtype and not stored_so.fp8
    return _weigh(
        checkpoint,
        weights,
        rounded=int(here and stored_so.form is not None),
        plain=dtype.itemsize * same,
        time=4 * (same and dtype is torch.float32),
    )


def _weigh(checkpoint: Checkpoint, weights: Form | None, *, rounded: int, plain: int, time: int) -> Weights:
    """rounded: how often the bytes of low-bit layers count; plain, time: bytes of any other number, and of
    one of the time embedding."""
    config, sound = checkpoint.config, checkpoint.part("sound_tokenizer")
    with torch.device("meta"):
        layer = Network(replace(config, layers=1))
        if weights is not None:
            lower(layer, weights)
    video, audio = build_video(checkpoint), None if sound is None else build_audio(sound)
    reads_only = checkpoint.reads_only

    def size(*parts: nn.Module | None) -> int:
        modules = [module for part in parts if part for module in part.modules()]
        low = sum(b.nbytes for m in modules if isinstance(m, LowBitLinear) for b in m.buffers(recurse=False))
        return rounded * low + plain * numbers(*parts)

    def numbers(*parts: nn.Module | None) -> int:
        return sum(p.numel() for part in parts if part for p in part.parameters())

    small = size(layer.norm_ar) if reads_only else size(layer.norm_ar, layer.norm_dm, layer.ports)
    block = cast(Block, layer.blocks[0])
    return Weights(
        layers=config.layers,
        ar=size(block.ar),
        dm=0 if reads_only else size(block.dm),
        table=size(layer.embed),
        head=size(layer.head),
        rest=small + (0 if reads_only else time * numbers(layer.time)),
        sight=size(build_sight(checkpoint)),
        encoder=size(video and video.encoder),
        decoder=size(video and video.decoder),
        hearing=size(audio and audio.encoder),
        sound=size(audio and audio.decoder),
    )
