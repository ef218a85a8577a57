"""How much memory and work the video autoencoder takes, by its config alone.

Counted are the numbers that are alive at once in the widest moment, as the layers of `wan_vae` make them.
Letters: h w latent height and width.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from armillary.codecs.wan_vae import PIXELS_A_PIECE, WanVAEConfig

FP32 = 4  # bytes of a number in which narrower ones are normalised


@dataclass(frozen=True)
class Level:
    """Residual blocks at one size: channels in and out, frames at once, pixels of a frame."""

    into: int
    out: int
    blocks: int
    frames: int
    pixels: int
    in_time: bool

    @property
    def past(self) -> int:
        """Numbers that its convolutions keep of the last two frames."""
        inner = self.into + (2 * self.blocks - 1) * self.out + (self.out if self.in_time else 0)
        return 2 * self.pixels * inner

    @property
    def flops(self) -> float:
        """Of its 3x3x3 convolutions."""
        inner = self.into * self.out + (2 * self.blocks - 1) * self.out**2
        return 2 * 27 * inner * self.frames * self.pixels

    def busiest(self, itemsize: int) -> int:
        """Bytes alive in its first block: while it normalises in fp32, or joins a piece with its past."""
        normalising = self.frames * (itemsize + 3 * FP32) if itemsize < FP32 else 0
        joining = (3 * self.frames + 4) * itemsize
        return self.pixels * self.into * max(normalising, joining)


def decoder_levels(c: WanVAEConfig, h: int, w: int) -> Iterator[Level]:
    """The levels that one latent frame passes, after the clip's first."""
    base = c.decoder_base_dim or c.base_dim
    widths = [base * m for m in (c.dim_mult[-1], *reversed(c.dim_mult))]
    frames, pixels = 1, h * w
    for (into, out), in_time in zip(pairwise(widths), (*reversed(c.temperal_downsample), None), strict=True):
        yield Level(into, out, c.num_res_blocks + 1, frames, pixels, bool(in_time))
        frames, pixels = frames * (2 if in_time else 1), pixels * 4


def decoding_bytes(c: WanVAEConfig, h: int, w: int, itemsize: int) -> int:
    """The most that is alive while one more latent frame is decoded, beyond weights and frames made."""
    levels = list(decoder_levels(c, h, w))
    start = 2 * h * w * (c.z_dim + 4 * levels[0].into)
    end = 2 * levels[-1].pixels * levels[-1].out
    past = start + sum(level.past for level in levels) + end
    return past * itemsize + max(level.busiest(itemsize) for level in levels)


def encoding_bytes(c: WanVAEConfig, frames: int, height: int, width: int, itemsize: int) -> int:
    """The most that is alive while a clip is encoded, beyond weights and pixels."""
    later = c.scale_factor_temporal * max(1, PIXELS_A_PIECE // (height * width * c.scale_factor_temporal))
    at_once, pixels, past, most = min(frames, 1 + later), height * width // c.patch_size**2, 0, 0
    widths = [c.base_dim * m for m in (1, *c.dim_mult)]
    for (into, out), in_time in zip(pairwise(widths), (*c.temperal_downsample, None), strict=True):
        level = Level(max(into, out), out, c.num_res_blocks, at_once, pixels, bool(in_time))
        past, most = past + level.past, max(most, level.busiest(itemsize))
        at_once, pixels = -(-at_once // 2) if in_time else at_once, pixels // 4
    return most + (past * itemsize if frames > 1 + later else 0)
