"""Decoding in overlapping tiles, where not one latent frame fits: approximate, as no tile sees the others.

Tiles are decoded one after the other, each through the whole clip, and laid over each other with weights that
rise and fall across the overlap and add up to one. Letters as in `wan_vae`: h w latent height and width.
"""

from itertools import pairwise

import torch
from torch import Tensor

from armillary.codecs.wan_sizes import decoding_bytes
from armillary.codecs.wan_vae import WanVAE, WanVAEConfig

OVERLAP = 8  # latents that neighbours share, at most half a tile
LEAST = 4  # latents on the side of the smallest tile


def tile_side(c: WanVAEConfig, h: int, w: int, itemsize: int, budget: int) -> int | None:
    """The largest side of a tile that is decoded in so many bytes; None if a whole frame is."""
    if decoding_bytes(c, h, w, itemsize) <= budget:
        return None
    sides = (s for s in range(max(h, w) - 1, LEAST, -1) if _fits(c, min(s, h), min(s, w), itemsize, budget))
    return next(sides, LEAST)


def _fits(c: WanVAEConfig, h: int, w: int, itemsize: int, budget: int) -> bool:
    return decoding_bytes(c, h, w, itemsize) <= budget


def spans(size: int, side: int) -> list[tuple[int, int]]:
    """Where the tiles of one axis begin and end, evenly apart; neighbours share `OVERLAP` or more."""
    if size <= side:
        return [(0, size)]
    step = side - min(OVERLAP, side // 2)
    count = -(-(size - side) // step) + 1
    starts = [round(i * (size - side) / (count - 1)) for i in range(count)]
    return [(start, start + side) for start in starts]


def ramps(tiles: list[tuple[int, int]], factor: int) -> list[Tensor]:
    """The weights of each tile's pixels along one axis, rising and falling where tiles overlap; in all 1."""
    raw: list[Tensor] = [torch.ones((end - begin) * factor) for begin, end in tiles]
    for i, (one, other) in enumerate(pairwise(tiles)):
        shared = (one[1] - other[0]) * factor
        rising_N = (torch.arange(shared) + 0.5) / shared
        raw[i][-shared:] *= 1 - rising_N
        raw[i + 1][:shared] *= rising_N
    total_N = torch.zeros(tiles[-1][1] * factor)
    for (begin, end), weight_N in zip(tiles, raw, strict=True):
        total_N[begin * factor : end * factor] += weight_N
    parts = zip(tiles, raw, strict=True)
    return [weight_N / total_N[begin * factor : end * factor] for (begin, end), weight_N in parts]


@torch.no_grad()
def decode_tiled(network: WanVAE, latents_BZthw: Tensor, side: int) -> Tensor:
    """Normalised latents to all their frames [B, 3, T, H, W] in [-1, 1], in tiles of `side` latents."""
    factor = network.config.scale_factor_spatial
    b, _, t, h, w = latents_BZthw.shape
    frames = 1 + network.config.scale_factor_temporal * (t - 1)
    whole_B3THW = latents_BZthw.new_zeros(b, 3, frames, h * factor, w * factor)
    rows, columns = (
        [*zip(tiles, ramps(tiles, factor), strict=True)] for tiles in (spans(h, side), spans(w, side))
    )
    for row, weight_H in rows:
        for column, weight_W in columns:
            weight_HW = weight_H[:, None] * weight_W
            tile_BZthw = latents_BZthw[..., row[0] : row[1], column[0] : column[1]]
            at = slice(row[0] * factor, row[1] * factor), slice(column[0] * factor, column[1] * factor)
            begin = 0
            for piece_B3THW in network.decode_stream(tile_BZthw):
                end = begin + piece_B3THW.shape[2]
                place = whole_B3THW[:, :, begin:end, at[0], at[1]]
                place += piece_B3THW.to(place.dtype) * weight_HW.to(place)
                begin = end
    return whole_B3THW
