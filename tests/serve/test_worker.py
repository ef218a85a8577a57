"""One thread for everything: who is next, what a conversation waits for, and what is stopped."""

import threading
import time
from typing import Any

import pytest

from armillary.errors import Cancelled
from armillary.serve.worker import Busy, Talk, Ticket, Turns, Worker
from armillary.step import OnStep, Step
from armillary.tasks.deltas import Delta
from armillary.tasks.reason import Reasoner


def test_owners_take_turns_however_much_one_has_queued() -> None:
    turns = Turns[str]()
    for owner in "aaaabbc":
        turns.put(owner, owner)
    assert "".join(turns.take() for _ in range(len(turns))) == "abcabaa"


class Script:
    """A reasoner of a test: each conversation is read in one bit of work and answered in so many tokens."""

    def __init__(self, tokens: int, fail: BaseException | None = None) -> None:
        self.tokens, self.fail = tokens, fail
        self.left: dict[int, int] = {}
        self.cancelled: list[int] = []

    def add(self) -> int:
        self.left[len(self.left)] = self.tokens + 1
        return len(self.left) - 1

    def cancel(self, ticket: int) -> None:
        self.cancelled.append(ticket)
        self.left[ticket] = 0

    def step(self) -> list[tuple[int, Delta]]:
        if self.fail:
            raise self.fail
        told = list[tuple[int, Delta]]()
        for ticket, left in self.left.items():
            self.left[ticket] = max(0, left - 1)
            if 0 < left <= self.tokens:
                answer: Any = "whole" if left == 1 else None
                told.append((ticket, Delta("x", answer=answer)))
        return told


def worker_with(*scripts: Script, **options: int) -> Worker:
    left: Any = list(scripts)
    worker = Worker(lambda: left.pop(0) if len(left) > 1 else left[0], **options)
    worker.start()
    return worker


def slow(steps: int, seen: list[int], seconds: float = 0.01) -> Any:
    def work(on_step: OnStep) -> str:
        for step in range(1, steps + 1):
            time.sleep(seconds)
            seen.append(step)
            if on_step(Step(step, steps, lambda _: None)) is False:  # pyright: ignore[reportArgumentType]
                raise Cancelled
        return "made"

    return work


def ask(reasoner: Reasoner) -> int:
    return reasoner.add()  # pyright: ignore[reportCallIssue]


def test_a_conversation_gets_its_first_token_within_three_denoising_steps() -> None:
    worker, seen, told = worker_with(Script(5)), list[int](), list[int]()
    ticket = Ticket("a", slow(40, seen))
    worker.submit(ticket)
    while len(seen) < 5:
        time.sleep(0.002)
    begun = len(seen)
    worker.talk(Talk("b", ask, lambda piece: told.append(len(seen))))
    assert ticket.future.result(10) == "made"
    worker.close(1)
    assert len(told) == 6  # five tokens and the end
    assert told[0] - begun <= 3


def test_stopping_ends_a_ticket_after_its_step_and_a_talk_after_its_token() -> None:
    script = Script(10**9)
    worker, seen = worker_with(script), list[int]()
    ended = threading.Event()
    talk = Talk("b", ask, lambda piece: ended.set() if piece is None else None)
    ticket, waiting = Ticket("a", slow(1000, seen)), Ticket("a", slow(1, seen))
    worker.submit(ticket)
    worker.submit(waiting)
    worker.talk(talk)
    while len(seen) < 3:
        time.sleep(0.002)
    worker.stop(waiting)
    worker.stop(ticket)
    steps = len(seen)
    with pytest.raises(Cancelled):
        ticket.future.result(10)
    assert len(seen) - steps <= 1
    assert waiting.future.cancelled()
    talk.stopped = True
    assert ended.wait(10)
    assert script.cancelled == [0]
    worker.close(1)


def test_an_error_ends_the_talks_it_may_belong_to_and_the_next_is_answered() -> None:
    worker, told = worker_with(Script(3, MemoryError()), Script(3)), list[Any]()
    done = threading.Event()

    def tell(piece: Any) -> None:
        told.append(piece)
        if not isinstance(piece, Delta):
            done.set()

    worker.talk(Talk("a", ask, tell))
    assert done.wait(10)
    assert isinstance(told[-1], MemoryError)
    done.clear()
    worker.talk(Talk("a", ask, tell))
    assert done.wait(10)
    assert told[-1] is None
    worker.close(1)


def test_more_than_may_wait_is_refused_at_once() -> None:
    worker, seen = worker_with(Script(1), max_waiting=2), list[int]()
    first = Ticket("a", slow(1000, seen))
    worker.submit(first)
    while not seen:
        time.sleep(0.002)
    for _ in range(2):
        worker.submit(Ticket("a", slow(1, seen)))
    with pytest.raises(Busy):
        worker.submit(Ticket("a", slow(1, seen)))
    worker.close(0.05)
    assert isinstance(first.future.exception(), Cancelled)
