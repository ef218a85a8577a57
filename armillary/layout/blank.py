"""A checkpoint without its weights: its own rules, words and sizes, and networks that only take in.

A task runs on it as on a loaded one, up to where the network would draw; there the pack that it was given is
handed back. So what `explain` shows is built by the very code that builds it for drawing.

Shape letters: B clips, C channels, T frames, H W height and width in pixels, Z latent channels, t h w latent
frames, height and width, N patches or samples of sound, P numbers a patch, E width, L sound latents.
"""

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from armillary.codecs.audio_vae import AudioVAE, AudioVAEConfig
from armillary.codecs.qwen_vit import Grid, QwenViT, QwenViTConfig
from armillary.codecs.siglip import EdgeVision, EdgeVisionConfig
from armillary.codecs.text import TextCodec
from armillary.codecs.wan_vae import WanVAE, WanVAEConfig
from armillary.model import Config, Memory, Network, Pass
from armillary.sequence import Pack
from armillary.tasks.parts import Parts, Sight, sight_rules
from armillary.weights import Checkpoint


class Shown(Exception):
    """Raised in place of drawing: the pack that the network was given."""

    def __init__(self, pack: Pack) -> None:
        self.pack = pack
        super().__init__(f"a pack of {len(pack.samples)}")


class _Network(Network):
    def __init__(self, config: Config) -> None:
        nn.Module.__init__(self)
        self.config = config

    def read(self, pack: Pack, memory: Memory | None = None) -> Pass:
        return Pass(None, [], [])

    def draw(self, pack: Pack, time_S: Tensor, memory: Memory) -> list[Tensor]:
        raise Shown(pack)


class _Video(WanVAE):
    def __init__(self, config: WanVAEConfig) -> None:
        nn.Module.__init__(self)
        self.config = config

    def encode(self, frames_BCTHW: Tensor) -> Tensor:
        self._check_size(frames_BCTHW, 1)
        count, _, frames, height, width = frames_BCTHW.shape
        c = self.config
        time = 1 + (frames - 1) // c.scale_factor_temporal
        space = height // c.scale_factor_spatial, width // c.scale_factor_spatial
        return torch.zeros(count, c.z_dim, time, *space)


class _Audio(AudioVAE):
    def __init__(self, config: AudioVAEConfig) -> None:
        nn.Module.__init__(self)
        self.config, self.encoder = config, None

    def encode(self, waveform_BCN: Tensor) -> Tensor:
        if not self.config.encoder_enabled:
            return super().encode(waveform_BCN)  # which refuses
        padded_BCN, latent = self.prepare(waveform_BCN), self.config.vocoder_input_dim
        return torch.zeros(len(padded_BCN), latent, self.latent_length(padded_BCN.shape[-1]))


def _looked(patches_NP: Tensor, merge: int, width: int, levels: int) -> tuple[Tensor, list[Tensor]]:
    seen_NE = torch.zeros(1, 1).expand(len(patches_NP) // merge**2, width)
    return seen_NE, [seen_NE] * levels


class _Qwen(QwenViT):
    def __init__(self, config: QwenViTConfig) -> None:
        nn.Module.__init__(self)
        self.config = config

    def forward(
        self, patches_NP: Tensor, grids: Sequence[Grid], angles: dict[Grid, Tensor] | None = None
    ) -> tuple[Tensor, list[Tensor]]:
        c = self.config
        return _looked(patches_NP, c.spatial_merge_size, c.out_hidden_size, len(c.deepstack_visual_indexes))


class _Edge(EdgeVision):
    def __init__(self, config: EdgeVisionConfig) -> None:
        nn.Module.__init__(self)
        self.config = config

    def forward(self, patches_NP: Tensor, grids: Sequence[Grid]) -> tuple[Tensor, list[Tensor]]:
        return _looked(patches_NP, self.config.spatial_merge_size, self.config.out_hidden_size, 0)


def blank_parts(folder: Path) -> Parts:
    """The parts of a checkpoint by its json files and its tokenizer alone."""
    checkpoint = Checkpoint(folder)
    checkpoint.quantised.check(folder)
    video, audio = checkpoint.part("vae"), checkpoint.part("sound_tokenizer")
    return Parts(
        checkpoint,
        torch.device("cpu"),
        torch.float32,
        _Network(checkpoint.config),
        TextCodec.load(checkpoint.text),
        _blank_sight(checkpoint),
        None if video is None else _Video(WanVAEConfig.from_dict(video)),
        None if audio is None else _Audio(AudioVAEConfig.from_dict(audio)),
    )


def _blank_sight(checkpoint: Checkpoint) -> Sight | None:
    if not checkpoint.sees:
        return None
    root = checkpoint.root
    tower = (
        _Edge(EdgeVisionConfig.from_dict(root))
        if checkpoint.is_edge
        else _Qwen(QwenViTConfig.from_dict(root["vision_config"]))
    )
    return Sight(tower, *sight_rules(checkpoint, tower.config))
