"""Cosmos3-Nano's size on a small machine: 15.2 B random parameters, streamed from disk.

    make full-size

Writes a checkpoint of 34 GB (and removes it, whatever happens), then makes a 256x256 picture in four steps
and an answer with `memory="stream"`, in bf16 and in int8, each in a process of its own. Printed is the peak
of the memory that the process had to itself (RssAnon: what the system keeps of files can be taken back), and
the time of a step and of a token against the least that the disk and the matrices in bf16 need. In int8 a
block is rounded anew whenever it is read.
"""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from random_checkpoint import NANO, write_random
from watch import Watch

import armillary
from armillary.lowbit import Form
from armillary.model import Config, Tower
from armillary.world import World

NEEDED = 36e9  # bytes of disk
SIZE, STEPS = 256, 4
PROMPT = "a red disc slides right and hits the wall"


# -- one process, one task -----------------------------------------------------------------------------------


def load(folder: str, weights: Form | None) -> World:
    return armillary.load(folder, device="cpu", dtype="bfloat16", memory="stream", weights=weights)


def picture(folder: str, weights: Form | None) -> dict[str, Any]:
    with Watch() as watch:
        world = load(folder, weights)
        ticks = [time.perf_counter()]
        size: Any = {"frames": 1, "size": f"{SIZE}x{SIZE}", "steps": STEPS, "guidance": 1.0}
        clip = world.generate(PROMPT, on_step=lambda *_: ticks.append(time.perf_counter()), **size)
        ticks.append(time.perf_counter())
    seconds = [b - a for a, b in pairwise(ticks)]
    return {
        "peak_gb": watch.peaks[""] / 1e9,
        "first": seconds[0],  # with reading the prompt
        "step": sum(seconds[1:STEPS]) / (STEPS - 1),
        "decode": seconds[-1],
        "tokens": clip.receipt["tokens"],
    }


def answer(folder: str, weights: Form | None, max_tokens: int) -> dict[str, Any]:
    with Watch() as watch:
        world = load(folder, weights)
        ticks = [time.perf_counter()]
        for delta in world.reason(PROMPT, max_tokens=max_tokens, stream=True):
            ticks.append(time.perf_counter())
            last = delta
    assert last.answer is not None
    count = last.answer.usage.completion_tokens
    return {
        "peak_gb": watch.peaks[""] / 1e9,
        "first": ticks[1] - ticks[0],
        "token": (ticks[-1] - ticks[1]) / max(1, count - 1),
        "count": count,
    }


# -- the least that a machine needs --------------------------------------------------------------------------


def disk_rate(file: Path) -> float:
    """Bytes a second of one file that the system does not keep."""
    with file.open("rb", buffering=0) as opened:
        os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        room, started = bytearray(1 << 24), time.perf_counter()
        while opened.readinto(room):
            pass
        return file.stat().st_size / (time.perf_counter() - started)


def arithmetic(config: Config, tokens: int) -> float:
    """Seconds that the matrices of a tower need for so many tokens: one layer measured, times the layers."""
    tower = Tower(config, qk_norm=True).bfloat16()
    matrices = [m for m in tower.modules() if isinstance(m, torch.nn.Linear)]
    inputs = [torch.randn(tokens, m.in_features).bfloat16() for m in matrices]
    times: list[float] = []
    with torch.no_grad():
        for _ in range(4):
            started = time.perf_counter()
            for matrix, x_NE in zip(matrices, inputs, strict=True):
                matrix(x_NE)
            times.append(time.perf_counter() - started)
    return config.layers * min(times)


def tower_bytes(config: Config, *, head: bool) -> int:
    with torch.device("meta"):
        block = sum(p.numel() for p in Tower(config, qk_norm=True).parameters())
    return 2 * (config.layers * block + (config.vocabulary * config.width if head else 0))


# -- all of it -----------------------------------------------------------------------------------------------


def child(task: str, folder: Path, **how: Any) -> dict[str, Any]:
    command = [sys.executable, __file__, "--folder", str(folder), "--task", task, json.dumps(how)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def told(text: str) -> None:
    print(text, flush=True)


def measure(folder: Path, tokens: dict[str, int]) -> None:
    rate = disk_rate(min((folder / "transformer").glob("*.safetensors")))
    threads = torch.get_num_threads()
    told(f"one shard read cold: {rate / 1e9:.2f} GB/s; {threads} thread(s), {os.getloadavg()[0]:.0f} others")
    drawn, read = tower_bytes(NANO, head=False), tower_bytes(NANO, head=True)
    for form in (None, "int8"):
        made = child("picture", folder, weights=form)
        least = drawn / rate, arithmetic(NANO, made["tokens"]["vision"])
        told(
            f"picture {SIZE}x{SIZE}, {form or 'bf16'}: peak {made['peak_gb']:.2f} GB; {made['step']:.1f} s a "
            f"step (first, with the prompt, {made['first']:.1f} s; decoding {made['decode']:.1f} s); "
            f"at least {least[0]:.1f} s for the disk, {least[1]:.1f} s for the matrices"
        )
    for form in ("int8", None):
        said = child("answer", folder, weights=form, max_tokens=tokens[form or "bf16"])
        least = read / rate, arithmetic(NANO, 1) * read / drawn
        told(
            f"answer of {said['count']} tokens, {form or 'bf16'}: peak {said['peak_gb']:.2f} GB; "
            f"{said['token']:.1f} s a token (first {said['first']:.1f} s); at least {least[0]:.1f} s for a "
            f"disk of which nothing is kept, {least[1]:.1f} s for the matrices"
        )


def main() -> None:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--folder", type=Path, help="where the checkpoint goes for a while")
    options.add_argument("--tokens", type=int, default=64, help="of the answer in bf16")
    options.add_argument("--tokens-int8", type=int, default=64, help="of the answer in int8")
    options.add_argument("--task", nargs=2, help=argparse.SUPPRESS)
    given = options.parse_args()
    if given.task:
        task, how = given.task
        told(json.dumps({"picture": picture, "answer": answer}[task](str(given.folder), **json.loads(how))))
        return
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    parent = given.folder or Path(tempfile.gettempdir())
    if shutil.disk_usage(parent).free < NEEDED:
        sys.exit(
            f"{parent} has {shutil.disk_usage(parent).free / 1e9:.0f} GB free; {NEEDED / 1e9:.0f} are needed"
        )
    folder = Path(tempfile.mkdtemp(prefix="armillary-full-size-", dir=parent))
    try:
        started = time.perf_counter()
        write_random(folder)
        size = sum(f.stat().st_size for f in folder.rglob("*") if f.is_file())
        told(f"wrote {size / 1e9:.1f} GB in {time.perf_counter() - started:.0f} s")
        os.sync()
        measure(folder, {"bf16": given.tokens, "int8": given.tokens_int8})
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
