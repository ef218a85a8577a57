"""A server on loopback, in a thread of this process: the real application on pocket."""

import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx2
import openai
import pytest
import uvicorn
from fastapi import FastAPI

import armillary
from armillary.serve.app import create_app
from armillary.serve.run import Server, listen
from armillary.serve.service import Service
from armillary.serve.settings import Settings
from armillary.world import World


@dataclass
class Live:
    """A running server and what speaks to it."""

    app: FastAPI
    port: int
    clients: dict[str, openai.OpenAI] = field(default_factory=dict[str, openai.OpenAI])  # by key

    @property
    def service(self) -> Service:
        return self.app.state.service

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def http(self, **options: object) -> httpx2.Client:
        return httpx2.Client(base_url=self.url, timeout=60, **options)  # pyright: ignore[reportArgumentType]

    def openai(self, key: str = "none") -> openai.OpenAI:
        """The client of a key, closed with the server: left to the garbage collector, its socket may be
        collected first, and warns."""
        if key not in self.clients:
            self.clients[key] = openai.OpenAI(
                base_url=f"{self.url}/v1", api_key=key, max_retries=0, timeout=60
            )
        return self.clients[key]


@contextmanager
def serving(world: World, settings: Settings) -> Iterator[Live]:
    app = create_app(world, settings)
    with listen("127.0.0.1", 0) as sock:
        config = uvicorn.Config(app, log_level="warning", access_log=False, timeout_graceful_shutdown=10)
        ready = threading.Event()
        server = Server(config, app.state.service, ready.set)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [sock]})
        thread.start()
        live = Live(app, sock.getsockname()[1])
        try:
            assert ready.wait(20)
            yield live
        finally:
            for client in live.clients.values():
                client.close()
            live.service.closing = server.should_exit = True
            thread.join(30)
            assert not thread.is_alive()


@pytest.fixture(scope="session")
def world() -> World:
    return armillary.load("pocket")


@pytest.fixture(scope="session")
def live(world: World, tmp_path_factory: pytest.TempPathFactory) -> Generator[Live]:
    """A server that everybody may use."""
    with serving(world, Settings(tmp_path_factory.mktemp("server"))) as live:
        yield live


Start = Callable[..., AbstractContextManager[Live]]


@pytest.fixture
def start(world: World, tmp_path: Path) -> Start:
    """`with start(keys=...) as live`: a server of its own."""
    return lambda **options: serving(world, Settings(tmp_path, **options))
