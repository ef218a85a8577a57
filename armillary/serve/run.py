"""A server from its start to its end: checks first, then the world, then a port."""

import gc
import socket
import sys
from collections.abc import Callable
from types import FrameType

import uvicorn
from fastapi import FastAPI

from armillary.errors import BadRequest
from armillary.serve.service import Service

BACKLOG = 1024
SWITCH_S = 0.0005  # Python's own 5 ms would be waited for at every turn while the worker computes


class Server(uvicorn.Server):
    """uvicorn, which tells the service that it is asked to stop, so that endless streams end."""

    def __init__(self, config: uvicorn.Config, service: Service, ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._service, self._ready = service, ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._ready()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self._service.closing = True
        super().handle_exit(sig, frame)


def listen(host: str, port: int) -> socket.socket:
    """The socket to serve on, taken before anything is loaded. Raises BadRequest if it is taken."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind((host, port))
    except (OSError, OverflowError) as error:
        sock.close()
        raise BadRequest("port", port, f"cannot be listened on at {host}: {error}") from None
    return sock


def address_of(sock: socket.socket) -> str:
    """Where a browser finds it."""
    address, port = sock.getsockname()[:2]
    return f"http://[{address}]:{port}" if ":" in address else f"http://{address}:{port}"


def run(app: FastAPI, sock: socket.socket, ready: Callable[[], None]) -> None:
    """Serve until SIGINT or SIGTERM; then finish what is under way, for at most `grace_s`.

    `ready` is called when the first request is welcome.
    """
    service: Service = app.state.service
    settings = service.settings
    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        backlog=BACKLOG,
        timeout_graceful_shutdown=int(settings.grace_s),
        ws_max_size=settings.max_body,
        server_header=False,
    )
    sys.setswitchinterval(SWITCH_S)
    gc.collect()
    gc.freeze()  # the world stays: looking through it for garbage would stop every thread each time
    Server(config, service, ready).run(sockets=[sock])
