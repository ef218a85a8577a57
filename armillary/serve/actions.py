"""`/v1/actions`: what a robot's actions would do, which actions a clip shows, what a robot should do."""

import base64
import time
from functools import partial
from typing import Any

from fastapi import APIRouter, Request
from starlette.concurrency import run_in_threadpool

from armillary.errors import BadRequest
from armillary.media import Clip
from armillary.robots import Actions
from armillary.serve.bodies import documented, read_body
from armillary.serve.images import file_bytes
from armillary.serve.jobs import shown_actions, work
from armillary.serve.schemas import ActionsRequest
from armillary.serve.service import Service, given, new_id

TAKES = {
    "forward_dynamics": {"image", "actions"},
    "inverse_dynamics": {"video"},
    "policy": {"image", "state"},
}


def routes(service: Service) -> APIRouter:
    router = APIRouter()

    @router.post("/v1/actions", openapi_extra=documented(ActionsRequest))
    async def actions(request: Request) -> dict[str, Any]:
        """Forward dynamics, inverse dynamics or policy, answered at once."""
        body = await read_body(request, ActionsRequest)
        options = await options_of(service, body)
        await service.check(body.task, options)
        options = service.settings.embodied(options)
        made = await service.make(request, partial(work, service.world, body.task, options))
        return await _answer(service, body, made)

    return router


async def options_of(service: Service, body: ActionsRequest) -> dict[str, Any]:
    names = ("prompt", "actions", "state", "steps", "guidance", "shift", "negative", "seed")
    options = given({name: getattr(body, name) for name in names})
    options["domain"] = body.domain or service.domain
    for name in {"image", "video", "actions", "state"} - TAKES[body.task]:
        if getattr(body, name) is not None:
            raise BadRequest(name, "...", f"is not used by {body.task}; leave it out")
    if body.image is not None:
        options["image"] = await service.picture(body.image, "image")
    if body.video is not None:
        options["video"] = await service.content(body.video, "video")
    if body.task == "policy":
        options["decode"] = body.clip
    return options


async def _answer(service: Service, body: ActionsRequest, made: Clip | Actions) -> dict[str, Any]:
    clip, actions = (made, made.actions) if isinstance(made, Clip) else (made.clip, made)
    video = await run_in_threadpool(file_bytes, clip, ".mp4") if clip is not None and body.clip else None
    return {
        "id": new_id("act"),
        "object": "actions",
        "created": int(time.time()),
        "model": service.model,
        "task": body.task,
        "action": shown_actions(actions),
        "clip": None if video is None else base64.b64encode(video).decode(),
        "receipt": made.receipt,
    }
