"""`/v1/images`: pictures, made while the client waits."""

import base64
import io
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

from fastapi import APIRouter, Request
from PIL import Image
from starlette.concurrency import run_in_threadpool
from starlette.responses import JSONResponse, Response

from armillary.errors import BadRequest
from armillary.media import Clip
from armillary.serve.bodies import documented, read_body, renamed
from armillary.serve.jobs import work
from armillary.serve.params import NAMES, draw_options, extra_options
from armillary.serve.schemas import Drawing, ImageEditRequest, ImagesRequest
from armillary.serve.service import Service

KINDS = {"png": "image/png", "jpeg": "image/jpeg", "webp": "image/webp"}


def routes(service: Service) -> APIRouter:
    router = APIRouter()

    @router.post("/v1/images/generations", openapi_extra=documented(ImagesRequest))
    async def images_generations(request: Request) -> Response:
        """Make pictures from words."""
        body = await read_body(request, ImagesRequest)
        service.check_model(body.model)
        return await _given(service, request, body)

    @router.post("/v1/images/edits", openapi_extra=documented(ImageEditRequest))
    async def images_edits(request: Request) -> Response:
        """Change a picture as words say."""
        body = await read_body(request, ImageEditRequest)
        service.check_model(body.model)
        return await _given(service, request, body, edit=await service.picture(body.image, "image"))

    return router


async def _given(service: Service, request: Request, body: ImagesRequest, **more: Any) -> Response:
    """What a request for pictures is answered with."""
    extra = await picture_options(service, body)
    clips = await draw_pictures(service, request, body, body.prompt, count=body.n, **extra, **more)
    if body.response_format == "file":
        content = await picture_bytes(_only(clips), body.output_format, body.output_compression)
        return Response(content, media_type=KINDS[body.output_format])
    return JSONResponse(await _answer(body, clips))


async def picture_options(service: Service, body: ImagesRequest) -> dict[str, Any]:
    """The options among the extra parameters that are a picture's."""
    task, options = extra_options(body.extra_params or {}, service.world.facts)
    if task != "generate":
        raise BadRequest("extra_params.action_mode", task, "is of clips; ask /v1/videos or /v1/actions")
    return options


async def draw_pictures(
    service: Service, request: Request, body: Drawing, prompt: str, *, count: int, **more: Any
) -> list[Clip]:
    """Pictures whose seeds count up, drawn together. A client that leaves stops them."""
    asked = {**more, **draw_options(body), "prompt": prompt, "frames": 1, "n": count}
    with renamed(NAMES):
        await service.check("generate", asked)
        return await service.make(request, partial(work, service.world, "generate", asked))


def _only(clips: list[Clip]) -> Clip:
    if len(clips) > 1:
        raise BadRequest("response_format", "file", "a file holds one picture; leave n out, or take b64_json")
    return clips[0]


async def _answer(body: ImagesRequest, clips: list[Clip]) -> dict[str, Any]:
    made = [
        {
            "b64_json": await encoded(clip, body.output_format, body.output_compression),
            "url": None,
            "revised_prompt": None,
            "seed": clip.receipt["used"]["seed"],
            "receipt": clip.receipt,
        }
        for clip in clips
    ]
    size = clips[0].receipt["used"]["size"]
    return {"created": int(time.time()), "data": made, "output_format": body.output_format, "size": size}


async def encoded(clip: Clip, kind: str, quality: int) -> str:
    """A picture in base64."""
    content = await picture_bytes(clip, kind, quality)
    return base64.b64encode(content).decode()


async def picture_bytes(clip: Clip, kind: str, quality: int) -> bytes:
    """A picture as a file; PNG holds its receipt."""
    if kind == "png":
        return await run_in_threadpool(file_bytes, clip, ".png")
    out = io.BytesIO()
    await run_in_threadpool(Image.fromarray(clip.frames[0]).save, out, format=kind, quality=max(1, quality))
    return out.getvalue()


def file_bytes(clip: Clip, suffix: str) -> bytes:
    """A clip as the file that `Clip.save` writes."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"out{suffix}"
        clip.save(path)
        return path.read_bytes()
