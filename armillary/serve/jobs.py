"""Jobs at work: each is a task of the server's loop, so that it outlives the connection that asked for it."""

import asyncio
import contextlib
import hashlib
import json
import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, cast

from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException

from armillary.errors import Cancelled
from armillary.media import Clip
from armillary.media.source import Pixels
from armillary.robots import Actions
from armillary.serve.settings import Settings
from armillary.serve.store import Job, Store
from armillary.serve.trust import explain
from armillary.serve.worker import Busy, Ticket, Worker
from armillary.step import OnStep, Step
from armillary.world import World

BEAT_S, SWEEP_S = 1.0, 10.0


@dataclass
class Progress:
    """How far a job is. `changed` wakes those who follow it."""

    ticket: Ticket[Any] | None = None
    step: int = 0
    of: int = 0
    preview: Callable[[], Pixels] | None = None
    cancelled: bool = False
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def tell(self) -> None:
        self.changed.set()
        self.changed = asyncio.Event()


@dataclass(frozen=True)
class Wish:
    """A job before it is stored; `options` hold pictures and clips as bytes."""

    id: str
    owner: str
    task: str
    options: Mapping[str, Any]
    asked: Mapping[str, Any]

    def job(self, options: Mapping[str, Any], digest: str, created: float, expires: float) -> Job:
        head = (self.id, self.owner, self.task, options, self.asked)
        return Job(*head, "queued", created, None, None, expires, None, None, digest)


class Jobs:
    """Takes jobs in, has the worker make them, and keeps what comes of them."""

    def __init__(self, world: World, worker: Worker, settings: Settings) -> None:
        self._world, self._worker, self._settings = world, worker, settings
        self.store = Store(settings)
        self._active: dict[str, Progress] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._closing = False

    def start(self) -> None:
        """Go on with what the last server left queued."""
        for job in self.store.recover():
            self._launch(job)
        self._sweeper = self._spawn(self._sweep())

    async def close(self) -> None:
        """After the worker has closed: what did not come to its end is queued for the next server."""
        self._closing = True
        self._sweeper.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self.store.close()

    async def add(self, wish: Wish, key: str | None = None) -> Job:
        """A new job, stored and queued; under a key that was used before, the job of that time.

        Raises HTTPException 409 for a key that was used for another request, 503 if too much waits.
        """
        files: dict[str, bytes] = {}
        plain = _detached(wish.options, files)
        digest = await run_in_threadpool(_digest, wish.task, plain, files)
        key = None if key is None else f"{wish.owner} {key}"
        if known := self._known(key, digest):
            return known
        if len(self._active) >= self._settings.max_waiting:
            raise HTTPException(503, "too many jobs are waiting; try again later", {"Retry-After": "10"})
        await run_in_threadpool(self.store.write, wish.id, files)
        if known := self._known(key, digest):  # the same was asked while we wrote
            return known
        now = time.time()
        job = wish.job(plain, digest, now, now + self._settings.keep_s)
        self.store.add(job, key)
        self._launch(job)
        return job

    def _known(self, key: str | None, digest: str) -> Job | None:
        """The job that was asked for under this key. Raises HTTPException 409 if it was another request."""
        known = self.store.by_key(key) if key is not None else None
        if known is not None and known.digest != digest:
            raise HTTPException(409, "this Idempotency-Key was used for another request")
        return known

    def progress(self, job_id: str) -> Progress | None:
        """Of a job that has not ended."""
        return self._active.get(job_id)

    async def cancel(self, job_id: str) -> None:
        """Stop a job, after the step that is under way; comes back when it has stopped."""
        progress = self._active.get(job_id)
        if progress is None:
            return
        progress.cancelled = True
        if progress.ticket is not None:
            self._worker.stop(progress.ticket)
        while job_id in self._active:
            await progress.changed.wait()

    async def follow(self, job_id: str) -> AsyncGenerator[Progress | None]:
        """How far a job is whenever that changes, until it ends; None as a sign of life."""
        while (progress := self._active.get(job_id)) is not None and not self._closing:
            changed = progress.changed
            yield progress
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(changed.wait(), BEAT_S)
            if not changed.is_set():
                yield None

    def _launch(self, job: Job) -> None:
        self._active[job.id] = Progress()
        self._spawn(self._run(job))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _sweep(self) -> None:
        while True:
            self.store.sweep()
            await asyncio.sleep(SWEEP_S)

    async def _run(self, job: Job) -> None:
        progress = self._active[job.id]
        try:
            made = await self._make(job, progress)
            self.store.end(job.id, "done", made=made)
        except (Cancelled, asyncio.CancelledError):
            if progress.cancelled:
                self.store.end(job.id, "cancelled")
            else:
                self.store.requeue(job.id)
        except Exception as error:  # noqa: BLE001 - whatever it is, it belongs to this job alone
            self.store.end(job.id, "failed", error=explain(error)[1]["error"])
        finally:
            del self._active[job.id]
            progress.tell()

    async def _make(self, job: Job, progress: Progress) -> dict[str, Any]:
        loop = asyncio.get_running_loop()
        options = await run_in_threadpool(self._read, job)

        def start() -> None:
            loop.call_soon_threadsafe(self.store.start, job.id)

        def on_step(done: Step) -> None:
            loop.call_soon_threadsafe(_advance, progress, done)

        made = partial(work, self._world, job.task, self._settings.embodied(options))
        progress.ticket = Ticket(job.owner, made, start, on_step)
        if progress.cancelled:
            raise Cancelled
        result = await asyncio.wrap_future(await self._submit(progress.ticket))
        return await run_in_threadpool(keep, result, self.store.folder(job.id))

    async def _submit(self, ticket: Ticket[Any]) -> Any:
        """Queue a ticket, when there is room for it."""
        while True:
            try:
                return self._worker.submit(ticket)
            except Busy:
                if ticket.stopped or self._closing:
                    raise Cancelled from None
                await asyncio.sleep(0.1)

    def _read(self, job: Job) -> dict[str, Any]:
        return _attached(job.options, self.store.folder(job.id))


def _detached(value: Any, files: dict[str, bytes]) -> Any:
    """Options with every content replaced by the name of a file, which is added to `files`."""
    if isinstance(value, bytes):
        name = f"given-{len(files)}"
        files[name] = value
        return {"file": name}
    if isinstance(value, Mapping):
        return {name: _detached(item, files) for name, item in cast("Mapping[str, Any]", value).items()}
    return value


def _attached(value: Any, folder: Path) -> Any:
    """The inverse of `_detached`, from the folder in which the files lie."""
    if not isinstance(value, Mapping):
        return value
    items = cast("Mapping[str, Any]", value)
    if set(items) == {"file"}:
        return (folder / items["file"]).read_bytes()
    return {name: _attached(item, folder) for name, item in items.items()}


def _advance(progress: Progress, done: Step) -> None:
    progress.step, progress.of, progress.preview = done.step, done.of, done.preview
    progress.tell()


def work(world: World, task: str, options: Mapping[str, Any], on_step: OnStep) -> Any:
    """What a task of the world, by its name, makes: a Clip, several, or Actions."""
    return getattr(world, task)(**options, on_step=on_step)


def keep(result: Clip | Actions, folder: Path) -> dict[str, Any]:
    """Write what was made into a folder; what it is, as plain JSON. It may take a while: not for the loop."""
    clip = result if isinstance(result, Clip) else result.clip
    made: dict[str, Any] = {"receipt": dict(result.receipt)}
    if isinstance(result, Actions):
        made["action"] = shown_actions(result)
    if clip is not None:
        is_picture = len(clip.frames) == 1
        name = "made.png" if is_picture else "made.mp4"
        clip.save(folder / name)
        count, height, width, _ = clip.frames.shape
        made |= {"file": name, "media_type": "image/png" if is_picture else "video/mp4"}
        made |= {"num_frames": count, "fps": clip.fps, "size": f"{width}x{height}"}
        made["duration_s"] = round(clip.duration_s, 3)
    return made


def shown_actions(actions: Actions) -> dict[str, Any]:
    """Actions as vLLM-Omni shows them, with our contract beside."""
    values = actions.values.tolist()
    return {
        "data": values,
        "shape": list(actions.values.shape),
        "dtype": "float32",
        "raw_action_dim": actions.values.shape[1],
        "domain_name": actions.domain,
        "fps": actions.fps,
        "names": list(actions.names),
        "digest": actions.digest,
    }


def _digest(task: str, options: Mapping[str, Any], files: Mapping[str, bytes]) -> str:
    """Of a request, so that the same key for another one is noticed."""
    total = hashlib.sha256(json.dumps([task, options], sort_keys=True).encode())
    for name, content in files.items():
        total.update(f"{name} {len(content)}".encode() + content)
    return total.hexdigest()
