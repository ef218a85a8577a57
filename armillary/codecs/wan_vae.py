"""The Wan 2.2 (TI2V-5B) causal video autoencoder, with the published parameter names.

One form serves training and streaming. A convolution over time sees the present and two frames before it; the
first frame of a clip is neither halved nor doubled in time. So a clip can pass the network whole or in pieces
with a `Stream` that remembers the last frames each convolution saw, and both give the same numbers.
Source: the `AutoencoderKLWan` of Wan-AI/Wan2.2-TI2V-5B-Diffusers, its `is_residual` form.

Shapes: B clips, C channels, T frames, H height, W width (of pixels or of features), Z latent channels,
t h w latent frames, height and width, X = B*T frames taken as images, N = H*W positions of one frame.
Inside the network tensors are logically BCTHW and physically channels-last, the fast layout for its layers.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields
from itertools import pairwise
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from armillary import arguments
from armillary.errors import BadRequest, nearest

PIXELS_A_PIECE = 8_000_000  # bounds the memory of encoding: 8 frames of 720p at a time, 68 of 320x192


@dataclass(frozen=True)
class WanVAEConfig:
    """`vae/config.json`; the defaults are the published widths. `latents_*`: a number a latent channel."""

    latents_mean: tuple[float, ...]
    latents_std: tuple[float, ...]
    z_dim: int = 48
    base_dim: int = 160
    decoder_base_dim: int | None = 256
    dim_mult: tuple[int, ...] = (1, 2, 4, 4)
    num_res_blocks: int = 2
    attn_scales: tuple[float, ...] = ()
    temperal_downsample: tuple[bool, ...] = (False, True, True)
    dropout: float = 0.0
    is_residual: bool = True
    in_channels: int = 12
    out_channels: int = 12
    patch_size: int = 2
    scale_factor_temporal: int = 4
    scale_factor_spatial: int = 16

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "WanVAEConfig":
        """Reads the published json, ignoring unknown keys. BadRequest names a value that cannot be had."""
        # Where the file is silent the published class means its older form, which is refused below.
        known: dict[str, Any] = {"is_residual": False, "latents_mean": (), "latents_std": ()} | dict(values)
        known.update((name, tuple(value)) for name, value in values.items() if isinstance(value, list))
        return cls(**{f.name: known[f.name] for f in fields(cls) if f.name in known})

    def to_dict(self) -> dict[str, Any]:
        """The published json again."""
        return {"_class_name": "AutoencoderKLWan"} | json.loads(json.dumps(asdict(self)))

    def __post_init__(self) -> None:
        steps, halvings = list(pairwise((1, *self.dim_mult))), len(self.dim_mult) - 1
        growing = all(b in (a, 2 * a, 4 * a) for a, b in steps) and steps[-1][0] == steps[-1][1]
        time, space = 2 ** sum(self.temperal_downsample), (self.patch_size or 0) * 2**halvings
        rules = {
            "is_residual": (self.is_residual, "only the residual (Wan 2.2) form, True, is supported"),
            "attn_scales": (not self.attn_scales, "must be empty: the residual form has no attention there"),
            "patch_size": (self.patch_size, "the residual form needs one; the published value is 2"),
            "dim_mult": (growing, "each must be 1, 2 or 4 times the one before (from 1), the last two equal"),
            "temperal_downsample": (len(self.temperal_downsample) == halvings, f"needs {halvings} entries"),
            "scale_factor_temporal": (self.scale_factor_temporal == time, f"the halvings make it {time}"),
            "scale_factor_spatial": (self.scale_factor_spatial == space, f"patch and stages make it {space}"),
        }
        for name, (legal, rule) in rules.items():
            if not legal:
                raise BadRequest(name, getattr(self, name), rule)
        arguments.numbers(self.latents_mean, "latents_mean", self.z_dim)
        arguments.numbers(self.latents_std, "latents_std", self.z_dim, above=0)


@dataclass
class Stream:
    """The past of a clip that comes in pieces; a clip that comes `whole` leaves none."""

    whole: bool = False
    first: bool = True  # whether the piece at hand begins the clip
    past: dict[nn.Module, Tensor] = field(default_factory=dict[nn.Module, Tensor])

    def join(self, layer: nn.Module, x_BCTHW: Tensor, frames: int) -> Tensor:
        """A layer's input after the frames kept of it or zeros; the last ones are kept for the next piece."""
        if layer in self.past:
            x_BCTHW = torch.cat([self.past[layer], x_BCTHW], dim=2)
        else:
            x_BCTHW = F.pad(x_BCTHW, (0, 0, 0, 0, frames, 0))
        if not self.whole:  # a copy, so that the piece itself can be freed
            self.past[layer] = x_BCTHW[:, :, -frames:].clone()
        return x_BCTHW


def per_frame(layer: Callable[[Tensor], Tensor], x_BCTHW: Tensor) -> Tensor:
    """Applies an image layer to every frame; in the channels-last layout nothing is copied."""
    y_XCHW = layer(x_BCTHW.transpose(1, 2).flatten(0, 1))
    return y_XCHW.unflatten(0, (x_BCTHW.shape[0], -1)).transpose(1, 2)


class CausalConv3d(nn.Conv3d):
    """Same-size convolution whose window ends at the present frame; before the clip lie zeros."""

    def __init__(self, in_channels: int, out_channels: int, kernel: tuple[int, int, int] = (3, 3, 3)) -> None:
        super().__init__(in_channels, out_channels, kernel, padding=(0, kernel[1] // 2, kernel[2] // 2))

    def forward(self, x_BCTHW: Tensor, stream: Stream) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        return super().forward(stream.join(self, x_BCTHW, 2))


class RMSNorm(nn.Module):
    """Channels divided by their root mean square, times `gamma` (published shape C,1,1 or C,1,1,1)."""

    def __init__(self, channels: int, spatial_dims: int = 3) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.ones(channels, *(1,) * spatial_dims))

    def forward(self, x_BCTHW: Tensor) -> Tensor:
        # The published layer divides by max(|x|, 1e-12); this eps is that floor, seen from the mean square.
        gamma_C = self.gamma.flatten()
        y_BTHWC = F.rms_norm(x_BCTHW.movedim(1, -1), gamma_C.shape, gamma_C, eps=1e-24 / len(gamma_C))
        return y_BTHWC.movedim(-1, 1)


class ResidualBlock(nn.Module):
    """Norm, SiLU, convolution, twice; plus the input, through a 1x1x1 convolution where the width changes."""

    def __init__(self, in_channels: int, out_channels: int, dropout: float) -> None:
        super().__init__()
        self.norm1 = RMSNorm(in_channels)
        self.conv1 = CausalConv3d(in_channels, out_channels)
        self.norm2 = RMSNorm(out_channels)
        self.dropout = nn.Dropout(dropout)
        self.conv2 = CausalConv3d(out_channels, out_channels)
        self.conv_shortcut = None if in_channels == out_channels else nn.Conv3d(in_channels, out_channels, 1)

    def forward(self, x_BCTHW: Tensor, stream: Stream) -> Tensor:
        y_BCTHW = self.conv1(F.silu(self.norm1(x_BCTHW)), stream)
        y_BCTHW = self.conv2(self.dropout(F.silu(self.norm2(y_BCTHW))), stream)
        return y_BCTHW + (self.conv_shortcut(x_BCTHW) if self.conv_shortcut else x_BCTHW)


class FrameAttention(nn.Module):
    """Single-head self-attention among the positions of one frame."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = RMSNorm(channels, spatial_dims=2)
        self.to_qkv = nn.Conv2d(channels, 3 * channels, 1)
        self.proj = nn.Conv2d(channels, channels, 1)

    def forward(self, x_BCTHW: Tensor) -> Tensor:
        qkv_BDTHW = per_frame(self.to_qkv, self.norm(x_BCTHW))  # D = 3C
        q_BTNC, k_BTNC, v_BTNC = qkv_BDTHW.movedim(1, -1).flatten(2, 3).chunk(3, dim=-1)
        y_BTNC = F.scaled_dot_product_attention(q_BTNC, k_BTNC, v_BTNC)
        return x_BCTHW + per_frame(self.proj, y_BTNC.unflatten(2, x_BCTHW.shape[3:]).movedim(-1, 1))


class MidBlock(nn.Module):
    """Residual block, attention, residual block, at the smallest size."""

    def __init__(self, channels: int, dropout: float) -> None:
        super().__init__()
        self.resnets = nn.ModuleList(ResidualBlock(channels, channels, dropout) for _ in range(2))
        self.attentions = nn.ModuleList([FrameAttention(channels)])

    def forward(self, x_BCTHW: Tensor, stream: Stream) -> Tensor:
        return self.resnets[1](self.attentions[0](self.resnets[0](x_BCTHW, stream)), stream)


class Downsampler(nn.Module):
    """Halves height and width; with `in_time` also the frames after the first, which passes as it is."""

    def __init__(self, channels: int, in_time: bool) -> None:
        super().__init__()
        self.resample = nn.Sequential(nn.ZeroPad2d((0, 1, 0, 1)), nn.Conv2d(channels, channels, 3, stride=2))
        self.time_conv = nn.Conv3d(channels, channels, (3, 1, 1), stride=(2, 1, 1)) if in_time else None

    def forward(self, x_BCTHW: Tensor, stream: Stream) -> Tensor:
        x_BCTHW = per_frame(self.resample, x_BCTHW)
        if self.time_conv is None:
            return x_BCTHW
        joined_BCTHW = stream.join(self, x_BCTHW, 1)
        if not stream.first:
            return self.time_conv(joined_BCTHW)
        later_BCtHW = self.time_conv(x_BCTHW) if x_BCTHW.shape[2] > 1 else x_BCTHW[:, :, 1:]
        return torch.cat([x_BCTHW[:, :, :1], later_BCtHW], dim=2)


def double_size(x_XCHW: Tensor, convolution: nn.Conv2d) -> Tensor:
    """Nearest-neighbour doubling, then a 3x3 convolution, done as one transposed 4x4 convolution of stride 2.

    Neighbouring taps of the kernel meet the same doubled pixel, so their sums are the transposed kernel: the
    same numbers for 4/9 of the multiplications, and no doubled image in memory.
    """
    shifts = ((0, 1, 0, 1), (1, 0, 0, 1), (0, 1, 1, 0), (1, 0, 1, 0))
    kernel_OI44 = torch.stack([F.pad(convolution.weight, shift) for shift in shifts]).sum(0).flip(2, 3)
    return F.conv_transpose2d(x_XCHW, kernel_OI44.transpose(0, 1), convolution.bias, stride=2, padding=1)


class Upsampler(nn.Module):
    """Doubles height and width; with `in_time` first makes two frames of each after the clip's first."""

    def __init__(self, channels: int, in_time: bool) -> None:
        super().__init__()
        self.resample = nn.Sequential(nn.Identity(), nn.Conv2d(channels, channels, 3))
        self.time_conv = CausalConv3d(channels, 2 * channels, (3, 1, 1)) if in_time else None

    def forward(self, x_BCTHW: Tensor, stream: Stream) -> Tensor:
        alone = int(stream.first)  # it is neither doubled nor remembered: to the second, the past is zeros
        if self.time_conv is not None and x_BCTHW.shape[2] > alone:
            pairs_BDtHW = self.time_conv(x_BCTHW[:, :, alone:], stream)  # D = 2C: one frame, then the next
            later_BCTHW = torch.stack(pairs_BDtHW.chunk(2, dim=1), dim=3).flatten(2, 3)
            x_BCTHW = torch.cat([x_BCTHW[:, :, :alone], later_BCTHW], dim=2)
        return per_frame(lambda x_XCHW: double_size(x_XCHW, cast(nn.Conv2d, self.resample[1])), x_BCTHW)


def average_down(x_BCTHW: Tensor, out_channels: int, time: int, space: int) -> Tensor:
    """Parameter-free shortcut: `time` x `space` x `space` blocks become channels, equal groups their mean.

    Zero frames are put in front until the frames divide, which lets a clip's first frame stand alone.
    """
    x_BCTHW = F.pad(x_BCTHW, (0, 0, 0, 0, -x_BCTHW.shape[2] % time, 0))
    blocks = x_BCTHW.unflatten(4, (-1, space)).unflatten(3, (-1, space)).unflatten(2, (-1, time))
    corners = blocks.permute(3, 5, 7, 0, 2, 4, 6, 1)  # places in the block first: cheapest to average over
    y_RBTHWC = corners.reshape(out_channels // x_BCTHW.shape[1], -1, *corners.shape[3:]).mean(1)
    return y_RBTHWC.movedim(0, -1).flatten(-2).movedim(-1, 1)


def duplicate_up(x_BCTHW: Tensor, out_channels: int, time: int, first: bool) -> Tensor:
    """Parameter-free shortcut: channels repeated, then laid out as blocks; a `first` frame keeps one copy."""
    b, c, t, h, w = x_BCTHW.shape
    groups = c // out_channels
    x_BTHWCG1 = x_BCTHW.movedim(1, -1).reshape(b, t, h, w, out_channels, groups, 1)
    blocks = x_BTHWCG1.expand(*(-1,) * 6, time * 4 // groups).reshape(b, t, h, w, out_channels, time, 2, 2)
    y_BTHWC = blocks.permute(0, 1, 5, 2, 6, 3, 7, 4).reshape(b, t * time, 2 * h, 2 * w, out_channels)
    return y_BTHWC.movedim(-1, 1)[:, :, time - 1 if first else 0 :]


class DownBlock(nn.Module):
    """Residual blocks and, except in the last stage, a halving; plus the averaged input."""

    def __init__(self, config: WanVAEConfig, widths: tuple[int, int], in_time: bool | None) -> None:
        super().__init__()
        steps = pairwise([widths[0]] + [widths[1]] * config.num_res_blocks)
        self.resnets = nn.ModuleList(ResidualBlock(*step, config.dropout) for step in steps)
        self.downsampler = None if in_time is None else Downsampler(widths[1], in_time)
        self.shortcut = widths[1], 2 if in_time else 1, 1 if in_time is None else 2

    def forward(self, x_BCTHW: Tensor, stream: Stream) -> Tensor:
        y_BCTHW = x_BCTHW
        for block in self.resnets:
            y_BCTHW = block(y_BCTHW, stream)
        y_BCTHW = self.downsampler(y_BCTHW, stream) if self.downsampler else y_BCTHW
        return y_BCTHW + average_down(x_BCTHW, *self.shortcut)


class UpBlock(nn.Module):
    """Residual blocks and, except in the last stage, a doubling plus the duplicated input."""

    def __init__(self, config: WanVAEConfig, widths: tuple[int, int], in_time: bool | None) -> None:
        super().__init__()
        steps = pairwise([widths[0]] + [widths[1]] * (config.num_res_blocks + 1))
        self.resnets = nn.ModuleList(ResidualBlock(*step, config.dropout) for step in steps)
        self.upsampler = None if in_time is None else Upsampler(widths[1], in_time)
        self.shortcut = widths[1], 2 if in_time else 1

    def forward(self, x_BCTHW: Tensor, stream: Stream) -> Tensor:
        y_BCTHW = x_BCTHW
        for block in self.resnets:
            y_BCTHW = block(y_BCTHW, stream)
        if not self.upsampler:
            return y_BCTHW
        return self.upsampler(y_BCTHW, stream) + duplicate_up(x_BCTHW, *self.shortcut, stream.first)


class Encoder(nn.Module):
    """Patches to moments: 2Z channels, the means and then the log-variances."""

    def __init__(self, config: WanVAEConfig) -> None:
        super().__init__()
        widths = [config.base_dim * m for m in (1, *config.dim_mult)]
        stages = zip(pairwise(widths), (*config.temperal_downsample, None), strict=True)
        self.conv_in = CausalConv3d(config.in_channels, widths[0])
        self.down_blocks = nn.ModuleList(DownBlock(config, pair, in_time) for pair, in_time in stages)
        self.mid_block = MidBlock(widths[-1], config.dropout)
        self.norm_out = RMSNorm(widths[-1])
        self.conv_out = CausalConv3d(widths[-1], 2 * config.z_dim)

    def forward(self, x_BCTHW: Tensor, stream: Stream) -> Tensor:
        for layer in (self.conv_in, *self.down_blocks, self.mid_block):
            x_BCTHW = layer(x_BCTHW, stream)
        return self.conv_out(F.silu(self.norm_out(x_BCTHW)), stream)


class Decoder(nn.Module):
    """Latents to patches."""

    def __init__(self, config: WanVAEConfig) -> None:
        super().__init__()
        base = config.decoder_base_dim or config.base_dim
        widths = [base * m for m in (config.dim_mult[-1], *reversed(config.dim_mult))]
        stages = zip(pairwise(widths), (*reversed(config.temperal_downsample), None), strict=True)
        self.conv_in = CausalConv3d(config.z_dim, widths[0])
        self.mid_block = MidBlock(widths[0], config.dropout)
        self.up_blocks = nn.ModuleList(UpBlock(config, pair, in_time) for pair, in_time in stages)
        self.norm_out = RMSNorm(widths[-1])
        self.conv_out = CausalConv3d(widths[-1], config.out_channels)

    def forward(self, x_BCTHW: Tensor, stream: Stream) -> Tensor:
        for layer in (self.conv_in, self.mid_block, *self.up_blocks):
            x_BCTHW = layer(x_BCTHW, stream)
        return self.conv_out(F.silu(self.norm_out(x_BCTHW)), stream)


class WanVAE(nn.Module):
    """Video autoencoder: 4n+1 frames in [-1, 1] to n+1 latent frames and back, all causal in time."""

    def __init__(self, config: WanVAEConfig) -> None:
        super().__init__()
        self.config = config
        self.encoder = Encoder(config)
        self.quant_conv = nn.Conv3d(2 * config.z_dim, 2 * config.z_dim, 1)
        self.post_quant_conv = nn.Conv3d(config.z_dim, config.z_dim, 1)
        self.decoder = Decoder(config)

    def encode_moments(self, frames_BCTHW: Tensor, stream: Stream | None = None) -> tuple[Tensor, Tensor]:
        """Mean and log-variance of the posterior, un-normalised [B, Z, t, h, w], with gradients.

        With a `stream` the frames are the clip's next piece: first 4n+1 of them, later 4n.
        Raises BadRequest for another number, or where a side is no multiple of the spatial factor.
        """
        stream = stream or Stream(whole=True)
        self._check_size(frames_BCTHW, 1 if stream.first else 0)
        # A patch pixel's channel is (colour * p + column) * p + row: columns first, hence H and W swapped.
        patches_BTPwh = F.pixel_unshuffle(frames_BCTHW.permute(0, 2, 1, 4, 3), self.config.patch_size)
        patches_BPThw = patches_BTPwh.permute(0, 2, 1, 4, 3).contiguous(memory_format=torch.channels_last_3d)
        moments_BMthw = self.quant_conv(self.encoder(patches_BPThw, stream))
        stream.first = False
        mean_BZthw, logvar_BZthw = moments_BMthw.chunk(2, dim=1)
        return mean_BZthw.contiguous(), logvar_BZthw.contiguous().clamp(-30.0, 20.0)

    def decode_raw(self, latents_raw_BZthw: Tensor, stream: Stream | None = None) -> Tensor:
        """Un-normalised latents to unclamped frames [B, 3, 4t-3, H, W], with gradients.

        With a `stream` the latents are the clip's next piece; each gives 4 frames, the clip's first only one.
        """
        stream = stream or Stream(whole=True)
        x_BZthw = self.post_quant_conv(latents_raw_BZthw).contiguous(memory_format=torch.channels_last_3d)
        patches_BPTHW = self.decoder(x_BZthw, stream)
        stream.first = False
        frames_BTCWH = F.pixel_shuffle(patches_BPTHW.permute(0, 2, 1, 4, 3), self.config.patch_size)
        return frames_BTCWH.permute(0, 2, 1, 4, 3).contiguous()

    @torch.no_grad()
    def encode(self, frames_BCTHW: Tensor) -> Tensor:
        """Frames in [-1, 1] to normalised latents [B, Z, t, h, w]: (posterior mean - m) * (1 / s).

        Long clips pass in pieces, in bounded memory. Raises BadRequest as `encode_moments` does.
        """
        self._check_size(frames_BCTHW, 1)
        factor, (height, width) = self.config.scale_factor_temporal, frames_BCTHW.shape[-2:]
        later = factor * max(1, PIXELS_A_PIECE // (height * width * factor))
        pieces = frames_BCTHW.tensor_split(tuple(range(1 + later, frames_BCTHW.shape[2], later)), dim=2)
        stream = Stream(whole=len(pieces) == 1)
        center_Z111, scale_Z111 = self._statistics()
        means = [self.encode_moments(piece.to(scale_Z111.dtype), stream)[0] for piece in pieces]
        return (torch.cat(means, dim=2) - center_Z111) * scale_Z111

    @torch.no_grad()
    def decode_stream(self, latents_BZthw: Tensor) -> Iterator[Tensor]:
        """Normalised latents to frames in [-1, 1] as they become ready: 1 for the first, 4 for each later."""
        center_Z111, scale_Z111 = self._statistics()
        stream = Stream()
        for latent_BZ1hw in latents_BZthw.to(scale_Z111.dtype).split(1, dim=2):
            yield self.decode_raw(latent_BZ1hw / scale_Z111 + center_Z111, stream).clamp(-1.0, 1.0)

    def decode(self, latents_BZthw: Tensor) -> Tensor:
        """Normalised latents to all their frames [B, 3, T, H, W] in [-1, 1]."""
        return torch.cat(list(self.decode_stream(latents_BZthw)), dim=2)

    def _statistics(self) -> tuple[Tensor, Tensor]:
        """Latent mean and inverse deviation, in the network's precision as in the published pipeline."""
        new = self.quant_conv.weight.new_tensor
        mean_Z, deviation_Z = new(self.config.latents_mean), new(self.config.latents_std)
        return mean_Z.view(-1, 1, 1, 1), 1.0 / deviation_Z.view(-1, 1, 1, 1)

    def _check_size(self, frames_BCTHW: Tensor, alone: int) -> None:
        time, space = self.config.scale_factor_temporal, self.config.scale_factor_spatial
        rules = (("frames", time, alone), ("height", space, 0), ("width", space, 0))
        for (name, step, rest), size in zip(rules, frames_BCTHW.shape[-3:], strict=True):
            if size < 1 or (size - rest) % step:
                legal = " or ".join(nearest(size, range(rest or step, size + 2 * step, step)))
                raise BadRequest(name, size, f"must be {rest} plus a multiple of {step}; nearest: {legal}")
