"""Sound beside a clip: how many latents it takes, waveforms out of them, and the joining of runs.

Shape letters: C audio channels, N samples, S sound channels, L sound latents.
"""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from armillary.codecs.audio_vae import AudioVAE
from armillary.errors import BadRequest
from armillary.tasks.frames import finite
from armillary.tasks.parts import Parts

Waveform = NDArray[np.float32]


def require_audio(parts: Parts) -> AudioVAE:
    """The audio autoencoder. Raises BadRequest if this checkpoint makes no sound."""
    if parts.audio is None or not parts.checkpoint.traits.sound_gen:
        raise BadRequest("sound", True, "this checkpoint makes no sound; leave it out")
    return parts.audio


def samples(audio: AudioVAE, frames: int, fps: float) -> int:
    """The length of the sound of so many frames."""
    return int(frames / fps * audio.sample_rate)


def silent(parts: Parts, frames: int, fps: float) -> Tensor:
    """Latents [S, L] to be drawn for so many frames."""
    audio, channels = require_audio(parts), int(parts.checkpoint.config.features["sound"])
    return torch.zeros(channels, audio.latent_length(samples(audio, frames, fps)), device=parts.device)


def listen(parts: Parts, sound_CN: Waveform) -> Tensor:
    """Latents [S, L] of a given waveform. Raises BadRequest for a checkpoint that cannot encode sound."""
    waveform_1CN = torch.from_numpy(np.ascontiguousarray(sound_CN))[None].to(parts.device, parts.dtype)
    with torch.no_grad():
        return finite(require_audio(parts).encode(waveform_1CN)[0].float(), "encoding the sound")


def hear(audio: AudioVAE, sound_SL: Tensor, length: int) -> Waveform:
    """A waveform [C, N], cut to its length: the last latent may reach past the frames."""
    waveform_CN = finite(audio.decode(sound_SL[None])[0].float(), "decoding the sound")
    return waveform_CN[:, :length].cpu().numpy()


def part_of(sound_CN: Waveform, start: int, length: int) -> Waveform:
    """So many samples from `start` on, silence where the sound has ended."""
    part_CN = sound_CN[:, start : start + length]
    return np.pad(part_CN, ((0, 0), (0, length - part_CN.shape[1])))


def join(parts: Sequence[Waveform], starts: Sequence[int], length: int) -> Waveform:
    """Waveforms that overlap, each from its start on, as one; one fades into the next, so nothing clicks."""
    joined_CN = np.zeros(
        (len(parts[0]), max(s + p.shape[1] for s, p in zip(starts, parts, strict=True))), np.float32
    )
    end = 0
    for start, part_CN in zip(starts, parts, strict=True):
        shared = min(end - start, part_CN.shape[1]) if end else 0
        rise_N = (0.5 - 0.5 * np.cos(np.pi * (np.arange(shared) + 0.5) / max(shared, 1))).astype(np.float32)
        joined_CN[:, start : start + shared] *= 1 - rise_N
        part_CN = np.concatenate([part_CN[:, :shared] * rise_N, part_CN[:, shared:]], axis=1)
        joined_CN[:, start : start + part_CN.shape[1]] += part_CN
        end = start + part_CN.shape[1]
    return joined_CN[:, :length]
