"""What of a picture or clip goes together, on which canvas, in how many chunks: checks that need no media."""

import math
from dataclasses import dataclass, replace

from armillary.errors import BadRequest
from armillary.facts import Canvas, Facts
from armillary.requests import Control, GenerateRequest, Hint, shown

MAX_PIXELS = 1_000_000_000  # of a clip, all frames together
MAX_LATENTS = 65_536  # of one frame: the attention over them grows with their square
MAX_FRAMES = 5001
CONTROLLED = 93  # frames drawn at once under controls, as in training


@dataclass(frozen=True)
class Tuned:
    """The guidance that suits a control."""

    guidance: float
    control_guidance: float


# In the order in which controls stand.
TUNED: dict[Hint, Tuned] = {
    "edge": Tuned(3.0, 1.5),
    "blur": Tuned(3.0, 1.5),
    "depth": Tuned(3.0, 1.5),
    "seg": Tuned(3.0, 2.0),
    "wsm": Tuned(1.0, 3.0),
}


def tuning(request: GenerateRequest) -> Tuned | None:
    """What suits the first control, with the control guidance that was asked for; None without controls."""
    if not request.controls:
        return None
    usual = next(TUNED[hint] for hint in TUNED if hint in request.controls)
    asked = request.control_guidance
    return usual if asked is None else replace(usual, control_guidance=asked)


def kept_latents(request: GenerateRequest) -> tuple[int, ...]:
    """The latent frames that a given clip fills: unless others are asked for its 5 frames at one end."""
    return request.clean_latents or (0, 1)


def check_together(request: GenerateRequest, facts: Facts) -> None:
    """Refuse options that do not go together, and those that would do nothing beside the others."""
    _refuse_idle(request)
    given = {name: value for name, value in request.given.items() if value is not False}
    for one, others in (
        ("image", ("video",)),
        ("edit", ("image", "video", "controls", "fps", "sound", "chunk", "overlap")),
        ("controls", ("sound",)),
        ("upsample", ("video", "edit", "controls", "verbatim")),  # these say more than words and a picture
    ):
        for other in others:
            if one in given and other in given:
                raise BadRequest(
                    other, shown(given[other]), f"does not go together with {one}; give one of them"
                )
    if request.edit is not None and request.frames not in (None, 1):
        raise BadRequest("frames", request.frames, "an edited picture is one; leave it out")
    if request.sound is not False and not facts.sounds:
        raise BadRequest("sound", shown(request.sound), f"{facts.model} makes no sound; leave it out")
    for name in ("edit", "controls"):
        if facts.fixed_steps and name in given:
            raise BadRequest(
                name, shown(given[name]), f"{facts.model} was trained to few steps without; leave it out"
            )
    controls = request.controls or {}
    for hint, control in controls.items():
        _check_control(hint, control, alone=len(controls) == 1)
    if controls and all(control.weight == 0 for control in controls.values()):
        raise BadRequest("controls", dict.fromkeys(controls, 0), "one of the weights must be above 0")


def _refuse_idle(request: GenerateRequest) -> None:
    given = request.given
    for name, needed in (
        ("keep", "video"),
        ("clean_latents", "video"),
        ("control_guidance", "controls"),
        ("control_interval", "controls"),
    ):
        if name in given and needed not in given:
            raise BadRequest(name, shown(given[name]), f"says nothing without {needed}; leave it out")
    tuned = tuning(request)
    if request.control_interval is not None and tuned is not None and tuned.control_guidance == 1:
        raise BadRequest("control_interval", request.control_interval, "control_guidance 1 ignores it")


def _check_control(hint: str, control: Control, *, alone: bool) -> None:
    name = f"controls.{hint}"
    computed = hint in ("edge", "blur")
    if not computed and control.ready:
        raise BadRequest(f"{name}.ready", True, "always is: only edge and blur are computed; leave it out")
    if control.strength is not None and (not computed or control.ready):
        why = "its clip is ready: nothing is computed" if computed else "only edge and blur are computed"
        raise BadRequest(f"{name}.strength", control.strength, f"{why}; leave it out")
    if alone and control.weight is not None:
        raise BadRequest(f"{name}.weight", control.weight, "one control alone has no weight; leave it out")


def plan_canvas(request: GenerateRequest, facts: Facts, length: int | None) -> Canvas:
    frames = length or facts.frames if request.frames is None else request.frames
    frames = 1 if request.edit is not None else frames
    if frames == 1:
        _check_picture(request, facts)
    if length is not None and frames > length:
        raise BadRequest("frames", frames, f"the controls have {length}; give so many or fewer")
    if frames > MAX_FRAMES:
        raise BadRequest(
            "frames", frames, f"the controls are longer than {MAX_FRAMES} frames; say how many to make"
        )
    width, height = request.size or facts.size
    _check_size(width, height, facts.space_factor)
    whole = 1 + math.ceil((frames - 1) / facts.time_factor) * facts.time_factor
    made = frames if request.controls else whole  # as long as its controls
    if made * width * height > MAX_PIXELS:
        most = MAX_PIXELS // (width * height)
        raise BadRequest("frames", frames, f"at {width}x{height} at most {most} frames fit")
    chunk, overlap = _chunks(request, facts, whole)
    _check_kept(request, facts, chunk)
    fps = facts.fps if request.fps is None else request.fps
    return Canvas(made, fps, width, height, chunk, overlap)


def _chunks(request: GenerateRequest, facts: Facts, whole: int) -> tuple[int, int]:
    """Frames drawn at once, and how many of them repeat the end of the chunk before."""
    usual = min(facts.frames, CONTROLLED) if request.controls else facts.frames
    chunk, factor = request.chunk or min(whole, usual), facts.time_factor
    for name, value in (("chunk", request.chunk), ("overlap", request.overlap)):
        if value is not None and value % factor != 1:
            down = value - (value - 1) % factor
            raise BadRequest(
                name, value, f"must be {factor}n + 1; nearest: {max(down, 1)} or {down + factor}"
            )
    if chunk > whole:
        raise BadRequest(
            "chunk", chunk, f"only {whole} frames are made; give {whole} or fewer, or leave it out"
        )
    if chunk == whole:
        if request.overlap is not None:
            raise BadRequest(
                "overlap", request.overlap, f"all {whole} frames are drawn at once; leave it out"
            )
        return chunk, 1
    overlap = request.overlap or min(1 if request.controls else 1 + factor, chunk - factor)
    if overlap >= chunk:
        raise BadRequest(
            "overlap", overlap, f"{chunk} frames are drawn at once; give {chunk - factor} or fewer"
        )
    return chunk, overlap


def _check_kept(request: GenerateRequest, facts: Facts, chunk: int) -> None:
    """A continuation must fit its latent frames, and leave something to draw."""
    if request.video is None:
        return
    kept, count = kept_latents(request), (chunk - 1) // facts.time_factor + 1
    if request.clean_latents is not None and (kept[-1] >= count or len(kept) == count):
        message = f"must be some of 0 to {count - 1}, the latent frames of {chunk} frames, but not all"
        raise BadRequest("clean_latents", list(kept), message)
    if kept[-1] >= count or len(kept) == count:
        fewest = (kept[-1] + 1) * facts.time_factor + 1
        message = f"{kept[-1] * facts.time_factor + 1} are kept of the video; give {fewest} or more"
        raise BadRequest("frames", shown(request.frames), message)


def _check_picture(request: GenerateRequest, facts: Facts) -> None:
    """One frame has no rate and no sound, and nothing is left to draw when it is given."""
    for name in ("image", "video", "fps", "sound", "chunk", "overlap"):
        value = getattr(request, name)
        if value is not None and value is not False:
            message = f"not used for a picture (frames=1); give frames={1 + facts.time_factor} or more"
            raise BadRequest(name, shown(value), message)


def _check_size(width: int, height: int, factor: int) -> None:
    share = MAX_LATENTS * factor**2 / (width * height)
    if share < 1:
        largest = "x".join(str(int(side * math.sqrt(share) / factor) * factor) for side in (width, height))
        raise BadRequest("size", f"{width}x{height}", f"larger than this model can hold; nearest: {largest}")
    down, up = (
        "x".join(str(max(factor, rounding(side / factor) * factor)) for side in (width, height))
        for rounding in (math.floor, math.ceil)
    )
    close = down if down == up else f"{down} or {up}"
    if close != f"{width}x{height}":
        raise BadRequest("size", f"{width}x{height}", f"sides are multiples of {factor}; nearest: {close}")
