"""The Qwen3-VL vision tower: what the reasoner of Nano, Super and pocket sees with.

Parameter names are the published ones under `model.visual.`, so a checkpoint loads with `strict=True`.

Shape letters: N patches of all pictures, P numbers a patch, W tower width, M merged tokens (N / merge^2),
E width of the language model, H heads, D head width, h and w rows and columns of a patch grid, S and s cells
and side of the learned table, L patches of a slice, B slices, F frequencies, J numbers of joined patches.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

NORM_EPS = 1e-6
ROTARY_THETA = 10000.0

Grid = tuple[int, int, int]
"""(slices in time, patch rows, patch columns) of one picture or clip, before merging."""


@dataclass(frozen=True)
class QwenViTConfig:
    """`vision_config` of a Qwen3-VL or Cosmos 3 checkpoint."""

    depth: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    out_hidden_size: int
    num_position_embeddings: int
    deepstack_visual_indexes: tuple[int, ...]
    patch_size: int = 16
    temporal_patch_size: int = 2
    spatial_merge_size: int = 2
    in_channels: int = 3

    @classmethod
    def from_dict(cls, config: Mapping[str, Any]) -> "QwenViTConfig":
        """Read the published json; keys that do not describe the architecture are ignored."""
        known: dict[str, Any] = {name: config[name] for name in cls.__dataclass_fields__ if name in config}
        known["deepstack_visual_indexes"] = tuple(known["deepstack_visual_indexes"])
        return cls(**known)

    def to_dict(self) -> dict[str, Any]:
        """The published json again."""
        fields = {name: getattr(self, name) for name in self.__dataclass_fields__}
        fields["deepstack_visual_indexes"] = list(self.deepstack_visual_indexes)
        return fields | {"model_type": "qwen3_vl_vision", "hidden_act": "gelu_pytorch_tanh"}


@dataclass(frozen=True)
class Rotary:
    """Cosines and sines of every patch, one row a patch, broadcast over heads."""

    cos_N1D: Tensor
    sin_N1D: Tensor

    def turn(self, x_NHD: Tensor) -> Tensor:
        """Rotate pairs (i, i + D/2), in fp32 whatever the dtype of `x_NHD`."""
        x = x_NHD.float()
        first, second = x.chunk(2, dim=-1)
        return (x * self.cos_N1D + torch.cat([-second, first], dim=-1) * self.sin_N1D).to(x_NHD.dtype)


def block_major(x_hwX: Tensor, merge: int) -> Tensor:
    """[h, w, ...] -> [h * w, ...], the merge x merge patches of each future token next to each other."""
    h, w, *rest = x_hwX.shape
    blocks = x_hwX.reshape(h // merge, merge, w // merge, merge, *rest)
    return blocks.transpose(1, 2).reshape(h * w, *rest)


def resample_positions(table_SW: Tensor, grid: Grid, merge: int, *, align_corners: bool) -> Tensor:
    """Stretch a learned square table of positions over one grid, in fp32: [slices * h * w, W], block-major.

    `align_corners` is Qwen's form; without it, SigLIP2's, which also antialiases when it shrinks.
    """
    t, h, w = grid
    side = math.isqrt(len(table_SW))
    table_1Wss = table_SW.float().T.reshape(1, -1, side, side)
    stretched_1Whw = F.interpolate(
        table_1Wss, (h, w), mode="bilinear", align_corners=align_corners, antialias=not align_corners
    )
    return block_major(stretched_1Whw[0].permute(1, 2, 0), merge).repeat(t, 1)


def rotary_angles(grid: Grid, merge: int, head_width: int, device: torch.device) -> Tensor:
    """Axial angles [slices * h * w, D]: D/4 of them follow the row, D/4 the column, then both again."""
    t, h, w = grid
    steps = torch.arange(0, head_width // 2, 2, dtype=torch.float32, device=device)
    frequencies = 1.0 / ROTARY_THETA ** (steps / (head_width // 2))
    rows_hF, columns_wF = (torch.arange(n, device=device)[:, None] * frequencies for n in (h, w))
    rows_hwF = rows_hF[:, None].expand(h, w, -1)
    columns_hwF = columns_wF[None].expand(h, w, -1)
    return block_major(torch.cat([rows_hwF, columns_hwF] * 2, dim=-1), merge).repeat(t, 1)


def per_grid(grids: Sequence[Grid], table: Mapping[Grid, Tensor]) -> Tensor:
    """Lay each picture's table end to end."""
    return torch.cat([table[grid] for grid in grids])


def slice_lengths(grids: Sequence[Grid]) -> list[int]:
    """Patches in each temporal slice: attention never crosses a slice."""
    return [h * w for t, h, w in grids for _ in range(t)]


def attend_slices(q_NHD: Tensor, k_NHD: Tensor, v_NHD: Tensor, lengths: Sequence[int]) -> Tensor:
    """Full attention inside each slice: [N, H * D]. Neighbours of equal length share one batched call."""
    runs = [(length, len(list(same))) for length, same in groupby(lengths)]
    sizes = [length * count for length, count in runs]
    parts_NX: list[Tensor] = []
    for (length, count), *qkv in zip(runs, *(x.split(sizes) for x in (q_NHD, k_NHD, v_NHD)), strict=True):
        q_BHLD, k_BHLD, v_BHLD = (x.unflatten(0, (count, length)).transpose(1, 2) for x in qkv)
        out_BHLD = F.scaled_dot_product_attention(q_BHLD, k_BHLD, v_BHLD)
        parts_NX.append(out_BHLD.transpose(1, 2).flatten(2).flatten(0, 1))
    return torch.cat(parts_NX)


class PatchEmbed(nn.Module):
    """A linear map of each patch, stored as the 3-D convolution that it equals."""

    def __init__(self, config: QwenViTConfig) -> None:
        super().__init__()
        kernel = (config.temporal_patch_size, config.patch_size, config.patch_size)
        self.proj = nn.Conv3d(config.in_channels, config.hidden_size, kernel, stride=kernel)

    def forward(self, patches_NP: Tensor) -> Tensor:
        weight_WP = self.proj.weight.flatten(1)
        return F.linear(patches_NP.to(weight_WP.dtype), weight_WP, self.proj.bias)


class Attention(nn.Module):
    def __init__(self, config: QwenViTConfig) -> None:
        super().__init__()
        self.heads = config.num_heads
        self.qkv = nn.Linear(config.hidden_size, 3 * config.hidden_size)
        self.proj = nn.Linear(config.hidden_size, config.hidden_size)

    def forward(self, x_NW: Tensor, rotary: Rotary, lengths: Sequence[int]) -> Tensor:
        q_NHD, k_NHD, v_NHD = self.qkv(x_NW).unflatten(-1, (3, self.heads, -1)).unbind(1)
        return self.proj(attend_slices(rotary.turn(q_NHD), rotary.turn(k_NHD), v_NHD, lengths))


class MLP(nn.Module):
    def __init__(self, config: QwenViTConfig) -> None:
        super().__init__()
        self.linear_fc1 = nn.Linear(config.hidden_size, config.intermediate_size)
        self.linear_fc2 = nn.Linear(config.intermediate_size, config.hidden_size)

    def forward(self, x_NW: Tensor) -> Tensor:
        return self.linear_fc2(F.gelu(self.linear_fc1(x_NW), approximate="tanh"))


class Block(nn.Module):
    def __init__(self, config: QwenViTConfig) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(config.hidden_size, eps=NORM_EPS)
        self.norm2 = nn.LayerNorm(config.hidden_size, eps=NORM_EPS)
        self.attn = Attention(config)
        self.mlp = MLP(config)

    def forward(self, x_NW: Tensor, rotary: Rotary, lengths: Sequence[int]) -> Tensor:
        x_NW = x_NW + self.attn(self.norm1(x_NW), rotary, lengths)
        return x_NW + self.mlp(self.norm2(x_NW))


class Merger(nn.Module):
    """Neighbouring patches become one token of the language model's width.

    `norm_after` normalises the joined patches (deepstack), not each patch alone (the final merger, Edge).
    """

    def __init__(
        self, width: int, out: int, *, merge: int, hidden: int | None = None, norm_after: bool = False
    ) -> None:
        super().__init__()
        self.joined = width * merge**2
        self.norm_after = norm_after
        self.norm = nn.LayerNorm(self.joined if norm_after else width, eps=NORM_EPS)
        self.linear_fc1 = nn.Linear(self.joined, hidden or self.joined)
        self.linear_fc2 = nn.Linear(hidden or self.joined, out)

    def forward(self, x_NW: Tensor) -> Tensor:
        if self.norm_after:
            x_MJ = self.norm(x_NW.reshape(-1, self.joined))
        else:
            x_MJ = self.norm(x_NW).reshape(-1, self.joined)
        return self.linear_fc2(F.gelu(self.linear_fc1(x_MJ)))


class Positions(nn.Embedding):
    """Learned positions, small at first: the default would drown fresh patch features.

    Uniform, because drawing normal numbers on the meta device costs seconds at the first load.
    """

    def reset_parameters(self) -> None:
        nn.init.uniform_(self.weight, -0.03, 0.03)


class QwenViT(nn.Module):
    """Patches of any number of pictures and clips in, tokens of the language model's width out."""

    def __init__(self, config: QwenViTConfig) -> None:
        super().__init__()
        self.config = config
        width, out, merge = config.hidden_size, config.out_hidden_size, config.spatial_merge_size
        self.patch_embed = PatchEmbed(config)
        self.pos_embed = Positions(config.num_position_embeddings, width)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.depth))
        self.merger = Merger(width, out, merge=merge)
        self.deepstack_merger_list = nn.ModuleList(
            Merger(width, out, merge=merge, norm_after=True) for _ in config.deepstack_visual_indexes
        )

    def forward(
        self, patches_NP: Tensor, grids: Sequence[Grid], angles: dict[Grid, Tensor] | None = None
    ) -> tuple[Tensor, list[Tensor]]:
        """Look at every picture and clip of `grids`, laid end to end in `patches_NP`.

        Args:
            patches_NP: numbers of each patch in (channel, time, row, column) order, patches block-major
                within a slice (`codecs.sight` makes them).
            grids: (slices, patch rows, patch columns) of each picture or clip, rows and columns multiples of
                the merge size.
            angles: a dictionary that the caller keeps to reuse the rotary angles of grids already met on this
                device; without it they are computed once for each distinct grid of the call.
        Returns:
            Tokens [N / merge^2, E], and one tensor of the same shape for each deepstack level.
        """
        config = self.config
        merge, distinct = config.spatial_merge_size, set(grids)
        head_width = config.hidden_size // config.num_heads
        angles = {} if angles is None else angles
        for grid in distinct - angles.keys():
            angles[grid] = rotary_angles(grid, merge, head_width, patches_NP.device)
        table_SW = self.pos_embed.weight
        positions = {grid: resample_positions(table_SW, grid, merge, align_corners=True) for grid in distinct}

        x_NW = self.patch_embed(patches_NP)
        x_NW = x_NW + per_grid(grids, positions).to(x_NW.dtype)
        angles_N1D = per_grid(grids, angles)[:, None]
        rotary, lengths = Rotary(angles_N1D.cos(), angles_N1D.sin()), slice_lengths(grids)
        deepstack_ME: list[Tensor] = []
        for layer, block in enumerate(self.blocks):
            x_NW = block(x_NW, rotary, lengths)
            if layer in config.deepstack_visual_indexes:
                merger = self.deepstack_merger_list[config.deepstack_visual_indexes.index(layer)]
                deepstack_ME.append(merger(x_NW))
        return self.merger(x_NW), deepstack_ME
