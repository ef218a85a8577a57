"""Who may ask, what is read and fetched, and how much of everything: what SECURITY.md promises."""

import errno
import os
import socket
import sqlite3
import time
from collections.abc import Generator
from pathlib import Path

import httpx2
import pytest
from starlette.exceptions import HTTPException

from armillary.errors import BadRequest
from armillary.serve.door import Door, Uploads
from armillary.serve.settings import Settings, check_public, names_of
from tests.serve.conftest import Live, Start

# ----------------------------------------------------------------------------------------------- keys


@pytest.fixture(scope="module")
def keyed(world: object, tmp_path_factory: pytest.TempPathFactory) -> Generator[Live]:
    from tests.serve.conftest import serving

    folder = tmp_path_factory.mktemp("keyed")
    names = names_of("127.0.0.1")
    settings = Settings(folder, keys=("first", "second"), names=names, max_body=2**20, max_tokens=8)
    with serving(world, settings) as live:  # pyright: ignore[reportArgumentType]
        yield live


def test_every_route_but_health_wants_a_key(keyed: Live) -> None:
    walked = 0
    with keyed.http() as http:
        for path, methods in keyed.app.openapi()["paths"].items():
            filled = path.replace("{video_id}", "x").replace("{file_id}", "x").replace("{model}", "x")
            for method in methods:
                walked += 1
                for headers in (
                    {},
                    {"Authorization": "Bearer third"},
                    {"Authorization": "Basic eDp0aGlyZA=="},
                ):
                    status = http.request(method, filled, headers=headers).status_code
                    assert status == (200 if path == "/health" else 401), (method, path)
        for path in ("/", "/openapi.json", "/docs", "/nothing"):
            assert http.get(path).status_code == 401
    assert walked > 20


def test_either_key_opens_in_every_form(keyed: Live) -> None:
    with keyed.http() as http:
        for given in ("Bearer first", "bearer second", "Api-Key first", "Basic OnNlY29uZA=="):
            assert http.get("/v1/models", headers={"Authorization": given}).status_code == 200


def test_a_socket_wants_a_key_as_well(keyed: Live) -> None:
    from websockets.exceptions import InvalidStatus
    from websockets.sync.client import connect

    url = keyed.url.replace("http", "ws") + "/v1/policy"
    with pytest.raises(InvalidStatus, match="401"), connect(url):
        pass
    with connect(url, additional_headers={"Authorization": "Api-Key first"}) as socket:
        assert socket.recv()


def test_pages_of_other_hosts_are_refused(keyed: Live) -> None:
    key = {"Authorization": "Bearer first"}
    with keyed.http() as http:
        assert http.get("/v1/models", headers={**key, "Origin": "https://evil.example"}).status_code == 403
        assert http.get("/v1/models", headers={**key, "Origin": keyed.url}).status_code == 200
        assert http.get("/v1/models", headers={**key, "Host": "evil.example"}).status_code == 421


def test_a_public_address_without_a_key_is_refused_unless_told() -> None:
    with pytest.raises(BadRequest, match="api-key-file"):
        check_public("0.0.0.0", keys=(), open_to_all=False)
    check_public("0.0.0.0", keys=("key",), open_to_all=False)
    check_public("0.0.0.0", keys=(), open_to_all=True)
    for host in ("127.0.0.1", "localhost", "::1"):
        check_public(host, keys=(), open_to_all=False)


# --------------------------------------------------------------------------------------------- limits


@pytest.mark.parametrize("told", [True, False])
def test_a_body_over_the_limit_is_cut_off(keyed: Live, told: bool, tmp_path: Path) -> None:
    def pieces() -> Generator[bytes]:
        for _ in range(17):
            yield b"x" * 2**16

    headers = {"Authorization": "Bearer first", "Content-Type": "application/json"}
    content = b"".join(pieces()) if told else pieces()
    with keyed.http() as http:
        try:
            assert http.post("/v1/chat/completions", content=content, headers=headers).status_code == 413
        except httpx2.WriteError:  # the server closed while we still sent
            assert not told
        assert http.get("/health").status_code == 200
    assert not list((keyed.service.settings.folder / "files").iterdir())


def test_more_tokens_than_the_server_writes_are_refused(keyed: Live) -> None:
    body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 9}
    with keyed.http(headers={"Authorization": "Bearer first"}) as http:
        refused = http.post("/v1/chat/completions", json=body)
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == "max_tokens"


def test_json_that_is_nested_too_deeply_is_refused(keyed: Live) -> None:
    headers = {"Authorization": "Bearer first", "Content-Type": "application/json"}
    with keyed.http() as http:
        body = b'{"messages": ' + b"[" * 100_000
        assert http.post("/v1/chat/completions", content=body, headers=headers).status_code == 400


# ---------------------------------------------------------------------------------------------- files


@pytest.fixture
def door(tmp_path: Path) -> Door:
    root = tmp_path / "root"
    (root / "in").mkdir(parents=True)
    (root / "in" / "a.txt").write_text("inside")
    (tmp_path / "secret").write_text("outside")
    (root / "link").symlink_to(tmp_path / "secret")
    (root / "up").symlink_to(tmp_path)
    os.mkfifo(root / "pipe")
    settings = Settings(tmp_path / "server", root=root, max_body=100)
    return Door(settings, Uploads(settings))


def test_a_file_below_the_root_is_read(door: Door, tmp_path: Path) -> None:
    assert door.read(f"file://{tmp_path}/root/in/a.txt", "image") == b"inside"


@pytest.mark.parametrize(
    "said",
    [
        "/etc/passwd", "file:///etc/passwd", "file:/etc/passwd", "FILE:///etc/passwd", "file:///dev/zero",
        "file://{}/root/../secret", "file://{}/root/%2e%2e/secret", "file://{}/root/in/../../secret",
        "file://{}/root/link", "file://{}/root/up/secret", "file://{}/root/pipe", "file://{}/root",
        "file://{}/root/in/a.txt%00", "file://other/{}/root/in/a.txt", "file:../secret", "secret",
    ],
)  # fmt: skip
def test_nothing_else_is_read(door: Door, tmp_path: Path, said: str) -> None:
    with pytest.raises(BadRequest) as refused:
        door.read(said.format(tmp_path), "image")
    assert refused.value.field == "image"


def test_without_a_root_no_file_is_read(tmp_path: Path) -> None:
    settings = Settings(tmp_path)
    with pytest.raises(BadRequest, match="no local files"):
        Door(settings, Uploads(settings)).read(f"file://{tmp_path}/a", "image")


def test_a_file_over_the_limit_is_not_read(door: Door, tmp_path: Path) -> None:
    (tmp_path / "root" / "big").write_bytes(b"x" * 101)
    with pytest.raises(BadRequest, match="larger"):
        door.read(f"file://{tmp_path}/root/big", "image")


def test_uploads_are_counted_and_expire(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    uploads = Uploads(Settings(tmp_path, max_disk=10, keep_s=60))
    kept = uploads.add(b"12345", "a.png", "vision")
    with pytest.raises(HTTPException, match="6 bytes do not fit: uploads have 5 left of 10"):
        uploads.add(b"123456", "b.png", "vision")
    monkeypatch.setattr("armillary.serve.door.time.time", lambda: kept.expires_at + 61.0)
    assert uploads.read(kept.id) is None
    uploads.add(b"123456", "b.png", "vision")
    assert len(list((tmp_path / "files").iterdir())) == 2


@pytest.mark.parametrize("there", ["content", "content and half a note"])
def test_an_upload_that_was_broken_off_is_not_there_and_harms_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, there: str
) -> None:
    uploads = Uploads(Settings(tmp_path))
    kept = uploads.add(b"12345", "a.png", "vision")

    def die(path: Path, *_: object) -> None:
        raise KeyboardInterrupt(path)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace" if "note" in there else "write_text", die)
        with pytest.raises(KeyboardInterrupt):
            uploads.add(b"123456", "b.png", "vision")
    uploads = Uploads(Settings(tmp_path))
    assert uploads.list() == [kept]
    assert uploads.read(kept.id) == b"12345"
    for path in (tmp_path / "files").iterdir():
        os.utime(path, (0, 0))
    uploads.sweep()
    assert {f.name for f in (tmp_path / "files").iterdir()} == {kept.id, f"{kept.id}.json"}


# ------------------------------------------------------------------------------------- other failures


FAILURES = [
    (MemoryError(), "out_of_memory"),
    (RuntimeError("CUDA out of memory"), "out_of_memory"),
    (RuntimeError("DefaultCPUAllocator: can't allocate memory"), "out_of_memory"),
    (FloatingPointError("NaN at step 3"), "not_finite"),
    (KeyError("x"), "server_error"),
]


@pytest.mark.parametrize(("error", "code"), FAILURES)
def test_a_request_that_fails_fails_alone(
    live: Live, monkeypatch: pytest.MonkeyPatch, error: Exception, code: str
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    body = {"prompt": "a disc", "num_inference_steps": 1}
    with live.http() as http:
        with monkeypatch.context() as patched:
            patched.setattr(live.service.world, "generate", fail, raising=False)
            failed = http.post("/v1/images/generations", json=body)
            job = http.post("/v1/videos/sync", json=body)
        assert (failed.status_code, failed.json()["error"]["code"]) == (500, code)
        assert (job.status_code, job.json()["error"]["code"]) == (500, code)
        assert http.post("/v1/images/generations", json=body).status_code == 200


def test_a_second_server_on_the_same_folder_is_refused(start: Start) -> None:
    with start(), pytest.raises(BadRequest, match="another server has it"), start():
        pass


def test_a_client_that_leaves_in_the_middle_of_its_upload_is_no_fault_of_the_server(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
    with start() as live:
        for _ in range(3):
            with socket.create_connection(("127.0.0.1", live.port)) as client:
                client.sendall(head + b"content-length: 1000\r\n\r\n{")
                time.sleep(0.1)
        with live.http() as http:
            assert http.get("/health").status_code == 200
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


@pytest.mark.parametrize("text", ["the red disc " * 150_000, "a" * 300_000, "<|im_end|>" * 30_000])
def test_text_that_would_keep_everybody_waiting_is_refused_at_once(live: Live, text: str) -> None:
    with live.http() as http:
        for path, body in (
            ("/v1/chat/completions", {"messages": [{"role": "user", "content": text}]}),
            ("/v1/images/generations", {"prompt": text}),
        ):
            assert http.post(path, json=body).status_code == 400


@pytest.mark.parametrize(
    "error",
    [OSError(errno.ENOSPC, "No space left on device"), sqlite3.OperationalError("database or disk is full")],
)
def test_a_full_disk_is_told_and_the_next_job_is_made(
    live: Live, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def full(*_: object) -> None:
        raise error

    body = {"prompt": "a disc", "num_inference_steps": 1, "num_frames": 1}
    with live.http() as http:
        for name in ("write", "add"):
            with monkeypatch.context() as patched:
                patched.setattr(live.service.jobs.store, name, full)
                assert http.post("/v1/videos", json=body).status_code == 507
        assert http.post("/v1/videos/sync", json=body).status_code == 200
