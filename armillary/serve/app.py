"""The application: every route, what stands before them, and how an error looks."""

import asyncio
import logging
import sqlite3
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.openapi.utils import get_openapi
from pydantic.json_schema import models_json_schema
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response

from armillary import __version__
from armillary.errors import BadRequest, Cancelled
from armillary.serve import (
    actions,
    chat,
    explaining,
    files,
    images,
    info,
    play,
    playground,
    policy_socket,
    responses,
    videos,
)
from armillary.serve.bodies import REF
from armillary.serve.metrics import Metrics, Timed
from armillary.serve.schemas import BODIES
from armillary.serve.service import Service
from armillary.serve.settings import Settings
from armillary.serve.trust import Guard, explain
from armillary.world import World

PARTS = (info, chat, responses, images, videos, actions, policy_socket, files, play, explaining, playground)
ABOUT = "One Cosmos 3 checkpoint behind one OpenAI-shaped API: it answers, draws and acts."


def create_app(world: World, settings: Settings) -> FastAPI:
    """The application around a world. Its worker starts and ends with the application's lifespan."""
    settings.folder.mkdir(parents=True, exist_ok=True)
    service = Service(world, settings)
    try:
        service.check_robot()
    except BadRequest:
        service.jobs.store.close()
        raise

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncGenerator[None]:
        service.worker.start()
        service.jobs.start()
        try:
            yield
        finally:
            await asyncio.to_thread(service.worker.close, settings.grace_s)
            await service.jobs.close()

    app = FastAPI(title="Armillary", version=__version__, description=ABOUT, lifespan=lifespan, docs_url=None)
    app.state.service = service
    for part in PARTS:
        app.include_router(part.routes(service))
    metrics = Metrics(service)
    app.include_router(metrics.routes())
    app.add_middleware(Guard, settings=settings)
    app.add_middleware(Timed, metrics=metrics)
    for kind in (
        RequestValidationError,
        BadRequest,
        Cancelled,
        FloatingPointError,
        MemoryError,
        RuntimeError,
        OSError,
        sqlite3.Error,
        HTTPException,
    ):
        app.add_exception_handler(kind, answer_error)
    app.openapi = lambda: describe(app)
    return app


async def answer_error(request: Request, error: Exception) -> Response:
    """Whatever went wrong, in OpenAI's shape. Only this request failed; the next one is served."""
    status, said = explain(error)
    if status >= 500 and not isinstance(error, HTTPException):  # those are refusals, foreseen
        logging.getLogger(__name__).error("%s %s", request.method, request.url.path, exc_info=error)
    return JSONResponse(said, status, getattr(error, "headers", None))


def describe(app: FastAPI) -> dict[str, Any]:
    """The OpenAPI document; bodies that routes read themselves are among its schemas."""
    if app.openapi_schema is None:
        made = get_openapi(title=app.title, version=app.version, description=ABOUT, routes=app.routes)
        _, schemas = models_json_schema([(kind, "validation") for kind in BODIES], ref_template=REF)
        made.setdefault("components", {}).setdefault("schemas", {}).update(schemas["$defs"])
        app.openapi_schema = made
    return app.openapi_schema
