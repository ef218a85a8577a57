"""`/v1/videos`: clips as jobs that outlive a connection, or at once; also pictures and actions as jobs."""

import asyncio
import base64
import io
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from typing import Annotated, Any, Literal

import numpy as np
from fastapi import APIRouter, Header, Query, Request
from PIL import Image
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.responses import FileResponse, JSONResponse, Response, StreamingResponse

from armillary.errors import BadRequest
from armillary.media.source import Pixels, looks_like, open_binary
from armillary.serve.bodies import documented, read_body, renamed
from armillary.serve.jobs import Progress, Wish
from armillary.serve.params import NAMES, Wanted, wanted
from armillary.serve.schemas import VideosRequest
from armillary.serve.service import Service, event, new_id, one_of, owner_of
from armillary.serve.store import Job

STATUS = {"running": "in_progress", "done": "completed"}
Key = Annotated[str | None, Header(max_length=255, description="the same key asks for the same job")]


def routes(service: Service) -> APIRouter:
    router, videos = APIRouter(), Videos(service)
    body = documented(VideosRequest)
    router.post("/v1/videos", openapi_extra=body)(videos.create)
    router.post("/v1/videos/sync", openapi_extra=body)(videos.create_and_wait)
    router.get("/v1/videos")(videos.list)
    router.get("/v1/videos/{video_id}")(videos.get)
    router.get("/v1/videos/{video_id}/content")(videos.content)
    router.get("/v1/videos/{video_id}/events")(videos.follow)
    router.post("/v1/videos/{video_id}/cancel")(videos.cancel)
    router.delete("/v1/videos/{video_id}")(videos.delete)
    return router


class Videos:
    """The routes about jobs."""

    def __init__(self, service: Service) -> None:
        self._service, self._jobs = service, service.jobs

    async def create(self, request: Request, idempotency_key: Key = None) -> dict[str, Any]:
        """Begin a clip; the answer names the job."""
        return shown(self._service, await _begin(self._service, request, idempotency_key))

    async def create_and_wait(self, request: Request, idempotency_key: Key = None) -> Response:
        """Make a clip and answer with it; a client that leaves cancels it."""
        job = await _begin(self._service, request, idempotency_key)
        try:
            await self._service.unless_gone(request, self._ended(job.id))
        except BaseException:
            await asyncio.shield(self._jobs.cancel(job.id))
            raise
        job = self._find(job.id)
        headers = {"X-Request-Id": job.id, "X-Model": self._service.model}
        if job.started and job.finished:
            headers["X-Inference-Time-S"] = f"{job.finished - job.started:.3f}"
        return _content(self._service, job, headers)

    async def list(
        self,
        after: str | None = None,
        limit: Annotated[int, Query(ge=1, le=100)] = 20,
        order: Literal["asc", "desc"] = "desc",
    ) -> dict[str, Any]:
        """The jobs that are known, the newest first."""
        found = self._jobs.store.page(after=after, limit=limit + 1, newest_first=order == "desc")
        data = [shown(self._service, job) for job in found[:limit]]
        ends = {"first_id": data[0]["id"], "last_id": data[-1]["id"]} if data else {}
        return {"object": "list", "data": data, **ends, "has_more": len(found) > limit}

    async def get(self, video_id: str) -> dict[str, Any]:
        """How far a job is."""
        return shown(self._service, self._find(video_id))

    async def content(self, video_id: str) -> Response:
        """The clip itself."""
        return _content(self._service, self._find(video_id), {})

    async def follow(self, video_id: str) -> Response:
        """Server-sent events: `progress` with step, of and preview, at the end the job by its status."""
        self._find(video_id)
        return StreamingResponse(_events(self._service, video_id), media_type="text/event-stream")

    async def cancel(self, video_id: str) -> dict[str, Any]:
        """Stop a job, after the step that is under way."""
        self._find(video_id)
        await self._jobs.cancel(video_id)
        return await self.get(video_id)

    async def delete(self, video_id: str) -> dict[str, Any]:
        """Stop a job if it has not ended, and forget it with all that it made."""
        self._find(video_id)
        await self._jobs.cancel(video_id)
        self._jobs.store.delete(video_id)
        return {"id": video_id, "object": "video.deleted", "deleted": True}

    def _find(self, video_id: str) -> Job:
        job = self._jobs.store.get(video_id)
        if job is None:
            raise HTTPException(404, f"there is no video {video_id!r}")
        return job

    async def _ended(self, video_id: str) -> None:
        async for _ in self._jobs.follow(video_id):
            pass


async def _begin(service: Service, request: Request, key: str | None) -> Job:
    """A job for a request that was checked as far as it can be without weights."""
    body = await read_body(request, VideosRequest)
    service.check_model(body.model)
    asked = wanted(body, service.world.facts, service.settings.robots)
    options = await read_references(service, asked)
    with renamed(NAMES):
        await service.check(asked.task, options)
    said = {"prompt": body.prompt, "user": body.user}
    wish = Wish(new_id("video_gen"), owner_of(request), asked.task, options, said)
    return await service.jobs.add(wish, key)


async def read_references(service: Service, asked: Wanted) -> dict[str, Any]:
    """The options with references read: bytes of pictures, clips and sounds."""
    options = dict(asked.options)
    for name in ("image", "video", "audio"):
        if name in options:
            options[name] = await service.content(options[name], f"{name}_reference")
    if "media" in options:
        content = await service.content(options.pop("media"), "input_reference")
        options[_kind(content)] = content
    if "audio" in options:
        options["sound"] = one_of(generate_sound=options.get("sound"), audio_reference=options.pop("audio"))
    for hint, control in options.get("controls", {}).items():
        control["clip"] = await service.content(control["clip"], f"extra_params.{hint}.control_path")
    return options


def _kind(content: bytes) -> Literal["image", "video"]:
    with open_binary(content, "input_reference") as file:
        kind = looks_like(file)
    if kind == "neither a picture nor a clip":
        raise BadRequest("input_reference", content, f"is {kind}")
    return "image" if kind == "a picture" else "video"


def _content(service: Service, job: Job, headers: Mapping[str, str]) -> Response:
    if job.state == "failed":
        error = dict(job.error or {})
        fault = error.get("type") == "invalid_request_error"
        return JSONResponse({"error": error}, 400 if fault else 500, dict(headers))
    if job.state == "cancelled":
        raise HTTPException(410, "this was cancelled")
    made = job.made
    if made is None:
        raise HTTPException(404, "this is not finished yet")
    if "file" not in made:
        raise HTTPException(404, "this job made actions and no clip; they are in the job itself")
    path = service.jobs.store.folder(job.id) / made["file"]
    return FileResponse(path, media_type=made["media_type"], headers=dict(headers))


async def _events(service: Service, job_id: str) -> AsyncGenerator[str]:
    async for progress in service.jobs.follow(job_id):
        yield event(await _told(progress), "progress") if progress else ": still here\n\n"
    job = service.jobs.store.get(job_id)
    if job is not None and job.ended:
        yield event(shown(service, job), STATUS.get(job.state, job.state))


async def _told(progress: Progress) -> dict[str, Any]:
    preview = await run_in_threadpool(_preview, progress.preview) if progress.preview else None
    return {"step": progress.step, "of": progress.of, "preview": preview}


def _preview(look: Callable[[], Pixels]) -> str:
    """What is taking shape, one pixel a latent, its frames side by side, as a data URI."""
    frames_THW3, out = look(), io.BytesIO()
    Image.fromarray(np.concatenate(list(frames_THW3), axis=1)).save(out, "PNG")
    return f"data:image/png;base64,{base64.b64encode(out.getvalue()).decode()}"


def shown(service: Service, job: Job) -> dict[str, Any]:
    """A job as OpenAI's video object, in vLLM-Omni's superset of it."""
    progress, made = service.jobs.progress(job.id), dict(job.made or {})
    percent = 100 if job.state == "done" else 0
    if progress is not None and progress.of:
        percent = min(99, 100 * progress.step // progress.of)
    spent = {"inference_time_s": round((job.finished or time.time()) - job.started, 3)} if job.started else {}
    seconds = made.get("duration_s")
    return {
        "id": job.id,
        "object": "video",
        "model": service.model,
        "task": job.task,
        "status": STATUS.get(job.state, job.state),
        "progress": percent,
        "prompt": job.asked.get("prompt"),
        "created_at": int(job.created),
        "completed_at": int(job.finished) if job.finished else None,
        "expires_at": int(job.expires),
        "seconds": None if seconds is None else f"{seconds:g}",
        "remixed_from_video_id": None,
        "error": job.error,
        **{name: made.get(name) for name in ("size", "fps", "num_frames", "duration_s", "media_type")},
        "file_name": made.get("file"),
        "action": made.get("action"),
        "receipt": made.get("receipt"),
        **spent,
    }
