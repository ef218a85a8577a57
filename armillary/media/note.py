"""The note inside every file that leaves here: the receipt, and the true size where padding was needed."""

import json
from collections.abc import Mapping
from typing import Any, NamedTuple, cast


class Note(NamedTuple):
    """What a file says about itself: receipt or None, (width, height) in pixels or None."""

    receipt: dict[str, Any] | None = None
    size: tuple[int, int] | None = None


def write_note(receipt: Mapping[str, Any] | None, width: int, height: int) -> str:
    """The comment to store. ASCII, for containers that do not say how they encode text."""
    return json.dumps({"receipt": dict(receipt or {}), "size": [width, height]})


def read_note(comment: str | bytes | None) -> Note:
    """The note in a comment; an empty one where somebody else wrote something else."""
    try:
        found: Any = json.loads(comment or "")
        receipt, (width, height) = found["receipt"], found["size"]
    except (ValueError, TypeError, KeyError, RecursionError):
        return Note()
    if (
        isinstance(receipt, dict)
        and isinstance(width, int)
        and isinstance(height, int)
        and min(width, height) > 0
    ):
        return Note(cast("dict[str, Any]", receipt), (width, height))
    return Note()
