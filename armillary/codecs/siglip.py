"""The SigLIP2 vision tower of Edge and the projector behind it.

Parameter names are the published ones under `model.` (`visual.*`, `projector.*`), so a checkpoint loads with
`strict=True`.

Shape letters: N patches of all pictures, P numbers a patch, S cells of the learned table, W tower width,
M merged tokens (N / merge^2), E width of the language model, H heads, D head width.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from armillary.codecs.qwen_vit import (
    Grid,
    Merger,
    Positions,
    attend_slices,
    per_grid,
    resample_positions,
    slice_lengths,
)


@dataclass(frozen=True)
class EdgeVisionConfig:
    """What an Edge checkpoint's root `config.json` says about seeing."""

    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_patches: int
    projector_hidden_size: int
    out_hidden_size: int
    patch_size: int = 16
    spatial_merge_size: int = 2
    num_channels: int = 3
    layer_norm_eps: float = 1e-6

    @classmethod
    def from_dict(cls, config: Mapping[str, Any]) -> "EdgeVisionConfig":
        """Read the root json: `vision_config`, `projector_hidden_size` and the text width."""
        vision: Mapping[str, Any] = config["vision_config"]
        known = {name: vision[name] for name in cls.__dataclass_fields__ if name in vision}
        return cls(
            **known,
            projector_hidden_size=config["projector_hidden_size"],
            out_hidden_size=config["text_config"]["hidden_size"],
        )

    def to_dict(self) -> dict[str, Any]:
        """The same keys again, to be joined with the rest of the root json."""
        vision = {name: getattr(self, name) for name in self.__dataclass_fields__}
        text = {"hidden_size": vision.pop("out_hidden_size")}
        projector = vision.pop("projector_hidden_size")
        vision |= {"model_type": "cosmos3_edge_vision", "hidden_act": "gelu_pytorch_tanh"}
        return {"vision_config": vision, "projector_hidden_size": projector, "text_config": text}


class Embeddings(nn.Module):
    """A linear map of each patch plus the learned positions, stretched over the picture's grid."""

    def __init__(self, config: EdgeVisionConfig) -> None:
        super().__init__()
        self.merge = config.spatial_merge_size
        numbers = config.num_channels * config.patch_size**2
        self.patch_embedding = nn.Linear(numbers, config.hidden_size)
        self.position_embedding = Positions(config.num_patches, config.hidden_size)

    def forward(self, patches_NP: Tensor, grids: Sequence[Grid]) -> Tensor:
        table_SW = self.position_embedding.weight
        positions = {
            grid: resample_positions(table_SW, grid, self.merge, align_corners=False) for grid in set(grids)
        }
        x_NW = self.patch_embedding(patches_NP.to(table_SW.dtype))
        return x_NW + per_grid(grids, positions).to(x_NW.dtype)


class Attention(nn.Module):
    def __init__(self, config: EdgeVisionConfig) -> None:
        super().__init__()
        width = config.hidden_size
        self.heads = config.num_attention_heads
        self.q_proj = nn.Linear(width, width)
        self.k_proj = nn.Linear(width, width)
        self.v_proj = nn.Linear(width, width)
        self.out_proj = nn.Linear(width, width)

    def forward(self, x_NW: Tensor, lengths: Sequence[int]) -> Tensor:
        q_NHD, k_NHD, v_NHD = (
            project(x_NW).unflatten(-1, (self.heads, -1))
            for project in (self.q_proj, self.k_proj, self.v_proj)
        )
        return self.out_proj(attend_slices(q_NHD, k_NHD, v_NHD, lengths))


class MLP(nn.Module):
    def __init__(self, config: EdgeVisionConfig) -> None:
        super().__init__()
        self.fc1 = nn.Linear(config.hidden_size, config.intermediate_size)
        self.fc2 = nn.Linear(config.intermediate_size, config.hidden_size)

    def forward(self, x_NW: Tensor) -> Tensor:
        return self.fc2(F.gelu(self.fc1(x_NW), approximate="tanh"))


class Layer(nn.Module):
    def __init__(self, config: EdgeVisionConfig) -> None:
        super().__init__()
        self.layer_norm1 = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.layer_norm2 = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.self_attn = Attention(config)
        self.mlp = MLP(config)

    def forward(self, x_NW: Tensor, lengths: Sequence[int]) -> Tensor:
        x_NW = x_NW + self.self_attn(self.layer_norm1(x_NW), lengths)
        return x_NW + self.mlp(self.layer_norm2(x_NW))


class Encoder(nn.Module):
    def __init__(self, config: EdgeVisionConfig) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.num_hidden_layers))

    def forward(self, x_NW: Tensor, lengths: Sequence[int]) -> Tensor:
        for layer in self.layers:
            x_NW = layer(x_NW, lengths)
        return x_NW


class Siglip(nn.Module):
    """Packed SigLIP2: attention inside each frame, a closing norm, no rotary."""

    def __init__(self, config: EdgeVisionConfig) -> None:
        super().__init__()
        self.embeddings = Embeddings(config)
        self.encoder = Encoder(config)
        self.post_layernorm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)

    def forward(self, patches_NP: Tensor, grids: Sequence[Grid]) -> Tensor:
        x_NW = self.embeddings(patches_NP, grids)
        return self.post_layernorm(self.encoder(x_NW, slice_lengths(grids)))


class EdgeVision(nn.Module):
    """Edge's eye, called as `QwenViT` is."""

    def __init__(self, config: EdgeVisionConfig) -> None:
        super().__init__()
        self.config = config
        self.visual = Siglip(config)
        self.projector = Merger(
            config.hidden_size,
            config.out_hidden_size,
            merge=config.spatial_merge_size,
            hidden=config.projector_hidden_size,
        )

    def forward(self, patches_NP: Tensor, grids: Sequence[Grid]) -> tuple[Tensor, list[Tensor]]:
        """Look at every picture and clip of `grids`, laid end to end in `patches_NP`.

        Args:
            patches_NP: numbers of each patch in (row, column, channel) order, patches block-major within a
                frame (`codecs.sight` makes them).
            grids: (frames, patch rows, patch columns) of each picture or clip, rows and columns multiples of
                the merge size.
        Returns:
            Tokens [N / merge^2, E], and no deepstack levels.
        """
        return self.projector(self.visual(patches_NP, grids)), []
