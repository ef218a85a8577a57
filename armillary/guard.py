"""Guards: what is asked is looked at before anything is computed, what was made before it is handed over.

A guard gives verdicts: allowed, blocked, skipped (it does not look at such things, and says why) or
unavailable. Only allowed and skipped let a request go on: a guard that fails, fails closed.
"""

import json
import os
import re
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from armillary.errors import BadRequest

State = Literal["allowed", "blocked", "skipped", "unavailable"]
Frames = NDArray[np.uint8]
SAID = ("content", "text", "tool_calls", "function", "name", "description")  # where messages hold words
DATA = ("arguments", "parameters")  # and where JSON that may hold some


@dataclass(frozen=True)
class Verdict:
    """What a guard says of one thing, and why."""

    state: State
    reason: str = ""

    def __str__(self) -> str:
        return f"{self.state}: {self.reason}" if self.reason else self.state


class Blocked(BadRequest):
    """A request, or what was made of it, that a guard does not let through; `verdict` says why."""

    def __init__(self, field: str, value: object, guard: str, verdict: Verdict) -> None:
        self.verdict = verdict
        super().__init__(field, value, f"the guard {guard} says {verdict}")


class Guard(Protocol):
    """Anything with a name that judges words and frames uint8 [T, H, W, 3]; it may give other frames back."""

    @property
    def name(self) -> str: ...
    def words(self, text: str) -> Verdict: ...
    def frames(self, frames: Frames) -> tuple[Verdict, Frames]: ...


def screen_request(guard: Guard | None, fields: Mapping[str, Any]) -> dict[str, str]:
    """Verdicts on every text of a request, as its receipt tells them. Raises Blocked.

    What is steered away from is not judged: negative prompts name what nobody wants to see.
    """
    if guard is None:
        return {"name": "off"}
    told = {"name": guard.name}
    for field in ("prompt", "messages", "tools", "judge", "wanted", "system"):
        texts = list(_texts(fields.get(field)))
        if texts:
            told[field] = str(screen_words(guard, field, "\n".join(texts)))
    if fields.get("negative"):
        told["negative"] = "skipped: names what to stay away from"
    return told


def screen_words(guard: Guard, field: str, text: str) -> Verdict:
    """The verdict on a text: allowed or skipped. Raises Blocked for the others."""
    verdict = _asked(lambda: guard.words("\n".join([text, *_spelled_out(text)])))
    if verdict.state in ("blocked", "unavailable"):
        raise Blocked(field, text, guard.name, verdict)
    return verdict


def screen_frames(guard: Guard, frames: Frames) -> tuple[Verdict, Frames]:
    """The verdict on what was made, and the frames to hand over. Raises Blocked."""
    found = [frames]

    def look() -> Verdict:
        verdict, found[0] = guard.frames(frames)
        return verdict

    verdict = _asked(look)
    if verdict.state in ("blocked", "unavailable"):
        raise Blocked("output", "what was made", guard.name, verdict)
    return verdict, found[0]


def _asked(ask: Callable[[], Verdict]) -> Verdict:
    """The verdict; a guard that breaks is unavailable, whatever broke it."""
    try:
        return ask()
    except Exception as error:  # noqa: BLE001 - it fails closed
        return Verdict("unavailable", f"{type(error).__name__}: {error}")


def _texts(value: Any) -> list[str]:
    """The words of a prompt, a conversation or its tools; those in JSON also without its escapes."""
    if isinstance(value, str):
        return [value, *_spelled_out(value)]
    if isinstance(value, Mapping):
        said = cast("Mapping[str, Any]", value)
        data = [json.dumps(x, default=str) if isinstance(x, Mapping) else x for x in map(said.get, DATA)]
        return [text for part in (*map(said.get, SAID), *data) for text in _texts(part)]
    if isinstance(value, Sequence) and not isinstance(value, bytes):
        return [text for item in value for text in _texts(item)]
    return []


def _spelled_out(text: str) -> list[str]:
    """Every key and text of a structured caption; none of prose."""
    try:
        waiting, found = [json.loads(text)], list[str]()
    except (ValueError, RecursionError):
        return []
    while waiting:  # no recursion: captions may be nested as deeply as JSON is read
        item: Any = waiting.pop()
        if isinstance(item, str):
            found.append(item)
        elif isinstance(item, dict):
            waiting += [
                part for pair in reversed(cast("dict[str, Any]", item).items()) for part in pair[::-1]
            ]
        elif isinstance(item, list):
            waiting += reversed(cast("list[Any]", item))
    return found


def find_guard(source: "str | os.PathLike[str] | Guard | None") -> Guard | None:
    """None is off; "cosmos" the vendor's; a path a word list; or a guard of one's own.

    Raises BadRequest for one that is configured but not there.
    """
    if source is None:
        return None
    if isinstance(source, str | os.PathLike):
        return CosmosGuard() if source == "cosmos" else WordGuard.read(source)
    if not all(hasattr(source, part) for part in ("name", "words", "frames")):
        message = "is no guard: give a file of words, cosmos, or what has name, words and frames"
        raise BadRequest("guard", f"<{type(source).__name__}>", message)
    return source


# -- a list of words -----------------------------------------------------------------------------------


class WordGuard:
    """Blocks texts that hold a word or phrase of a list, as whole words, wherever case, width, spacing and
    invisible letters differ. What lies inside an allowed phrase does not count. It looks at no frames."""

    def __init__(self, blocked: Sequence[str], allowed: Sequence[str] = (), *, name: str = "words") -> None:
        self.name = name
        self._blocked = [(entry, _pattern(entry)) for entry in blocked]
        self._allowed = [_pattern(entry) for entry in allowed]

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> "WordGuard":
        """A file of one entry a line; `+` before one allows it, `#` begins a remark."""
        try:
            lines = Path(path).read_text(encoding="utf-8-sig").splitlines()
        except (OSError, ValueError) as error:
            raise BadRequest("guard", os.fspath(path), f"cannot be read: {error}") from None
        entries = [entry for line in lines if (entry := line.partition("#")[0].strip())]
        blocked = [entry for entry in entries if not entry.startswith("+")]
        if not blocked:
            raise BadRequest("guard", os.fspath(path), "blocks nothing: give it one entry a line")
        allowed = [entry[1:].strip() for entry in entries if entry.startswith("+")]
        return cls(blocked, allowed, name=Path(path).name)

    def words(self, text: str) -> Verdict:
        plain = _plain(text)
        safe = [found.span() for pattern in self._allowed for found in pattern.finditer(plain)]
        for entry, pattern in self._blocked:
            for found in pattern.finditer(plain):
                if not any(start <= found.start() and found.end() <= end for start, end in safe):
                    return Verdict("blocked", f"holds {entry!r}")
        return Verdict("allowed")

    def frames(self, frames: Frames) -> tuple[Verdict, Frames]:
        return Verdict("skipped", "a word list looks at no pictures"), frames


def _plain(text: str) -> str:
    """One spelling of equal-looking text: NFKC, no invisible letters, no case."""
    shown = "".join(
        letter
        for letter in unicodedata.normalize("NFKC", text)
        if unicodedata.category(letter) != "Cf" and not unicodedata.name(letter, "").startswith("VARIATION")
    )
    return unicodedata.normalize("NFKC", shown.casefold())


def _pattern(entry: str) -> re.Pattern[str]:
    """The words of an entry one after the other, with anything but words between them."""
    words = re.findall(r"\w+", _plain(entry))
    if not words:
        raise BadRequest("guard", entry, "an entry needs a letter or digit")
    before = r"(?<!\w)" if _has_spaces(words[0][0]) else ""
    after = r"(?!\w)" if _has_spaces(words[-1][-1]) else ""
    return re.compile(before + r"[\W_]+".join(map(re.escape, words)) + after)


def _has_spaces(letter: str) -> bool:
    """Does its script put spaces between words? Where it does not, no border can be asked for."""
    script = unicodedata.name(letter, "").split(" ")[0]
    return script not in ("CJK", "HIRAGANA", "KATAKANA", "THAI", "LAO", "KHMER", "MYANMAR")


# -- the vendor's --------------------------------------------------------------------------------------


class CosmosGuard:
    """`cosmos_guardrail`: its text classifier and word list on prompts, its classifier and face blur on
    frames. It is loaded at once; without it nothing runs."""

    name = "cosmos"

    def __init__(self) -> None:
        try:
            from cosmos_guardrail import CosmosSafetyChecker  # pyright: ignore[reportMissingImports]

            self._checker: Any = CosmosSafetyChecker()
        except Exception as error:  # noqa: BLE001 - whatever keeps it from loading, nothing may run without it
            hint = "install it with `pip install cosmos-guardrail` and accept its terms on the hub"
            raise BadRequest(
                "guard", "cosmos", f"unavailable ({error}); {hint}, or leave guard out"
            ) from None

    def words(self, text: str) -> Verdict:
        safe = bool(self._checker.check_text_safety(text))
        return Verdict("allowed") if safe else Verdict("blocked", "its classifier calls the text unsafe")

    def frames(self, frames: Frames) -> tuple[Verdict, Frames]:
        kept = self._checker.check_video_safety(frames)
        if kept is None:
            return Verdict("blocked", "its classifier calls the frames unsafe"), frames
        return Verdict("allowed"), np.ascontiguousarray(kept, np.uint8)
