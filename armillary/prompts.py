"""The words around a prompt: what the generator was trained to read (spec of the released checkpoints).

Misspellings in the system prompts are in the training text and stay.
"""

import json
from collections.abc import Mapping

SYSTEM_IMAGE = "You are a helpful assistant who will generate images from a give prompt."
SYSTEM_VIDEO = "You are a helpful assistant who will generate videos from a give prompt."

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
    denials."""
    no = "not " if negative else ""
    what = "image" if frames == 1 else "video"
    sentences = [f"This {what} is {no}of {height}x{width} resolution."]
    if frames > 1:
        sentences.insert(0, f"The video is {no}{frames / fps:.1f} seconds long and is {no}of {fps:.0f} FPS.")
    text = prompt
    for sentence in sentences:
        text = text.rstrip(".")
        text = f"{text}. {sentence}" if text else sentence
    return text


def action_caption(task: str, *, view: str | None, frames: int, fps: float, height: int, width: int) -> str:
    """The structured caption of an action clip as JSON, in the key order of training.

    `view` is a key of VIEWPOINTS; height and width are the canvas that was encoded, in pixels.
    """
    seconds = frames / fps
    minutes, rest = divmod(round(seconds), 60)
    task = task.strip()
    if task and not task.endswith((".", "!", "?")):
        task += "."
    aspect = min(_ASPECTS, key=lambda a: abs(_ratio(a) - width / height))
    caption = {
        **({"cinematography": {"framing": VIEWPOINTS[view]}} if view else {}),
        "actions": [{"time": f"0:00-{minutes}:{rest:02d}", "description": task}],
        "duration": f"{int(seconds)}s",
        "fps": float(fps),
        "resolution": {"H": height, "W": width},
        "aspect_ratio": aspect,
    }
    return json.dumps(caption)


def _ratio(aspect: str) -> float:
    width, height = aspect.split(",")
    return int(width) / int(height)
