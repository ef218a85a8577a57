"""Is pocket fast enough to play with? Seconds of one core, by the processor's clock, beside what is needed.

    .venv/bin/python benchmarks/interactive.py

A busy machine takes longer by the wall clock; the time that this process computes is what a free core needs.
"""

import time
from collections.abc import Callable, Mapping
from statistics import median

import torch

import armillary
from armillary.sim import episode

NEEDED = {"forward dynamics, 8 frames": 1.0, "policy, no clip": 0.1}  # 8 frames at 8 a second; ten a second
TURNS = 9


def measure(turns: int = TURNS) -> Mapping[str, list[float]]:
    """Seconds of each turn: a chunk of 8 actions to 8 decoded frames, and a chunk of a policy's actions."""
    world, push = armillary.load("pocket", device="cpu", dtype="float32"), episode("push", 0, split="test")
    picture, words = push.picture(), str(push.instruction)
    calls: tuple[Callable[[], object], ...] = (
        lambda: world.forward_dynamics(picture, push.actions, domain="tabletop"),
        lambda: world.policy(words, picture, domain="tabletop", decode=False),
    )
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return {
            name: [_seconds(call) for _ in range(turns)] for name, call in zip(NEEDED, calls, strict=True)
        }
    finally:
        torch.set_num_threads(threads)


def _seconds(call: Callable[[], object]) -> float:
    began = time.process_time()
    call()
    return time.process_time() - began


if __name__ == "__main__":
    for name, seconds in measure().items():
        print(f"{name:28}{median(seconds) * 1000:7.0f} ms, needed {NEEDED[name] * 1000:.0f} ms or less")
