"""Arguments of public methods, checked where they arrive: others are a BadRequest naming field and value."""

import math
import os
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from numbers import Integral, Real
from pathlib import Path
from typing import Any, cast

from armillary.errors import BadRequest, nearest


def path(value: object, field: str) -> Path:
    """A path that a disk can hold, from text or a path."""
    if not isinstance(value, str | os.PathLike):
        raise BadRequest(field, kind(value), "give a path, as text or a Path")
    name: Any = os.fspath(cast("str | os.PathLike[str]", value))
    if not isinstance(name, str) or not name:
        raise BadRequest(field, name, "give a path, as text or a Path")
    try:
        os.fsencode(name)
    except UnicodeEncodeError:
        raise BadRequest(field, name, "cannot be the name of a file: it holds half of a character") from None
    if "\0" in name:
        raise BadRequest(field, name, "cannot be the name of a file: it holds a zero byte")
    return Path(name)


def whole(value: object, field: str, low: int, high: int) -> int:
    """A whole number from `low` to `high`."""
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise BadRequest(field, kind(value), f"must be a whole number from {low} to {high}")
    number = int(value)
    if not low <= number <= high:
        close = low if number < low else high
        raise BadRequest(field, number, f"must be from {low} to {high}; nearest: {close}")
    return number


def positive(value: object, field: str) -> float:
    """A finite number above 0."""
    number = 0.0
    if not isinstance(value, bool) and isinstance(value, Real):
        with suppress(OverflowError):  # a whole number that no float holds
            number = float(value)
    if not 0 < number < math.inf:
        raise BadRequest(field, kind(value), "must be a number above 0")
    return number


def numbers(values: Sequence[Any], field: str, count: int, *, above: float = -math.inf) -> None:
    """So many finite numbers, each more than `above`."""
    if len(values) != count or not all(isinstance(x, int | float) and above < x < math.inf for x in values):
        kind = "finite numbers" if above == -math.inf else f"finite numbers above {above:g}"
        raise BadRequest(field, values, f"needs {count} {kind}")


def one_of(value: object, field: str, legal: Collection[str]) -> str:
    """One of some words."""
    if not isinstance(value, str) or value not in legal:
        shown = kind(value)
        raise BadRequest(field, shown, f"nearest are {' or '.join(nearest(shown, legal))}")
    return value


def several(value: object, field: str, message: str) -> Sequence[Any]:
    """A list or tuple; `message` says of what."""
    if not isinstance(value, list | tuple):
        raise BadRequest(field, kind(value), message)
    return cast("Sequence[Any]", value)


def callback(value: Callable[..., Any] | None, field: str) -> None:
    """Something that can be called, or None."""
    if value is not None and not callable(value):
        raise BadRequest(field, kind(value), "must be a function of a step, or None")


def kind(value: object) -> object:
    """The value where it is short and plain, else its type: for messages."""
    return value if isinstance(value, str | int | float | bytes | None) else f"<{type(value).__name__}>"
