"""Which URLs a server fetches, from where, and how much of them."""

import errno
import socket
import threading
import urllib.parse
from collections.abc import Callable, Generator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from armillary.errors import BadRequest
from armillary.serve.fetch import Fetcher, is_global
from tests.serve.conftest import Live

PUBLIC = "93.184.215.14"


class Answer(BaseHTTPRequestHandler):
    """A host: what it says depends on the path."""

    def do_GET(self) -> None:
        self.server.seen.append((self.headers["Host"], dict(self.headers)))
        path = urllib.parse.unquote(self.path)
        if path.startswith("/to/"):
            self.send_response(302)
            self.send_header("Location", path.removeprefix("/to/"))
            self.end_headers()
            return
        self.send_response(200)
        if path.startswith("/cut"):
            self.send_header("Content-Length", "100")
            path = ""
        self.end_headers()
        self.wfile.write(b"x" * int(path.removeprefix("/") or 4))

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def host() -> Generator[HTTPServer]:
    server = HTTPServer(("127.0.0.1", 0), Answer)
    server.seen = []
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def network(host: HTTPServer) -> Callable[..., tuple[Fetcher, list[str]]]:
    """A fetcher whose names all lead to the host above, and the addresses that it connects to."""

    def make(*answers: str, hosts: tuple[str, ...] = ("good.example",)) -> tuple[Fetcher, list[str]]:
        dialled, left = list[str](), list(answers)

        def resolve(name: str, port: int) -> list[str]:
            return [left.pop(0) if len(left) > 1 else left[0]]

        def dial(address: str, port: int, timeout_s: float) -> socket.socket:
            dialled.append(address)
            return socket.create_connection(host.server_address, timeout=timeout_s)

        return Fetcher(hosts, 1000, 5.0, resolve=resolve, dial=dial), dialled

    return make


def test_a_url_of_a_named_host_is_fetched_once_resolved(network: Callable, host: HTTPServer) -> None:
    fetcher, dialled = network(PUBLIC, "127.0.0.1")  # a second answer would be an inner address
    assert fetcher.fetch("http://good.example/", "image") == b"xxxx"
    assert dialled == [PUBLIC]
    (seen,) = host.seen
    assert seen[0] == "good.example"
    assert not {"authorization", "cookie"} & {name.lower() for name in seen[1]}


@pytest.mark.parametrize(
    "address", ["127.0.0.1", "10.0.0.1", "169.254.169.254", "::1", "::ffff:127.0.0.1", "64:ff9b::7f00:1",
                "fe80::1%eth0", "0.0.0.0", "224.0.0.1", "100.64.0.1", "2002:7f00:1::",
                "64:ff9b:1::7f00:1", "::127.0.0.1", "fec0::1", "192.0.0.8", "192.88.99.1", "fd00::1"]
)  # fmt: skip
def test_a_name_that_leads_inside_is_not_connected_to(network: Callable, address: str) -> None:
    fetcher, dialled = network(address)
    with pytest.raises(BadRequest, match="public Internet"):
        fetcher.fetch("http://good.example/", "image")
    assert not dialled
    assert not is_global(address)


@pytest.mark.parametrize(
    "url", ["http://bad.example/", "http://good.example:8080/", "http://user@good.example/", "ftp://good.example/",
            "http://127.0.0.1/", "http://good.example.bad.example/", "http://bad.example/good.example",
            "http://good.example@bad.example/", "http:///", "http://good.example:99999/"]
)  # fmt: skip
def test_hosts_that_are_not_named_are_not_asked(network: Callable, url: str) -> None:
    fetcher, dialled = network(PUBLIC)
    with pytest.raises(BadRequest):
        fetcher.fetch(url, "image")
    assert not dialled


def test_each_redirect_is_checked_anew(network: Callable) -> None:
    fetcher, dialled = network(PUBLIC)
    assert fetcher.fetch("http://good.example/to//5", "image") == b"xxxxx"
    for target in (
        "http://bad.example/",
        "http://127.0.0.1/",
        "http://good.example:22/",
        "file:///etc/passwd",
    ):
        dialled.clear()
        with pytest.raises(BadRequest):
            fetcher.fetch(f"http://good.example/to/{target}", "image")
        assert dialled == [PUBLIC]
    fetcher, dialled = network(PUBLIC, "127.0.0.1")
    with pytest.raises(BadRequest, match="public Internet"):
        fetcher.fetch("http://good.example/to/http://good.example/4", "image")
    with pytest.raises(BadRequest, match="redirects"):
        network(PUBLIC)[0].fetch("http://good.example/to/" * 9, "image")


def test_a_url_is_fetched_within_limits(network: Callable) -> None:
    fetcher, _ = network(PUBLIC)
    assert len(fetcher.fetch("http://good.example/1000", "image")) == 1000
    with pytest.raises(BadRequest, match="larger"):
        fetcher.fetch("http://good.example/1001", "image")


def test_a_body_that_breaks_off_is_no_picture(network: Callable) -> None:
    with pytest.raises(BadRequest, match="breaks off after 4 of 100 bytes"):
        network(PUBLIC)[0].fetch("http://good.example/cut", "image")


def test_a_redirect_to_what_is_no_url_is_refused(network: Callable) -> None:
    for target in ("http://[good.example/", "//[x"):
        with pytest.raises(BadRequest, match="no URL"):
            network(PUBLIC)[0].fetch(f"http://good.example/to/{target}", "image")


def test_of_several_addresses_the_next_is_tried_but_none_if_one_leads_inside(host: HTTPServer) -> None:
    dialled = list[str]()

    def dial(address: str, port: int, timeout_s: float) -> socket.socket:
        dialled.append(address)
        if address != PUBLIC:
            raise OSError(errno.ENETUNREACH, "Network is unreachable")
        return socket.create_connection(host.server_address, timeout=timeout_s)

    def fetch(*addresses: str) -> bytes:
        dialled.clear()
        fetcher = Fetcher(("good.example",), 1000, 5.0, resolve=lambda *_: [*addresses], dial=dial)
        return fetcher.fetch("http://good.example/", "image")

    assert fetch("2606:2800::1", PUBLIC) == b"xxxx"
    assert dialled == ["2606:2800::1", PUBLIC]
    with pytest.raises(BadRequest, match="unreachable"):
        fetch("2606:2800::1", "2606:2800::2")
    with pytest.raises(BadRequest, match="public Internet"):
        fetch(PUBLIC, "10.0.0.1")
    assert not dialled


def test_without_hosts_no_url_is_fetched(live: Live) -> None:
    content = [{"type": "image_url", "image_url": {"url": "http://127.0.0.1:1/a.png"}}]
    with live.http() as http:
        refused = http.post("/v1/chat/completions", json={"messages": [{"role": "user", "content": content}]})
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == "messages[0].content[0].image_url"
