"""What each route takes. A field that a library request has as well shows that one's range and words, and is
checked there alone; what is checked here is which keys there are, and their types.
"""

import json
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from armillary.requests import GenerateRequest, PolicyRequest, ReasonRequest, Request

Number = int | float


def like(kind: type[Request], name: str, default: Any = None) -> Any:
    """A field with the description and the legal range of a library request's field."""
    known = kind.model_fields[name]
    names = {"ge": "minimum", "le": "maximum", "gt": "exclusiveMinimum", "lt": "exclusiveMaximum"}
    limits = {word: getattr(m, key) for m in known.metadata for key, word in names.items() if hasattr(m, key)}
    return Field(default, description=known.description, json_schema_extra=limits)


def _parsed(value: object) -> object:
    """A form has text only: objects come in it as JSON."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        raise ValueError("must be JSON") from None


JsonObject = Annotated[dict[str, Any], BeforeValidator(_parsed)]
Reference = Annotated[
    str | bytes | dict[str, Any],
    Field(description="a data URI, the id of an upload, a permitted URL, or in a form the file itself"),
]
MODEL: Any = Field(None, description="the model served; any other is refused")
USER: Any = Field(None, description="your own name for whoever asks; nothing depends on it")


class Body(BaseModel):
    """What all bodies share: unknown keys are refused by name."""

    model_config = ConfigDict(extra="forbid", frozen=True)


# ------------------------------------------------------------------------------------------------ reasoning


class JsonSchema(Body):
    """A schema that the answer follows."""

    name: str = "answer"
    description: str | None = None
    schema_: dict[str, Any] = Field(alias="schema")
    strict: bool | None = None


class ResponseFormat(Body):
    """How an answer is written: free text, any JSON object, or JSON that follows a schema."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None


class StreamOptions(Body):
    include_usage: bool = False


ECHO: Any = Field(None, description="taken where an answer is sent back as it came; not read again")


class ChatMessage(Body):
    """One turn. `content` is text or a list of parts: `text`, `image_url`, `video_url`.

    A model that was shown tools answers with `tool_calls`; the turn of role `tool` says what came of one.
    """

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[dict[str, Any]] | None = None
    tool_calls: list[dict[str, Any]] | None = None
    tool_call_id: str | None = None
    refusal: None = None
    reasoning_content: str | None = ECHO
    boxes: list[Any] | None = ECHO
    points: list[Any] | None = ECHO
    trajectories: list[Any] | None = ECHO
    events: list[Any] | None = ECHO
    name: str | None = Field(None, description="your own name for whoever speaks; nothing depends on it")


class FunctionName(Body):
    name: str


class ChatFunction(Body):
    """The one tool that must be called."""

    type: Literal["function"]
    function: FunctionName


class ResponsesFunction(FunctionName):
    """The one tool that must be called."""

    type: Literal["function"]


Choice = Literal["auto", "none", "required"]
TOOLS: Any = Field(None, description="functions that the answer may call; for models that were taught to")
CHOICE: Any = Field(
    None, description="whether it calls: auto, none, required (one call), or the one it calls"
)


class Answering(Body):
    """What both ways to ask for an answer share."""

    model: str | None = MODEL
    temperature: Number | None = like(ReasonRequest, "temperature")
    top_p: Number | None = like(ReasonRequest, "top_p")
    top_k: int | None = like(ReasonRequest, "top_k")
    presence_penalty: Number | None = like(ReasonRequest, "presence_penalty")
    repetition_penalty: Number | None = like(ReasonRequest, "repetition_penalty")
    thinking_budget: int | None = like(ReasonRequest, "thinking_budget")
    seed: int | None = like(ReasonRequest, "seed")
    stream: bool = False
    user: str | None = USER


class Drawing(Body):
    """How to denoise, in the words of vLLM-Omni."""

    size: str | None = like(GenerateRequest, "size")
    width: int | None = Field(None, description="pixels; with height, instead of size")
    height: int | None = Field(None, description="pixels; with width, instead of size")
    num_inference_steps: int | None = like(GenerateRequest, "steps")
    guidance_scale: Number | None = like(GenerateRequest, "guidance")
    flow_shift: Number | None = like(GenerateRequest, "shift")
    negative_prompt: str | None = like(GenerateRequest, "negative")
    seed: int | None = like(GenerateRequest, "seed")


class ChatRequest(Answering, Drawing):
    """`POST /v1/chat/completions`. With `modalities: ["image"]` the answer is a picture, and only then the
    options of a picture are legal."""

    messages: list[ChatMessage] = Field(min_length=1, max_length=2**14)
    modalities: list[Literal["text", "image"]] | None = None
    max_tokens: int | None = like(ReasonRequest, "max_tokens")
    max_completion_tokens: int | None = like(ReasonRequest, "max_tokens")
    n: int | None = like(ReasonRequest, "n")
    stop: str | list[str] | None = like(ReasonRequest, "stop")
    response_format: ResponseFormat | None = None
    tools: list[dict[str, Any]] | None = TOOLS
    tool_choice: Choice | ChatFunction | None = CHOICE
    logprobs: bool | None = Field(None, description="tell how likely each token was")
    top_logprobs: int | None = like(ReasonRequest, "logprobs")
    stream_options: StreamOptions | None = None


class TextFormat(Body):
    """`ResponseFormat` with the schema beside its type."""

    type: Literal["text", "json_object", "json_schema"]
    name: str = "answer"
    description: str | None = None
    schema_: dict[str, Any] | None = Field(None, alias="schema")
    strict: bool | None = None


class TextOptions(Body):
    format: TextFormat | None = None


class ResponsesRequest(Answering):
    """`POST /v1/responses`. `input` is text or a list of messages of `input_text` and `input_image` parts,
    and of calls of tools with what came of them."""

    input: str | list[dict[str, Any]]
    instructions: str | None = None
    max_output_tokens: int | None = like(ReasonRequest, "max_tokens")
    text: TextOptions | None = None
    tools: list[dict[str, Any]] | None = TOOLS
    tool_choice: Choice | ResponsesFunction | None = CHOICE
    store: Literal[False] | None = Field(None, description="responses are not stored")


# --------------------------------------------------------------------------------------------------- making


class ImagesRequest(Drawing):
    """`POST /v1/images/generations`."""

    prompt: str = like(GenerateRequest, "prompt", ...)
    model: str | None = MODEL
    n: int = Field(1, ge=1, le=10, description="pictures, 1 to 10; the seeds count up from `seed`")
    response_format: Literal["b64_json", "file"] = "b64_json"
    output_format: Literal["png", "jpeg", "webp"] = "png"
    output_compression: int = Field(100, ge=0, le=100, description="quality of jpeg and webp, 0 to 100")
    extra_params: JsonObject | None = Field(None, description="more options, in the words of vLLM-Omni")
    user: str | None = USER


class ImageEditRequest(ImagesRequest):
    """`POST /v1/images/edits`."""

    image: Reference


class VideosRequest(Drawing):
    """`POST /v1/videos` and `/v1/videos/sync`."""

    prompt: str = like(GenerateRequest, "prompt", "")
    model: str | None = MODEL
    input_reference: Reference | None = None
    image_reference: Reference | None = None
    video_reference: Reference | None = None
    audio_reference: Reference | None = None
    seconds: str | None = Field(None, pattern=r"^\d+$", description="instead of num_frames; whole seconds")
    num_frames: int | None = like(GenerateRequest, "frames")
    fps: Number | None = like(GenerateRequest, "fps")
    generate_sound: bool | None = like(GenerateRequest, "sound")
    extra_params: JsonObject | None = Field(None, description="more options, in the words of vLLM-Omni")
    user: str | None = USER


class ActionsRequest(Body):
    """`POST /v1/actions`: forward dynamics, inverse dynamics, policy."""

    task: Literal["forward_dynamics", "inverse_dynamics", "policy"]
    domain: str | None = Field(None, description="the robot; may be left out where the server has one")
    prompt: str | None = like(PolicyRequest, "prompt")
    image: Reference | None = None
    video: Reference | None = None
    actions: Annotated[list[list[Number]] | None, BeforeValidator(_parsed)] = Field(
        None, description="rows of numbers in the robot's units"
    )
    state: Annotated[list[Number] | None, BeforeValidator(_parsed)] = like(PolicyRequest, "state")
    clip: bool = Field(True, description="also give what it would look like, as MP4 in base64")
    steps: int | None = like(PolicyRequest, "steps")
    guidance: Number | None = like(PolicyRequest, "guidance")
    shift: Number | None = like(PolicyRequest, "shift")
    negative: str | None = like(PolicyRequest, "negative")
    seed: int | None = like(PolicyRequest, "seed")


class FileUpload(Body):
    """`POST /v1/files`."""

    file: bytes
    purpose: str = Field("vision", max_length=64, description="your own word for what it is for")


class TableRequest(Body):
    """`POST /v1/table`. Either `actions`, or an `instruction` that the policy follows."""

    episode: int = Field(ge=0, le=2**31 - 1, description="the number of a start of the table-top")
    done: list[list[Number]] = Field([], max_length=512, description="all moves so far, px/s")
    picture: Reference | None = Field(None, description="what was imagined last; else what is really there")
    actions: list[list[Number]] | None = Field(
        None, min_length=1, max_length=64, description="moves to make now, px/s"
    )
    instruction: str | None = Field(None, min_length=1, description="what the policy is told")
    candidates: int | None = Field(None, ge=2, le=16, description="answers for the reasoner to choose from")
    judge: str | None = Field(None, min_length=1, description="what it is asked about each")
    wanted: str | None = Field(None, min_length=1, description="how the right answer begins")
    seed: int = Field(0, ge=0, le=2**31 - 1, description="the same seed imagines the same")


BODIES: tuple[type[Body], ...] = (
    ChatRequest,
    ResponsesRequest,
    ImagesRequest,
    ImageEditRequest,
    VideosRequest,
    ActionsRequest,
    FileUpload,
    TableRequest,
)
