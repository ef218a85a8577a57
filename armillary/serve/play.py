"""`/v1/table`: the simulated table-top beside the model's imagination of it.

Nothing is kept between two calls: a start is a number, and the world is exact, so whoever plays sends all
actions so far. Imagined is from the picture that is sent along, or from what is really there.
"""

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import numpy as np
from fastapi import APIRouter, Request
from PIL import Image
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException

from armillary.errors import BadRequest
from armillary.media import Clip
from armillary.media.source import Pixels
from armillary.serve.bodies import JSON, documented, read_body
from armillary.serve.schemas import TableRequest
from armillary.serve.service import Service, given
from armillary.step import OnStep
from armillary.world import World

if TYPE_CHECKING:
    from armillary.sim import Episode
    from armillary.sim.physics import Rollout

ROBOT = "tabletop"


@dataclass(frozen=True)
class Moved:
    """What a few moves did: frames uint8 [T, H, W, 3] after the first, imagined and real."""

    actions: Sequence[Sequence[float]]
    imagined: Pixels
    real: Pixels
    success: bool
    receipt: dict[str, Any]


def routes(service: Service) -> APIRouter:
    router = APIRouter()

    @router.get("/v1/table/{episode}")
    async def start(episode: int) -> dict[str, Any]:
        """A start: its picture, its instruction, and what to ask about the outcome."""
        _check_here(service)
        return await run_in_threadpool(_start, episode)

    @router.post("/v1/table", openapi_extra=documented(TableRequest, JSON))
    async def move(request: Request) -> dict[str, Any]:
        """Move, and see what the model imagines beside what happens."""
        _check_here(service)
        body = await read_body(request, TableRequest)
        picture = None if body.picture is None else await service.picture(body.picture, "picture")
        return _shown(await service.make(request, partial(_move, service.world, body, picture)))

    return router


def _check_here(service: Service) -> None:
    if ROBOT not in service.world.facts.robots or find_spec("pymunk") is None:
        missing = "its model must know the robot, and the extra [sim] be installed"
        raise HTTPException(404, f"this server has no table-top: {missing}")


def _episode(number: int) -> "Episode":
    from armillary.sim import episode

    return episode("push", number, split="test")


def _start(number: int) -> dict[str, Any]:
    from armillary.sim.language import outcome_question

    if not 0 <= number < 2**31:
        raise BadRequest("episode", number, "is a number from 0 to 2147483647")
    e = _episode(number)
    assert e.goal is not None  # every push has one
    question, wanted = outcome_question(e.objects, e.goal)
    return {
        "episode": number,
        "instruction": e.instruction,
        "judge": question,
        "wanted": wanted,
        "picture": _uri(e.picture()),
    }


def _move(world: World, body: TableRequest, picture: Pixels | None, on_step: OnStep) -> Moved:
    """On the worker: what the model imagines, and the same moves in the world itself."""
    from armillary.sim import replay, success
    from armillary.sim.physics import MAX_SPEED

    task, options = asked(body, picture)
    made = getattr(world, task)(**options, on_step=on_step)
    clip, answer = (made, made.actions) if isinstance(made, Clip) else (made.clip, made)
    moves, e = np.clip(answer.values, -MAX_SPEED, MAX_SPEED), _episode(body.episode)
    run = replay(e.start, np.concatenate([_rows(body.done, "done"), moves]))
    real = _drawn(e, run, slice(len(body.done) + 1, None))
    return Moved(moves.tolist(), clip.frames[1:], real, success(e, run.positions), made.receipt)


def asked(body: TableRequest, picture: Pixels | None) -> tuple[str, dict[str, Any]]:
    """The task of the world that a request is, and its options. Raises BadRequest."""
    from armillary.sim import replay

    if (body.actions is None) == (body.instruction is None):
        raise BadRequest("actions", None, "give either actions or an instruction, one of them")
    e, done = _episode(body.episode), _rows(body.done, "done")
    if picture is None:
        picture = _drawn(e, replay(e.start, done), slice(-1, None))[0]
    options: dict[str, Any] = {"domain": ROBOT, "image": picture, "seed": body.seed}
    judged = given({"candidates": body.candidates, "judge": body.judge, "wanted": body.wanted})
    if body.instruction is not None:
        return "policy", {**options, **judged, "prompt": body.instruction}
    for name, value in judged.items():
        raise BadRequest(name, value, "is about an instruction; leave it out")
    return "forward_dynamics", {**options, "actions": _rows(body.actions or [], "actions")}


def _drawn(e: "Episode", run: "Rollout", part: slice) -> Pixels:
    """Some frames of a run."""
    from armillary.sim.drawing import draw

    pusher = None if run.pusher is None else run.pusher[part]
    return draw(e.objects, run.positions[part], pusher=pusher)


def _rows(rows: Sequence[Sequence[float]], field: str) -> Any:
    """Moves float32 [K, 2], each part at most as fast as the pusher goes. Raises BadRequest."""
    from armillary.sim.physics import MAX_SPEED

    for i, row in enumerate(rows):
        if len(row) != 2 or not all(abs(v) <= MAX_SPEED for v in row):
            raise BadRequest(
                f"{field}[{i}]", list(row), f"is two numbers, each -{MAX_SPEED:g} to {MAX_SPEED:g} px/s"
            )
    return np.asarray(rows, np.float32).reshape(-1, 2)


def _shown(moved: Moved) -> dict[str, Any]:
    return {
        "actions": moved.actions,
        "imagined": [_uri(frame) for frame in moved.imagined],
        "real": [_uri(frame) for frame in moved.real],
        "success": moved.success,
        "receipt": moved.receipt,
    }


def _uri(frame_HW3: Pixels) -> str:
    out = io.BytesIO()
    Image.fromarray(frame_HW3).save(out, "PNG")
    return f"data:image/png;base64,{base64.b64encode(out.getvalue()).decode()}"
