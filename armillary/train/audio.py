"""Pocket's audio autoencoder: the published class with small numbers, trained on the table-top's sounds.

Shape letters: B = batch, C = audio channels, N = samples, S = latent channels, T = latent steps.
"""

import math
import random
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer

from armillary.codecs.audio_vae import AudioVAE, AudioVAEConfig
from armillary.sim.audio import PITCHES, SAMPLE_RATE, soundtrack
from armillary.sim.physics import FPS, MAX_SPEED, SIZE, SUBSTEPS, Event, Object
from armillary.train.loop import Draw, Metrics

FRAMES = 9
NOISE = 0.1  # standard deviation added to latents of spread 1
OBJECTS = tuple(Object("red", shape) for shape in PITCHES)
EVENT_ODDS = {0: 0.3, 1: 0.35, 2: 0.2, 3: 0.1, 4: 0.05}  # events a clip, about as the world has them
WINDOWS = (128, 512, 2048)  # of the spectral loss, in samples
QUIET = 0.05  # magnitudes below this are as good as silent


def pocket_audio_config() -> dict[str, Any]:
    """`sound_tokenizer/config.json`: 16 kHz stereo, 1000 samples and 16 numbers a latent, 0.44 M parameters.

    Loudness is kept (`normalize_volume` false), since it tells the speed of a collision.
    """
    config = AudioVAEConfig(
        sampling_rate=SAMPLE_RATE,
        normalize_volume=False,
        vocoder_input_dim=16,
        dec_dim=4,
        dec_c_mults=(8, 12, 16),
        dec_strides=(8, 5, 25),
        enc_dim=32,
        enc_num_blocks=1,
        enc_n_fft=128,
        enc_hop_length=20,
        enc_latent_dim=32,
        enc_c_mults=(1, 2, 2),
        enc_strides=(2, 5, 5),
        enc_intermediate_dim=128,
        enc_num_layers=3,
    )
    return config.to_dict()


def random_event(rng: random.Random) -> Event:
    """A collision as the world makes them: at the end of a substep, of one thing or two, anywhere."""
    things = tuple(rng.choices(range(len(OBJECTS)), k=rng.choice((1, 1, 1, 2))))
    time = rng.randint(1, (FRAMES - 1) * SUBSTEPS) / (FPS * SUBSTEPS)
    kind = "object-wall" if len(things) == 1 else "object-object"
    return Event(time, kind, things, rng.uniform(3.0, MAX_SPEED), rng.uniform(2.0, SIZE - 2.0))


def random_clips(rng: random.Random, count: int) -> tuple[Tensor, list[list[Event]]]:
    """Waveforms [B, 2, N] of nine frames and the collisions heard in each."""
    sizes = rng.choices(list(EVENT_ODDS), list(EVENT_ODDS.values()), k=count)
    events = [[random_event(rng) for _ in range(size)] for size in sizes]
    sounds = np.stack([soundtrack(own, OBJECTS, FRAMES) for own in events])
    return torch.from_numpy(sounds), events


class AudioJob:
    """Reconstruction of random collisions through latents with a little noise, as a sampler leaves behind."""

    def __init__(self, *, clips: int = 8, seed: int = 0) -> None:
        torch.manual_seed(seed)
        self.network = AudioVAE(AudioVAEConfig.from_dict(pocket_audio_config()))
        self.model: nn.Module = self.network
        self.clips = clips
        with torch.no_grad():
            self.network.decoder.conv2.weight_g.mul_(0.1)  # start almost silent, as the world is

    def optimizers(self, rate: float) -> list[Optimizer]:
        return [AdamW(self.model.parameters(), lr=rate, betas=(0.8, 0.98), weight_decay=0.0)]

    def loss(self, draw: Draw, done: float) -> tuple[Tensor, Metrics]:
        waveform_BCN, _ = random_clips(draw.python, self.clips)
        mean_BST, deviation_BST = self.network.encode_moments(waveform_BCN)
        noise_BST = torch.randn(mean_BST.shape, generator=draw.torch)
        decoded_BCN = self.network.decoder(mean_BST + NOISE * noise_BST)
        target_BCN = self.network.prepare(waveform_BCN)
        wave, spectrum = wave_error(decoded_BCN, target_BCN), spectrum_error(decoded_BCN, target_BCN)
        scale = distance_from_unit(mean_BST)
        posterior = (
            (deviation_BST / NOISE).log().square().mean()
        )  # ends as wide as the noise that decoding bears
        total = wave + 0.1 * spectrum + 0.05 * scale + 1e-3 * posterior
        parts = {"loss": total, "wave": wave, "spectrum": spectrum, "scale": scale, "posterior": posterior}
        return total, {name: part.item() for name, part in parts.items()}


def wave_error(decoded_BCN: Tensor, target_BCN: Tensor) -> Tensor:
    """Squared error over the target's own power, so that loud moments count most.

    An absolute error would do harm here: sound is rare, and silence everywhere is its first local minimum.
    """
    return (decoded_BCN - target_BCN).square().sum() / (target_BCN.square().sum() + 1)


def spectrum_error(decoded_BCN: Tensor, target_BCN: Tensor) -> Tensor:
    """Error of short-time magnitudes over their own size, and of their logarithms, mean over the windows.

    It keeps quiet sounds audible and silence silent, which the squared error hardly sees.
    """
    errors: list[Tensor] = []
    for window in WINDOWS:
        got, wanted = magnitudes(decoded_BCN, window), magnitudes(target_BCN, window)
        errors.append((got - wanted).abs().sum() / (wanted.sum() + 1))
        errors.append(0.3 * ((got + QUIET).log() - (wanted + QUIET).log()).abs().mean())
    return torch.stack(errors).sum() / len(WINDOWS)


def magnitudes(waveform_BCN: Tensor, window: int) -> Tensor:
    """Short-time Fourier magnitudes; the small constant keeps the gradient finite in silence."""
    shape = torch.hann_window(window, device=waveform_BCN.device)
    spectrum = torch.stft(waveform_BCN.flatten(0, 1), window, window // 4, window=shape, return_complex=True)
    return (torch.view_as_real(spectrum).square().sum(-1) + 1e-8).sqrt() / math.sqrt(window)


def distance_from_unit(mean_BST: Tensor) -> Tensor:
    """How far the channels are from mean 0 and spread 1, which the sampler expects.

    The published layout has no normalisation of sound latents, so the network itself must end at this scale.
    """
    spread_S, centre_S = torch.std_mean(mean_BST, dim=(0, 2))
    return (centre_S.square() + (spread_S + 1e-4).log().square()).mean()


@dataclass(frozen=True)
class Judgement:
    """How well collisions survive the way through the latents."""

    snr: float  # dB, over all clips
    onsets: float  # share of collisions whose first 30 ms keep their loudness within a factor of 2
    hiss: float  # greatest amplitude decoded from a silent clip
    centre: float  # greatest absolute mean of a latent channel
    least_spread: float  # of a latent channel
    most_spread: float


@torch.no_grad()
def judge(network: AudioVAE, clips: int = 32) -> Judgement:
    """Encode and decode clips that no training has seen."""
    waveform_BCN, events = random_clips(random.Random("judge"), clips)
    latents_BST = network.encode(waveform_BCN)
    target_BCN, decoded_BCN = network.prepare(waveform_BCN), network.decode(latents_BST)
    heard = [(index, event) for index, own in enumerate(events) for event in own]
    ratios = [onset(decoded_BCN[index], event) / onset(target_BCN[index], event) for index, event in heard]
    spread_S, centre_S = torch.std_mean(latents_BST, dim=(0, 2))
    silent_BCN = network.decode(network.encode(torch.zeros_like(waveform_BCN[:1])))
    error = (decoded_BCN - target_BCN).square().sum()
    return Judgement(
        snr=10 * math.log10(target_BCN.square().sum() / error),
        onsets=sum(0.5 < ratio < 2 for ratio in ratios) / len(ratios),
        hiss=silent_BCN.abs().max().item(),
        centre=centre_S.abs().max().item(),
        least_spread=spread_S.min().item(),
        most_spread=spread_S.max().item(),
    )


def onset(waveform_CN: Tensor, event: Event) -> float:
    """Root mean square of the first 30 ms after a collision."""
    begin = round(event.time * SAMPLE_RATE)
    return waveform_CN[:, begin : begin + 3 * SAMPLE_RATE // 100].square().mean().sqrt().item()
