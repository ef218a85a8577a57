"""Pictures, clips and sound of a request read in: as much of them as will be used.

Shape letters: T frames, H W height and width in pixels.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from armillary.errors import BadRequest
from armillary.facts import Canvas, Facts
from armillary.media import Clip, ClipIn, probe, read_clip, read_picture
from armillary.media.sound import read_sound
from armillary.media.source import FileSource, Pixels
from armillary.modes import TUNED, kept_latents
from armillary.requests import Control as AskedControl
from armillary.requests import GenerateRequest, shown
from armillary.tasks.controls import Control
from armillary.tasks.frames import check_frames
from armillary.tasks.generate import Given

ClipSource = FileSource | Clip | ClipIn | Pixels
RATE_TOLERANCE = 0.01  # 29.97 and 30 frames a second are taken for the same


def fit_facts(request: GenerateRequest, facts: Facts) -> tuple[Facts, int | None]:
    """A checkpoint's facts with the rate and size of given media as defaults; and frames of the controls.

    Raises BadRequest for rates and lengths that do not agree.
    """
    if request.edit is not None:
        return replace(facts, size=_edited_size(request.edit, facts)), None
    clips = {f"controls.{hint}": asked.clip for hint, asked in (request.controls or {}).items()}
    if request.video is not None and request.image is None:
        clips = {"video": request.video, **clips}
    for name, source in clips.items():
        found = rate(source, name)
        if found is not None and request.fps is not None:
            require_rate(found, request.fps, f"{request.fps:g} frames a second are asked for", name)
        facts = replace(facts, fps=found or facts.fps)
    for name, source in clips.items():
        require_rate(rate(source, name), facts.fps, f"another clip has {facts.fps:g} frames a second", name)
    lengths = [_length(source, name) for name, source in clips.items() if name != "video"]
    if len(set(lengths)) > 1 and request.frames is None:
        raise BadRequest("frames", None, f"the controls have {lengths}; give at most {min(lengths)}")
    return facts, min(lengths) if lengths else None


def read_given(request: GenerateRequest, facts: Facts, canvas: Canvas) -> Given:
    """What a picture or clip starts from. Raises BadRequest for what cannot be read or is too short."""
    if request.edit is not None:
        return Given(edit=picture(request.edit, "edit"))
    given = Given(controls=_controls(request, canvas))
    if request.sound is not False and request.sound is not True:
        heard = read_sound(request.sound, rate=facts.sound_rate, channels=facts.sound_channels)
        given = replace(given, sound=heard)
    if request.image is not None:
        return replace(given, image=picture(request.image))
    if request.video is not None:
        kept = kept_latents(request)
        frames = _end_of(request.video, kept[-1] * facts.time_factor + 1, request.keep)
        return replace(given, video=check_frames(frames, "video"), clean_latents=kept, keep=request.keep)
    return given


def require_rate(found: float | None, wanted: float, why: str, field: str = "video") -> None:
    """Refuse frames or actions of another rate; those without one are taken to have it."""
    if found is not None and abs(found / wanted - 1) > RATE_TOLERANCE:
        raise BadRequest(f"{field}.fps", round(found, 3), f"{why}; bring it to that rate")


def picture(source: Any, field: str = "image") -> Pixels:
    """A picture uint8 [H, W, 3]."""
    picture_HW3 = read_picture(source, field=field)
    check_frames(picture_HW3, field, still=True)
    return picture_HW3


def rate(source: ClipSource, field: str) -> float | None:
    """Frames a second of a clip; None for bare frames. Raises BadRequest for what is no clip."""
    if isinstance(source, Clip | ClipIn):
        return source.fps
    if isinstance(source, np.ndarray):
        check_frames(source, field)
        return None
    return probe(source, field=field).fps


def all_frames(source: ClipSource) -> Pixels:
    """Every frame of a clip."""
    if isinstance(source, Clip | ClipIn):
        return source.frames
    return source if isinstance(source, np.ndarray) else read_clip(source).frames


def _length(source: ClipSource, field: str) -> int:
    if isinstance(source, Clip | ClipIn | np.ndarray):
        return len(all_frames(source))
    return probe(source, field=field).frames


def _some_frames(source: ClipSource, chosen: Sequence[int], field: str) -> Pixels:
    """Chosen frames; of a file, no others are decoded."""
    if isinstance(source, Clip | ClipIn | np.ndarray):
        return all_frames(source)[list(chosen)]
    return read_clip(source, indices=chosen, field=field).frames


def _end_of(source: ClipSource, count: int, keep: str) -> Pixels:
    """The first or last frames, which a continuation keeps."""
    length = _length(source, "video")
    if length < count:
        message = f"has {length} frames; a continuation needs {count} or more, or give an image"
        raise BadRequest("video", shown(source), message)
    first = 0 if keep == "first" else length - count
    return _some_frames(source, range(first, first + count), "video")


def _controls(request: GenerateRequest, canvas: Canvas) -> tuple[Control, ...]:
    """The controls in the order of training, as long as what is made."""
    asked = request.controls or {}
    return tuple(_control(hint, asked[hint], canvas) for hint in TUNED if hint in asked)


def _control(hint: Any, asked: AskedControl, canvas: Canvas) -> Control:
    name = f"controls.{hint}"
    frames = check_frames(_some_frames(asked.clip, range(canvas.frames), name), name)
    computed = hint in ("edge", "blur") and not asked.ready
    return Control(hint, frames, asked.weight, (asked.strength or "medium") if computed else None)


def _edited_size(source: Any, facts: Facts) -> tuple[int, int]:
    """Width and height of an edited picture: its own aspect, the longer side as in training."""
    height, width, _ = picture(source, "edit").shape
    scale, step = facts.edit_side / max(height, width), 2 * facts.space_factor
    wide, high = (max(step, round(side * scale / step) * step) for side in (width, height))
    return wide, high
