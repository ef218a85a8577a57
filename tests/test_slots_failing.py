"""A step that fails for one sequence fails it alone: the others go on and say what they say alone."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import armillary.slots
from armillary.decode import Sampling, Token
from armillary.model import Network
from armillary.sequence import text_context
from armillary.slots import Decoder
from tests.test_slots import SMALL, tokens, words


@pytest.fixture(scope="module")
def network() -> Network:
    torch.manual_seed(3)
    made = Network(SMALL).requires_grad_(False)
    for parameter in made.parameters():
        parameter.normal_(std=0.3)
    return made.eval()


Where = Callable[[list[int]], BaseException | None]


def failing(monkeypatch: pytest.MonkeyPatch, name: str, fault: Where) -> list[list[int]]:
    """Let a pass of the network fail where `fault`, given the lengths of its sequences, says so."""
    whole, asked = getattr(armillary.slots, name), list[list[int]]()

    def broken(network: Network, sequences: Any, *rest: Any) -> Tensor:
        some = sequences if isinstance(sequences, list) else [sequences]
        asked.append([len(s.context) for s in some])
        if error := fault(asked[-1]):
            raise error
        return whole(network, sequences, *rest)

    monkeypatch.setattr(armillary.slots, name, broken)
    return asked


@pytest.mark.parametrize("name", ["_write_row", "_read"])
@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        torch.OutOfMemoryError("CUDA out of memory"),
        RuntimeError("[enforce fail at alloc_cpu.cpp:124] DefaultCPUAllocator: can't allocate memory"),
    ],
    ids=["memory", "cuda", "cpu"],
)
def test_only_the_sequence_that_lacks_memory_fails(
    network: Network, name: str, error: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    contexts = [text_context(words(count, seed=count)) for count in (9, 31, 17)]
    alone = [tokens(network, context) for context in contexts]
    asked = failing(monkeypatch, name, lambda lengths: error if 31 in lengths else None)
    decoder = Decoder(network)
    tickets = [decoder.add(context, Sampling(max_tokens=20)) for context in contexts]
    told: dict[int, list[Any]] = {ticket: [] for ticket in tickets}
    while decoder.busy:
        for ticket, token in decoder.step():
            told[ticket].append(token)
    assert told[tickets[1]][-1] is error
    assert [t.id for t in told[tickets[0]]] == alone[0]
    assert [t.id for t in told[tickets[2]]] == alone[2]
    assert [31] in asked  # it was tried alone
    monkeypatch.undo()
    again = decoder.add(contexts[1], Sampling(max_tokens=20))
    later = [t for _, t in iter_steps(decoder, again)]
    assert [t.id for t in later] == alone[1]


def test_what_fits_alone_goes_on_where_it_does_not_fit_together(
    network: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    contexts = [text_context(words(count, seed=count)) for count in (9, 31, 17)]
    alone = [tokens(network, context) for context in contexts]
    failing(monkeypatch, "_write_row", lambda lengths: MemoryError() if len(lengths) > 1 else None)
    decoder = Decoder(network)
    tickets = [decoder.add(context, Sampling(max_tokens=20)) for context in contexts]
    told: dict[int, list[int]] = {ticket: [] for ticket in tickets}
    while decoder.busy:
        for ticket, token in decoder.step():
            assert isinstance(token, Token)
            told[ticket].append(token.id)
    assert list(told.values()) == alone


def test_numbers_that_are_not_finite_fail_their_own_row(network: Network) -> None:
    contexts = [text_context(words(count, seed=count)) for count in (9, 31, 17)]
    alone = [tokens(network, context) for context in contexts]
    decoder = Decoder(network)
    tickets = [decoder.add(context, Sampling(max_tokens=20)) for context in contexts]
    told: dict[int, list[Any]] = {ticket: [] for ticket in tickets}
    while decoder.busy:
        for ticket, token in decoder.step():
            told[ticket].append(token)
        broken = decoder._writing.get(tickets[1])
        if broken is not None and broken.written == 5:
            broken.keys[0].k_MKC[3] = float("nan")
    assert isinstance(told[tickets[1]][-1], FloatingPointError)
    assert len(told[tickets[1]]) == 6
    assert [t.id for t in told[tickets[0]]] == alone[0]
    assert [t.id for t in told[tickets[2]]] == alone[2]


def iter_steps(decoder: Decoder, ticket: int) -> Iterator[tuple[int, Any]]:
    while decoder.busy:
        for found, token in decoder.step():
            assert found == ticket
            yield found, token
