"""What may be asked of a checkpoint: one validation for library, command line and servers.

A request is checked twice: `ask` looks at each field alone (types, ranges, unknown names), `settle` at the
whole request against one checkpoint. Every option that is accepted changes the result; any other is a
BadRequest.
"""

import json
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, NoReturn, TypeVar, cast

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from armillary.errors import BadRequest, nearest

Task = Literal["reason", "upsample", "generate", "forward_dynamics", "inverse_dynamics", "policy"]
Asked = TypeVar("Asked", bound="Request")
LONGEST_TEXT, TURN = 2**20, 64  # characters
DEEPEST = 64  # levels of lists and dictionaries that a receipt or a message shows
MEDIA = {"image", "video", "image_url", "video_url"}  # parts of a conversation that hold no words


def _words(value: object) -> object:
    """A prompt as text; a structured caption (a dictionary) becomes JSON, as in training."""
    if isinstance(value, Mapping):
        try:
            return json.dumps(value, allow_nan=False)
        except (TypeError, ValueError) as error:
            raise ValueError(f"a structured caption must be plain JSON ({error})") from None
    return _whole_text(value)


def _whole_text(value: object) -> object:
    """The text, or the conversation with every text in it, as it is; ValueError for half of a character, and
    for more than anybody reads: cutting that into tokens would keep everything else waiting."""
    try:
        count = _characters(value)
    except RecursionError:
        raise ValueError("is nested too deeply, or holds itself") from None
    if count > LONGEST_TEXT:
        raise ValueError(
            f"is too long: at most {LONGEST_TEXT} characters, each turn and part counts as {TURN}"
        )
    return value


def _characters(value: object) -> int:
    """Characters of all text."""
    if isinstance(value, str):
        if not _encodes(value):
            raise ValueError("holds half of a character (a lone surrogate); give whole Unicode text")
        return len(value)
    if isinstance(value, list | tuple):
        return sum(TURN + _characters(item) for item in cast("list[Any]", value))
    if isinstance(value, Mapping):
        said = cast("dict[str, Any]", value)
        return sum(_characters(key) + _characters(said[key]) for key in said.keys() - MEDIA)
    return 0


def _encodes(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _sound(value: object) -> object:
    """True, false, or whatever may hold a sound."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        raise ValueError("true, false, or a sound: a file, or an array [channels, samples]")
    return value


def _frame_numbers(value: object) -> object:
    """Numbers of frames in rising order, each once."""
    if isinstance(value, list | tuple | set | frozenset | range):
        numbers = list(cast("list[Any]", value))
        return tuple(sorted(set(numbers))) if all(type(x) is int for x in numbers) else tuple(numbers)
    return value


def _size(value: object) -> object:
    """(width, height) of "WxH" or of two numbers."""
    if isinstance(value, str):
        width, _, height = value.lower().partition("x")
        return (int(width), int(height)) if width.isdecimal() and height.isdecimal() else value
    return tuple(cast("list[Any]", value)) if isinstance(value, list) else value


def _span(value: object) -> object:
    """(low, high) of two numbers in rising order."""
    pair = tuple(cast("list[Any]", value)) if isinstance(value, list | tuple) else value
    if isinstance(pair, tuple) and len(pair) == 2 and all(isinstance(x, int | float) for x in pair):
        if not pair[0] < pair[1]:
            raise ValueError("the first time must be below the second")
        return (float(pair[0]), float(pair[1]))
    return pair


Words = Annotated[str, BeforeValidator(_words)]
Side = Annotated[int, Field(ge=1, le=16384)]
Size = Annotated[
    tuple[Side, Side] | None,
    BeforeValidator(_size),
    Field(description="WxH in pixels, such as 64x64; sides 1 to 16384"),
]
Number = Annotated[float, Field(allow_inf_nan=False)]
Frames = Annotated[int | None, Field(ge=1, le=5001, description="a whole number, 1 (a picture) to 5001")]
Rate = Annotated[Number | None, Field(ge=1, le=120, description="frames a second, 1 to 120")]
Time = Annotated[float, Field(ge=0, le=1000, allow_inf_nan=False)]
Times = Annotated[tuple[Time, Time] | None, BeforeValidator(_span)]
Frame = Annotated[int, Field(ge=0, le=1250)]
LatentFrames = Annotated[tuple[Frame, ...] | None, BeforeValidator(_frame_numbers), Field(min_length=1)]
GridName = Literal["native", "stock", "karras"]
NoiseName = Literal["own", "diffusers"]
NegativeStyle = Literal["inverse", "same", "plain"]
Hint = Literal["edge", "blur", "depth", "seg", "wsm"]
Strength = Literal["very_low", "low", "medium", "high", "very_high"]


LARGEST_SEED = 2**63 - 1


class Request(BaseModel):
    """What all requests share. A field's description says what is legal: it is the error's text too."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)
    task: ClassVar[Task]

    seed: int | None = Field(None, ge=0, le=LARGEST_SEED, description="a whole number, 0 to 2**63 - 1")

    @property
    def given(self) -> dict[str, Any]:
        """The options that were asked for, in the order of the fields."""
        fields, asked = type(self).model_fields, self.model_fields_set
        return {field.alias or name: getattr(self, name) for name, field in fields.items() if name in asked}


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
    stop: list[Annotated[str, Field(min_length=1)]] = Field(
        [], max_length=64, description="a list of at most 64 texts, none empty"
    )
    n: int = Field(1, ge=1, le=64, description="a whole number of answers, 1 to 64")
    form: Any = Field(None, alias="schema", description="a pydantic model, or a JSON schema as a dictionary")
    tools: Annotated[list[dict[str, Any]], BeforeValidator(_whole_text)] = Field(
        [], description="a list of functions that the answer may call"
    )
    tool_choice: str = Field("auto", description="auto, required, or the name of a tool")
    thinking_budget: int | None = Field(
        None, ge=0, le=2**20, description="a whole number of tokens, 0 to 1048576"
    )
    logprobs: int | None = Field(None, ge=0, le=20, description="a whole number of alternatives, 0 to 20")


class DrawRequest(Request):
    """What all requests share that denoise."""

    steps: int | None = Field(None, ge=1, le=1000, description="a whole number of steps, 1 to 1000")
    guidance: Number | None = Field(None, ge=0, le=20, description="a number, 0 to 20 (1 is none)")
    shift: Number | None = Field(None, gt=0, le=100, description="more than 0, at most 100; usually 1 to 10")
    negative: Words | None = Field(None, description="text, or a structured caption as a dictionary")
    grid: GridName | None = Field(None, description="native, stock or karras")
    interval: Times = Field(None, description="two times, low and high, from 0 (clean) to 1000 (noise)")
    noise: NoiseName = Field("own", description="own or diffusers")


class ChoiceRequest(DrawRequest):
    """What those share that can draw several and let the reasoner choose."""

    candidates: int | None = Field(None, ge=2, le=64, description="a whole number of candidates, 2 to 64")
    judge: Words | None = Field(None, min_length=1, description="a question about what is made, as text")
    wanted: Words = Field("yes", min_length=1, description="how the right answer begins, as text")


class Control(BaseModel):
    """A clip that says how another one moves.

    Edges and blur are computed from the clip, as strongly as asked, unless it is `ready`; of the other kinds
    it is always the map itself. weight: how much it counts beside other controls, each seen apart.
    """

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    clip: Any
    weight: Number | None = Field(None, ge=0, le=100)
    strength: Strength | None = None
    ready: bool = False

    def told(self) -> dict[str, Any]:
        """What was given of it, as plain JSON."""
        return {name: shown(getattr(self, name)) for name in sorted(self.model_fields_set)}


def _controls(value: object) -> object:
    """Controls by kind, each with its clip alone or with what belongs to it."""
    if not isinstance(value, Mapping):
        return value
    given = cast("Mapping[str, Any]", value)
    return {hint: x if isinstance(x, Mapping) else {"clip": x} for hint, x in given.items()}


Controls = Annotated[dict[Hint, Control] | None, BeforeValidator(_controls), Field(min_length=1)]
_KINDS = "edge, blur, depth, seg or wsm, each with a clip, or with clip, weight, strength (very_low, low, "


class GenerateRequest(ChoiceRequest):
    """A picture or a clip from words and from whatever is given: pictures, clips, sound, controls."""

    task: ClassVar[Task] = "generate"

    prompt: Words = Field(description="text, or a structured caption as a dictionary")
    frames: Frames = None
    fps: Rate = None
    size: Size = None
    image: Any = Field(None, description="a picture")
    video: Any = Field(None, description="a clip")
    keep: Literal["first", "last"] = Field("last", description="first or last")
    clean_latents: LatentFrames = Field(None, description="numbers of latent frames, such as [0, 1]")
    sound: Annotated[Any, BeforeValidator(_sound)] = Field(
        False, description="true, false, or a sound: a file, or an array [channels, samples]"
    )
    edit: Any = Field(None, description="the picture to change")
    controls: Controls = Field(
        None, description=_KINDS + "medium, high, very_high) and ready (true or false)"
    )
    control_guidance: Number | None = Field(None, ge=0, le=20, description="a number, 0 to 20 (1 is none)")
    control_interval: Times = Field(
        None, description="two times, low and high, from 0 (clean) to 1000 (noise)"
    )
    chunk: int | None = Field(None, ge=5, le=5001, description="a whole number of frames, 5 to 5001")
    overlap: int | None = Field(None, ge=1, le=5001, description="a whole number of frames, 1 or more")
    system: str | None = Field(None, description="text, empty for none")
    verbatim: bool = Field(False, description="true or false")
    negative_style: NegativeStyle | None = Field(None, description="inverse, same or plain")
    n: int | None = Field(None, ge=1, le=64, description="a whole number of results, 1 to 64")
    upsample: bool = Field(False, description="true or false")


class UpsampleRequest(Request):
    """A short prompt that is to become a structured caption of a picture or clip that will be made."""

    task: ClassVar[Task] = "upsample"

    prompt: Words = Field(min_length=1, description="the short prompt, as text")
    frames: Frames = None
    fps: Rate = None
    size: Size = None
    image: Any = Field(None, description="the first frame, a picture")


class ActRequest(DrawRequest):
    """What the three tasks about a robot share."""

    domain: str = Field(description="the name of a robot")
    prompt: Words = Field("", description="what is done, as text")


class ForwardDynamicsRequest(ActRequest):
    """What a camera would see if a robot did this."""

    task: ClassVar[Task] = "forward_dynamics"

    image: Any = Field(description="the first frame, a picture")
    actions: Any = Field(description="rows of numbers [K, D] in the robot's units")
    sound: bool = Field(False, description="true or false")


class InverseDynamicsRequest(ActRequest):
    """What a robot did in this clip."""

    task: ClassVar[Task] = "inverse_dynamics"

    video: Any = Field(description="a clip")


class PolicyRequest(ActRequest, ChoiceRequest):
    """What a robot should do now, and what that would look like."""

    task: ClassVar[Task] = "policy"

    prompt: Words = Field(min_length=1, description="the instruction, as text")
    image: Any = Field(description="what the robot sees now, a picture")
    state: Any = Field(None, description="numbers [D] in the robot's units")
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
    fields = {field.alias or own: field for own, field in kind.model_fields.items()}
    if first["type"] == "extra_forbidden" and len(first["loc"]) == 1:
        close = " or ".join(nearest(name, fields))
        message = f"there is no such option here; nearest: {close}"
        raise BadRequest(name, shown(given[name]), message) from None
    legal, whole = str(fields[name].description), len(first["loc"]) == 1
    if first["type"] == "missing" and whole:
        raise BadRequest(name, None, f"is needed: {legal}") from None
    if first["type"] == "value_error":
        raise BadRequest(name, shown(given[name]), str(context["error"])) from None
    limit = context.get("ge", context.get("le"))
    limit = f"{limit:g}" if isinstance(limit, float) else limit
    near = "" if limit is None or not whole else f"; nearest: {limit}"
    raise BadRequest(name, shown(given[name]), legal + near) from None


def shown(value: Any, deepest: int = DEEPEST) -> Any:
    """A value as plain JSON; of pictures, clips, arrays and data URIs a short description, of what lies
    `deepest` levels deep none."""
    if deepest == 0:
        return "..."
    if isinstance(value, str) and value[:5].lower() == "data:" and ";base64," in value[:200]:
        return f"<data URI of {len(value)} characters>"
    if value is None or isinstance(value, str | int | float):
        return value
    if isinstance(value, list | tuple):
        return [shown(item, deepest - 1) for item in cast("list[Any]", value)]
    if isinstance(value, Mapping):
        return {str(key): shown(item, deepest - 1) for key, item in cast("dict[Any, Any]", value).items()}
    if isinstance(value, bytes):
        return f"<{len(value)} bytes>"
    if hasattr(value, "__fspath__"):
        return str(value)
    shape = getattr(value, "shape", None)
    return f"<{type(value).__name__}{'' if shape is None else f' {list(shape)}'}>"
