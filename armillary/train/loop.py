"""The training loop: every line visible, resumable at any moment.

A *job* knows its model, how its parameters are optimised and what the loss of a step is. All randomness of
a step comes from
(seed, step), so a resumed run equals an unbroken one bit for bit.
"""

import copy
import hashlib
import random
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from armillary.alone import alone
from armillary.errors import BadRequest
from armillary.train import files

Metrics = Mapping[str, float]
Look = Callable[[nn.Module, int], None]


@dataclass(frozen=True)
class Draw:
    """The randomness of one step: a Python and a torch generator, both from (seed, step)."""

    step: int
    python: random.Random
    torch: torch.Generator

    @classmethod
    def of(cls, seed: int, step: int, stream: str = "train") -> "Draw":
        digest = hashlib.sha256(f"{stream}/{seed}/{step}".encode()).digest()
        number = int.from_bytes(digest[:7], "big")
        return cls(step, random.Random(number), torch.Generator().manual_seed(number))


class Job(Protocol):
    """What the loop asks of a training."""

    @property
    def model(self) -> nn.Module: ...

    def optimizers(self, rate: float) -> list[Optimizer]: ...

    def loss(self, draw: Draw, done: float) -> tuple[Tensor, Metrics]:
        """The loss of one step and numbers worth printing; `done` is the share of the run that lies behind,
        0..1."""
        ...


@dataclass(frozen=True)
class Schedule:
    """Warm up over `warmup` steps, stay at `rate`, fall linearly to zero over the last `decay` share of
    `steps`."""

    steps: int
    rate: float
    warmup: int = 50
    decay: float = 0.5
    average: float = 0.998  # of the exponential moving average of the weights
    clip: float = 1.0

    def rate_at(self, step: int) -> float:
        left = (self.steps - step) / max(1.0, self.steps * self.decay)
        return self.rate * min(1.0, (step + 1) / self.warmup) * min(1.0, left)


@dataclass
class State:
    """Everything a run must keep to go on as if it had never stopped."""

    model: nn.Module
    average: nn.Module
    optimizers: list[Optimizer]
    step: int = 0
    seconds: float = 0.0

    def save(self, path: Path) -> None:
        content = {
            "model": self.model.state_dict(),
            "average": self.average.state_dict(),
            "optimizers": [o.state_dict() for o in self.optimizers],
            "step": self.step,
            "seconds": self.seconds,
        }
        files.save(content, path)

    def load(self, path: Path) -> None:
        """Raises BadRequest for a damaged file, and for one of another model."""
        content = read_state(path)
        with _fitting(path):
            self.model.load_state_dict(content["model"])
            self.average.load_state_dict(content["average"])
            for optimizer, kept in zip(self.optimizers, content["optimizers"], strict=True):
                optimizer.load_state_dict(kept)
            self.step, self.seconds = int(content["step"]), float(content["seconds"])


def load_average(model: nn.Module, path: Path) -> None:
    """Give a model the averaged weights of a state. Raises BadRequest as `State.load` does."""
    content = read_state(path)
    with _fitting(path):
        model.load_state_dict(content["average"])


@contextmanager
def _fitting(path: Path) -> Generator[None]:
    """What goes wrong in here is told as a state that does not fit its model."""
    try:
        yield
    except (AttributeError, KeyError, RuntimeError, TypeError, ValueError) as error:
        message = "is the state of another model; name another folder, or remove it to begin anew"
        raise BadRequest("state", str(path), message) from error


def read_state(path: Path) -> dict[str, Any]:
    """What `State.save` wrote. Raises BadRequest for a file that is cut short or something else."""
    content = files.read(path, "state")
    if not isinstance(content, dict) or "average" not in content:
        raise BadRequest("state", str(path), "holds no training; remove it to begin anew")
    return content


@dataclass
class Log:
    """Running means of what the steps report, printed about every `every` seconds with the time that is
    left."""

    steps: int
    tell: Callable[[str], None]
    every: float = 30.0
    sums: dict[str, list[float]] = field(default_factory=dict)
    told: float = field(default_factory=time.monotonic)

    def add(self, metrics: Metrics) -> None:
        for name, value in metrics.items():
            self.sums.setdefault(name, []).append(value)

    def due(self) -> bool:
        return time.monotonic() - self.told > self.every

    def say(self, step: int, rate: float, pace: float) -> None:
        means = "  ".join(f"{k} {sum(v) / len(v):.4g}" for k, v in sorted(self.sums.items()))
        left = (self.steps - step) * pace / 60
        self.tell(
            f"step {step}/{self.steps}  {pace * 1e3:.0f} ms a step  {left:.0f} min left  "
            f"rate {rate:.1e}  {means}"
        )
        self.sums, self.told = {}, time.monotonic()


def train(
    job: Job,
    schedule: Schedule,
    folder: Path,
    *,
    seed: int = 0,
    tell: Callable[[str], None] = print,
    save_every: float = 120.0,
    stop_after: int | None = None,
    look: Look | None = None,
) -> nn.Module:
    """Run `job` to the end of its schedule, going on from `folder` if it was begun there; returns the
    averaged model.

    The state is written to `folder`/state.pt about every `save_every` seconds and at the end, whole or not
    at all.
    `look` is given the averaged model and the step each time after that, so that a person can watch it learn.
    `stop_after` ends the call early after that many steps, as a kill would but tidily. Raises BadRequest if
    another process trains in `folder`, and for a state in it that is damaged or of another model.
    """
    files.make_folder(folder)
    with alone(folder):
        return _train(job, schedule, folder / "state.pt", seed, tell, save_every, stop_after, look)


def _train(
    job: Job,
    schedule: Schedule,
    path: Path,
    seed: int,
    tell: Callable[[str], None],
    save_every: float,
    stop_after: int | None,
    look: Look | None,
) -> nn.Module:
    state = State(job.model, copy.deepcopy(job.model).requires_grad_(False), job.optimizers(schedule.rate))
    if path.exists():
        state.load(path)
        tell(f"going on from step {state.step} of {schedule.steps}")
    log, saved, pace = Log(schedule.steps, tell), time.monotonic(), 0.0
    last = schedule.steps if stop_after is None else min(schedule.steps, state.step + stop_after)
    while state.step < last:
        began = time.monotonic()
        rate = schedule.rate_at(state.step)
        log.add(take_step(job, state, schedule, Draw.of(seed, state.step), rate))
        spent = time.monotonic() - began
        state.seconds += spent
        pace = spent if pace == 0 else 0.98 * pace + 0.02 * spent
        if log.due():
            log.say(state.step, rate, pace)
        if time.monotonic() - saved > save_every:
            state.save(path)
            if look is not None:
                look(state.average, state.step)
            saved = time.monotonic()
    state.save(path)
    tell(f"{state.step} steps in {state.seconds / 60:.1f} minutes of computing")
    return state.average


def take_step(job: Job, state: State, schedule: Schedule, draw: Draw, rate: float) -> Metrics:
    """One step: loss, backward, clip, update, average. A loss that is not finite stops the run."""
    for optimizer in state.optimizers:
        for group in optimizer.param_groups:
            group["lr"] = rate * group.get("share", 1.0)
        optimizer.zero_grad(set_to_none=True)
    loss, metrics = job.loss(draw, state.step / schedule.steps)
    if not torch.isfinite(loss):
        raise FloatingPointError(f"the loss of step {state.step} is {loss.item()}")
    loss.backward()
    nn.utils.clip_grad_norm_(list(trainable(job.model)), schedule.clip)
    for optimizer in state.optimizers:
        optimizer.step()
    state.step += 1
    keep = min(schedule.average, (state.step + 1) / (state.step + 15))
    with torch.no_grad():
        for average, now in zip(state.average.parameters(), job.model.parameters(), strict=True):
            average.lerp_(now, 1 - keep)
    return metrics


def trainable(model: nn.Module) -> Iterator[nn.Parameter]:
    return (p for p in model.parameters() if p.requires_grad)
