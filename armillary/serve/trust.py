"""What stands before every route: keys, hosts and origins, and a limit on what is sent.

Plain ASGI, so that nothing behind it can be reached around it: web sockets and pages as well.
"""

import base64
import binascii
import json
import logging
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any
from urllib.parse import urlsplit

from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from armillary.errors import BadRequest, Cancelled, lacks_disk, lacks_memory
from armillary.serve.settings import Settings

OPEN = ("/health",)
CLIENT_LEFT = 499


def problem(
    status: int, message: str, *, param: str | None = None, code: str | None = None
) -> dict[str, Any]:
    """An error in OpenAI's shape."""
    kinds = {
        401: "authentication_error",
        403: "permission_error",
        404: "not_found_error",
        429: "rate_limit_error",
    }
    kind = "server_error" if status >= 500 else kinds.get(status, "invalid_request_error")
    code = code or HTTPStatus(status).phrase.lower().replace(" ", "_")
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def explain(error: Exception) -> tuple[int, dict[str, Any]]:
    """The status of what went wrong, and what is said about it: to a client its own faults in full."""
    if isinstance(error, BadRequest):
        return 400, problem(400, str(error), param=error.field, code="bad_request")
    if isinstance(error, RequestValidationError):
        first = error.errors()[0]
        return 400, problem(400, str(first["msg"]), param=str(first["loc"][-1]), code="bad_request")
    if isinstance(error, HTTPException):
        return error.status_code, problem(error.status_code, str(error.detail))
    if isinstance(error, Cancelled):
        return CLIENT_LEFT, problem(CLIENT_LEFT, "cancelled", code="cancelled")
    if isinstance(error, FloatingPointError):
        return 500, problem(500, f"{error}; other requests are not affected", code="not_finite")
    if lacks_memory(error):
        return 500, problem(500, "not enough memory for this request; ask for less", code="out_of_memory")
    if lacks_disk(error):
        return 507, problem(507, "there is no room on this server's disk; delete some jobs or files")
    return 500, problem(500, "the server failed; its log says how", code="server_error")


def key_of(authorization: str) -> str:
    """The key in an Authorization header: Bearer as OpenAI's clients send it, Api-Key as openpi's do, or
    the password of Basic, which a browser asks for by itself."""
    scheme, _, given = authorization.partition(" ")
    if scheme.lower() in ("bearer", "api-key"):
        return given.strip()
    if scheme.lower() == "basic":
        try:
            return base64.b64decode(given, validate=True).decode().partition(":")[2]
        except (binascii.Error, ValueError):
            return ""
    return ""


class Guard:
    """Lets a request through, or refuses it with 401, 403, 413 or 421."""

    def __init__(self, app: ASGIApp, settings: Settings) -> None:
        self._app, self._settings = app, settings

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        headers = {k.decode("latin-1").lower(): v.decode("latin-1") for k, v in scope["headers"]}
        refusal = self._refusal(scope["path"], headers)
        if refusal is not None:
            await _refuse(scope, send, *refusal)
            return
        if scope["type"] == "websocket":
            await self._app(scope, receive, send)
            return
        await self._counted(scope, receive, send)

    def _refusal(self, path: str, headers: Mapping[str, str]) -> tuple[int, str] | None:
        settings, host = self._settings, headers.get("host", "")
        name = (urlsplit(f"//{host}").hostname or "") if host.count("[") == host.count("]") else ""
        if settings.names and name not in settings.names:
            return 421, f"this server is not {host!r}; it answers to {', '.join(settings.names)}"
        origin = headers.get("origin")
        if origin and origin.partition("://")[2].lower() != host.lower():
            return 403, f"pages of {origin} may not use this server"
        if (
            settings.keys
            and path not in OPEN
            and not settings.knows(key_of(headers.get("authorization", "")))
        ):
            return 401, "a key is needed: Authorization: Bearer KEY"
        length = headers.get("content-length", "0")
        if not length.isascii() or not length.isdecimal() or int(length) > settings.max_body:
            return 413, f"at most {settings.max_body} bytes are taken"
        return None

    async def _counted(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, its body counted while it comes; whatever nobody else answers is answered."""
        taken, begun = 0, False

        async def count() -> Message:
            nonlocal taken
            message = await receive()
            taken += len(message.get("body", b""))
            if taken > self._settings.max_body:
                raise HTTPException(413, f"at most {self._settings.max_body} bytes are taken")
            return message

        async def note(message: Message) -> None:
            nonlocal begun
            begun = True
            await send(message)

        try:
            await self._app(scope, count, note)
        except ClientDisconnect:
            return  # there is nobody to answer
        except Exception as error:
            if begun:
                raise
            logging.getLogger(__name__).exception("%s %s", scope["method"], scope["path"])
            status, said = explain(error)
            await JSONResponse(said, status)(scope, receive, send)


async def _refuse(scope: Scope, send: Send, status: int, message: str) -> None:
    if scope["type"] == "websocket":
        status_code = status
        await send({"type": "websocket.http.response.start", "status": status_code, "headers": []})
        await send({"type": "websocket.http.response.body", "body": message.encode()})
        return
    headers = [(b"content-type", b"application/json"), (b"connection", b"close")]
    if status == 401:
        headers.append((b"www-authenticate", b'Basic realm="armillary", charset="UTF-8"'))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": json.dumps(problem(status, message)).encode()})
