"""A wrong type or an absurd number, given to a public method, is one sentence that names field and value."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import armillary
from armillary.answers import Answer, Box, Usage
from armillary.errors import BadRequest
from armillary.loading import convert, explain, load, plan, validate
from armillary.media import Clip
from armillary.robots import Actions
from armillary.world import World
from tests.random_pocket import random_pocket

PICTURE = np.zeros((16, 16, 3), np.uint8)
CLIP = Clip(np.zeros((2, 16, 16, 3), np.uint8), 8.0)
ANSWER = Answer("x", Usage(1, 1), "stop", boxes=(Box(1, 2, 3, 4, "a"),), picture=PICTURE)
MOVES = np.zeros((1, 2), np.float32)

NO_PATHS: list[Any] = [None, 5, True, b"x", "", [], {"a": 1}, object(), np.array(3), "a\0b", "\ud800", 1.5]
NO_WORDS: list[Any] = [5, True, b"x", "", "x", [], [5], {}, object(), np.zeros((2, 2)), Path("x"), 1.5]
NO_LISTS: list[Any] = [None, 5, True, b"x", "file", {"a": 1}, object(), np.zeros((2, 2)), Path("x"), 1.5]
NO_COUNTS: list[Any] = [-1, 0, 1e9, 2**70, True, "x", b"x", [], {}, object(), np.zeros((2, 2)), 1.5]
NO_SCALES: list[Any] = [-1, 0, 1e9, 1e300, float("nan"), float("inf"), 2**2000, True, "x", [], {}, object()]
NO_STEPS: list[Any] = [5, True, "x", b"x", [], {}, object(), np.zeros((2, 2)), 1.5]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return random_pocket(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def world(folder: Path) -> World:
    return load(folder, device="cpu")


def refused(call: Callable[[Any], object], values: list[Any], field: str) -> None:
    for value in values:
        with pytest.raises(BadRequest) as error:
            call(value)
        assert error.value.field.startswith(field), value


def test_what_is_no_path(world: World, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    refused(CLIP.save, NO_PATHS, "path")
    refused(ANSWER.draw, NO_PATHS, "path")
    refused(world.save, NO_PATHS, "folder")
    refused(lambda v: convert(folder, v), NO_PATHS, "folder")
    refused(explain("generate", folder, prompt="a").draw, NO_PATHS, "output")
    for where in (CLIP.save, ANSWER.draw):
        refused(where, ["nowhere/a.png"], "path")
    assert not list(tmp_path.iterdir())


def test_what_is_no_size_of_a_sheet() -> None:
    refused(lambda v: CLIP.sheet(scale=v), NO_SCALES, "scale")
    refused(lambda v: CLIP.sheet(columns=v), NO_COUNTS, "columns")
    refused(lambda v: Clip(CLIP.frames, 8.0, receipt=v), [None, 5, "x", [5], object()], "receipt")


def test_what_a_world_is_not_loaded_with(folder: Path) -> None:
    def loaded(field: str) -> Callable[[Any], object]:
        return lambda value: load(folder, **{"device": "cpu", field: value})

    refused(loaded("adapters"), NO_LISTS, "adapters")
    refused(lambda v: load(folder, device="cpu", adapters=[v]), NO_PATHS, "adapters[0]")
    refused(
        lambda v: load(folder, device="cpu", adapters=[("a", v)]), ["x", None, float("nan")], "adapters[0]"
    )
    refused(loaded("want"), [*NO_LISTS, ["x"], [5]], "want")
    for field in ("device", "dtype", "memory", "weights"):
        refused(loaded(field), NO_WORDS, field)
    refused(loaded("guard"), [5, [], object(), np.zeros((2, 2))], "guard")
    refused(
        lambda v: convert(folder, "made", shard_bytes=v), [-1, 0, "x", None, 1.5, [], object()], "shard_bytes"
    )
    refused(lambda v: convert(folder, "made", adapters=v), NO_LISTS, "adapters")


def test_what_is_no_task(folder: Path) -> None:
    for call in (validate, explain, plan):
        refused(lambda v, call=call: call(v, folder), [None, *NO_WORDS], "task")


def test_what_a_world_is_not_asked_with(world: World) -> None:
    refused(lambda v: world.reasoner(slots=v), NO_COUNTS, "slots")
    refused(lambda v: world.reasoner(remembered=v), [-1, "x", None, 1.5, [], 2**70], "remembered")
    refused(lambda v: world.ask(v, "hi"), [None, 5, "x", world], "reasoner")
    refused(lambda v: world.reason("hi", stream=v), [None, 1, "x", [], np.zeros((2, 2))], "stream")
    refused(lambda v: world.generate("a", frames=1, on_step=v), NO_STEPS, "on_step")
    refused(lambda v: world.policy("a", PICTURE, domain="tabletop", on_step=v), NO_STEPS, "on_step")
    refused(
        lambda v: world.forward_dynamics(PICTURE, MOVES, domain="tabletop", on_step=v), NO_STEPS, "on_step"
    )
    refused(lambda v: world.inverse_dynamics(CLIP, domain="tabletop", on_step=v), NO_STEPS, "on_step")


def test_what_are_no_actions() -> None:
    refused(
        lambda v: Actions.from_json(v, domain="tabletop"), [None, 5, [], [[0, 0]], {}, object()], "actions"
    )
    refused(lambda v: Actions(MOVES, "tabletop", v), [None, "x", 0, -1, float("nan"), [], object()], "fps")
    refused(lambda v: Actions(MOVES, "tabletop", 8.0, names=v), [5, "ab", {"a": 1}, object()], "names")


def test_what_is_right_passes(world: World, tmp_path: Path) -> None:
    CLIP.save(tmp_path / "a.mp4")
    ANSWER.draw(str(tmp_path / "a.png"))
    assert CLIP.sheet(scale=np.float32(2), columns=np.int64(2)).size[0] > 0
    assert armillary.load(world.facts.model, device="cpu", adapters=(), want=("sight",)) is not None
