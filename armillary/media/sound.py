"""Sound on its own way in: from files, clips and arrays, as a model takes it.

Shape letters: C channels, N samples.
"""

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from armillary.errors import BadRequest
from armillary.media.clip import Clip
from armillary.media.decode import ClipIn, decode_sound
from armillary.media.encode import check_sound
from armillary.media.source import FileSource, shown

Sound: TypeAlias = NDArray[np.float32]
SoundSource: TypeAlias = FileSource | Clip | ClipIn | Sound


def read_sound(source: SoundSource, *, rate: int, channels: int, field: str = "sound") -> Sound:
    """A waveform float32 [channels, N] in [-1, 1] at `rate` Hz.

    source: a file of sound, or a clip with a sound track, as a path, bytes, Clip or ClipIn; or an array
    [C, N] that is at `rate` already. One channel is copied, several are mixed, where their number is not
    `channels`.
    Raises BadRequest naming `field` for what holds no sound.
    """
    sound_CN, found = _heard(source, rate, field)
    if len(sound_CN) > 2:
        sound_CN = sound_CN.mean(0, keepdims=True)
    try:
        sound_CN = check_sound(sound_CN, found)
    except BadRequest as error:
        raise BadRequest(field, error.value, error.message) from None
    if len(sound_CN) != channels:
        sound_CN = np.repeat(sound_CN.mean(0, keepdims=True), channels, axis=0)
    return sound_CN if found == rate else np.stack([_resampled(x_N, found, rate) for x_N in sound_CN])


def _heard(source: SoundSource, rate: int, field: str) -> tuple[Sound, int]:
    if isinstance(source, np.ndarray):
        array: NDArray[Any] = source
        if array.ndim not in (1, 2) or not np.issubdtype(array.dtype, np.floating) or 0 in array.shape:
            raise BadRequest(field, shown(source), "must be an array of floats [channels, samples]")
        return np.atleast_2d(array).astype(np.float32), rate
    if isinstance(source, Clip | ClipIn):
        sound, found = source.sound, source.sample_rate
    else:
        sound, found = decode_sound(source, field, 0.0)
    if sound is None or found is None:
        raise BadRequest(field, shown(source), "holds no sound")
    return sound, found


def _resampled(sound_N: NDArray[np.float32], found: int, rate: int) -> NDArray[np.float32]:
    from av import AudioFrame, AudioResampler

    frame = AudioFrame.from_ndarray(np.ascontiguousarray(sound_N[None]), format="fltp", layout="mono")
    frame.sample_rate = found
    resampler = AudioResampler(format="fltp", layout="mono", rate=rate)
    parts = [part.to_ndarray()[0] for part in (*resampler.resample(frame), *resampler.resample(None))]
    return np.concatenate(parts).clip(-1.0, 1.0)
