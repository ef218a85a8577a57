"""The application: every route, what stands before them, and how an error looks."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, Request
from fastapi.openapi.utils import get_openapi
from pydantic.json_schema import models_json_schema
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response

from armillary import __version__
from armillary.errors import BadRequest, Cancelled
from armillary.serve import chat, info, media_routes
from armillary.serve.bodies import REF
from armillary.serve.schemas import BODIES
from armillary.serve.service import Service
from armillary.serve.settings import Settings
from armillary.serve.trust import Guard, problem
from armillary.world import World

ABOUT = "One Cosmos 3 checkpoint behind one OpenAI-shaped API: it answers, draws and acts."
CLIENT_LEFT = 499


def create_app(world: World, settings: Settings) -> FastAPI:
    """The application around a world. Its worker starts and ends with the application's lifespan."""
    settings.folder.mkdir(parents=True, exist_ok=True)
    service = Service(world, settings)

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncGenerator[None]:
        service.worker.start()
        try:
            yield
        finally:
            await asyncio.to_thread(service.worker.close, settings.grace_s)

    app = FastAPI(title="Armillary", version=__version__, description=ABOUT, lifespan=lifespan, docs_url=None)
    app.state.service = service
    for part in (info, chat, media_routes):
        app.include_router(part.routes(service))
    app.add_middleware(Guard, settings=settings)
    app.add_exception_handler(Exception, answer_error)
    for kind in (BadRequest, Cancelled, FloatingPointError, MemoryError, RuntimeError, HTTPException):
        app.add_exception_handler(kind, answer_error)
    app.openapi = lambda: describe(app)
    return app


async def answer_error(_request: Request, error: Exception) -> Response:
    """Whatever went wrong, in OpenAI's shape. Only this request failed; the next one is served."""
    status, said, headers = 500, problem(500, "the server failed; its log says how"), None
    if isinstance(error, BadRequest):
        status, said = 400, problem(400, str(error), param=error.field, code="bad_request")
    elif isinstance(error, HTTPException):
        status, headers = error.status_code, error.headers
        said = problem(status, str(error.detail))
    elif isinstance(error, Cancelled):
        status, said = CLIENT_LEFT, {"error": {"message": "cancelled", "type": "cancelled"}}
    elif isinstance(error, FloatingPointError):
        said = problem(500, f"{error}; other requests are not affected", code="not_finite")
    elif is_out_of_memory(error):
        said = problem(500, "not enough memory for this request; ask for less", code="out_of_memory")
    return JSONResponse(said, status, headers)


def is_out_of_memory(error: BaseException) -> bool:
    """Did a request ask for more memory than there is, of the machine or of its accelerator?"""
    return isinstance(error, MemoryError) or "out of memory" in str(error).lower()


def describe(app: FastAPI) -> dict[str, Any]:
    """The OpenAPI document; bodies that routes read themselves are among its schemas."""
    if app.openapi_schema is None:
        made = get_openapi(title=app.title, version=app.version, description=ABOUT, routes=app.routes)
        _, schemas = models_json_schema([(kind, "validation") for kind in BODIES], ref_template=REF)
        made.setdefault("components", {}).setdefault("schemas", {}).update(schemas["$defs"])
        app.openapi_schema = made
    return app.openapi_schema
