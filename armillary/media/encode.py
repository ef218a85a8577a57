"""Pictures and clips out: PNG, GIF, MP4 with sound; whole or not at all, the receipt inside the file.

Legend: T frames, H height, W width, C channels, N samples.
"""

import math
import os
import secrets
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from fractions import Fraction
from numbers import Integral, Real
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, PngImagePlugin

from armillary.errors import BadRequest, nearest
from armillary.media.note import write_note
from armillary.media.source import Pixels

if TYPE_CHECKING:
    from av.audio.stream import AudioStream
    from av.container import OutputContainer
    from av.video.stream import VideoStream

AAC_RATES = (7350, 8000, 11025, 12000, 16000, 22050, 24000, 32000, 44100, 48000, 64000, 88200, 96000)
GIF_MAX_FPS = 50

# x264's default of 23 is chosen for large pictures seen from afar. Where a disc is ten pixels wide and a
# person enlarges it eightfold, 23 shifts flat colours by over ten levels and 18 by a few. At 12 what is lost
# is the chroma subsampling of 4:2:0 alone (within 0.1 dB), for under a hundred bytes more a frame at 64x64.
CRF = 12


def frame_rate(fps: float | Fraction) -> Fraction:
    """The exact rational rate written to containers: 7.5 -> 15/2, 23.976 -> 24000/1001, 8 -> 8.

    A number within rounding of n * 1000 / 1001 is taken for that broadcast rate. Raises BadRequest outside
    1/60..1000.
    """
    if not isinstance(fps, Real) or not math.isfinite(fps) or not 1 / 60 <= fps <= 1000:
        raise BadRequest("fps", fps, "frames per second are a number between 1/60 and 1000")
    broadcast = Fraction(round(float(fps) * 1.001) * 1000, 1001)
    if broadcast and abs(float(fps) / float(broadcast) - 1) < 2e-6:
        return broadcast
    return Fraction(fps).limit_denominator(1000)


def check_frames(frames: NDArray[Any]) -> Pixels:
    """The frames themselves if they are uint8 [T, H, W, 3] with T, H, W >= 1; else BadRequest.

    Only whole numbers pass, so that a NaN can never become a picture.
    """
    shape, dtype = np.shape(frames), getattr(frames, "dtype", type(frames).__name__)
    if dtype != np.uint8 or len(shape) != 4 or shape[3] != 3 or 0 in shape:
        raise BadRequest("frames", f"{dtype} {list(shape)}", "frames are uint8 [T, H, W, 3]")
    return frames


def check_sound(sound: NDArray[Any], sample_rate: int | None) -> NDArray[np.float32]:
    """The sound itself if it is finite float32 [1 or 2, N] with a rate; else BadRequest."""
    shape, dtype = np.shape(sound), getattr(sound, "dtype", type(sound).__name__)
    if dtype != np.float32 or len(shape) != 2 or shape[0] not in (1, 2):
        message = "sound is float32 [1 or 2 channels, samples]"
        raise BadRequest("sound", f"{dtype} {list(shape)}", message)
    if not np.isfinite(sound).all():
        raise BadRequest("sound", "NaN or infinity", "every sample is a finite number")
    if not isinstance(sample_rate, Integral) or sample_rate < 1:
        message = "sound needs its rate, a whole number of samples per second"
        raise BadRequest("sample_rate", sample_rate, message)
    return sound


def write_png(
    path: str | os.PathLike[str], image: Pixels, *, metadata: Mapping[str, Any] | None = None
) -> None:
    """One picture uint8 [H, W, 3] as PNG, `metadata` as JSON in its Comment text."""
    image_HWC = check_frames(image[None])[0]
    height, width, _ = image_HWC.shape
    text = PngImagePlugin.PngInfo()
    text.add_text("Comment", write_note(metadata, width, height))
    with replacing(path) as temporary:
        Image.fromarray(image_HWC).save(temporary, format="PNG", pnginfo=text)


def write_gif(
    path: str | os.PathLike[str],
    frames: Pixels,
    *,
    fps: float | Fraction,
    metadata: Mapping[str, Any] | None = None,
) -> None:
    """Frames uint8 [T, H, W, 3] as an endless GIF, 256 colours a frame, without sound.

    GIF counts in hundredths of a second: each frame ends at the hundredth nearest to its true end, so that
    errors do not add up. Equal neighbours are stored once, for their common time. Raises BadRequest above 50
    frames a second.
    """
    rate = frame_rate(fps)
    if rate > GIF_MAX_FPS:
        raise BadRequest(
            "fps", float(fps), f"a GIF shows at most {GIF_MAX_FPS} frames a second; write an MP4"
        )
    count, height, width, _ = check_frames(frames).shape
    ends = [round(100 * (index + 1) / rate) for index in range(count)]
    durations_ms = [10 * (end - start) for start, end in zip([0, *ends], ends, strict=False)]
    first, *rest = [Image.fromarray(frame_HWC).quantize(dither=Image.Dither.NONE) for frame_HWC in frames]
    with replacing(path) as temporary:
        first.save(
            temporary,
            format="GIF",
            save_all=True,
            append_images=rest,
            duration=durations_ms,
            loop=0,
            comment=write_note(metadata, width, height).encode(),
        )


def write_mp4(
    path: str | os.PathLike[str],
    frames: Pixels,
    *,
    fps: float | Fraction,
    sound: NDArray[np.float32] | None = None,
    sample_rate: int | None = None,
    metadata: Mapping[str, Any] | None = None,
) -> None:
    """Frames uint8 [T, H, W, 3] and sound float32 [C, N] as MP4: H.264 High 4:2:0 in BT.709, AAC, index
    first.

    The rate in the container is exactly `frame_rate(fps)`. Odd sides are padded by repeating the edge (4:2:0
    needs even ones); the true size is kept in the comment and `read_clip` cuts back to it. Sound is cut, or
    filled with silence, to the duration of the frames; the container's edit list hides the encoder's run-in,
    so what was at time t is heard at time t. One channel stays one. `metadata` is JSON in the comment. Raises
    BadRequest naming the field; whatever goes wrong, no half-written file is left.
    """
    rate = frame_rate(fps)
    count, height, width, _ = check_frames(frames).shape
    note = write_note(metadata, width, height)
    if sound is not None:
        check_sound(sound, sample_rate)
        if sample_rate not in AAC_RATES:
            raise BadRequest(
                "sample_rate", sample_rate, f"AAC has {' and '.join(nearest(sample_rate, AAC_RATES))}"
            )
        sound = _fit(sound, round(count / rate * sample_rate))
    with replacing(path) as temporary:
        _encode_mp4(temporary, frames, rate, note, sound, sample_rate)


def _fit(sound_CN: NDArray[np.float32], length: int) -> NDArray[np.float32]:
    missing = max(length - sound_CN.shape[1], 0)
    return np.pad(sound_CN[:, :length], ((0, 0), (0, missing))).clip(-1.0, 1.0)


def _encode_mp4(
    path: Path,
    frames: Pixels,
    rate: Fraction,
    note: str,
    sound: NDArray[np.float32] | None,
    sample_rate: int | None,
) -> None:
    import av

    with av.open(str(path), "w", format="mp4", options={"movflags": "+faststart"}) as container:
        container.metadata["comment"] = note
        video = _video_track(container, frames.shape[1], frames.shape[2], rate)
        audio = None if sound is None else _audio_track(container, sound.shape[0], sample_rate or 0)
        heard = 0
        for index, frame_HWC in enumerate(frames):  # both tracks advance together, so a player need not seek
            _encode_frame(container, video, frame_HWC, index)
            if sound is not None and audio is not None:
                until = round((index + 1) / rate * audio.rate)
                _encode_samples(container, audio, sound[:, heard:until], heard)
                heard = until
        container.mux(video.encode(None))
        if audio is not None:
            container.mux(audio.encode(None))


def _video_track(container: "OutputContainer", height: int, width: int, rate: Fraction) -> "VideoStream":
    from av.video.reformatter import ColorPrimaries, ColorRange, Colorspace, ColorTrc

    video = container.add_stream("libx264", rate=rate, options={"crf": str(CRF), "profile": "high"})
    video.width, video.height, video.pix_fmt = width + width % 2, height + height % 2, "yuv420p"
    video.codec_context.time_base = 1 / rate
    # Untagged, players would guess the matrix from the size of the picture and show other colours.
    video.codec_context.colorspace = Colorspace.ITU709
    video.codec_context.color_range = ColorRange.MPEG
    video.codec_context.color_primaries = ColorPrimaries.BT709
    video.codec_context.color_trc = ColorTrc.BT709
    return video


def _audio_track(container: "OutputContainer", channels: int, sample_rate: int) -> "AudioStream":
    audio = container.add_stream("aac", rate=sample_rate, layout="mono" if channels == 1 else "stereo")
    audio.bit_rate = channels * min(128_000, 4 * sample_rate)
    return audio


def _encode_frame(container: "OutputContainer", video: "VideoStream", frame_HWC: Pixels, index: int) -> None:
    from av import VideoFrame

    height, width, _ = frame_HWC.shape
    padded_HWC = np.pad(frame_HWC, ((0, height % 2), (0, width % 2), (0, 0)), mode="edge")
    picture = VideoFrame.from_ndarray(np.ascontiguousarray(padded_HWC), format="rgb24")
    # Area averaging loses least where 4:2:0 halves the chroma (0.4 dB better than the default on drawn
    # scenes).
    picture = picture.reformat(format="yuv420p", dst_colorspace="ITU709", interpolation="AREA")
    picture.pts, picture.time_base = index, video.codec_context.time_base
    container.mux(video.encode(picture))


def _encode_samples(
    container: "OutputContainer", audio: "AudioStream", sound_CN: NDArray[np.float32], start: int
) -> None:
    from av import AudioFrame

    layout = "mono" if sound_CN.shape[0] == 1 else "stereo"
    samples = AudioFrame.from_ndarray(np.ascontiguousarray(sound_CN), format="fltp", layout=layout)
    samples.sample_rate, samples.pts, samples.time_base = audio.rate, start, Fraction(1, audio.rate)
    container.mux(audio.encode(samples))


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Generator[Path]:
    """A name to write to in the folder of `path`; flushed and renamed at the end, removed on any error."""
    target = Path(path)
    if "\0" in str(target):
        raise BadRequest("path", str(target), "cannot be the name of a file: it holds a zero byte")
    if not target.parent.is_dir():
        raise BadRequest("path", str(target), f"there is no folder {str(target.parent)!r}")
    if target.is_dir():
        raise BadRequest("path", str(target), "is a folder; name a file in it")
    temporary = target.with_name(f".{secrets.token_hex(8)}{target.suffix}")
    try:
        yield temporary
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)
