"""Pictures and clips: from words alone, from given pictures, clips and sound, edited, under controls.

A clip that is longer than what the model draws at once is made in chunks, each of which starts with the last
frames of the one before.

Shape letters: T frames, H W height and width in pixels, Z latent channels, t h w latent frames, height and
width, C audio channels, N samples.
"""

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from armillary.errors import BadRequest
from armillary.facts import Canvas
from armillary.media import Clip
from armillary.media.source import Pixels
from armillary.prompts import SYSTEM_EDIT, SYSTEM_IMAGE, SYSTEM_TRANSFER, SYSTEM_VIDEO
from armillary.tasks.controls import Control, weights
from armillary.tasks.denoise import (
    Contexts,
    SamplingOptions,
    count_tokens,
    draw_many,
    read_prompts,
    require_use,
)
from armillary.tasks.frames import (
    check_frames,
    check_size,
    cover,
    decode_frames,
    encode,
    fit,
    require_video,
    to_pixels,
)
from armillary.tasks.parts import Parts
from armillary.tasks.segments import TIME_FACTOR, Latents
from armillary.tasks.sounds import Waveform, hear, join, listen, part_of, require_audio, samples, silent
from armillary.wording import Wording


@dataclass(frozen=True, eq=False)
class Given:
    """What there is already. Pictures are uint8 [H, W, 3], clips uint8 [T, H, W, 3], of any size.

    image: the first frame. video: its first or last frames, as `keep` says, become the latent frames
    `clean_latents`: 0 is the first frame, k the four frames from 4k - 3 on; a clip shorter than that stands
    still at its end. sound [C, N]: what is heard, at the rate of the audio autoencoder. edit: a picture to be
    changed. controls: how things move, in the order in which they stand.
    """

    image: Pixels | None = None
    video: Pixels | None = None
    clean_latents: Collection[int] = (0, 1)
    keep: Literal["first", "last"] = "last"
    sound: Waveform | None = None
    edit: Pixels | None = None
    controls: tuple[Control, ...] = ()


NOTHING = Given()


@dataclass(frozen=True, eq=False)
class Made:
    """What was drawn: frames uint8 [T, H, W, 3] at fps; sound float32 [C, N] in [-1, 1], as long as they.

    latents: of each chunk. tokens: of the first, by kind. tile: latents on the side of the smallest tile that
    was decoded at a time; None if all of a frame was.
    """

    frames: Pixels
    fps: float
    latents: tuple[Latents, ...]
    tokens: Mapping[str, int]
    sound: Waveform | None = None
    sample_rate: int | None = None
    tile: int | None = None
    receipt: dict[str, Any] = field(default_factory=dict[str, Any])

    def clip(self) -> Clip:
        """As a person keeps it."""
        return Clip(self.frames, self.fps, self.sound, self.sample_rate, receipt=self.receipt)


def generate(
    parts: Parts,
    wording: Wording,
    *,
    canvas: Canvas,
    given: Given = NOTHING,
    sound: bool = False,
    count: int = 1,
    options: SamplingOptions,
) -> list[Made]:
    """Pictures (frames=1) or clips, `count` of them in one pack. Frames are rounded up to 4n + 1.

    The i-th is what the seed of `options` + i alone gives. sound: draw one that fits.
    Raises BadRequest for what this checkpoint cannot make and for inputs that would not be used, Cancelled
    when `options.on_step` returns False, FloatingPointError naming the stage for NaN.
    """
    job = _Job(parts, _whole(canvas, given), given, sound)
    _check(parts, job.canvas, given, sound=sound)
    require_use(wording.negative, options.guidance)
    contexts = job.contexts(wording, options.guidance)
    starts, results = job.canvas.starts, [_Result() for _ in range(count)]
    for chunk, start in enumerate(starts):
        if chunk == 0:
            latents = [job.start()] * count
        else:
            latents = [job.go_on(start, result.tail_T3HW) for result in results]
        drawn = draw_many(parts, latents, contexts, replace(options, chunk=chunk, chunks=len(starts)))
        for result, one in zip(results, drawn, strict=True):
            job.add(result, one)
    tokens = count_tokens(results[0].runs[0], contexts, parts)
    return [job.finish(result, tokens) for result in results]


def round_frames(frames: int) -> int:
    """The next 4n + 1, which is what the video autoencoder holds. Raises BadRequest below 1."""
    if frames < 1:
        raise BadRequest("frames", frames, "must be at least 1")
    return math.ceil((frames - 1) / TIME_FACTOR) * TIME_FACTOR + 1


@dataclass(eq=False)
class _Result:
    """One clip as it grows, chunk by chunk."""

    runs: list[Latents] = field(default_factory=list[Latents])
    frames: list[Pixels] = field(default_factory=list[Pixels])
    sounds: list[Waveform] = field(default_factory=list[Waveform])
    tiles: list[int | None] = field(default_factory=list["int | None"])
    tail_T3HW: Tensor = field(default_factory=lambda: torch.empty(0))  # how the last one ends, unrounded


@dataclass(frozen=True, eq=False)
class _Job:
    """What is to be made of what, on which checkpoint: all that its chunks share."""

    parts: Parts
    canvas: Canvas
    given: Given
    draws_sound: bool

    @property
    def chunk(self) -> int:
        """Frames drawn at once."""
        return self.canvas.chunk or self.canvas.frames

    def contexts(self, wording: Wording, guidance: float) -> Contexts:
        """The prompts as read: they speak of one chunk, as in training."""
        c, hints = self.canvas, [control.hint for control in self.given.controls]
        prompt, negative = wording.texts(
            frames=self.chunk, fps=c.fps, height=c.height, width=c.width, hints=hints
        )
        system = self.system() if wording.system is None else wording.system
        return read_prompts(self.parts, prompt, negative, guidance=guidance, system=system)

    def system(self) -> str | None:
        """Edits and controls were trained with their sentence; for others the checkpoint says whether it was.

        Index files without the flag mean yes.
        """
        if self.given.edit is not None:
            return SYSTEM_EDIT
        if self.given.controls:
            return SYSTEM_TRANSFER
        if not self.parts.checkpoint.index.get("default_use_system_prompt", True):
            return None
        return SYSTEM_IMAGE if self.chunk == 1 else SYSTEM_VIDEO

    def start(self) -> Latents:
        """Latents of the first chunk, zero but for what is given."""
        given, c, device = self.given, self.canvas, self.parts.device
        frames_THW3, clean = _given_frames(given)
        known = None if frames_THW3 is None else cover(frames_THW3, c.height, c.width, device)
        latents = self.blank(0, known, clean)
        if given.edit is None:
            return latents
        reference = check_frames(given.edit, "edit", still=True)
        reference_Z1hw = encode(require_video(self.parts), cover(reference, c.height, c.width, device))
        return replace(latents, reference=reference_Z1hw)

    def go_on(self, start: int, tail_T3HW: Tensor) -> Latents:
        """Latents of a chunk that begins with frame `start` and with the end of the one before."""
        return self.blank(start, tail_T3HW, range((self.canvas.overlap - 1) // TIME_FACTOR + 1))

    def blank(self, start: int, known_T3HW: Tensor | None, clean: Collection[int]) -> Latents:
        """Latents of a chunk with what is known of its first frames.

        The autoencoder is causal, so only those are encoded.
        """
        video, c = require_video(self.parts), self.canvas
        factor, count = video.config.scale_factor_spatial, (self.chunk - 1) // TIME_FACTOR + 1
        shape = (video.config.z_dim, count, c.height // factor, c.width // factor)
        latents_ZThw = torch.zeros(shape, device=self.parts.device)
        if known_T3HW is not None:
            known_ZThw = encode(video, known_T3HW)
            latents_ZThw[:, list(clean)] = known_ZThw[:, list(clean)]
        return Latents(
            latents_ZThw,
            c.fps,
            clean,
            sound_SL=self.sound_from(start),
            clean_sound=self.given.sound is not None,
            controls=tuple(encode(video, self.control_from(x, start)) for x in self.given.controls),
            weights=weights(self.given.controls),
        )

    def sound_from(self, start: int) -> Tensor | None:
        """Sound latents of a chunk: what is given of it, or room to draw it in."""
        fps = self.canvas.fps
        if self.given.sound is not None:
            audio = require_audio(self.parts)
            length = samples(audio, self.chunk, fps)
            return listen(self.parts, part_of(self.given.sound, samples(audio, start, fps), length))
        return silent(self.parts, self.chunk, fps) if self.draws_sound else None

    def control_from(self, control: Control, start: int) -> Tensor:
        """A chunk of a control, [T, 3, H, W] in [-1, 1]; past its end it goes back and forth."""
        c, device = self.canvas, self.parts.device
        frames_THW3 = control.frames[start : min(start + self.chunk, c.frames)]
        fitted_T3HW = fit(frames_THW3, c.height, c.width, device).to(torch.uint8)
        map_THW3 = _to_and_fro(control.map(fitted_T3HW.permute(0, 2, 3, 1).cpu().numpy()), self.chunk)
        return torch.from_numpy(map_THW3).to(device).permute(0, 3, 1, 2).float() / 127.5 - 1

    def add(self, result: _Result, drawn: Latents) -> None:
        """Decode a chunk and put it behind those before."""
        frames_T3HW, tile = decode_frames(require_video(self.parts), drawn.vision_ZThw)
        result.tiles.append(tile)
        again = self.canvas.overlap if result.runs else 0
        result.runs.append(drawn)
        result.frames.append(to_pixels(frames_T3HW[again:]))
        result.tail_T3HW = frames_T3HW[-self.canvas.overlap :]
        if self.draws_sound and drawn.sound_SL is not None:
            audio = require_audio(self.parts)
            result.sounds.append(hear(audio, drawn.sound_SL, samples(audio, self.chunk, self.canvas.fps)))

    def finish(self, result: _Result, tokens: Mapping[str, int]) -> Made:
        """The clip as long as it was asked for, with its sound."""
        c, given = self.canvas, self.given
        frames_THW3, tile = np.concatenate(result.frames)[: c.frames], smallest(result.tiles)
        made = Made(frames_THW3, c.fps, tuple(result.runs), tokens, tile=tile)
        if not self.draws_sound and given.sound is None:
            return made
        audio = require_audio(self.parts)
        length = samples(audio, c.frames, c.fps)
        if given.sound is not None:
            sound_CN = part_of(given.sound, 0, length)
        else:
            sound_CN = join(result.sounds, [samples(audio, start, c.fps) for start in c.starts], length)
        return replace(made, sound=sound_CN, sample_rate=audio.sample_rate)


def smallest(tiles: Iterable[int | None]) -> int | None:
    """The side of the smallest of these tiles; None stands for none."""
    return min((side for side in tiles if side is not None), default=None)


def _whole(canvas: Canvas, given: Given) -> Canvas:
    """The canvas with chunks of 4n + 1 frames; so is a clip, unless it is as long as its controls."""
    whole = round_frames(canvas.frames)
    return replace(canvas, frames=canvas.frames if given.controls else whole, chunk=canvas.chunk or whole)


def _check(parts: Parts, canvas: Canvas, given: Given, *, sound: bool) -> None:
    if not 0 < canvas.fps < math.inf:
        raise BadRequest("fps", canvas.fps, "must be a positive number of frames a second")
    check_size(canvas.height, canvas.width, require_video(parts).config.scale_factor_spatial)
    if given.image is not None and given.video is not None:
        raise BadRequest(
            "video", "with an image", "a clip starts from a picture or from a clip, not from both"
        )
    hears = sound or given.sound is not None
    if hears:
        require_audio(parts)
    for name, used in (
        ("image", given.image is not None),
        ("video", given.video is not None),
        ("sound", hears),
    ):
        if used and canvas.frames == 1:
            raise BadRequest(
                name, "given", f"not used for a picture (frames=1); ask for {1 + TIME_FACTOR} or more"
            )
    if given.video is not None:
        count = ((canvas.chunk or canvas.frames) - 1) // TIME_FACTOR + 1
        if not given.clean_latents or not all(0 <= k < count for k in given.clean_latents):
            message = f"must be some of 0 to {count - 1}, the latent frames of {canvas.frames} frames"
            raise BadRequest("clean_latents", list(given.clean_latents), message)
    if given.keep not in ("first", "last"):
        raise BadRequest("keep", given.keep, "must be first or last")


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


def _to_and_fro(frames_THW3: Pixels, count: int) -> Pixels:
    """The first `count` frames of a clip that runs forwards and backwards; a single one stands still."""
    while len(frames_THW3) < count:
        more = min(len(frames_THW3) - 1, count - len(frames_THW3))
        back = frames_THW3[::-1][:more] if more else np.repeat(frames_THW3, count - 1, axis=0)
        frames_THW3 = np.concatenate([frames_THW3, back])
    return frames_THW3[:count]
