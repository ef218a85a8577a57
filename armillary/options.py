"""The options of a World's methods, as a person writes them; `requests.py` says what is legal."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypedDict

from pydantic import BaseModel

from armillary.media.pictures import PictureSource
from armillary.media.sound import SoundSource
from armillary.requests import GridName, Hint, NegativeStyle, NoiseName
from armillary.tasks.inputs import ClipSource


class AnswerOptions(TypedDict, total=False):
    """How an answer is worded and where it ends; greedy if left out."""

    max_tokens: int | None
    temperature: float | None
    top_k: int | None
    top_p: float | None
    repetition_penalty: float | None
    presence_penalty: float | None
    stop: list[str] | None
    seed: int | None
    n: int | None
    schema: type[BaseModel] | Mapping[str, Any] | None
    tools: Sequence[Mapping[str, Any]] | None
    tool_choice: str | None
    thinking_budget: int | None
    logprobs: int | None


class DrawOptions(TypedDict, total=False):
    """How to denoise; what is left out is the checkpoint's own."""

    seed: int | None
    steps: int | None
    guidance: float | None
    shift: float | None
    negative: str | dict[str, Any] | None
    grid: GridName | None
    interval: tuple[float, float] | None
    noise: NoiseName | None


class ChoiceOptions(DrawOptions, total=False):
    """To draw several, and to keep the one about which the reasoner most likely gives the `wanted` answer
    ("yes" if left out) to the question `judge`."""

    candidates: int | None
    judge: str | None
    wanted: str | None


class ActOptions(DrawOptions, total=False):
    """`prompt` says what is done, in words."""

    prompt: str | None


class GenerateOptions(ChoiceOptions, total=False):
    """What is made, and of what.

    frames=1 is a picture; size is "WxH" or (width, height). `image` is the first frame; of `video` the first
    or last frames are kept, as `keep` says, in the latent frames `clean_latents`. sound: True, or one to go
    with. edit: a picture to change. controls: clips by kind (edge, blur, depth, seg, wsm), each alone or as
    {"clip": ..., "weight": ..., "strength": ..., "ready": ...}. chunk and overlap: frames drawn at once, and
    how many of them repeat the end of the chunk before. system: another system sentence, "" for none;
    verbatim: nothing is added to the prompt; negative_style: what follows the negative (inverse, same or
    plain). upsample: the reasoner turns the prompt into a structured caption first.
    """

    frames: int | None
    fps: float | None
    size: str | tuple[int, int] | None
    image: PictureSource | None
    video: ClipSource | None
    keep: Literal["first", "last"] | None
    clean_latents: Sequence[int] | None
    sound: bool | SoundSource | None
    edit: PictureSource | None
    controls: Mapping[Hint, ClipSource | Mapping[str, Any]] | None
    control_guidance: float | None
    control_interval: tuple[float, float] | None
    chunk: int | None
    overlap: int | None
    system: str | None
    verbatim: bool | None
    negative_style: NegativeStyle | None
    upsample: bool | None


class UpsampleOptions(TypedDict, total=False):
    """Of what the caption shall be, as for `generate`; `seed` counts where the checkpoint draws its words."""

    frames: int | None
    fps: float | None
    size: str | tuple[int, int] | None
    image: PictureSource | None
    seed: int | None
