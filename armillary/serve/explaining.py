"""`/v1/explain`: the packed sequence that a request would become, as rows and as a drawing."""

import tempfile
from functools import partial
from pathlib import Path
from typing import Any

from fastapi import APIRouter, Request
from starlette.concurrency import run_in_threadpool

from armillary.loading import explain
from armillary.serve.actions import options_of
from armillary.serve.bodies import JSON, documented, read_body
from armillary.serve.chat import conversation
from armillary.serve.params import wanted
from armillary.serve.play import asked
from armillary.serve.schemas import ActionsRequest, ChatRequest, TableRequest, VideosRequest
from armillary.serve.service import Service, refuse_paths
from armillary.serve.videos import read_references


def routes(service: Service) -> APIRouter:
    router = APIRouter()

    @router.post("/v1/explain/chat/completions", openapi_extra=documented(ChatRequest, JSON))
    async def chat(request: Request) -> dict[str, Any]:
        """What the reasoner would read."""
        messages, _ = await conversation(service, await read_body(request, ChatRequest))
        return await _laid_out(service, "reason", {"messages": messages})

    @router.post("/v1/explain/videos", openapi_extra=documented(VideosRequest, JSON))
    async def videos(request: Request) -> dict[str, Any]:
        """What a clip would be drawn from."""
        body = await read_body(request, VideosRequest)
        said = wanted(body, service.world.facts, service.settings.robots)
        return await _laid_out(service, said.task, await read_references(service, said))

    @router.post("/v1/explain/actions", openapi_extra=documented(ActionsRequest, JSON))
    async def actions(request: Request) -> dict[str, Any]:
        """What a task about a robot would be drawn from."""
        body = await read_body(request, ActionsRequest)
        return await _laid_out(service, body.task, await options_of(service, body))

    @router.post("/v1/explain/table", openapi_extra=documented(TableRequest, JSON))
    async def table(request: Request) -> dict[str, Any]:
        """The same of moves on the table-top."""
        body = await read_body(request, TableRequest)
        picture = None if body.picture is None else await service.picture(body.picture, "picture")
        return await _laid_out(service, *await run_in_threadpool(asked, body, picture))

    return router


async def _laid_out(service: Service, task: str, options: dict[str, Any]) -> dict[str, Any]:
    refuse_paths(options, service.robots)
    embodied = dict(service.settings.embodied(options))
    return await run_in_threadpool(partial(_explained, service.model, task, embodied))


def _explained(model: str, task: str, options: dict[str, Any]) -> dict[str, Any]:
    layout = explain(task, model, **options)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "layout.svg"
        layout.draw(path)
        return {"task": task, "rows": layout.rows(), "svg": path.read_text(encoding="utf-8")}
