"""Errors that a person can act on: the field, the value, and what would have been legal."""

import difflib
from collections.abc import Iterable
from errno import EDQUOT, ENOSPC


class BadRequest(ValueError):
    """A request that cannot be served as asked. `str()` is one sentence: field, value, and the legal choices.

    The command line turns it into exit code 2, a server into a 4xx answer.
    """

    def __init__(self, field: str, value: object, message: str) -> None:
        self.field, self.value, self.message = field, value, message
        shown = repr(value)
        shown = shown if len(shown) <= 80 else f"{shown[:38]}...{shown[-39:]}"  # the end of a path tells most
        super().__init__(f"{field}={shown}: {message}")


class Cancelled(Exception):
    """The caller's `on_step` asked to stop; nothing was written."""


def lacks_memory(error: BaseException) -> bool:
    """Does an error say that there is not enough memory, the device's or the machine's?"""
    said = ("out of memory", "can't allocate memory", "not enough memory")
    return isinstance(error, MemoryError) or any(words in str(error).lower() for words in said)


def lacks_disk(error: BaseException) -> bool:
    """Does an error say that the disk is full?"""
    return getattr(error, "errno", None) in (ENOSPC, EDQUOT) or "disk is full" in str(error)


def nearest(value: object, legal: Iterable[object], count: int = 2) -> list[str]:
    """The `count` legal choices closest to `value`: by distance for numbers, by spelling otherwise.

    Of words, those that hold the value come first.
    """
    choices = list(legal)
    numbers = [c for c in choices if isinstance(c, (int, float))]
    if isinstance(value, (int, float)) and len(numbers) == len(choices):
        return [str(c) for c in sorted(numbers, key=lambda c: abs(c - value))[:count]]
    words = [str(c) for c in choices]
    close = difflib.get_close_matches(str(value), words, n=max(1, len(words)), cutoff=0.0)
    held = [word for word in close if str(value) and str(value) in word]
    return [*held, *(word for word in close if word not in held)][:count]
