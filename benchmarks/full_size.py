"""Cosmos3-Nano's size on a small machine: 15.2 B random parameters, streamed from disk.

    make full-size

Writes a checkpoint of 34 GB and its copy in int8 (and removes both, whatever happens), then makes of each a
256x256 picture in four steps and an answer with `memory="stream"`, each in a process of its own. Printed is
the peak of the memory that the process had to itself (RssAnon: what the system keeps of files can be taken
back), and the time of a step and of a token against the least that the disk and the matrices need.
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
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from random_checkpoint import NANO, write_random
from watch import Watch

import armillary
from armillary.lowbit import Form, LowBitLinear, lower
from armillary.model import Config, Tower
from armillary.tasks.parts import weigh
from armillary.weights import Checkpoint
from armillary.world import World

NEEDED = {"bf16": 36e9, "int8": 54e9}  # bytes of disk; int8 is made of bf16
SIZE, STEPS = 256, 4
PROMPT = "a red disc slides right and hits the wall"


# -- one process, one task -----------------------------------------------------------------------------------


def load(folder: str) -> World:
    return armillary.load(folder, device="cpu", dtype="bfloat16", memory="stream")


def picture(folder: str) -> dict[str, Any]:
    with Watch() as watch:
        world = load(folder)
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


def convert(folder: str) -> dict[str, Any]:
    source = Path(folder)
    with Watch() as watch:
        armillary.convert(source, source.with_name("int8"), weights="int8")
    return {"peak_gb": watch.peaks[""] / 1e9}


def answer(folder: str, max_tokens: int) -> dict[str, Any]:
    with Watch() as watch:
        world = load(folder)
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


def arithmetic(config: Config, tokens: int, form: Form | None) -> float:
    """Seconds that the matrices of a tower need for so many tokens: one layer measured, times the layers."""
    with torch.device("meta"):
        tower = torch.nn.ModuleDict({"blocks": Tower(config, qk_norm=True).bfloat16()})
    if form is not None:
        lower(tower, form)
    kinds = torch.nn.Linear | LowBitLinear
    matrices = [m.to_empty(device="cpu") for m in tower.modules() if isinstance(m, kinds)]
    for numbers in (t for m in matrices for t in m.state_dict().values()):
        numbers.random_(-9, 10)
    inputs = [torch.randn(tokens, m.in_features).bfloat16() for m in matrices]
    times: list[float] = []
    with torch.no_grad():
        for _ in range(4):
            started = time.perf_counter()
            for matrix, x_NE in zip(matrices, inputs, strict=True):
                matrix(x_NE)
            times.append(time.perf_counter() - started)
    return config.layers * min(times)


# -- all of it -----------------------------------------------------------------------------------------------


def child(task: str, folder: Path, **how: Any) -> dict[str, Any]:
    command = [sys.executable, __file__, "--folder", str(folder), "--task", task, json.dumps(how)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def told(text: str) -> None:
    print(text, flush=True)


def measure(folder: Path, form: Form | None, max_tokens: int) -> None:
    name, weights = form or "bf16", weigh(Checkpoint(folder), torch.bfloat16, form)
    rate = disk_rate(min((folder / "transformer").glob("*.safetensors")))
    others = f"{torch.get_num_threads()} thread(s), {os.getloadavg()[0]:.0f} others"
    told(f"{name}: one shard read cold: {rate / 1e9:.2f} GB/s; {others}")
    made = child("picture", folder)
    disk = weights.layers * weights.dm / rate
    least = arithmetic(NANO, made["tokens"]["vision"], form)
    told(
        f"{name}: picture {SIZE}x{SIZE}: peak {made['peak_gb']:.2f} GB; {made['step']:.1f} s a step (first, "
        f"with the prompt, {made['first']:.1f} s; decoding {made['decode']:.1f} s); at least {disk:.1f} s "
        f"for the disk, {least:.1f} s for the matrices"
    )
    said = child("answer", folder, max_tokens=max_tokens)
    disk = (weights.layers * weights.ar + weights.head) / rate
    told(
        f"{name}: answer of {said['count']} tokens: peak {said['peak_gb']:.2f} GB; {said['token']:.1f} s a "
        f"token (first {said['first']:.1f} s); at least {disk:.1f} s for a disk of which nothing is kept, "
        f"{arithmetic(NANO, 1, form):.1f} s for the matrices of the blocks"
    )


def timed(what: str, made: Path, write: Callable[[], dict[str, Any]]) -> None:
    started = time.perf_counter()
    more = "".join(f", peak {gb:.2f} GB" for gb in write().values())
    size = sum(f.stat().st_size for f in made.rglob("*") if f.is_file())
    told(f"{what} of {size / 1e9:.1f} GB written in {time.perf_counter() - started:.0f} s{more}")
    os.sync()


def main() -> None:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--folder", type=Path, help="where the checkpoint goes for a while")
    options.add_argument("--tokens", type=int, default=64, help="of an answer")
    options.add_argument("--only", choices=["bf16", "int8"], help="measure one of the two")
    options.add_argument("--task", nargs=2, help=argparse.SUPPRESS)
    given = options.parse_args()
    if given.task:
        task, how = given.task
        tasks = {"picture": picture, "answer": answer, "convert": convert}
        told(json.dumps(tasks[task](str(given.folder), **json.loads(how))))
        return
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    parent = given.folder or Path(tempfile.gettempdir())
    free, needed = shutil.disk_usage(parent).free, NEEDED["bf16" if given.only == "bf16" else "int8"]
    if free < needed:
        sys.exit(f"{parent} has {free / 1e9:.0f} GB free; {needed / 1e9:.0f} are needed")
    folder = Path(tempfile.mkdtemp(prefix="armillary-full-size-", dir=parent))
    plain, rounded = folder / "bf16", folder / "int8"
    try:
        timed("bf16", plain, lambda: write_random(plain) and {})
        if given.only != "bf16":
            timed("int8", rounded, lambda: child("convert", plain))
            measure(rounded, "int8", given.tokens)
            shutil.rmtree(rounded)
        if given.only != "int8":
            measure(plain, None, given.tokens)
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
