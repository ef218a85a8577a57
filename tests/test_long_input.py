"""Text, schemas and pictures that are too much are refused before they are worked on."""

from functools import partial
from typing import Any

import numpy as np
import pytest

from armillary.errors import BadRequest
from armillary.loading import load
from armillary.tasks import messages
from armillary.tasks.ready import question
from tests.test_requests import FACTS

LONG = "a" * (2**20 + 1)


@pytest.mark.parametrize(
    ("field", "options"),
    [
        ("prompt", {"prompt": LONG}),
        ("messages", {"messages": [{"role": "user", "content": LONG}]}),
        ("messages", {"messages": [{"role": "user", "content": [{"type": "text", "text": LONG}]}]}),
        ("messages", {"messages": [{"role": "user", "content": "a"}] * 20000}),
        ("stop", {"prompt": "a", "stop": ["a"] * 65}),
        ("schema", {"prompt": "a", "schema": {"enum": ["a" * 2**17]}}),
    ],
    ids=str,
)
def test_what_would_take_long_to_read_is_refused_before_that(field: str, options: dict[str, Any]) -> None:
    with pytest.raises(BadRequest) as refused:
        question(options, FACTS)
    assert refused.value.field == field


def test_text_that_a_checkpoint_cannot_read_is_not_cut_into_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    world = load("pocket")
    monkeypatch.setattr(type(world.parts.text), "encode", None)
    for ask in (world.reason, partial(world.generate, steps=1)):
        with pytest.raises(BadRequest, match="4096 tokens"):
            ask("a" * 2**20)


def test_pictures_that_do_not_fit_are_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    world = load("pocket")
    monkeypatch.setattr(messages, "look", None)
    with pytest.raises(BadRequest, match="4096 tokens"):
        world.reason("What is this?", images=[np.zeros((256, 256, 3), np.uint8)] * 200)
