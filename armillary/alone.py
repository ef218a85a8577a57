"""A folder that one process at a time works in."""

import fcntl
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from armillary.errors import BadRequest


@contextmanager
def alone(folder: Path) -> Generator[None]:
    """Holds `folder` for this process, at most until it dies. Raises BadRequest if another has it."""
    with (folder / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            message = "another process works in this folder; wait for its end, or name another folder"
            raise BadRequest("folder", str(folder), message) from None
        yield
