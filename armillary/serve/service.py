"""What the routes share: the world with its worker, the door for media, and how a request's work is done."""

import asyncio
import hashlib
import json
import os
import secrets
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar, cast

from fastapi import Request
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException

from armillary.errors import BadRequest, Cancelled, nearest
from armillary.media.pictures import read_picture
from armillary.robots import Robot, robot
from armillary.serve.door import Door, Uploads
from armillary.serve.jobs import Jobs
from armillary.serve.settings import Settings
from armillary.serve.worker import Busy, Talk, Ticket, Told, Worker
from armillary.step import OnStep
from armillary.tasks.act import check_body
from armillary.tasks.deltas import Delta
from armillary.tasks.ready import checker
from armillary.tasks.reason import Reasoner
from armillary.world import World, screened

Result = TypeVar("Result")
TOO_MUCH = "too much is waiting; try again later"


class Service:
    """One world, served."""

    def __init__(self, world: World, settings: Settings) -> None:
        self.world, self.settings = world, settings
        self.worker = Worker(world.reasoner, max_waiting=settings.max_waiting)
        self.uploads = Uploads(settings)
        self.door = Door(settings, self.uploads)
        self.jobs = Jobs(world, self.worker, settings)
        self.started = int(time.time())
        self.closing = False

    @property
    def model(self) -> str:
        return self.world.facts.model

    @property
    def domain(self) -> str | None:
        """The robot that is meant where a request names none."""
        own = self.settings.domain
        return own.name if isinstance(own, Robot) else own

    @property
    def robots(self) -> list[str]:
        """The robots that a request may name."""
        return [*dict.fromkeys((*self.world.facts.robots, *self.settings.robots))]

    def robot(self, name: str) -> Robot:
        """One of them. Raises BadRequest, naming the nearest, for another name."""
        if name not in self.robots:
            close = " or ".join(nearest(name, self.robots)) or "none"
            raise BadRequest("domain", name, f"no such robot here; nearest: {close}")
        return self.settings.robots.get(name) or robot(name)

    def check_robot(self) -> None:
        """Raise BadRequest if this model cannot move the robot that is meant where none is named."""
        if self.domain is not None:
            facts = self.world.facts
            body = self.robot(self.domain)
            check_body(body, ports=facts.ports, room=facts.action_width, untaught=facts.untaught)

    def check_model(self, model: str | None) -> None:
        if model is not None and model != self.model:
            raise HTTPException(404, f"the model {model!r} is not here; this server has {self.model!r}")

    async def check(self, task: str, options: Mapping[str, Any]) -> None:
        """Raise the BadRequest that this task of the world would raise, and none of its paths are opened."""
        refuse_paths(options, self.robots)
        await run_in_threadpool(checker(task), self.settings.embodied(options), self.world.facts)

    async def make(self, request: Request, work: Callable[[OnStep], Result]) -> Result:
        """Have the worker denoise for a request that waits for it; a client that leaves cancels it."""
        return await self.unless_gone(request, self.run(owner_of(request), work))

    async def run(self, owner: str, work: Callable[[OnStep], Result]) -> Result:
        """Have the worker denoise; it is cancelled with the task that waits for it."""
        ticket = Ticket(owner, work)
        try:
            return await asyncio.wrap_future(self.submit(ticket))
        finally:
            self.worker.stop(ticket)

    def submit(self, ticket: Ticket[Result]) -> Any:
        try:
            return self.worker.submit(ticket)
        except Busy:
            raise HTTPException(503, TOO_MUCH, {"Retry-After": "5"}) from None

    async def talk(
        self, request: Request, messages: Sequence[Mapping[str, Any]], options: Mapping[str, Any]
    ) -> AsyncGenerator[Delta]:
        """The deltas of the answers to a conversation; closing the generator stops them within one token."""
        loop, told = asyncio.get_running_loop(), asyncio.Queue[Told]()

        def ask(reasoner: Reasoner) -> int:
            return self.world.ask(reasoner, messages=messages, **cast("Any", options))

        def tell(piece: Told) -> None:
            loop.call_soon_threadsafe(told.put_nowait, piece)

        talk = Talk(owner_of(request), ask, tell, options.get("n", 1))
        try:
            self.worker.talk(talk)
        except Busy:
            raise HTTPException(503, TOO_MUCH, {"Retry-After": "5"}) from None
        guard, held = self.world.facts.guard, list[Delta]()
        try:
            while (piece := await told.get()) is not None:
                if isinstance(piece, BaseException):
                    raise piece
                if guard is None:
                    yield piece
                else:  # nothing leaves before the guard has seen all of it
                    held.append(await run_in_threadpool(screened, piece, guard))
            for piece in held:
                yield piece
        finally:
            talk.stopped = True

    async def unless_gone(self, request: Request, work: Awaitable[Result]) -> Result:
        """The result of work, or Cancelled as soon as the client has left."""
        task = asyncio.ensure_future(work)
        gone = asyncio.ensure_future(_gone(request))
        try:
            await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                raise Cancelled
            return task.result()
        finally:
            task.cancel()
            gone.cancel()

    async def picture(self, said: object, field: str) -> Any:
        """A referenced picture as pixels."""
        content = await run_in_threadpool(self.door.read, said, field)
        return await run_in_threadpool(read_picture, content, field=field)

    async def content(self, said: object, field: str) -> bytes:
        return await run_in_threadpool(self.door.read, said, field)


def owner_of(request: Any) -> str:
    """Who asks, as far as taking turns goes: a digest of the key, else an address."""
    client, key = request.client, request.headers.get("authorization", "")
    return hashlib.sha256(key.encode()).hexdigest()[:16] if key else client.host if client else "?"


def refuse_paths(options: Mapping[str, Any], robots: Sequence[str]) -> None:
    """The library opens what is given as a path; whoever asks a server may not name its files."""
    for name in ("image", "video", "edit", "sound", "actions", "state"):
        if isinstance(options.get(name), str | os.PathLike):
            raise BadRequest(name, options[name], "is no content")
    for hint, control in (options.get("controls") or {}).items():
        if isinstance(control["clip"], str | os.PathLike):
            raise BadRequest(f"controls.{hint}", control["clip"], "is no content")
    domain = options.get("domain")
    if domain is not None and domain not in robots:
        close = " or ".join(nearest(domain, robots))
        raise BadRequest("domain", domain, f"no such robot here; nearest: {close}")


def new_id(kind: str) -> str:
    return f"{kind}_{secrets.token_hex(16)}"


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def given(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options that were asked for."""
    return {name: value for name, value in options.items() if value is not None}


def one_of(**options: Any) -> Any:
    """The one value that is given of several names for the same thing. Raises BadRequest for two."""
    found = {name: value for name, value in options.items() if value is not None}
    if len(found) > 1:
        first, second, *_ = found
        raise BadRequest(second, found[second], f"says the same as {first}; give one of them")
    return next(iter(found.values()), None)


def event(value: Mapping[str, Any] | str, name: str = "") -> str:
    """One server-sent event."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return f"event: {name}\ndata: {text}\n\n" if name else f"data: {text}\n\n"
