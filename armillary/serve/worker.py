"""One thread owns the world: it denoises, and between two steps it goes on with every conversation.

A *ticket* is work that denoises; one is under way at a time, the others wait, each owner in turn. A *talk* is
a conversation that is answered token by token; all of them advance together, after every denoising step for
as long as the step took. So a talk's first token comes within two of them, if its prompt is short.
"""

import gc
import itertools
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from armillary.errors import Cancelled
from armillary.slots import SLOTS
from armillary.step import OnStep, Step
from armillary.tasks.deltas import Delta
from armillary.tasks.reason import Reasoner

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
    """A conversation to be answered, with `n` answers. `ask` hands it to the reasoner and gives its ticket;
    that and `tell` are called on the worker's thread, `tell` last with None or an error."""

    owner: str
    ask: Callable[[Reasoner], int]
    tell: Callable[[Told], None]
    n: int = 1
    stopped: bool = False


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
    """Runs tickets and talks on its own thread, from `start` to `close`.

    `reasoner` makes the one that writes all talks; `max_talks` are begun at once, others wait.
    """

    def __init__(
        self, reasoner: Callable[[], Reasoner], *, max_waiting: int = 128, max_talks: int = SLOTS
    ) -> None:
        self._make_reasoner, self._reasoner = reasoner, reasoner()
        self._tickets: Turns[Ticket[Any]] = Turns()
        self._arrived: Turns[Talk] = Turns()
        self._talks: dict[int, Talk] = {}
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
        for talk in list(self._talks.values()):
            talk.stopped = True
        self._thread.join()

    @property
    def waiting(self) -> int:
        """Tickets and talks that have not been started."""
        return len(self._tickets) + len(self._arrived)

    @property
    def making(self) -> int:
        """Tickets under way: one or none."""
        return int(self._running is not None)

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
        """Go on with every talk: two bits of work, then more until that time."""
        for turn in itertools.count():
            self._drop_stopped()
            self._admit()
            if not self._talks or (turn > 1 and time.perf_counter() >= until):
                return
            self._write()

    def _drop_stopped(self) -> None:
        for ticket, talk in list(self._talks.items()):
            if talk.stopped:
                self._reasoner.cancel(ticket)
                self._end(ticket, None)

    def _admit(self) -> None:
        """Begin one talk, if one waits and there is room for it."""
        with self._changed:
            talk = self._arrived.take() if self._arrived and len(self._talks) < self._max_talks else None
        if talk is None:
            return
        try:
            self._talks[talk.ask(self._reasoner)] = talk
        except BaseException as error:  # noqa: BLE001 - whatever it is, it belongs to this request alone
            talk.tell(error)
            _forget(error)

    def _write(self) -> None:
        """One piece of a prompt read, or one token of every answer."""
        try:
            told = self._reasoner.step()
        except BaseException as error:  # noqa: BLE001 - nobody can say whose it is, so it ends all of them
            self._reasoner = self._make_reasoner()
            for ticket in list(self._talks):
                self._end(ticket, error)
            _forget(error)
            return
        for ticket, piece in told:
            if isinstance(piece, BaseException):
                self._end(ticket, piece)
                _forget(piece)
                continue
            talk = self._talks[ticket]
            self.tokens += 1
            talk.n -= piece.answer is not None
            talk.tell(piece)
            if not talk.n:
                self._end(ticket, None)

    def _end(self, ticket: int, said: Told) -> None:
        self._talks.pop(ticket).tell(said)


def _forget(error: BaseException) -> None:
    """After an error that came from a lack of memory, give back what its request held."""
    if not isinstance(error, MemoryError | RuntimeError):
        return
    import torch

    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
