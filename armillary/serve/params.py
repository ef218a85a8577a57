"""vLLM-Omni's options of a clip as options of the library: each one is used, or refused by name."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from armillary.errors import BadRequest, nearest
from armillary.facts import Facts
from armillary.robots import ROBOTS, Robot
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
    "controls": "extra_params",
    "verbatim": "extra_params.use_resolution_template",
    **{
        ours: f"extra_params.{name}"
        for name, ours in (
            ("system_prompt", "system"),
            ("negative_metadata_mode", "negative_style"),
            ("condition_frame_indexes_vision", "clean_latents"),
            ("condition_video_keep", "keep"),
            ("control_guidance", "control_guidance"),
            ("control_guidance_interval", "control_interval"),
            ("num_video_frames_per_chunk", "chunk"),
            ("num_conditional_frames", "overlap"),
            ("guidance_interval", "interval"),
            ("sigma_grid", "grid"),
            ("noise_backend", "noise"),
        )
    },
}
"""The library's names, and what the API calls the same."""

NUMBER, PAIR = (int, float), list
PLAIN: Mapping[str, tuple[str, type | tuple[type, ...]]] = {
    "flow_shift": ("shift", NUMBER),
    "negative_prompt": ("negative", str),
    "generate_sound": ("sound", bool),
    "sound_gen": ("sound", bool),
    "action": ("actions", list),
    "domain_name": ("domain", str),
    "raw_action_dim": ("raw_action_dim", int),
    "action_chunk_size": ("action_chunk_size", int),
    "action_fps": ("fps", NUMBER),
    "fps": ("fps", NUMBER),
    "num_frames": ("frames", int),
    "guidance_scale": ("guidance", NUMBER),
    "guidance_interval": ("interval", PAIR),
    "num_inference_steps": ("steps", int),
    "seed": ("seed", int),
    "system_prompt": ("system", str),
    "negative_metadata_mode": ("negative_style", str),
    "condition_frame_indexes_vision": ("clean_latents", list),
    "condition_video_keep": ("keep", str),
    "control_guidance": ("control_guidance", NUMBER),
    "control_guidance_interval": ("control_interval", PAIR),
    "num_video_frames_per_chunk": ("chunk", int),
    "num_conditional_frames": ("overlap", int),
    "sigma_grid": ("grid", str),
    "noise_backend": ("noise", str),
    "candidates": ("candidates", int),
    "judge": ("judge", str),
    "wanted": ("wanted", str),
}
"""Extra parameters that say exactly what an option of the library says, and of which type they are."""

HINTS = ("edge", "blur", "depth", "seg", "wsm")
HINT_KEYS = {
    "control_path": "clip",
    "control_weight": "weight",
    "preset_edge_threshold": "strength",
    "preset_blur_strength": "strength",
}
SENTENCES = ("use_resolution_template", "use_duration_template")
ONLY: Mapping[str, tuple[Any, str]] = {
    "use_system_prompt": (True, "give system_prompt, empty for none"),
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
    names = ("steps", "guidance", "shift", "negative", "frames", "sound")
    options = {name: getattr(body, NAMES[name], None) for name in names}
    return given({**options, "size": size_of(body), "seed": body.seed})


def wanted(body: VideosRequest, facts: Facts, robots: Mapping[str, Robot]) -> Wanted:
    """What a request for a clip asks of the world. `robots` are those that stand in no table."""
    options = draw_options(body)
    task, extra = extra_options(body.extra_params or {}, facts)
    for name, value in extra.items():
        if name in options and options[name] != value:
            raise BadRequest(f"extra_params.{name}", value, "is said twice, and not the same")
    options |= given({"prompt": body.prompt, "fps": body.fps}) | extra | _references(body)
    if body.seconds is not None:
        frames = int(body.seconds) * (body.fps or facts.fps)
        options["frames"] = one_of(num_frames=body.num_frames, seconds=max(1, math.floor(frames)))
    return Wanted(task, _fitting(task, options, {**ROBOTS, **robots}))


def _references(body: VideosRequest) -> dict[str, Any]:
    """A reference that is not said to be a picture or a clip is told apart once it is read."""
    names = ("input_reference", "image_reference", "video_reference")
    one_of(**{name: getattr(body, name) for name in names})
    media = {"media": body.input_reference, "image": body.image_reference, "video": body.video_reference}
    return given({**media, "audio": body.audio_reference})


def extra_options(extra: Mapping[str, Any], facts: Facts) -> tuple[str, dict[str, Any]]:
    """The task that extra parameters name, and its options."""
    found, task = dict[str, Any](), "generate"
    for name, value in extra.items():
        if name == "action_mode":
            task = _task(value)
        elif name in PLAIN:
            found[PLAIN[name][0]] = _typed(name, value)
        elif name in HINTS:
            found.setdefault("controls", {})[name] = _control(f"extra_params.{name}", value)
        elif name == "domain_id":
            found |= _domain(value)
        elif name == "guardrails":
            _check_guard(value, facts)
        elif name in ONLY:
            _check_only(name, value)
        elif name not in SENTENCES:
            known = [*PLAIN, *ONLY, *HINTS, *SENTENCES, "action_mode", "domain_id", "guardrails"]
            close = " or ".join(nearest(name, known))
            raise BadRequest(f"extra_params.{name}", value, f"there is no such option here; nearest: {close}")
    return task, found | _sentences(extra)


def _typed(name: str, value: object) -> object:
    """The value, if it is of its type: a path in place of numbers would be opened."""
    kind = PLAIN[name][1]
    if isinstance(value, bool) is not (kind is bool) or not isinstance(value, kind):
        kinds = [k.__name__ for k in (kind if isinstance(kind, tuple) else (kind,))]
        raise BadRequest(f"extra_params.{name}", value, f"is of type {' or '.join(kinds)}")
    return value


def _sentences(extra: Mapping[str, Any]) -> dict[str, Any]:
    """Whether the prompt is followed by sentences about size and duration: by both or by none."""
    said = [extra.get(name, True) for name in SENTENCES]
    if said not in ([True, True], [False, False]):
        message = "say true or false for both: the sentences come together"
        raise BadRequest(f"extra_params.{SENTENCES[0]}", said[0], message)
    return {} if said[0] else {"verbatim": True}


def _control(field: str, value: object) -> dict[str, Any]:
    """What one control says; its clip is a reference still."""
    if not isinstance(value, Mapping):
        raise BadRequest(field, value, f"an object with {', '.join(HINT_KEYS)}")
    given = cast("Mapping[str, Any]", value)
    for name in given.keys() - HINT_KEYS.keys():
        close = " or ".join(nearest(name, HINT_KEYS))
        raise BadRequest(f"{field}.{name}", given[name], f"there is no such option here; nearest: {close}")
    if "control_path" not in given:
        raise BadRequest(f"{field}.control_path", None, "is needed: a data URI, an upload, a permitted URL")
    return {HINT_KEYS[name]: item for name, item in given.items()}


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


def _fitting(task: str, options: dict[str, Any], robots: Mapping[str, Robot]) -> dict[str, Any]:
    """The options a task takes; those that follow from its robot are checked against it."""
    if task == "generate":
        for name in ("domain", "actions", "raw_action_dim", "action_chunk_size"):
            if name in options:
                raise BadRequest(f"extra_params.{name}", options[name], "needs extra_params.action_mode")
        return options
    body = robots.get(str(options.get("domain")))
    for name, fact in (("raw_action_dim", "width"), ("action_chunk_size", "chunk"), ("fps", "fps")):
        said = options.pop(name, None)
        known = getattr(body, fact, None)
        if said is not None and known is not None and said != known:
            raise BadRequest(name, said, f"{options['domain']} has {known}; nearest: {known}")
    frames = options.pop("frames", None)
    if frames is not None and frames != len(options.get("actions") or range(body.chunk if body else 0)) + 1:
        raise BadRequest("num_frames", frames, "is told by the actions: one more than they are")
    return options
