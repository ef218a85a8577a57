"""The audio autoencoder (AVAE): a waveform becomes a short row of latents, and latents become a waveform.

The encoder looks at a short-time spectrum with ConvNeXt blocks and strided convolutions and gives a Gaussian
for each latent step. The decoder (Oobleck, that of Stable Audio) climbs back to samples with transposed
convolutions and dilated residual units. Published size: 48 kHz stereo, 1920 samples a latent (25 latents/s),
64 channels, 496 M numbers. Parameter names are those of the published `sound_tokenizer` folder.

Shape letters: B = batch, C = audio channels, N = samples, S = latent channels, T = latent steps,
E = feature channels, L = feature steps, R = spectrum rows, X = B * C.
Of a weight: O = first axis, I = second axis, K = kernel.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from armillary import arguments
from armillary.errors import BadRequest

DECODER_DILATIONS = (1, 3, 9)
LOUDEST = 0.95  # the peak of a waveform after normalisation

# Keys of the published config.json with one legal value, that of the shipped architecture.
FIXED: dict[str, object] = {
    "_class_name": "Cosmos3AVAEAudioTokenizer",
    "model_type": "autoencoder_v2",
    "use_wav_as_input": True,
    "enc_type": "spec_convnext",
    "dec_type": "oobleck",
    "dec_use_snake": True,
    "dec_final_tanh": False,
    "dec_anti_aliasing": False,
    "dec_use_nearest_upsample": False,
    "dec_use_tanh_at_final": False,
    "bottleneck_type": "vae",
    "activation": "snakebeta",
    "snake_logscale": True,
    "anti_aliasing": False,
    "use_cuda_kernel": False,
    "causal": False,
    "padding_mode": "zeros",
    "latent_mean": None,
    "latent_std": None,
}


@dataclass(frozen=True)
class AudioVAEConfig:
    """The numbers of `sound_tokenizer/config.json` under their published names, with the published values."""

    sampling_rate: int = 48000
    stereo: bool = True
    input_channels: int = 1
    normalize_volume: bool = True
    hop_size: int | None = None
    vocoder_input_dim: int = 64
    dec_dim: int = 320
    dec_c_mults: tuple[int, ...] = (1, 2, 4, 8, 16)
    dec_strides: tuple[int, ...] = (2, 4, 5, 6, 8)
    dec_out_channels: int = 2
    encoder_enabled: bool = True
    enc_dim: int = 192
    enc_num_blocks: int = 2
    enc_n_fft: int = 64
    enc_hop_length: int = 16
    enc_latent_dim: int = 128
    enc_c_mults: tuple[int, ...] = (1, 2, 4)
    enc_strides: tuple[int, ...] = (4, 5, 6)
    enc_identity_init: bool = False
    enc_use_snake: bool = True
    enc_intermediate_dim: int = (
        768  # this and the next describe nothing; kept so that a file returns unchanged
    )
    enc_num_layers: int = 12

    def __post_init__(self) -> None:
        arguments.whole(self.sampling_rate, "sound_tokenizer.sampling_rate", 8000, 192000)
        self._agree("dec_c_mults", len(self.dec_c_mults), len(self.dec_strides), "entries, one a stride")
        self._agree("hop_size", self.hop, math.prod(self.dec_strides), "samples, the product of dec_strides")
        if self.encoder_enabled:
            encoder_hop = self.enc_hop_length * math.prod(self.enc_strides)
            self._agree("enc_c_mults", len(self.enc_c_mults), len(self.enc_strides), "entries, one a stride")
            self._agree("enc_strides", encoder_hop, self.hop, "samples a latent, as the decoder has")
            self._agree("enc_latent_dim", self.enc_latent_dim, 2 * self.vocoder_input_dim, "(mean and scale)")

    def _agree(self, field: str, value: int, wanted: int, unit: str) -> None:
        if value != wanted:
            raise BadRequest(field, getattr(self, field), f"gives {value}, but must give {wanted} {unit}")

    @property
    def hop(self) -> int:
        """Samples a latent step."""
        return self.hop_size if self.hop_size is not None else math.prod(self.dec_strides)

    @property
    def channels(self) -> int:
        """Audio channels that the encoder takes."""
        return self.input_channels * (2 if self.stereo else 1)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Read the published json. Unknown keys are tolerated, unsupported values raise BadRequest."""
        for key, legal in FIXED.items():
            if key in values and values[key] != legal:
                raise BadRequest(f"sound_tokenizer.{key}", values[key], f"only {legal!r} is supported")
        bottleneck = (values.get("bottleneck") or {}).get("type", "vae")
        if bottleneck != "vae":
            raise BadRequest("sound_tokenizer.bottleneck.type", bottleneck, "only 'vae' is supported")
        known = {key: values[key] for key in cls.__dataclass_fields__ if key in values}
        frozen: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in known.items()}
        return cls(**frozen)

    def to_dict(self) -> dict[str, Any]:
        """The published json, every key of it."""
        own = {k: list(v) if isinstance(v, tuple) else v for k, v in asdict(self).items()}
        return {**FIXED, "bottleneck": None, **own}


class Convolution(nn.Module):
    """A 1-D convolution, plain or transposed, whose weight is kept as direction `v` and length `g`.

    The weight is rebuilt in float32 at each call: little work beside the convolution itself, and bfloat16
    parameters lose nothing to the division. A stride changes the length by exactly that factor, either way.
    """

    def __init__(
        self,
        inputs: int,
        outputs: int,
        *,
        kernel: int = 1,
        stride: int = 1,
        dilation: int = 1,
        transposed: bool = False,
        bias: bool = True,
    ) -> None:
        super().__init__()
        self.stride, self.dilation, self.transposed = stride, dilation, transposed
        self.padding = math.ceil(stride / 2) if stride > 1 else dilation * (kernel - 1) // 2
        plain = (nn.ConvTranspose1d if transposed else nn.Conv1d)(inputs, outputs, kernel, bias=bias)
        weight_OIK = plain.weight.detach()
        # on the meta device there is nothing to measure, and asking would load torch's compiler (1 s)
        length_O11 = weight_OIK.new_empty(len(weight_OIK), 1, 1) if weight_OIK.is_meta else length(weight_OIK)
        self.weight_v, self.weight_g = nn.Parameter(weight_OIK), nn.Parameter(length_O11)
        self.bias = plain.bias

    def forward(self, x_BEL: Tensor) -> Tensor:
        direction_OIK = self.weight_v.float()
        weight_OIK = (direction_OIK * (self.weight_g.float() / length(direction_OIK))).to(x_BEL.dtype)
        if self.transposed:
            extra = self.stride % 2
            return F.conv_transpose1d(x_BEL, weight_OIK, self.bias, self.stride, self.padding, extra)
        return F.conv1d(x_BEL, weight_OIK, self.bias, self.stride, self.padding, self.dilation)


def length(weight_OIK: Tensor) -> Tensor:
    """The Euclidean length of each slice along the first axis, shape [O, 1, 1]."""
    return torch.linalg.vector_norm(weight_OIK, dim=(1, 2), keepdim=True)


class Snake(nn.Module):
    """SnakeBeta: `x + sin(a x)^2 / (b + 1e-9)` with `a = exp(alpha)`, `b = exp(beta)`, one pair a channel."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.alpha = nn.Parameter(torch.zeros(1, width, 1))
        self.beta = nn.Parameter(torch.zeros(1, width, 1))

    def forward(self, x_BEL: Tensor) -> Tensor:
        wave_BEL = torch.sin(x_BEL * self.alpha.exp())
        return torch.addcmul(x_BEL, wave_BEL, wave_BEL * (self.beta.exp() + 1e-9).reciprocal())


class ChannelNorm(nn.Module):
    """Layer norm over the channels of each step, in float32, with a gain and no bias."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x_BEL: Tensor) -> Tensor:
        x_BLE = x_BEL.transpose(1, 2).float()
        normal_BLE = F.layer_norm(x_BLE, self.weight.shape, self.weight.float(), eps=1e-5)
        return normal_BLE.transpose(1, 2).to(x_BEL.dtype)


class ConvNeXtBlock(nn.Module):
    """Mix along time within each channel, then mix channels through a layer four times as wide."""

    def __init__(self, width: int, config: AudioVAEConfig) -> None:
        super().__init__()
        # The published names count a padding layer first, hence the identity at place 0.
        self.dwconv = nn.Sequential(nn.Identity(), nn.Conv1d(width, width, 7, padding=3, groups=width))
        self.norm = ChannelNorm(width)
        self.pwconv1 = nn.Conv1d(width, 4 * width, 1)
        self.act = Snake(4 * width) if config.enc_use_snake else nn.GELU()
        self.pwconv2 = nn.Conv1d(4 * width, width, 1)
        if config.enc_identity_init:
            for parameter in self.pwconv2.parameters():
                nn.init.zeros_(parameter)

    def forward(self, x_BEL: Tensor) -> Tensor:
        return x_BEL + self.pwconv2(self.act(self.pwconv1(self.norm(self.dwconv(x_BEL)))))


class Encoder(nn.Module):
    """Waveform to moments: the spectrum, then stages of ConvNeXt blocks, each ending in a stride."""

    def __init__(self, config: AudioVAEConfig) -> None:
        super().__init__()
        self.n_fft, self.spectrum_hop = config.enc_n_fft, config.enc_hop_length
        widths = [multiple * config.enc_dim for multiple in config.enc_c_mults]
        layers: list[nn.Module] = [Convolution((self.n_fft + 2) * config.channels, widths[0], bias=False)]
        for width, after, stride in zip(widths, [*widths[1:], widths[-1]], config.enc_strides, strict=True):
            layers += [ConvNeXtBlock(width, config) for _ in range(config.enc_num_blocks)]
            layers.append(Convolution(width, after, kernel=2 * stride, stride=stride))
        layers.append(Convolution(widths[-1], config.enc_latent_dim, bias=False))
        self.layers = nn.Sequential(*layers)

    def spectrum(self, waveform_BCN: Tensor) -> Tensor:
        """Hann-windowed Fourier frames in float32; rows are `[real | imaginary]` of each channel in turn."""
        overlap = self.n_fft - self.spectrum_hop
        padded_BCN = F.pad(waveform_BCN.float(), (overlap // 2, overlap - overlap // 2))
        window = torch.hann_window(self.n_fft, device=padded_BCN.device)
        complex_XRL = torch.stft(
            padded_BCN.flatten(0, 1),
            self.n_fft,
            self.spectrum_hop,
            window=window,
            center=False,
            return_complex=True,
        )
        rows_XRL = torch.cat([complex_XRL.real, complex_XRL.imag], dim=1)
        return rows_XRL.unflatten(0, waveform_BCN.shape[:2]).flatten(1, 2)

    def forward(self, waveform_BCN: Tensor) -> Tensor:
        rows_BRL = self.spectrum(waveform_BCN)
        return self.layers(rows_BRL.to(next(self.parameters()).dtype))


class ResidualUnit(nn.Module):
    """Snake, dilated convolution, snake, pointwise convolution, added to the input."""

    def __init__(self, width: int, dilation: int) -> None:
        super().__init__()
        self.snake1, self.conv1 = Snake(width), Convolution(width, width, kernel=7, dilation=dilation)
        self.snake2, self.conv2 = Snake(width), Convolution(width, width)

    def forward(self, x_BEL: Tensor) -> Tensor:
        return x_BEL + self.conv2(self.snake2(self.conv1(self.snake1(x_BEL))))


class DecoderBlock(nn.Module):
    """Climb by one stride, then three residual units that look further and further."""

    def __init__(self, width: int, after: int, stride: int) -> None:
        super().__init__()
        self.snake1 = Snake(width)
        self.conv_t1 = Convolution(width, after, kernel=2 * stride, stride=stride, transposed=True)
        self.res_unit1, self.res_unit2, self.res_unit3 = (ResidualUnit(after, d) for d in DECODER_DILATIONS)

    def forward(self, x_BEL: Tensor) -> Tensor:
        x_BEL = self.conv_t1(self.snake1(x_BEL))
        return self.res_unit3(self.res_unit2(self.res_unit1(x_BEL)))


class Decoder(nn.Module):
    """Latents to waveform, before clamping: wide and slow at first, narrow and fast at the end."""

    def __init__(self, config: AudioVAEConfig) -> None:
        super().__init__()
        widths = [multiple * config.dec_dim for multiple in (1, *config.dec_c_mults)][::-1]
        self.conv1 = Convolution(config.vocoder_input_dim, widths[0], kernel=7)
        steps = zip(widths[:-1], widths[1:], config.dec_strides[::-1], strict=True)
        self.block = nn.ModuleList(DecoderBlock(*step) for step in steps)
        self.snake1 = Snake(config.dec_dim)
        self.conv2 = Convolution(config.dec_dim, config.dec_out_channels, kernel=7, bias=False)

    def forward(self, latents_BST: Tensor) -> Tensor:
        x_BEL = self.conv1(latents_BST)
        for block in self.block:
            x_BEL = block(x_BEL)
        return self.conv2(self.snake1(x_BEL))


class AudioVAE(nn.Module):
    """Waveforms to latents and back. Each waveform of a batch is treated as if it were alone."""

    def __init__(self, config: AudioVAEConfig) -> None:
        super().__init__()
        self.config = config
        self.encoder = Encoder(config) if config.encoder_enabled else None
        self.decoder = Decoder(config)

    @property
    def hop(self) -> int:
        """Samples a latent step."""
        return self.config.hop

    @property
    def sample_rate(self) -> int:
        """Samples a second."""
        return self.config.sampling_rate

    def latent_length(self, samples: int) -> int:
        """Latent steps that hold so many samples; the last one may be partly padding."""
        return math.ceil(samples / self.hop)

    def load_state_dict(
        self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False
    ) -> Any:
        """As in torch; a checkpoint that holds only the decoder leaves this network without an encoder."""
        if strict and not has_encoder(state_dict):
            self.encoder, self.config = None, replace(self.config, encoder_enabled=False)
        return super().load_state_dict(state_dict, strict=strict, assign=assign)

    def encode(self, waveform_BCN: Tensor) -> Tensor:
        """Latents [B, S, T] of waveforms: the posterior mean. Loudness is not kept (see `prepare`)."""
        return self.encode_moments(waveform_BCN)[0]

    def encode_moments(self, waveform_BCN: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and standard deviation of the posterior, each [B, S, T]; deviation = softplus(scale) + 1e-4.

        Raises BadRequest without an encoder, or if the number of channels is not the config's.
        """
        if self.encoder is None:
            raise BadRequest(
                "sound", "to encode", "this checkpoint holds only the audio decoder; use one with an encoder"
            )
        mean_BST, scale_BST = self.encoder(self.prepare(waveform_BCN)).chunk(2, dim=1)
        return mean_BST, F.softplus(scale_BST) + 1e-4

    def prepare(self, waveform_BCN: Tensor) -> Tensor:
        """What the encoder sees: each waveform scaled to a peak of 0.95, zero-padded to a whole latent."""
        if waveform_BCN.ndim != 3 or waveform_BCN.shape[1] != self.config.channels:
            wanted = f"needs shape [batch, {self.config.channels}, samples]"
            raise BadRequest("sound.shape", tuple(waveform_BCN.shape), wanted)
        if self.config.normalize_volume:
            peak_B11 = waveform_BCN.abs().amax(dim=(1, 2), keepdim=True)
            waveform_BCN = waveform_BCN / (peak_B11 + 1e-5) * LOUDEST
        return F.pad(waveform_BCN, (0, -waveform_BCN.shape[-1] % self.hop))

    def decode(self, latents_BST: Tensor) -> Tensor:
        """Waveforms [B, C, T * hop] in [-1, 1], in the dtype of the weights."""
        dtype = self.decoder.conv1.weight_v.dtype
        return self.decoder(latents_BST.to(dtype)).clamp(-1, 1)


def has_encoder(keys: Iterable[str]) -> bool:
    """Whether parameter names of a checkpoint include the encoder's."""
    return any(key.startswith("encoder.") for key in keys)
