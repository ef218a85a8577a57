"""`/v1/images` and `/v1/videos`: what the generator makes, at once or as jobs that outlive a connection."""

import base64
import io
import tempfile
import time
from collections.abc import Mapping
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
from armillary.serve.schemas import Drawing, ImagesRequest
from armillary.serve.service import Service, given
from armillary.step import OnStep
from armillary.tasks.ready import drawing

NAMES = {
    "steps": "num_inference_steps",
    "guidance": "guidance_scale",
    "shift": "flow_shift",
    "negative": "negative_prompt",
    "frames": "num_frames",
    "sound": "generate_sound",
}
"""The library's names and vLLM-Omni's for the same."""
KINDS = {"png": "image/png", "jpeg": "image/jpeg", "webp": "image/webp"}


def routes(service: Service) -> APIRouter:
    router = APIRouter()

    @router.post("/v1/images/generations", openapi_extra=documented(ImagesRequest))
    async def images_generations(request: Request) -> Response:
        """Make pictures from words."""
        body = await read_body(request, ImagesRequest)
        service.check_model(body.model)
        clips = await draw_pictures(service, request, body, body.prompt, count=body.n)
        if body.response_format == "file":
            content = await picture_bytes(_only(clips), body.output_format, body.output_compression)
            return Response(content, media_type=KINDS[body.output_format])
        return JSONResponse(await _answer(body, clips))

    return router


def draw_options(body: Drawing) -> dict[str, Any]:
    """The library's options of a denoising run, without a seed."""
    sides = body.width, body.height
    if (sides[0] is None) != (sides[1] is None):
        name = "height" if sides[1] is None else "width"
        raise BadRequest(name, None, "width and height are given together")
    if None not in sides and body.size is not None:
        raise BadRequest("size", body.size, "says the same as width and height; give one of them")
    size = body.size if body.size not in ("auto", None) else None if None in sides else list(sides)
    options = {name: getattr(body, theirs) for name, theirs in NAMES.items() if hasattr(body, theirs)}
    return given({**options, "size": size})


async def draw_pictures(
    service: Service, request: Request, body: Drawing, prompt: str, *, count: int
) -> list[Clip]:
    """Pictures whose seeds count up. A client that leaves stops them."""
    options = draw_options(body) | {"prompt": prompt, "frames": 1}
    first = body.seed or 0
    clips: list[Clip] = []
    for seed in range(first, first + count):
        asked = options | {"seed": seed}
        with renamed(NAMES):
            if not clips:
                drawing(asked, service.world.facts)
            clips.append(await service.make(request, partial(_generate, service, asked)))
    return clips


def _generate(service: Service, asked: Mapping[str, Any], on_step: OnStep) -> Clip:
    return service.world.generate(**asked, on_step=on_step)


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
