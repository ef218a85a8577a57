"""`/v1/policy`: robots on a web socket, by the conventions of openpi: metadata first; an observation in, a
chunk of actions out; msgpack, with arrays as openpi-client packs them.

What is wrong with an observation is answered as text, which that client raises; the connection stays.
"""

import time
from collections.abc import Mapping
from functools import partial
from typing import Any, cast

import msgpack
import numpy as np
from fastapi import APIRouter, WebSocket, WebSocketDisconnect
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException

from armillary.errors import BadRequest, nearest
from armillary.media.pictures import read_picture
from armillary.serve.bodies import renamed
from armillary.serve.jobs import work
from armillary.serve.service import Service, given, one_of, owner_of
from armillary.serve.trust import explain

IMAGES = ("observation/image", "image")
KEYS = {
    "observation/state": "state",
    "prompt": "prompt",
    "domain": "domain",
    "seed": "seed",
    "steps": "steps",
    "guidance": "guidance",
}
KINDS = "biuf"  # of numbers that an array may hold


def routes(service: Service) -> APIRouter:
    router = APIRouter()

    @router.get("/v1/policy/info")
    async def policy_info(domain: str | None = None) -> dict[str, Any]:
        """What a robot is told when it connects, `?domain=` included."""
        return metadata(service, domain)

    @router.websocket("/v1/policy")
    @router.websocket("/")  # where openpi's client connects when it is given a host and a port
    async def policy(socket: WebSocket, domain: str | None = None) -> None:
        await _serve(service, socket, domain)

    return router


def metadata(service: Service, domain: str | None) -> dict[str, Any]:
    """The contract: what an observation holds, what a chunk means. Raises BadRequest for an unknown robot."""
    domain = domain or service.domain
    told = {"model": service.model, "robots": service.robots, "domain": domain}
    if domain is None:
        return {**told, "observation": [*IMAGES[:1], *KEYS]}
    body = service.robot(domain)
    contract = {"fps": body.fps, "action_horizon": body.chunk, "action_dim": body.width}
    names = {"columns": list(body.columns), "digest": body.digest}
    return {**told, **contract, **names, "observation": [*IMAGES[:1], *KEYS]}


async def _serve(service: Service, socket: WebSocket, domain: str | None) -> None:
    try:
        told = metadata(service, domain)
    except BadRequest as error:
        raise HTTPException(400, str(error)) from None
    await socket.accept()
    await socket.send_bytes(pack(told))
    try:
        while True:
            data = await socket.receive_bytes()
            await _answer(service, socket, data, told["domain"])
    except (WebSocketDisconnect, KeyError):  # it has left, or sent text where bytes belong
        return


async def _answer(service: Service, socket: WebSocket, data: bytes, domain: str | None) -> None:
    started = time.perf_counter()
    try:
        seen = unpack(data)
        if seen.get("endpoint") == "reset":  # nothing is kept from one chunk to the next
            await socket.send_bytes(pack({"status": "reset successful"}))
            return
        options = await run_in_threadpool(_options, seen, domain)
        with renamed({"image": IMAGES[0]}):
            await service.check("policy", options)
            asked = partial(work, service.world, "policy", service.settings.embodied(options))
            made: Any = await service.run(owner_of(socket), asked)
    except Exception as error:  # noqa: BLE001 - whatever it is, it belongs to this observation alone
        await socket.send_text(explain(error)[1]["error"]["message"])
        return
    timing = {"infer_ms": 1000 * (time.perf_counter() - started)}
    await socket.send_bytes(pack({"actions": made.values, "server_timing": timing}))


def _options(seen: Mapping[str, Any], domain: str | None) -> dict[str, Any]:
    for name in seen.keys() - {*IMAGES, *KEYS}:
        close = " or ".join(nearest(name, [*IMAGES, *KEYS]))
        raise BadRequest(str(name), "...", f"is not used; nearest: {close}")
    image = one_of(**{name: seen.get(name) for name in IMAGES})
    if image is None:
        raise BadRequest(IMAGES[0], None, "is needed: uint8 [H, W, 3], or the bytes of a picture")
    options = {theirs: seen.get(name) for name, theirs in KEYS.items()} | {"decode": False}
    options["domain"] = options["domain"] or domain
    return given({**options, "image": read_picture(image, field=IMAGES[0])})


# ------------------------------------------------------------------------------- msgpack with arrays


def pack(value: Mapping[str, Any]) -> bytes:
    return cast("bytes", msgpack.packb(value, default=_pack_array))


def unpack(data: bytes) -> dict[str, Any]:
    """A message. Raises BadRequest for anything but a map; no array of objects is ever made."""
    try:
        found = msgpack.unpackb(data, object_hook=_unpack_array, strict_map_key=False)
    except (ValueError, TypeError, KeyError, RecursionError, msgpack.UnpackException) as error:
        raise BadRequest("message", f"<{len(data)} bytes>", f"is no msgpack of ours: {error}") from None
    if not isinstance(found, dict):
        raise BadRequest("message", type(found).__name__, "an observation is a map")
    return {str(key): value for key, value in cast("dict[Any, Any]", found).items()}


def _pack_array(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        array = cast("np.ndarray[Any, Any]", value)
        return {
            b"__ndarray__": True,
            b"data": array.tobytes(),
            b"dtype": array.dtype.str,
            b"shape": array.shape,
        }
    raise TypeError(f"{type(value).__name__} has no form in msgpack")


def _unpack_array(value: dict[Any, Any]) -> Any:
    if b"__ndarray__" not in value and b"__npgeneric__" not in value:
        return value
    kind = np.dtype(value[b"dtype"])
    if kind.kind not in KINDS:
        raise ValueError(f"an array of {kind}")
    if b"__npgeneric__" in value:
        return kind.type(value[b"data"]).item()
    return np.ndarray(buffer=value[b"data"], dtype=kind, shape=value[b"shape"])
