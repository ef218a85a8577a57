"""vLLM-Omni's options of a clip as options of the library: each one is used, or refused by name."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from armillary.errors import BadRequest, nearest
from armillary.facts import Facts
from armillary.robots import ROBOTS
from armillary.serve.schemas import Drawing, VideosRequest
from armillary.serve.service import given, one_of

NAMES = {
    "steps": "num_inference_steps",
    "guidance": "guidance_scale",
    "shift": "flow_shift",
    "negative": "negative_prompt",
    "frames": "num_frames",
    "sound": "generate_sound",
    "domain": "extra_params.domain_name",
    "actions": "extra_params.action",
    "image": "input_reference",
    "video": "input_reference",
}
"""The library's names, and what the API calls the same."""

PLAIN = {
    "flow_shift": "shift",
    "negative_prompt": "negative",
    "generate_sound": "sound",
    "sound_gen": "sound",
    "action": "actions",
    "domain_name": "domain",
    "raw_action_dim": "raw_action_dim",
    "action_chunk_size": "action_chunk_size",
    "action_fps": "fps",
    "fps": "fps",
    "num_frames": "frames",
    "guidance_scale": "guidance",
    "num_inference_steps": "steps",
    "seed": "seed",
}
"""Extra parameters that say exactly what an option of the library says."""

ONLY: Mapping[str, tuple[Any, str]] = {
    "use_system_prompt": (True, "the model is always given the system prompt that it was trained with"),
    "max_sequence_length": (None, "prompts are never cut"),
    "deterministic_seed": (True, "every seed is"),
}
"""Extra parameters of which one value says what is done anyway; None stands for any."""


@dataclass(frozen=True)
class Wanted:
    """A task of the world and its options; pictures and clips are references still."""

    task: str
    options: dict[str, Any]


def size_of(body: Drawing) -> str | list[int] | None:
    """The size as the library takes it, said in one of two ways."""
    width, height = body.width, body.height
    if (width is None) != (height is None):
        name = "height" if height is None else "width"
        raise BadRequest(name, None, "width and height are given together")
    if width is not None and body.size is not None:
        raise BadRequest("size", body.size, "says the same as width and height; give one of them")
    return [width, height or 0] if width is not None else None if body.size == "auto" else body.size


def draw_options(body: Drawing) -> dict[str, Any]:
    """The library's options of a denoising run that a body names."""
    options = {name: getattr(body, theirs) for name, theirs in NAMES.items() if hasattr(body, theirs)}
    return given({**options, "size": size_of(body), "seed": body.seed})


def wanted(body: VideosRequest, facts: Facts) -> Wanted:
    """What a request for a clip asks of the world."""
    options = {name: value for name, value in draw_options(body).items() if name not in ("image", "video")}
    task, extra = _extra(body.extra_params or {}, facts)
    for name, value in extra.items():
        if name in options and options[name] != value:
            raise BadRequest(f"extra_params.{name}", value, "is said twice, and not the same")
    options |= given({"prompt": body.prompt, "fps": body.fps}) | extra | _references(body)
    if body.seconds is not None:
        frames = int(body.seconds) * (body.fps or facts.fps)
        options["frames"] = one_of(num_frames=body.num_frames, seconds=max(1, math.floor(frames)))
    return Wanted(task, _fitting(task, options))


def _references(body: VideosRequest) -> dict[str, Any]:
    """A reference that is not said to be a picture or a clip is told apart once it is read."""
    names = ("input_reference", "image_reference", "video_reference")
    one_of(**{name: getattr(body, name) for name in names})
    return given(
        {"media": body.input_reference, "image": body.image_reference, "video": body.video_reference}
    )


def _extra(extra: Mapping[str, Any], facts: Facts) -> tuple[str, dict[str, Any]]:
    """The task that extra parameters name, and its options."""
    found, task = dict[str, Any](), "generate"
    for name, value in extra.items():
        if name == "action_mode":
            task = _task(value)
        elif name in PLAIN:
            found[PLAIN[name]] = value
        elif name == "domain_id":
            found |= _domain(value)
        elif name == "guardrails":
            _check_guard(value, facts)
        elif name in ONLY:
            _check_only(name, value)
        else:
            close = " or ".join(nearest(name, [*PLAIN, *ONLY, "action_mode", "domain_id", "guardrails"]))
            raise BadRequest(f"extra_params.{name}", value, f"there is no such option here; nearest: {close}")
    return task, found


def _task(value: object) -> str:
    tasks = ("forward_dynamics", "inverse_dynamics", "policy")
    if value not in tasks:
        raise BadRequest("extra_params.action_mode", value, f"one of {', '.join(tasks)}")
    return str(value)


def _check_only(name: str, value: object) -> None:
    legal, why = ONLY[name]
    if legal is not None and value is not legal:
        raise BadRequest(f"extra_params.{name}", value, f"{why}; leave it out")


def _check_guard(value: object, facts: Facts) -> None:
    """Whether a guard looks on is for the server to say, not for a request."""
    if value is not (facts.guard is not None):
        has = "always looks on" if facts.guard else "is not there"
        raise BadRequest("extra_params.guardrails", value, f"this server's guard {has}; leave it out")


def _domain(value: object) -> dict[str, Any]:
    names = [body.name for body in ROBOTS.values() if body.domain == value]
    if len(names) != 1:
        message = f"means {', '.join(names) or 'no robot'}; give domain_name"
        raise BadRequest("extra_params.domain_id", value, message)
    return {"domain": names[0]}


def _fitting(task: str, options: dict[str, Any]) -> dict[str, Any]:
    """The options a task takes; those that follow from its robot are checked against it."""
    if task == "generate":
        for name in ("domain", "actions", "raw_action_dim", "action_chunk_size"):
            if name in options:
                raise BadRequest(f"extra_params.{name}", options[name], "needs extra_params.action_mode")
        return options
    body = ROBOTS.get(str(options.get("domain")))
    for name, fact in (("raw_action_dim", "width"), ("action_chunk_size", "chunk"), ("fps", "fps")):
        said = options.pop(name, None)
        known = getattr(body, fact, None)
        if said is not None and known is not None and said != known:
            raise BadRequest(name, said, f"{options['domain']} has {known}; nearest: {known}")
    frames = options.pop("frames", None)
    if frames is not None and frames != len(options.get("actions") or range(body.chunk if body else 0)) + 1:
        raise BadRequest("num_frames", frames, "is told by the actions: one more than they are")
    return options
