"""Pictures and clips from words alone, from a first picture, or continuing a clip; clips also with sound.

Shape letters: T frames, H W height and width in pixels, Z latent channels, t h w latent frames, height and
width, S sound channels, L sound latents, C audio channels, N samples.
"""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from armillary.codecs.audio_vae import AudioVAE
from armillary.errors import BadRequest
from armillary.media import Clip
from armillary.media.source import Pixels
from armillary.prompts import SYSTEM_IMAGE, SYSTEM_VIDEO, with_metadata
from armillary.settle import Canvas
from armillary.tasks.denoise import SamplingOptions, count_tokens, draw_many, read_prompts, require_use
from armillary.tasks.frames import check_frames, check_size, cover, decode, encode, finite, require_video
from armillary.tasks.parts import Parts
from armillary.tasks.segments import TIME_FACTOR, Latents


@dataclass(frozen=True, eq=False)
class Given:
    """Pixels to start from: a picture uint8 [H, W, 3] or a clip uint8 [T, H, W, 3], of any size.

    Of a clip its first or last frames, as `keep` says, become the latent frames `clean_latents`: 0 is the
    first frame, k the four frames from 4k - 3 on. A clip shorter than that stands still at its end.
    """

    image: Pixels | None = None
    video: Pixels | None = None
    clean_latents: Collection[int] = (0, 1)
    keep: Literal["first", "last"] = "last"


NOTHING = Given()


@dataclass(frozen=True, eq=False)
class Made:
    """What was drawn: frames uint8 [T, H, W, 3] at fps; sound float32 [C, N] in [-1, 1], as long as they.

    latents: of each run of the sampler. tokens: of the first run, by kind.
    """

    frames: Pixels
    fps: float
    latents: tuple[Latents, ...]
    tokens: Mapping[str, int]
    sound: NDArray[np.float32] | None = None
    sample_rate: int | None = None
    receipt: dict[str, Any] = field(default_factory=dict[str, Any])

    def clip(self) -> Clip:
        """As a person keeps it."""
        return Clip(self.frames, self.fps, self.sound, self.sample_rate, receipt=self.receipt)


def generate(
    parts: Parts,
    prompt: str,
    *,
    canvas: Canvas,
    given: Given = NOTHING,
    negative: str = "",
    sound: bool = False,
    count: int = 1,
    options: SamplingOptions,
) -> list[Made]:
    """Pictures (frames=1) or clips, `count` of them in one pack. Frames are rounded up to 4n + 1.

    The i-th is what the seed of `options` + i alone gives.

    Raises BadRequest for what this checkpoint cannot make and for inputs that would not be used, Cancelled
    when `options.on_step` returns False, FloatingPointError naming the stage for NaN.
    """
    canvas = replace(canvas, frames=round_frames(canvas.frames))
    audio = require_audio(parts) if sound else None
    _check(parts, canvas, given, sound=sound)
    require_use(negative, options.guidance)
    latents = _start(parts, canvas, given)
    if audio is not None:
        sound_SL = torch.zeros(_sound_shape(parts, audio, canvas), device=parts.device)
        latents = replace(latents, sound_SL=sound_SL)
    contexts = read_prompts(
        parts,
        _with_metadata(prompt, canvas),
        _with_metadata(negative, canvas, negative=True),
        guidance=options.guidance,
        system=_system(parts, canvas),
    )
    drawn = draw_many(parts, [latents] * count, contexts, options)
    tokens = count_tokens(latents, contexts, parts)
    return [_decoded(parts, one, canvas, audio, tokens) for one in drawn]


def _decoded(
    parts: Parts, drawn: Latents, canvas: Canvas, audio: AudioVAE | None, tokens: Mapping[str, int]
) -> Made:
    frames_THW3 = decode(require_video(parts), drawn.vision_ZThw)
    if audio is None or drawn.sound_SL is None:
        return Made(frames_THW3, canvas.fps, (drawn,), tokens)
    sound_CN = _hear(audio, drawn.sound_SL, _samples(audio, canvas))
    return Made(frames_THW3, canvas.fps, (drawn,), tokens, sound_CN, audio.sample_rate)


def round_frames(frames: int) -> int:
    """The next 4n + 1, which is what the video autoencoder holds. Raises BadRequest below 1."""
    if frames < 1:
        raise BadRequest("frames", frames, "must be at least 1")
    return math.ceil((frames - 1) / TIME_FACTOR) * TIME_FACTOR + 1


def require_audio(parts: Parts) -> AudioVAE:
    """The audio autoencoder. Raises BadRequest if this checkpoint makes no sound."""
    if parts.audio is None or not parts.checkpoint.traits.sound_gen:
        raise BadRequest("sound", True, "this checkpoint makes no sound; leave it out")
    return parts.audio


def _check(parts: Parts, canvas: Canvas, given: Given, *, sound: bool) -> None:
    if not 0 < canvas.fps < math.inf:
        raise BadRequest("fps", canvas.fps, "must be a positive number of frames a second")
    check_size(canvas.height, canvas.width, require_video(parts).config.scale_factor_spatial)
    if given.image is not None and given.video is not None:
        raise BadRequest(
            "video", "with an image", "a clip starts from a picture or from a clip, not from both"
        )
    for name, used in (
        ("image", given.image is not None),
        ("video", given.video is not None),
        ("sound", sound),
    ):
        if used and canvas.frames == 1:
            raise BadRequest(
                name, "given", f"not used for a picture (frames=1); ask for {1 + TIME_FACTOR} or more"
            )
    if given.video is not None:
        count = (canvas.frames - 1) // TIME_FACTOR + 1
        if not given.clean_latents or not all(0 <= k < count for k in given.clean_latents):
            message = f"must be some of 0 to {count - 1}, the latent frames of {canvas.frames} frames"
            raise BadRequest("clean_latents", list(given.clean_latents), message)
    if given.keep not in ("first", "last"):
        raise BadRequest("keep", given.keep, "must be first or last")


def _start(parts: Parts, canvas: Canvas, given: Given) -> Latents:
    """Latents that are zero but for what is given; the autoencoder is causal, so only that is encoded."""
    video = require_video(parts)
    factor = video.config.scale_factor_spatial
    shape = (
        video.config.z_dim,
        (canvas.frames - 1) // TIME_FACTOR + 1,
        canvas.height // factor,
        canvas.width // factor,
    )
    latents_ZThw = torch.zeros(shape, device=parts.device)
    given_THW3, clean = _given_frames(given)
    if given_THW3 is not None:
        known_ZThw = encode(video, cover(given_THW3, canvas.height, canvas.width, parts.device))
        latents_ZThw[:, list(clean)] = known_ZThw[:, list(clean)]
    return Latents(latents_ZThw, canvas.fps, clean)


def _given_frames(given: Given) -> tuple[Pixels | None, tuple[int, ...]]:
    """The 4n + 1 frames to encode, and which of their latent frames stay."""
    if given.image is not None:
        return check_frames(given.image, "image", still=True), (0,)
    if given.video is None:
        return None, ()
    frames_THW3, clean = check_frames(given.video, "video"), tuple(sorted(set(given.clean_latents)))
    count = max(clean) * TIME_FACTOR + 1
    frames_THW3 = frames_THW3[:count] if given.keep == "first" else frames_THW3[-count:]
    missing = count - len(frames_THW3)
    return np.concatenate([frames_THW3, np.repeat(frames_THW3[-1:], missing, axis=0)]), clean


def _with_metadata(prompt: str, canvas: Canvas, *, negative: bool = False) -> str:
    return with_metadata(
        prompt,
        frames=canvas.frames,
        fps=canvas.fps,
        height=canvas.height,
        width=canvas.width,
        negative=negative,
    )


def _system(parts: Parts, canvas: Canvas) -> str | None:
    """The system sentence, if the checkpoint says so; index files without the flag mean yes."""
    if not parts.checkpoint.index.get("default_use_system_prompt", True):
        return None
    return SYSTEM_IMAGE if canvas.frames == 1 else SYSTEM_VIDEO


def _samples(audio: AudioVAE, canvas: Canvas) -> int:
    return int(canvas.frames / canvas.fps * audio.sample_rate)


def _sound_shape(parts: Parts, audio: AudioVAE, canvas: Canvas) -> tuple[int, int]:
    return int(parts.checkpoint.config.features["sound"]), audio.latent_length(_samples(audio, canvas))


def _hear(audio: AudioVAE, sound_SL: Tensor, samples: int) -> NDArray[np.float32]:
    """The waveform [C, N] as long as the frames: the last latent may reach past them."""
    waveform_CN = finite(audio.decode(sound_SL[None])[0].float(), "decoding the sound")
    return waveform_CN[:, :samples].cpu().numpy()
