"""Requests that nobody would write against every route of a server: none may end in a 5xx, none may hang.

    python benchmarks/fuzz.py [http://127.0.0.1:8000] [--examples 200]

Bodies and parameters are drawn by schemathesis from the server's own OpenAPI document, legal ones and broken
ones; pictures and clips are damaged byte by byte. A request that is legal and long is left after a second:
the server must then be idle soon. Prints the faults; exits 1 if there are any.
"""

import argparse
import base64
import contextlib
import io
import random
import sys
import time
from collections.abc import Iterator
from typing import Any

import httpx2
import hypothesis
import requests
import schemathesis
from hypothesis import HealthCheck, Phase
from PIL import Image

PATIENCE_S, IDLE_S = 1.0, 60.0
BUSY = 503  # too much waits: an answer, and no fault


def fuzz(url: str, *, examples: int) -> list[str]:
    """What went wrong, one sentence each."""
    faults: list[str] = []
    document = httpx2.get(f"{url}/openapi.json", timeout=60).json()
    for found in schemathesis.openapi.from_dict(document).get_all_operations():
        operation = found.ok()
        if operation.path.endswith("/events") or operation.path == "/health":
            continue
        faults += _fuzz_route(url, operation, examples)
        _settle(url)
    faults += list(_fuzz_media(url, examples))
    _settle(url)
    return faults


def _fuzz_route(url: str, operation: Any, examples: int) -> list[str]:
    faults: list[str] = []
    modes = schemathesis.GenerationMode

    route = operation.definition.raw
    breakable = "requestBody" in route or any(p["in"] == "query" for p in route.get("parameters", ()))
    for mode in (modes.POSITIVE, modes.NEGATIVE) if breakable else (modes.POSITIVE,):
        cases = operation.as_strategy(generation_mode=mode)

        @hypothesis.settings(
            max_examples=examples,
            deadline=None,
            database=None,
            derandomize=True,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @hypothesis.given(case=cases)
        def ask(case: Any) -> None:
            try:
                answer = case.call(base_url=url, timeout=PATIENCE_S)
            except requests.exceptions.RequestException:
                return  # it was long, or no request at all: whether the server lives is asked below
            if answer.status_code >= 500 and answer.status_code != BUSY:
                faults.append(f"{answer.status_code} for {case.as_curl_command()[:400]}")

        with contextlib.suppress(hypothesis.errors.Unsatisfiable):  # any text is a legal one
            ask()
    return faults


def _settle(url: str) -> None:
    """Forget all jobs, and see the server idle. Raises TimeoutError if it hangs."""
    deadline = time.monotonic() + IDLE_S
    with httpx2.Client(base_url=url, timeout=IDLE_S) as http:
        while True:
            jobs = http.get("/v1/videos", params={"limit": 100}).json()["data"]
            for job in jobs:
                http.delete(f"/v1/videos/{job['id']}")
            told = dict(
                line.rsplit(" ", 1) for line in http.get("/metrics").text.splitlines() if line[0] != "#"
            )
            if not jobs and not any(
                float(told[f"armillary_{name}"]) for name in ("waiting", "talking", "making")
            ):
                return
            if time.monotonic() > deadline:
                raise TimeoutError(f"still at work: {told}")
            time.sleep(0.05)


def _fuzz_media(url: str, examples: int) -> Iterator[str]:
    chance = random.Random(0)
    with httpx2.Client(base_url=url, timeout=PATIENCE_S) as http:
        for number in range(examples):
            content = _damaged(chance, _media(number % 4))
            try:
                for answer in _sent(http, content):
                    if answer.status_code >= 500 and answer.status_code != BUSY:
                        yield f"{answer.status_code} for medium {number}: {answer.text[:200]}"
            except httpx2.TimeoutException:
                continue


def _sent(http: httpx2.Client, content: bytes) -> Iterator[httpx2.Response]:
    uri = f"data:image/png;base64,{base64.b64encode(content).decode()}"
    for kind in ("image_url", "video_url"):
        part = {"type": kind, kind: {"url": uri}}
        messages = [{"role": "user", "content": [part, {"type": "text", "text": "what?"}]}]
        yield http.post("/v1/chat/completions", json={"messages": messages, "max_tokens": 1})
    form = {"prompt": "a", "num_inference_steps": "1", "num_frames": "9"}
    yield http.post("/v1/videos/sync", data=form, files={"input_reference": ("a", content)})
    yield http.post("/v1/files", files={"file": ("a", content)})


def _media(kind: int) -> bytes:
    """A small picture or clip: PNG, JPEG, GIF or WEBP."""
    out, frames = io.BytesIO(), [Image.new("RGB", (64, 64), (i * 25, 80, 90)) for i in range(9)]
    name = ("PNG", "JPEG", "GIF", "WEBP")[kind]
    more: dict[str, Any] = {"save_all": True, "append_images": frames[1:]} if kind > 1 else {}
    frames[0].save(out, name, **more)
    return out.getvalue()


def _damaged(chance: random.Random, content: bytes) -> bytes:
    """Some bytes changed, left out or doubled."""
    made = bytearray(content)
    for _ in range(chance.randrange(8)):
        at, length = chance.randrange(len(made) + 1), chance.randrange(16)
        how = chance.randrange(3)
        made[at : at + length] = (
            chance.randbytes(length) if how == 0 else b"" if how == 1 else made[at:][:64] * 2
        )
    return bytes(made)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("url", nargs="?", default="http://127.0.0.1:8000")
    parser.add_argument("--examples", type=int, default=200, help="of each route and kind")
    asked = parser.parse_args()
    faults = fuzz(asked.url, examples=asked.examples)
    print(*faults, f"{len(faults)} faults", sep="\n")
    return bool(faults)


if __name__ == "__main__":
    sys.exit(main())
