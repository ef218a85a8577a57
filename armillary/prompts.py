"""The words around a prompt, as training had them: what the generator reads, and what the reasoner is asked.

Misspellings in the system prompts are in the training text and stay.
"""

import json
from collections.abc import Mapping
from typing import Annotated, Any, NamedTuple

from pydantic import BaseModel, Field, RootModel

from armillary.facts import Facts

SYSTEM_IMAGE = "You are a helpful assistant who will generate images from a give prompt."
SYSTEM_VIDEO = "You are a helpful assistant who will generate videos from a give prompt."
SYSTEM_EDIT = "You are a helpful assistant who will edit images based on the user's instructions."
SYSTEM_TRANSFER = (
    "You are a helpful assistant that generates images or videos following the user's instructions and "
    "control signals (edge maps, blur, depth, or segmentation)."
)

VIEWPOINTS: Mapping[str, str] = {
    "ego_view": "This video is captured from a first-person perspective looking at the scene.",
    "third_person_view": (
        "This video is captured from a third-person perspective looking towards the agent from the front."
    ),
    "wrist_view": "This video is captured from a wrist-mounted camera.",
    "concat_view": "This video contains concatenated views from multiple camera perspectives.",
    "top_down_2d_view": "This video is captured from a top-down view of a flat 2D scene.",
}
_ASPECTS = ("1,1", "4,3", "3,4", "16,9", "9,16")


def with_metadata(
    prompt: str, *, frames: int, fps: float, height: int, width: int, negative: bool = False
) -> str:
    """The prompt followed by its duration (clips only) and resolution sentences; `negative` uses their
    denials. A structured caption holds them as fields instead: see `with_media`."""
    caption = None if negative else structured(prompt)
    if caption is not None:
        return json.dumps(with_media(caption, frames=frames, fps=fps, height=height, width=width))
    return with_sentences(prompt, frames=frames, fps=fps, height=height, width=width, denied=negative)


def with_sentences(
    text: str, *, frames: int, fps: float, height: int, width: int, denied: bool = False
) -> str:
    """Any text followed by its duration (clips only) and resolution sentences, or by their denials."""
    no = "not " if denied else ""
    what = "image" if frames == 1 else "video"
    sentences = [f"This {what} is {no}of {height}x{width} resolution."]
    if frames > 1:
        sentences.insert(0, f"The video is {no}{frames / fps:.1f} seconds long and is {no}of {fps:.0f} FPS.")
    for sentence in sentences:
        text = text.rstrip(".")
        text = f"{text}. {sentence}" if text else sentence
    return text


def structured(prompt: str) -> dict[str, Any] | None:
    """The structured caption in a prompt; None for prose."""
    try:
        caption: Any = json.loads(prompt)
    except (ValueError, RecursionError):
        return None
    return caption if isinstance(caption, dict) else None


def with_media(
    caption: Mapping[str, Any], *, frames: int, fps: float, height: int, width: int
) -> dict[str, Any]:
    """A structured caption whose duration, fps, resolution and aspect ratio are those of what is made.

    Keys that are there keep their place. A picture (one frame) has no duration and no fps.
    """
    moving = {"duration": f"{int(frames / fps)}s", "fps": float(fps)} if frames > 1 else {}
    kept = {key: value for key, value in caption.items() if moving or key not in ("duration", "fps")}
    size = {"resolution": {"H": height, "W": width}, "aspect_ratio": aspect_ratio(height, width)}
    return {**kept, **moving, **size}


def aspect_ratio(height: int, width: int) -> str:
    """The nearest of the five that training knows, as "width,height"."""
    return min(_ASPECTS, key=lambda a: abs(_ratio(a) - width / height))


def action_caption(task: str, *, view: str | None, frames: int, fps: float, height: int, width: int) -> str:
    """The structured caption of an action clip as JSON, in the key order of training.

    `view` is a key of VIEWPOINTS; height and width are the canvas that was encoded, in pixels.
    """
    seconds = frames / fps
    minutes, rest = divmod(round(seconds), 60)
    task = task.strip()
    if task and not task.endswith((".", "!", "?")):
        task += "."
    caption = {
        **({"cinematography": {"framing": VIEWPOINTS[view]}} if view else {}),
        "actions": [{"time": f"0:00-{minutes}:{rest:02d}", "description": task}],
        "duration": f"{int(seconds)}s",
        "fps": float(fps),
        "resolution": {"H": height, "W": width},
        "aspect_ratio": aspect_ratio(height, width),
    }
    return json.dumps(caption)


def _ratio(aspect: str) -> float:
    width, height = aspect.split(",")
    return int(width) / int(height)


# Questions to the reasoner. Answers have the forms of the released checkpoints (spec/model 6.7); a small
# checkpoint, such as pocket, is asked in the few words that it was taught, where it was taught any.

Share = Annotated[int, Field(ge=0, le=1000)]  # of the picture's width or height, in thousandths
Seconds = Annotated[float, Field(ge=0)]


class BoxForm(BaseModel):
    """One box: left, top, right, bottom."""

    bbox_2d: Annotated[list[Share], Field(min_length=4, max_length=4)]
    label: str


class PointForm(BaseModel):
    """One point: x, y."""

    point_2d: Annotated[list[Share], Field(min_length=2, max_length=2)]
    label: str


class EventForm(BaseModel):
    """Something that happens, from `start` to `end` in seconds."""

    start: Seconds
    end: Seconds
    caption: str


class Boxes(RootModel[list[BoxForm]]):
    """`Answer.boxes` has them in pixels."""


class Points(RootModel[list[PointForm]]):
    """`Answer.points` and, of one path, `Answer.trajectories` have them in pixels."""


class Events(RootModel[list[EventForm]]):
    """`Answer.events` has them."""


class Judgement(BaseModel):
    """Whether what is seen could happen, and why."""

    reason: str
    plausible: bool


class Plan(BaseModel):
    """What to do, step by step."""

    steps: Annotated[list[str], Field(min_length=1)]


class Subject(BaseModel):
    """What stands in a marked region."""

    subject_id: int
    category: str
    caption: str


class Ask(NamedTuple):
    """A question, and the form of its answer (None: plain text): `world.reason(**ask._asdict(), ...)`."""

    prompt: str
    schema: type[BaseModel] | None = None


def caption(facts: Facts) -> Ask:
    """What is to be seen, in words."""
    return Ask("Describe this." if facts.small else "Describe what is seen, and what happens, in detail.")


def ground(facts: Facts, what: str | None = None) -> Ask:
    """Boxes around `what`, or around everything."""
    if facts.small:
        all_of_it = "Find all objects. Answer with boxes."
        return Ask(f"Where is {what}? Answer with a box." if what else all_of_it, Boxes)
    form = '[{"bbox_2d": [x1, y1, x2, y2], "label": ...}]'
    return Ask(f"Locate {what or 'every object'}. Answer with a JSON list: {form}. {_SHARES}", Boxes)


def point(_facts: Facts, what: str) -> Ask:
    """A point on each `what`."""
    return Ask(f"Point to {what}. Answer with a JSON list: {_POINT}. {_SHARES}", Points)


def trace(_facts: Facts, what: str, goal: str) -> Ask:
    """The trajectory along which `what` (such as "the gripper") reaches a goal."""
    text = f"The task: {goal}. Give the trajectory of {what} as points in their order"
    label = f'each labelled "{what.removeprefix("the ")} trajectory"'
    return Ask(f"{text}, {label}. Answer with a JSON list: {_POINT}. {_SHARES}", Points)


def locate(facts: Facts, what: str | None = None) -> Ask:
    """When `what` happens in a clip, or what happens when."""
    if facts.small and what is None:
        return Ask("What happens when? Answer with events.", Events)
    text = f"When does this happen: {what}?" if what else "List what happens, in order."
    form = '[{"start": seconds, "end": seconds, "caption": ...}]'
    return Ask(f"{text} Answer with a JSON list: {form}.", Events)


def judge(_facts: Facts) -> Ask:
    """Whether a picture or clip is physically plausible."""
    form = '{"reason": ..., "plausible": true or false}'
    return Ask(
        f"Could this happen in the real world, by the laws of physics? Answer as JSON: {form}.", Judgement
    )


def plan(_facts: Facts, goal: str) -> Ask:
    """The steps that lead from what is seen to a goal."""
    return Ask(f'The task: {goal}. What are the next steps? Answer as JSON: {{"steps": [...]}}.', Plan)


def region(_facts: Facts, subject_id: int) -> Ask:
    """What stands in the region that is marked with a number in the picture."""
    form = f'{{"subject_id": {subject_id}, "category": ..., "caption": ...}}'
    return Ask(f"Describe the subject that is marked {subject_id}. Answer as JSON: {form}.", Subject)


_POINT = '[{"point_2d": [x, y], "label": ...}]'
_SHARES = "Coordinates run from 0 to 1000 over the width and the height, from the top left."
