"""What may be asked of a checkpoint: one validation for library, command line and servers, and the receipt.

A request is checked twice: `ask` looks at each field alone (types, ranges, unknown names), `settle_...` at
the whole request against the `Facts` of one checkpoint. What comes out is complete: every number is known,
and what was filled in or rounded is noted. Neither reads media or weights. Every option that is accepted
changes the result; any other is a BadRequest.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Annotated, Any, ClassVar, Literal, NoReturn, TypeVar, cast

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from armillary import __version__
from armillary.errors import BadRequest, nearest

Task = Literal["reason", "generate", "forward_dynamics", "inverse_dynamics", "policy"]
Asked = TypeVar("Asked", bound="Request")

MAX_PIXELS = 1_000_000_000  # of a clip, all frames together
MAX_LATENTS = 65_536  # of one frame: the attention over them grows with their square

# -- one field alone -----------------------------------------------------------------------------------------


def _words(value: object) -> object:
    """A prompt as text; a structured caption (a dictionary) becomes JSON, as in training."""
    if isinstance(value, Mapping):
        try:
            return json.dumps(value, allow_nan=False)
        except (TypeError, ValueError) as error:
            raise ValueError(f"a structured caption must be plain JSON ({error})") from None
    return _whole_text(value)


def _whole_text(value: object) -> object:
    """The text, or the conversation with every text in it, as it is; ValueError for half of a character."""
    if isinstance(value, str) and any("\ud800" <= letter <= "\udfff" for letter in value):
        raise ValueError("holds half of a character (a lone surrogate); give whole Unicode text")
    if isinstance(value, list | tuple):
        for item in cast("list[Any]", value):
            _whole_text(item)
    elif isinstance(value, Mapping):
        for key in ("content", "text"):
            _whole_text(cast("dict[str, Any]", value).get(key))
    return value


def _size(value: object) -> object:
    """(width, height) of "WxH" or of two numbers."""
    if isinstance(value, str):
        width, _, height = value.lower().partition("x")
        return (int(width), int(height)) if width.isdecimal() and height.isdecimal() else value
    return tuple(cast("list[Any]", value)) if isinstance(value, list) else value


Words = Annotated[str, BeforeValidator(_words)]
Side = Annotated[int, Field(ge=1, le=16384)]
Size = Annotated[tuple[Side, Side] | None, BeforeValidator(_size)]
Number = Annotated[float, Field(allow_inf_nan=False)]


class Request(BaseModel):
    """What all requests share. A field's description says what is legal: it is the error's text too."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)
    task: ClassVar[Task]

    seed: int | None = Field(None, ge=0, le=2**63 - 1, description="a whole number, 0 to 2**63 - 1")

    @property
    def given(self) -> dict[str, Any]:
        """The options that were asked for, in the order of the fields."""
        asked = self.model_fields_set
        return {name: getattr(self, name) for name in type(self).model_fields if name in asked}


class ReasonRequest(Request):
    """A question about words, pictures and clips; or a whole conversation."""

    task: ClassVar[Task] = "reason"

    prompt: Words | None = Field(None, min_length=1, description="the question, as text")
    messages: Annotated[list[dict[str, Any]] | None, BeforeValidator(_whole_text)] = Field(
        None, min_length=1, description="a list of dictionaries, each of role and content"
    )
    images: list[Any] = Field([], description="a list of pictures")
    videos: list[Any] = Field([], description="a list of clips")
    max_tokens: int = Field(512, ge=1, le=2**20, description="a whole number of tokens, 1 to 1048576")
    temperature: Number = Field(0.0, ge=0, le=10, description="a number, 0 (greedy) to 10")
    top_k: int = Field(0, ge=0, le=2**20, description="a whole number of tokens, 0 (all) to 1048576")
    top_p: Number = Field(1.0, gt=0, le=1, description="a number, more than 0 and at most 1")
    repetition_penalty: Number = Field(1.0, gt=0, le=10, description="more than 0 (1 is none), at most 10")
    presence_penalty: Number = Field(0.0, ge=-2, le=2, description="a number, -2 to 2 (0 is none)")
    stop: list[Annotated[str, Field(min_length=1)]] = Field([], description="a list of texts, none empty")


class DrawRequest(Request):
    """What all requests share that denoise."""

    steps: int | None = Field(None, ge=1, le=1000, description="a whole number of steps, 1 to 1000")
    guidance: Number | None = Field(None, ge=0, le=20, description="a number, 0 to 20 (1 is none)")
    shift: Number | None = Field(None, gt=0, le=100, description="more than 0, at most 100; usually 1 to 10")
    negative: Words | None = Field(None, description="text, or a structured caption as a dictionary")


class GenerateRequest(DrawRequest):
    """A picture or a clip from words, continued from a picture or a clip, with or without sound."""

    task: ClassVar[Task] = "generate"

    prompt: Words = Field(description="text, or a structured caption as a dictionary")
    frames: int | None = Field(None, ge=1, le=5001, description="a whole number, 1 (a picture) to 5001")
    fps: Number | None = Field(None, ge=1, le=120, description="frames a second, 1 to 120")
    size: Size = Field(None, description="WxH in pixels, such as 64x64; sides 1 to 16384")
    image: Any = Field(None, description="a picture")
    video: Any = Field(None, description="a clip")
    sound: bool = Field(False, description="true or false")


class ActRequest(DrawRequest):
    """What the three tasks about a robot share."""

    domain: str = Field(description="the name of a robot")
    prompt: Words = Field("", description="what is done, as text")


class ForwardDynamicsRequest(ActRequest):
    """What a camera would see if a robot did this."""

    task: ClassVar[Task] = "forward_dynamics"

    image: Any = Field(description="the first frame, a picture")
    actions: Any = Field(description="rows of numbers [K, D] in the robot's units")


class InverseDynamicsRequest(ActRequest):
    """What a robot did in this clip."""

    task: ClassVar[Task] = "inverse_dynamics"

    video: Any = Field(description="a clip")


class PolicyRequest(ActRequest):
    """What a robot should do now, and what that would look like."""

    task: ClassVar[Task] = "policy"

    prompt: Words = Field(min_length=1, description="the instruction, as text")
    image: Any = Field(description="what the robot sees now, a picture")
    decode: bool = Field(True, description="true or false")


def ask(kind: type[Asked], options: Mapping[str, Any]) -> Asked:
    """The request, each field checked alone; None means not asked for. Raises BadRequest."""
    given = {name: _plain(value) for name, value in options.items() if value is not None}
    try:
        return kind.model_validate(given)
    except ValidationError as error:
        _refuse(kind, given, error)


def _plain(value: Any) -> Any:
    """One number of an array library as Python's own: a seed drawn by numpy is as good as any."""
    return value.item() if getattr(value, "shape", None) == () and hasattr(value, "item") else value


def _refuse(kind: type[Request], given: Mapping[str, Any], error: ValidationError) -> NoReturn:
    first = error.errors()[0]
    name, context = str(first["loc"][0]), first.get("ctx") or {}
    if first["type"] == "extra_forbidden":
        close = " or ".join(nearest(name, kind.model_fields))
        message = f"there is no such option here; nearest: {close}"
        raise BadRequest(name, shown(given[name]), message) from None
    legal, whole = str(kind.model_fields[name].description), len(first["loc"]) == 1
    if first["type"] == "missing" and whole:
        raise BadRequest(name, None, f"is needed: {legal}") from None
    if first["type"] == "value_error":
        raise BadRequest(name, shown(given[name]), str(context["error"])) from None
    limit = context.get("ge", context.get("le"))
    limit = f"{limit:g}" if isinstance(limit, float) else limit
    near = "" if limit is None or not whole else f"; nearest: {limit}"
    raise BadRequest(name, shown(given[name]), legal + near) from None


# -- the whole request, one checkpoint -----------------------------------------------------------------------


@dataclass(frozen=True)
class Usual:
    """The numbers of a denoising run that a checkpoint sets for a task unless others are asked for."""

    steps: int
    guidance: float
    shift: float | None  # None: the checkpoint's own grid, which has no shift


@dataclass(frozen=True)
class Facts:
    """What one checkpoint can do, read from its json files and the table of robots."""

    model: str
    digest: str
    sees: bool  # has a vision tower
    draws: bool  # has a video autoencoder
    sounds: bool  # has a sound port and an audio autoencoder
    frames: int  # of a clip, if not asked for
    fps: float
    size: tuple[int, int]  # (width, height) in pixels
    time_factor: int  # pixel frames a latent frame
    space_factor: int  # pixels a latent, on a side
    image: Usual
    video: Usual
    action: Usual
    kept: int = 5  # frames of a video that a continuation starts with
    robots: tuple[str, ...] = ()
    fixed_steps: bool = False  # a few-step student: its schedule is part of its weights


@dataclass(frozen=True)
class Numbers:
    """A denoising run as it will be made."""

    steps: int
    guidance: float
    shift: float | None
    seed: int


@dataclass(frozen=True)
class Canvas:
    """A picture (one frame) or clip as it will be made; width and height in pixels."""

    frames: int
    fps: float
    width: int
    height: int


@dataclass(frozen=True)
class Receipt:
    """What was used, what of it was filled in, what was rounded, by which model, at which cost."""

    task: Task
    model: str
    digest: str
    used: Mapping[str, Any]
    defaulted: tuple[str, ...] = ()
    rounded: Mapping[str, Mapping[str, Any]] = field(default_factory=dict[str, Any])
    tokens: Mapping[str, int] = field(default_factory=dict[str, int])
    seconds: Mapping[str, float] = field(default_factory=dict[str, float])
    version: str = __version__

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON: what is written into files."""
        return asdict(self) | {"defaulted": list(self.defaulted)}

    def spent(self, tokens: Mapping[str, int], seconds: Mapping[str, float]) -> "Receipt":
        """The same with its costs."""
        return replace(self, tokens=dict(tokens), seconds={k: round(v, 3) for k, v in seconds.items()})


def settle_reason(request: ReasonRequest, facts: Facts) -> Receipt:
    """Check a question against a checkpoint. Raises BadRequest."""
    if (request.prompt is None) == (request.messages is None):
        raise BadRequest("prompt", request.prompt, "give either a prompt or messages, one of them")
    for name, media in (("images", request.images), ("videos", request.videos)):
        if media and request.messages is not None:
            raise BadRequest(name, shown(media), "with messages, put pictures and clips into them")
        if media and not facts.sees:
            raise BadRequest(name, shown(media), f"{facts.model} has no vision tower: it reads text only")
    used = {"max_tokens": request.max_tokens, "temperature": request.temperature, **request.given}
    if request.temperature:
        return _receipt(request, facts, used | {"seed": request.seed or 0})
    for name in ("seed", "top_k", "top_p"):
        if name in used:
            raise BadRequest(name, used[name], "greedy ignores it; give a temperature above 0")
    return _receipt(request, facts, used)


def settle_generate(request: GenerateRequest, facts: Facts) -> tuple[Numbers, Canvas, Receipt]:
    """Check a picture or clip against a checkpoint and fill in what was left open. Raises BadRequest."""
    _check_draws(facts)
    canvas = _canvas(request, facts)
    numbers = _numbers(request, facts, facts.image if canvas.frames == 1 else facts.video)
    moving = {"fps": canvas.fps, "sound": request.sound} if canvas.frames > 1 else {}
    made = {"frames": canvas.frames, **moving, "size": f"{canvas.width}x{canvas.height}"}
    return numbers, canvas, _receipt(request, facts, request.given | made | asdict(numbers))


def settle_act(
    request: ForwardDynamicsRequest | InverseDynamicsRequest | PolicyRequest, facts: Facts
) -> tuple[Numbers, Receipt]:
    """Check a robot's request against a checkpoint and fill in what was left open. Raises BadRequest."""
    _check_draws(facts)
    if not facts.robots:
        raise BadRequest("model", facts.model, "has no action port: it knows no robots")
    if request.domain not in facts.robots:
        close, known = " or ".join(nearest(request.domain, facts.robots)), ", ".join(facts.robots)
        raise BadRequest("domain", request.domain, f"no such robot here; nearest: {close}; all: {known}")
    numbers = _numbers(request, facts, facts.action)
    return numbers, _receipt(request, facts, request.given | asdict(numbers))


def _check_draws(facts: Facts) -> None:
    if not facts.draws:
        raise BadRequest("model", facts.model, "has no video autoencoder: it only reasons")


def _canvas(request: GenerateRequest, facts: Facts) -> Canvas:
    frames = facts.frames if request.frames is None else request.frames
    if frames == 1:
        _check_picture(request, facts)
    if request.image is not None and request.video is not None:
        raise BadRequest("video", shown(request.video), "a clip starts from image or video, not from both")
    if request.sound and not facts.sounds:
        raise BadRequest("sound", True, f"{facts.model} makes no sound; leave it out")
    width, height = request.size or facts.size
    _check_size(width, height, facts.space_factor)
    made = 1 + math.ceil((frames - 1) / facts.time_factor) * facts.time_factor
    if request.video is not None and made < facts.kept + facts.time_factor:
        fewest = facts.kept + facts.time_factor
        raise BadRequest("frames", frames, f"{facts.kept} are kept of the video; give {fewest} or more")
    if made * width * height > MAX_PIXELS:
        most = MAX_PIXELS // (width * height)
        raise BadRequest("frames", frames, f"at {width}x{height} at most {most} frames fit")
    return Canvas(made, facts.fps if request.fps is None else request.fps, width, height)


def _check_picture(request: GenerateRequest, facts: Facts) -> None:
    """One frame has no rate and no sound, and nothing is left to draw when it is given."""
    for name in ("image", "video", "fps", "sound"):
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


def _numbers(request: DrawRequest, facts: Facts, usual: Usual) -> Numbers:
    if facts.fixed_steps:
        for name in ("steps", "guidance", "shift"):
            if name in request.given:
                message = f"{facts.model} was trained for its own {usual.steps} steps; leave it out"
                raise BadRequest(name, request.given[name], message)
    guidance = usual.guidance if request.guidance is None else request.guidance
    if request.negative is not None and guidance == 1:
        raise BadRequest("negative", request.negative, "guidance 1 ignores it; give more, usually 3 to 7")
    return Numbers(
        usual.steps if request.steps is None else request.steps,
        guidance,
        usual.shift if request.shift is None else request.shift,
        request.seed or 0,
    )


def _receipt(request: Request, facts: Facts, used: Mapping[str, Any]) -> Receipt:
    given = request.given
    asked, made = given.get("frames"), used.get("frames")
    return Receipt(
        request.task,
        facts.model,
        facts.digest,
        used={name: shown(value) for name, value in used.items()},
        defaulted=tuple(name for name in used if name not in given),
        rounded={} if asked in (None, made) else {"frames": {"asked": asked, "made": made}},
    )


def shown(value: Any) -> Any:
    """A value as plain JSON; of pictures, clips and arrays a short description."""
    if value is None or isinstance(value, str | int | float):
        return value
    if isinstance(value, list | tuple):
        return [shown(item) for item in cast("list[Any]", value)]
    if isinstance(value, Mapping):
        return {str(key): shown(item) for key, item in cast("dict[Any, Any]", value).items()}
    if isinstance(value, bytes):
        return f"<{len(value)} bytes>"
    if hasattr(value, "__fspath__"):
        return str(value)
    shape = getattr(value, "shape", None)
    return f"<{type(value).__name__}{'' if shape is None else f' {list(shape)}'}>"
