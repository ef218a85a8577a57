"""One walk over every option of every task: another value gives another result.

The walk goes by the fields of the requests, so that an option without a case here is found.
"""

import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from armillary.answers import Answer
from armillary.errors import BadRequest
from armillary.loading import load
from armillary.media import Clip
from armillary.requests import (
    ForwardDynamicsRequest,
    GenerateRequest,
    InverseDynamicsRequest,
    PolicyRequest,
    ReasonRequest,
    Request,
    UpsampleRequest,
)
from armillary.robots import Actions, robot
from armillary.world import World
from tests.tool_pocket import LOOK, PUSH, tool_pocket

RANDOM = np.random.default_rng(0)
PICTURES = RANDOM.integers(0, 256, (2, 16, 16, 3), dtype=np.uint8)
# soft patches, some of which only a low threshold takes for edges
CLIPS = [
    Clip(RANDOM.integers(90, 150, (9, 4, 4, 3), dtype=np.uint8).repeat(4, 1).repeat(4, 2), 8.0)
    for _ in range(2)
]
SOUNDS = RANDOM.normal(0, 0.2, (2, 2, 18000)).clip(-1, 1).astype(np.float32)
PUSHES = RANDOM.normal(0, 20, (2, 8, 2)).astype(np.float32)
TALKS = [[{"role": "user", "content": text}] for text in ("Where is the red disc?", "a green square")]
TABLETOP = robot("tabletop")

DRAW: dict[str, Any] = {"steps": 2, "seed": 1}
GENERATE: dict[str, Any] = {**DRAW, "prompt": "a red disc", "size": "16x16", "frames": 5}
REASON: dict[str, Any] = {"prompt": "Where is the red disc?", "max_tokens": 8}
SAMPLED: dict[str, Any] = {**REASON, "temperature": 1.0, "max_tokens": 24}
FORWARD: dict[str, Any] = {**DRAW, "image": PICTURES[0], "actions": PUSHES[0], "domain": "tabletop"}
INVERSE: dict[str, Any] = {**DRAW, "video": CLIPS[0], "domain": "tabletop"}
POLICY: dict[str, Any] = {**DRAW, "prompt": "push it left", "image": PICTURES[0], "domain": "tabletop"}
JUDGED: dict[str, Any] = {**POLICY, "candidates": 2, "judge": "Is it left?"}
CHOSEN: dict[str, Any] = {**GENERATE, "candidates": 2, "judge": "Is it left?"}
CONTROLLED: dict[str, Any] = {**GENERATE, "controls": {"edge": CLIPS[0]}}
CALLING: dict[str, Any] = {**REASON, "tools": [PUSH, LOOK]}
UPSAMPLE: dict[str, Any] = {"prompt": "a red disc", "frames": 9}
LONG: dict[str, Any] = {**GENERATE, "frames": 13, "chunk": 9, "steps": 1}
CONTINUED: dict[str, Any] = {**GENERATE, "frames": 9, "video": CLIPS[0]}

Case = tuple[dict[str, Any], Any]  # a request, and another value of one option


def drawn(base: dict[str, Any]) -> dict[str, Case]:
    """Options of everything that denoises."""
    guided = {**base, "guidance": 3.0}
    return {
        "seed": (base, 2),
        "steps": (base, 3),
        "guidance": (base, 4.0),
        "shift": (base, 2.0),
        "negative": (guided, "a green square"),
        "grid": (base, "karras"),
        "interval": (guided, (0, 900)),
        "noise": (base, "diffusers"),
    }


CASES: dict[type[Request], dict[str, Case]] = {
    ReasonRequest: {
        "prompt": (REASON, "a green square"),
        "messages": ({"messages": TALKS[0], "max_tokens": 8}, TALKS[1]),
        "images": (REASON, [PICTURES[0]]),
        "videos": (REASON, [CLIPS[0]]),
        "max_tokens": (REASON, 3),
        "temperature": (REASON, 5.0),
        "seed": (SAMPLED, 3),
        "top_k": (SAMPLED, 1),
        "top_p": (SAMPLED, 0.01),
        "repetition_penalty": (SAMPLED, 8.0),
        "presence_penalty": (SAMPLED, 2.0),
        "n": (SAMPLED, 2),
        "schema": (REASON, {"type": "object", "properties": {}, "additionalProperties": False}),
        "thinking_budget": (REASON, 2),
        "logprobs": (REASON, 2),
        "tools": ({**REASON, "max_tokens": 24, "temperature": 1.0}, [PUSH]),
        "tool_choice": (CALLING, "required"),
        "stop": (SAMPLED, list("abcdefghijklmnopqrstuvwxyz .,?")),
    },
    GenerateRequest: {
        **drawn(GENERATE),
        "prompt": (GENERATE, "a green square"),
        "frames": (GENERATE, 9),
        "fps": (GENERATE, 12.0),
        "size": (GENERATE, "16x24"),
        "image": (GENERATE, PICTURES[0]),
        "video": (GENERATE | {"frames": 9}, CLIPS[0]),
        "keep": (CONTINUED, "first"),
        "clean_latents": (CONTINUED, [0]),
        "sound": (GENERATE | {"sound": SOUNDS[0]}, SOUNDS[1]),
        "edit": (GENERATE | {"frames": 1}, PICTURES[0]),
        "controls": (CONTROLLED, {"edge": {"clip": CLIPS[0], "strength": "very_high"}}),
        "control_guidance": (CONTROLLED, 3.0),
        "control_interval": (CONTROLLED, (0, 900)),
        "chunk": (LONG, 5),
        "overlap": (LONG, 1),
        "system": (GENERATE, "Be brief."),
        "verbatim": (GENERATE, True),
        "negative_style": (GENERATE | {"guidance": 3.0}, "same"),
        "n": (GENERATE, 2),
        "candidates": (CHOSEN, 3),
        "judge": (CHOSEN, "a green square rolls right and hits the wall, or does it?"),
        "wanted": (CHOSEN, "red"),
        "upsample": (GENERATE, True),
    },
    UpsampleRequest: {
        "prompt": (UPSAMPLE, "a green square"),
        "frames": (UPSAMPLE, 17),
        "fps": (UPSAMPLE, 4.0),
        "size": (UPSAMPLE, "16x24"),
        "image": (UPSAMPLE, PICTURES[0]),
        "seed": (UPSAMPLE, 3),
    },
    ForwardDynamicsRequest: {
        **drawn(FORWARD),
        "image": (FORWARD, PICTURES[1]),
        "actions": (FORWARD, PUSHES[1]),
        "domain": (FORWARD, replace(TABLETOP, view="ego_view")),
        "prompt": (FORWARD, "push it left"),
        "sound": (FORWARD, True),
    },
    InverseDynamicsRequest: {
        **drawn(INVERSE),
        "video": (INVERSE, CLIPS[1]),
        "domain": (INVERSE, replace(TABLETOP, view="ego_view")),
        "prompt": (INVERSE, "push it left"),
    },
    PolicyRequest: {
        **drawn(POLICY),
        "prompt": (POLICY, "push it right"),
        "image": (POLICY, PICTURES[1]),
        "domain": (POLICY, replace(TABLETOP, view="ego_view")),
        "state": (POLICY, [10.0, -5.0]),
        "decode": (POLICY, False),
        "candidates": (JUDGED, 3),
        "judge": (JUDGED, "a green square rolls right and hits the wall, or does it?"),
        "wanted": (JUDGED, "red"),
    },
}
# Values of what belongs to a control.
PARTS: dict[str, Case] = {
    "clip": (CONTROLLED, {"edge": CLIPS[1]}),
    "strength": (CONTROLLED, {"edge": {"clip": CLIPS[0], "strength": "very_high"}}),
    "ready": (CONTROLLED, {"edge": {"clip": CLIPS[0], "ready": True}}),
    "weight": (
        {
            **GENERATE,
            "guidance": 1.0,
            "controls": {hint: {"clip": c} for hint, c in zip(("depth", "seg"), CLIPS, strict=True)},
        },
        {hint: {"clip": c, "weight": w} for hint, c, w in zip(("depth", "seg"), CLIPS, (1, 1), strict=True)},
    ),
}
REFUSED = {(UpsampleRequest, "seed")}  # a small checkpoint is trained to upsample greedily
WALK = [(kind, name) for kind, cases in CASES.items() for name in cases if (kind, name) not in REFUSED]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    folder: Path = tool_pocket(tmp_path_factory.mktemp("model"))
    return load(folder, device="cpu")


@cache
def known(world: World, kind: type[Request], key: str) -> Any:
    """The result of a base request, computed once: `key` is its place among the bases."""
    return outcome(world, kind, BASES[key])


BASES: dict[str, dict[str, Any]] = {}


def base_of(options: dict[str, Any]) -> str:
    key = next((key for key, base in BASES.items() if base is options), str(len(BASES)))
    BASES[key] = options
    return key


def outcome(world: World, kind: type[Request], options: dict[str, Any]) -> Any:
    made = getattr(world, kind.task)(**options)
    if isinstance(made, list):
        return [numbers(x) for x in made]
    return numbers(made)


def numbers(made: Answer | Clip | Actions | dict[str, Any]) -> Any:
    """All that a person gets of a result, but for its receipt; of a choice, its scores."""
    if isinstance(made, dict):
        return made
    if isinstance(made, Answer):
        thought = made.receipt.get("thinking")  # how much, if a budget was given: this model never thinks
        return made.text, made.finish_reason, made.logprobs, thought, [numbers(x) for x in made.others]
    choice = json.dumps(made.receipt.get("choice", {}).get("candidates"))
    if isinstance(made, Clip):
        return made.frames.tolist(), None if made.sound is None else made.sound.tolist(), made.fps, choice
    return made.values.tolist(), None if made.clip is None else numbers(made.clip), choice


@pytest.mark.parametrize("kind", CASES)
def test_every_option_has_a_case(kind: type[Request]) -> None:
    assert set(CASES[kind]) == {field.alias or name for name, field in kind.model_fields.items()}


def test_every_part_of_a_control_has_a_case() -> None:
    from armillary.requests import Control

    assert set(PARTS) == set(Control.model_fields)


def test_every_task_is_walked() -> None:
    def leaves(kind: type[Request]) -> set[type[Request]]:
        below = kind.__subclasses__()
        return set().union(*(leaves(x) for x in below)) if below else {kind}

    assert leaves(Request) == set(CASES)


@pytest.mark.parametrize(("kind", "name"), WALK, ids=[f"{kind.task}-{name}" for kind, name in WALK])
def test_another_value_gives_another_result(world: World, kind: type[Request], name: str) -> None:
    base, value = CASES[kind][name]
    assert base.get(name) is not value
    assert outcome(world, kind, {**base, name: value}) != known(world, kind, base_of(base))


@pytest.mark.parametrize(("kind", "name"), REFUSED, ids=[f"{kind.task}-{name}" for kind, name in REFUSED])
def test_an_option_that_would_change_nothing_is_refused(world: World, kind: type[Request], name: str) -> None:
    base, value = CASES[kind][name]
    with pytest.raises(BadRequest, match=name):
        outcome(world, kind, {**base, name: value})


@pytest.mark.parametrize("name", PARTS)
def test_every_part_of_a_control_counts(world: World, name: str) -> None:
    base, value = PARTS[name]
    assert outcome(world, GenerateRequest, {**base, "controls": value}) != outcome(
        world, GenerateRequest, base
    )
