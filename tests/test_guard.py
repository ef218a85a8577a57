"""Guards look before anything is computed, fail closed, and what they said is in the receipt."""

import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import armillary
from armillary.errors import BadRequest
from armillary.guard import Blocked, CosmosGuard, Frames, Verdict, WordGuard, find_guard, screen_request
from armillary.model import Network
from armillary.prompts import SYSTEM_IMAGE, SYSTEM_VIDEO
from tests.random_pocket import random_pocket

LIST = WordGuard(["grim reaper", "gore"], ["al gore", "reaper man"])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return random_pocket(tmp_path_factory.mktemp("checkpoint") / "random")


@pytest.mark.parametrize(
    ("text", "state"),
    [
        ("a table", "allowed"),
        ("GORE", "blocked"),
        ("go\u200bre", "blocked"),
        ("ｇｏｒｅ and more", "blocked"),
        ("g\u00adore", "blocked"),
        ("the grim   reaper", "blocked"),
        ("the grim-reaper", "blocked"),
        ("the grim\nreaper", "blocked"),
        ("gorey categories", "allowed"),
        ("engorement", "allowed"),
        ("Al Gore speaks", "allowed"),
        ("Al Gore speaks of gore", "blocked"),
        ("a grim reaper man", "blocked"),  # the allowed phrase holds only a part of it
        ("grim. Reaper", "blocked"),
        ("reaper grim", "allowed"),
        ("", "allowed"),
    ],
)
def test_words_are_found_as_a_reader_would(text: str, state: str) -> None:
    assert LIST.words(text).state == state


def test_scripts_without_spaces_need_no_borders() -> None:
    assert WordGuard(["圆盘"]).words("一个红色圆盘滑动").reason == "holds '圆盘'"


@given(st.text(max_size=60))
def test_any_text_gets_a_verdict_and_around_a_word_nothing_hides_it(text: str) -> None:
    assert LIST.words(text).state in ("allowed", "blocked")
    assert LIST.words(f"{text} grim reaper. {text}").state == "blocked" or "reaper" in text.casefold()


def test_what_ships_passes() -> None:
    for text in (SYSTEM_IMAGE, SYSTEM_VIDEO):
        assert LIST.words(text).state == "allowed"


def test_a_file_of_words(tmp_path: Path) -> None:
    (tmp_path / "list.txt").write_text("# mine\ngore  # blood\n+al gore\n")
    guard = find_guard(tmp_path / "list.txt")
    assert guard is not None
    assert (guard.name, guard.words("gore").state, guard.words("al gore").state) == (
        "list.txt",
        "blocked",
        "allowed",
    )
    (tmp_path / "list.txt").write_text("# nothing\n+al gore\n")
    wrong: Any = object()
    for path, named in (
        *((tmp_path / "list.txt", "blocks nothing"), (tmp_path / "none", "cannot be read")),
        (wrong, "is no guard"),
    ):
        with pytest.raises(BadRequest, match=named):
            find_guard(path)


def test_a_blocked_request_is_refused_before_anything_is_computed(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = armillary.load(folder, guard=LIST)
    monkeypatch.setattr(Network, "_run", None)
    picture = np.zeros((64, 64, 3), np.uint8)
    calls: list[Any] = [
        lambda: world.generate("gore"),
        lambda: world.generate({"temporal_caption": "some gore"}),
        lambda: world.generate('{"temporal_caption": ["", {"a": "g\\u006fre"}]}'),
        lambda: world.generate({"gore": "g\u00f6"}),
        lambda: world.reason("gore?"),
        lambda: world.reason(messages=[{"role": "user", "content": [{"type": "text", "text": "gore"}]}]),
        lambda: world.policy("gore", picture, domain="tabletop"),
        lambda: world.forward_dynamics(picture, [[0, 0]], domain="tabletop", prompt="gore"),
        lambda: armillary.validate("generate", folder, guard=LIST, prompt="gore"),
    ]
    for call in calls:
        with pytest.raises(Blocked, match="the guard words says blocked: holds 'gore'") as caught:
            call()
        assert caught.value.verdict.state == "blocked"


def test_an_upsampled_prompt_is_looked_at_and_its_verdict_told(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    captions = iter([{"a": "the grim\nreaper"}, {"a": "the grim\nreaper"}, {"a": "a disc"}])
    monkeypatch.setattr("armillary.world.upsample", lambda *_, **__: next(captions))
    world = armillary.load(folder, guard=LIST)
    with pytest.raises(Blocked, match=r"output=.*holds 'grim reaper'"):
        world.upsample("a disc")
    with pytest.raises(Blocked, match=r"upsampled=.*holds 'grim reaper'"):
        world.generate("a disc", upsample=True, steps=1)
    clip = world.generate("a disc", upsample=True, steps=1)
    assert clip.receipt["guard"]["upsampled"] == "allowed"


def test_no_escape_hides_a_word() -> None:
    guard = WordGuard(["g\u00f6re", "grim reaper"])
    hidden = ({"a": "g\u00f6re"}, {"a": {"b": ["the grim\nreaper"]}}, {"g\u00f6re": 1})
    for caption in hidden:
        for value in (json.dumps(caption), [{"role": "user", "content": json.dumps(caption)}]):
            field = "prompt" if isinstance(value, str) else "messages"
            with pytest.raises(Blocked):
                screen_request(guard, {field: value})
    for text in ("{", "[" * 10000, "5", '"a"', "null"):
        assert screen_request(guard, {"prompt": text})["prompt"] == "allowed"


def test_the_receipt_tells_every_verdict_and_off(folder: Path) -> None:
    world = armillary.load(folder, guard=LIST)
    clip = world.generate("a disc", steps=1, guidance=2.0, negative="gore")
    assert clip.receipt["guard"] == {
        "name": "words",
        "prompt": "allowed",
        "negative": "skipped: names what to stay away from",
        "output": "skipped: a word list looks at no pictures",
    }
    assert world.reason("Where?", max_tokens=2).receipt["guard"]["output"] == "allowed"
    assert armillary.load(folder).generate("gore", steps=1).receipt["guard"] == {"name": "off"}


class Own:
    """A guard that blocks dark frames, paints the others white, or breaks."""

    name = "own"

    def __init__(self, doing: str) -> None:
        self.doing = doing

    def words(self, text: str) -> Verdict:
        if self.doing == "break":
            raise ConnectionError("no route")
        return (
            Verdict("blocked", "an answer")
            if self.doing == "answer" and "Where" not in text
            else Verdict("allowed")
        )

    def frames(self, frames: Frames) -> tuple[Verdict, Frames]:
        if self.doing == "block":
            return Verdict("blocked", "too dark"), frames
        return Verdict("allowed"), np.full_like(frames, 255)


def test_what_was_made_is_looked_at_too(folder: Path) -> None:
    with pytest.raises(Blocked, match=r"output=.*too dark"):
        armillary.load(folder, guard=Own("block")).generate("a disc", steps=1)
    assert armillary.load(folder, guard=Own("paint")).generate("a disc", steps=1).frames.min() == 255
    world = armillary.load(folder, guard=Own("answer"))
    with pytest.raises(Blocked, match="output="):
        world.reason("Where?", stream=True, max_tokens=3)  # not a piece of it is given out


def test_a_guard_that_breaks_blocks() -> None:
    with pytest.raises(Blocked, match="unavailable: ConnectionError: no route"):
        screen_request(Own("break"), {"prompt": "a disc"})


def test_the_vendors_guard_is_refused_where_it_is_not_installed(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "cosmos_guardrail", None)
    with pytest.raises(BadRequest, match="guard='cosmos': unavailable"):
        armillary.load(folder, guard="cosmos")


def test_the_vendors_guard_is_asked_by_its_own_names(monkeypatch: pytest.MonkeyPatch) -> None:
    class Checker:
        def check_text_safety(self, text: str) -> bool:
            return "gore" not in text

        def check_video_safety(self, frames: Frames) -> Frames | None:
            return None if frames.max() > 200 else frames + 1

    vendor: Any = ModuleType("cosmos_guardrail")
    vendor.CosmosSafetyChecker = Checker
    monkeypatch.setitem(sys.modules, "cosmos_guardrail", vendor)
    guard = CosmosGuard()
    assert guard.words("a disc").state == "allowed"
    assert guard.words("gore").state == "blocked"
    dark = np.zeros((1, 2, 2, 3), np.uint8)
    verdict, frames = guard.frames(dark)
    assert (verdict.state, frames.max()) == ("allowed", 1)
    assert guard.frames(dark + 255)[0].state == "blocked"
