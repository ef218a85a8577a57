"""Many clients at once against one server: is every answer its solo one, nothing lost, memory flat?

    python benchmarks/load.py [--clients 64] [--seconds 60] [--model pocket]

Chats, streams, pictures, clips, cancelled and broken requests, mixed at random. Each answer is compared with
the answer to the same request when nothing else was asked. At the end the server is killed (SIGKILL) amid the
same load and started again on its folder. Prints one figure a line; exits 1 if one does not hold.
"""

import argparse
import base64
import hashlib
import io
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2
from PIL import Image

PROMPTS = [f"a {colour} {shape}" for colour in ("red", "green", "blue") for shape in ("disc", "square")]
BROKEN: list[tuple[str, dict[str, Any]]] = [
    ("/v1/images/generations", {"prompt": "a", "num_inference_steps": 0}),
    ("/v1/images/generations", {"prompt": "a", "nothing": 0}),
    ("/v1/videos", {"prompt": "a", "image_reference": "data:image/png;base64,AAAA"}),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}),
]


class Server:
    """`armillary serve` as a process of its own."""

    def __init__(self, model: str, folder: Path) -> None:
        self._command = [sys.executable, "-c", "from armillary.cli import main; main()", "serve", model]
        self._command += ["--port", "0", "--folder", str(folder)]
        self.start()

    def start(self) -> None:
        """Start it, and wait until it says where it listens."""
        self.process = subprocess.Popen(self._command, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.url = self.process.stdout.readline().strip()
        if not self.url:
            sys.exit("the server does not start")

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def resident(self) -> float:
        """MiB that the process holds."""
        text = Path(f"/proc/{self.process.pid}/statm").read_text()
        return int(text.split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def chat(http: httpx2.Client, seed: int) -> str:
    asked = {"messages": [{"role": "user", "content": f"Where is the {PROMPTS[seed % 6][2:]}?"}]}
    made = http.post("/v1/chat/completions", json={**asked, "temperature": 1.0, "seed": seed})
    return made.raise_for_status().json()["choices"][0]["message"]["content"]


def stream(http: httpx2.Client, seed: int) -> str:
    """Reads two pieces of a stream and leaves."""
    asked = {"messages": [{"role": "user", "content": "Describe it."}], "stream": True}
    with http.stream(
        "POST", "/v1/chat/completions", json={**asked, "temperature": 1.0, "seed": seed}
    ) as told:
        lines = told.raise_for_status().iter_lines()
        return "left" if next(lines, None) is not None else "silent"


def picture(http: httpx2.Client, seed: int) -> str:
    asked = {"prompt": PROMPTS[seed % 6], "seed": seed, "num_inference_steps": 2}
    made = http.post("/v1/images/generations", json=asked).raise_for_status().json()
    pixels = Image.open(io.BytesIO(base64.b64decode(made["data"][0]["b64_json"])))
    return hashlib.sha256(pixels.tobytes()).hexdigest()


def clip(http: httpx2.Client, seed: int) -> str:
    asked = {"prompt": PROMPTS[seed % 6], "seed": seed, "num_inference_steps": 2, "num_frames": 5}
    job = http.post("/v1/videos", json=asked).raise_for_status().json()
    while (found := http.get(f"/v1/videos/{job['id']}").json())["status"] in ("queued", "in_progress"):
        time.sleep(1)
    if found["status"] != "completed":
        return found["status"]
    content = http.get(f"/v1/videos/{job['id']}/content").raise_for_status().content
    http.delete(f"/v1/videos/{job['id']}")
    return decoded(content)


def decoded(content: bytes) -> str:
    """A digest of the frames: the file holds seconds as well."""
    from armillary.media import read_clip

    return hashlib.sha256(read_clip(content).frames.tobytes()).hexdigest()


def cancel(http: httpx2.Client, seed: int) -> str:
    job = http.post("/v1/videos", json={"prompt": "a disc", "num_inference_steps": 1000, "seed": seed})
    found = http.post(f"/v1/videos/{job.raise_for_status().json()['id']}/cancel")
    return found.raise_for_status().json()["status"]


def broken(http: httpx2.Client, seed: int) -> str:
    path, body = BROKEN[seed % len(BROKEN)]
    return str(http.post(path, json=body).status_code)


KINDS: dict[str, Callable[[httpx2.Client, int], str]] = {
    "chat": chat, "stream": stream, "picture": picture, "clip": clip, "cancel": cancel, "broken": broken,
}  # fmt: skip
FIXED = {"stream": "left", "cancel": "cancelled", "broken": "400"}


class Crowd:
    """Clients on threads; each asks one thing after the other until it is told to stop."""

    def __init__(self, url: str, clients: int, solo: dict[tuple[str, int], str]) -> None:
        self.done, self.wrong, self.lost, self.busy = Counter[str](), Counter[str](), Counter[str](), 0
        self._url, self._solo, self._stop = url, solo, threading.Event()
        self._threads = [threading.Thread(target=self._client, args=(i,)) for i in range(clients)]
        for thread in self._threads:
            thread.start()

    def end(self, *, killed: bool = False) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()
        if killed:
            self.lost.clear()

    def _client(self, number: int) -> None:
        chance = random.Random(number)
        with httpx2.Client(base_url=self._url, timeout=300) as http:
            while not self._stop.is_set():
                kind, seed = chance.choice(list(KINDS)), chance.randrange(6)
                try:
                    said = KINDS[kind](http, seed)
                except httpx2.HTTPStatusError as error:
                    if error.response.status_code != 503:
                        self.lost[f"{kind} {error.response.status_code}"] += 1
                    self.busy += error.response.status_code == 503
                    continue
                except httpx2.HTTPError as error:
                    self.lost[f"{kind} {type(error).__name__}"] += 1
                    if self._stop.is_set():
                        return
                    continue
                self.done[kind] += 1
                if said != self._solo.get((kind, seed), FIXED.get(kind)):
                    self.wrong[kind] += 1


PROBE = """
import sys, time, urllib.request
slowest = asked = 0
while True:
    began = time.perf_counter()
    urllib.request.urlopen(sys.argv[1] + "/health", timeout=30).read()
    slowest, asked = max(slowest, time.perf_counter() - began), asked + 1
    print(slowest, asked, flush=True)
    time.sleep(0.1)
"""


class Health:
    """Asks `/health` ten times a second from a process of its own, as a supervisor does."""

    def __init__(self, url: str) -> None:
        self.slowest, self.asked = 0.0, 0
        self._probe = subprocess.Popen([sys.executable, "-c", PROBE, url], stdout=subprocess.PIPE, text=True)

    def end(self) -> None:
        self._probe.terminate()
        told, _ = self._probe.communicate()
        slowest, asked = told.splitlines()[-1].split()
        self.slowest, self.asked = float(slowest), int(asked)


def alone(url: str) -> dict[tuple[str, int], str]:
    """Every answer when nothing else is asked."""
    with httpx2.Client(base_url=url, timeout=300) as http:
        return {(k, s): KINDS[k](http, s) for k in ("chat", "picture", "clip") for s in range(6)}


def crash(server: Server, clients: int, solo: dict[tuple[str, int], str]) -> tuple[int, int]:
    """Kill the server while jobs wait and run; (jobs lost or shown running though none runs, jobs known)."""
    crowd = Crowd(server.url, clients, solo)
    ids: list[str] = []
    with httpx2.Client(base_url=server.url, timeout=60) as http:
        for seed in range(8):
            body = {"prompt": "a disc", "seed": seed, "num_inference_steps": 30}
            ids.append(http.post("/v1/videos", json=body).raise_for_status().json()["id"])
    server.kill()
    crowd.end(killed=True)
    server.start()
    bad, deadline = set(ids), time.monotonic() + 300
    with httpx2.Client(base_url=server.url, timeout=60) as http:
        while bad and time.monotonic() < deadline:
            for name in list(bad):
                found = http.get(f"/v1/videos/{name}")
                if found.status_code == 200 and found.json()["status"] in ("completed", "failed"):
                    bad.discard(name)
            time.sleep(0.2)
    return len(bad), len(ids)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--model", default="pocket")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        server = Server(asked.model, Path(folder))
        try:
            return measure(server, asked.clients, asked.seconds)
        finally:
            server.kill()


def measure(server: Server, clients: int, seconds: float) -> int:
    solo = alone(server.url)
    crowd, health = Crowd(server.url, clients, solo), Health(server.url)
    time.sleep(seconds / 3)  # to warm up
    before = server.resident()
    time.sleep(seconds * 2 / 3)
    after = server.resident()
    health.end()
    crowd.end()
    bad, known = crash(server, clients, solo)
    print("answered:", ", ".join(f"{kind} {count}" for kind, count in sorted(crowd.done.items())))
    print(f"refused because too much waited: {crowd.busy}")
    print(f"unlike the solo answer: {sum(crowd.wrong.values())} {dict(crowd.wrong)}")
    print(f"lost: {sum(crowd.lost.values())} {dict(crowd.lost)}")
    print(f"memory: {before:.0f} MiB after a third, {after:.0f} MiB at the end ({after / before - 1:+.1%})")
    print(f"/health: slowest of {health.asked} took {1000 * health.slowest:.0f} ms")
    print(f"killed and restarted: {bad} of {known} jobs lost or never ended")
    holds = not (crowd.wrong or crowd.lost or bad) and after < 1.1 * before and health.slowest < 0.1
    print("all holds" if holds else "does not hold")
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())
