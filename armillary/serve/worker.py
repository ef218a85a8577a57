"""One thread owns the world: it denoises, and between two steps it goes on with every conversation.

A *ticket* is work that denoises; one is under way at a time, the others wait, each owner in turn. A *talk* is
an answer that is written token by token; all of them advance together. A talk gets at least one token between
two denoising steps, so its first one comes within two of them whatever else is made.
"""

import gc
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from armillary.errors import Cancelled
from armillary.step import OnStep, Step
from armillary.tasks.reason import Delta

Result = TypeVar("Result")
Told = Delta | BaseException | None  # of a talk: a piece, what went wrong, or its end


@dataclass(eq=False)
class Ticket(Generic[Result]):
    """Work that denoises. `on_start` and `on_step` are called on the worker's thread."""

    owner: str
    work: Callable[[OnStep], Result]
    on_start: Callable[[], None] = lambda: None
    on_step: Callable[[Step], None] = lambda done: None
    future: "Future[Result]" = field(default_factory=Future)
    stopped: bool = False


@dataclass(eq=False)
class Talk:
    """An answer as it is written. `tell` is called on the worker's thread, last with None or an error."""

    owner: str
    start: Callable[[], Iterator[Delta]]
    tell: Callable[[Told], None]
    stopped: bool = False
    deltas: Iterator[Delta] | None = None


class Busy(Exception):
    """Too much waits already."""


class Turns(Generic[Result]):
    """A queue in which owners take turns, however much one of them has queued."""

    def __init__(self) -> None:
        self._owners: OrderedDict[str, deque[Result]] = OrderedDict()
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def put(self, owner: str, item: Result) -> None:
        self._owners.setdefault(owner, deque()).append(item)
        self._count += 1

    def take(self) -> Result:
        """The next item; its owner goes to the end of the line."""
        owner, items = self._owners.popitem(last=False)
        item = items.popleft()
        if items:
            self._owners[owner] = items
        self._count -= 1
        return item


class Worker:
    """Runs tickets and talks on its own thread, from `start` to `close`."""

    def __init__(self, *, max_waiting: int = 128, max_talks: int = 16) -> None:
        self._tickets: Turns[Ticket[Any]] = Turns()
        self._arrived: Turns[Talk] = Turns()
        self._talks: list[Talk] = []
        self._running: Ticket[Any] | None = None
        self._max_waiting, self._max_talks = max_waiting, max_talks
        self._changed = threading.Condition()
        self._closing = False
        self._thread = threading.Thread(target=self._loop, name="world", daemon=True)
        self.steps = self.tokens = 0

    def start(self) -> None:
        self._thread.start()

    def close(self, grace_s: float) -> None:
        """Finish what is under way, for at most so long; what only waits is cancelled at once."""
        with self._changed:
            self._closing = True
            while self._tickets:
                self._tickets.take().future.cancel()
            self._changed.notify()
        self._thread.join(grace_s)
        if self._running is not None:
            self.stop(self._running)
        for talk in list(self._talks):
            talk.stopped = True
        self._thread.join()

    @property
    def waiting(self) -> int:
        """Tickets and talks that have not been started."""
        return len(self._tickets) + len(self._arrived)

    @property
    def talking(self) -> int:
        return len(self._talks)

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def submit(self, ticket: Ticket[Result]) -> "Future[Result]":
        """Queue work that denoises. Raises Busy if too much waits."""
        with self._changed:
            self._check_room()
            self._tickets.put(ticket.owner, ticket)
            self._changed.notify()
        return ticket.future

    def talk(self, talk: Talk) -> None:
        """Begin an answer. Raises Busy if too much waits."""
        with self._changed:
            self._check_room()
            self._arrived.put(talk.owner, talk)
            self._changed.notify()

    def stop(self, ticket: Ticket[Any]) -> None:
        """Cancel a ticket: at once if it waits, else after the step that is under way."""
        ticket.stopped = True
        ticket.future.cancel()

    def _check_room(self) -> None:
        if self._closing or self.waiting >= self._max_waiting:
            raise Busy

    def _loop(self) -> None:
        while True:
            with self._changed:
                while not (self._tickets or self._talks or self._arrived or self._closing):
                    self._changed.wait()
                ticket = self._tickets.take() if self._tickets else None
                if self._closing and not (ticket or self._talks or self._arrived):
                    return
            self._advance()
            if ticket is not None:
                self._make(ticket)

    def _make(self, ticket: Ticket[Any]) -> None:
        if not ticket.future.set_running_or_notify_cancel():
            return
        self._running, stepped = ticket, time.perf_counter()

        def on_step(done: Step) -> bool:
            nonlocal stepped
            self.steps += 1
            ticket.on_step(done)
            self._advance(until=2 * time.perf_counter() - stepped)  # as long as the step itself took
            stepped = time.perf_counter()
            return not ticket.stopped

        try:
            ticket.on_start()
            if ticket.stopped:
                raise Cancelled
            result = ticket.work(on_step)
        except BaseException as error:  # noqa: BLE001 - whatever it is, it belongs to this request alone
            ticket.future.set_exception(error)
            _forget(error)
        else:
            ticket.future.set_result(result)
        self._running = None

    def _advance(self, until: float = 0.0) -> None:
        """One token for every talk; then more rounds until that time."""
        while True:
            self._admit()
            for talk in list(self._talks):
                if not self._token(talk):
                    self._talks.remove(talk)
            if not self._talks or time.perf_counter() >= until:
                return

    def _admit(self) -> None:
        with self._changed:
            while self._arrived and len(self._talks) < self._max_talks:
                self._talks.append(self._arrived.take())

    def _token(self, talk: Talk) -> bool:
        """Write one token of a talk; False at its end."""
        if talk.stopped:
            talk.deltas = None
            talk.tell(None)
            return False
        try:
            talk.deltas = talk.deltas or talk.start()
            delta = next(talk.deltas, None)
        except BaseException as error:  # noqa: BLE001 - whatever it is, it belongs to this request alone
            talk.tell(error)
            _forget(error)
            return False
        self.tokens += delta is not None
        talk.tell(delta)
        return delta is not None


def _forget(error: BaseException) -> None:
    """After an error that came from a lack of memory, give back what its request held."""
    if not isinstance(error, MemoryError | RuntimeError):
        return
    import torch

    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
