"""Upsampling: the reasoner turns a short prompt into the structured caption that training had.

The keys and their order are those of spec/generator 2.4; pocket was taught a few of them. The model writes
the fields of what is made (frames, rate, size) too, as it learnt to; then they are set to what is asked for.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from armillary.codecs.text import Message
from armillary.decode import Sampling
from armillary.errors import BadRequest
from armillary.facts import Canvas
from armillary.media.source import Pixels
from armillary.prompts import with_media
from armillary.tasks.parts import Parts
from armillary.tasks.reason import reason

Short = Annotated[str, Field(max_length=400)]
Side = Annotated[int, Field(ge=1, le=16384)]
Span = Annotated[str, Field(pattern=r"^[0-9]{1,3}\.[0-9]s-[0-9]{1,3}\.[0-9]s$")]


class Form(BaseModel):
    """A part of a caption: its keys come in this order, and no others."""

    model_config = ConfigDict(extra="forbid")


class SmallSubject(Form):
    description: Short
    location: Short


class SmallAction(Form):
    time: Span
    description: Short


class Resolution(Form):
    H: Side
    W: Side


class SmallPicture(Form):
    """What pocket was taught to say of a picture."""

    subjects: Annotated[list[SmallSubject], Field(max_length=8)]
    background_setting: Short
    resolution: Resolution
    aspect_ratio: Short


class SmallClip(Form):
    """What pocket was taught to say of a clip."""

    subjects: Annotated[list[SmallSubject], Field(max_length=8)]
    background_setting: Short
    actions: Annotated[list[SmallAction], Field(max_length=8)]
    temporal_caption: Short
    audio_description: Short
    resolution: Resolution
    aspect_ratio: Short
    duration: Short
    fps: float


class Subject(Form):
    """One subject; what only people have may be left out."""

    description: str
    appearance_details: str
    relationship: str
    location: str
    relative_size: str
    orientation: str
    pose: str
    action: str
    state_changes: str
    clothing: str = ""
    expression: str = ""
    gender: str = ""
    age: str = ""
    skin_tone_and_texture: str = ""
    facial_features: str = ""
    number_of_subjects: int = 1
    number_of_arms: int = 0
    number_of_legs: int = 0


class Lighting(Form):
    conditions: str
    direction: str
    shadows: str
    illumination_effect: str


class Aesthetics(Form):
    composition: str
    color_scheme: str
    mood_atmosphere: str
    patterns: str


class Cinematography(Form):
    camera_motion: str
    framing: str
    camera_angle: str
    depth_of_field: str
    focus: str
    lens_focal_length: str


class Action(Form):
    time: str
    description: str


class Sign(Form):
    """Text that is to be seen."""

    text: str
    category: str
    appearance: str
    spatial_temporal: str
    context: str


class Segment(Form):
    segment_index: int
    time_range: str
    description: str
    key_changes: str
    camera: str


class Quadrants(Form):
    top_left: str
    top_right: str
    bottom_left: str
    bottom_right: str
    absolute_center: str


class Scene(Form):
    """What pictures and clips have in common."""

    subjects: list[Subject]
    background_setting: str
    lighting: Lighting
    aesthetics: Aesthetics
    cinematography: Cinematography
    style_medium: str
    artistic_style: str
    context: str


class LargePicture(Scene):
    text_and_signage_elements: list[Sign]
    subject_details: str
    quadrant_scan: Quadrants
    comprehensive_t2i_caption: str
    resolution: Resolution
    aspect_ratio: str


class LargeClip(Scene):
    actions: list[Action]
    text_and_signage_elements: list[Sign]
    segments: list[Segment]
    transitions: list[str]
    temporal_caption: str
    audio_description: str
    resolution: Resolution
    aspect_ratio: str
    duration: str
    fps: float


@dataclass(frozen=True)
class Manner:
    """How a family of checkpoints is asked for a caption."""

    request: str  # with {prompt}, {what}, {start} and {output} where they belong
    system: str | None
    sampling: Sampling
    picture: type[Form]
    clip: type[Form]


SMALL = Manner("{prompt}\nDescribe this as JSON.", None, Sampling(max_tokens=1024), SmallPicture, SmallClip)
LARGE = Manner(
    "Turn this short prompt into a structured caption of the {what} that it asks for, as one JSON object. "
    "Keep all that the prompt says; what it leaves open, fill in concretely and so that it could be filmed."
    "{start}\n\nPrompt: {prompt}\n\nOutput parameters: {output}",
    "You are a helpful assistant.",
    Sampling(max_tokens=20_000, temperature=0.7, top_k=20, top_p=0.8, presence_penalty=1.5, seed=3407),
    LargePicture,
    LargeClip,
)


def manner(*, small: bool) -> Manner:
    """How a checkpoint is asked: as released ones are, or as pocket was taught."""
    return SMALL if small else LARGE


def messages(prompt: str, asked: Manner, canvas: Canvas, image: Pixels | None) -> list[Message]:
    """The conversation that asks for the caption: a first frame, if there is one, before the words."""
    text = asked.request.format(
        prompt=prompt,
        what="picture" if canvas.frames == 1 else "video",
        start="" if image is None else " The video begins with the picture above.",
        output=", ".join(f"{key} {_plain(value)}" for key, value in _with_media({}, canvas).items()),
    )
    content: list[Message] = [] if image is None else [{"type": "image", "image": image}]
    system: list[Message] = [{"role": "system", "content": asked.system}] if asked.system else []
    return [*system, {"role": "user", "content": [*content, {"type": "text", "text": text}]}]


def upsample(
    parts: Parts,
    prompt: str,
    asked: Manner,
    *,
    canvas: Canvas,
    image: Pixels | None = None,
    seed: int | None = None,
) -> dict[str, Any]:
    """The structured caption of what `canvas` will show, from a short prompt and a first frame [H, W, 3].

    Raises BadRequest naming the prompt if the model did not come to the end of a caption.
    """
    sampling = asked.sampling if seed is None else replace(asked.sampling, seed=seed)
    turns = messages(prompt, asked, canvas, image)
    form = asked.picture if canvas.frames == 1 else asked.clip
    answer = reason(parts, turns, sampling=sampling, schema=form)
    if answer.parsed is None:
        written = answer.usage.completion_tokens
        message = f"the reasoner came to no whole caption in {written} tokens; reword it"
        raise BadRequest("prompt", prompt, message)
    return _with_media(answer.parsed.model_dump(exclude_unset=True), canvas)


def _with_media(caption: Mapping[str, Any], canvas: Canvas) -> dict[str, Any]:
    """The caption with the fields of what is made."""
    return with_media(
        caption,
        frames=canvas.frames,
        fps=canvas.fps,
        height=canvas.height,
        width=canvas.width,
    )


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
