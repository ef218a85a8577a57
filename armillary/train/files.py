"""What a training keeps on disk: files written whole or not at all, and read with a word on what is wrong."""

import io
from pathlib import Path
from typing import Any

import torch

from armillary.errors import BadRequest
from armillary.shards import whole


def make_folder(folder: Path) -> None:
    """Raises BadRequest for what cannot be one, such as the name of a file."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise BadRequest("folder", str(folder), "is a file, or lies in one; name a folder") from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise BadRequest("folder", str(folder), f"cannot be made: {reason}; name another") from None


def write(data: bytes | memoryview, path: Path) -> None:
    """Raises OSError naming the file, as where the disk is full; what was there before then stays."""
    with whole(path) as partial:
        partial.write_bytes(data)


def save(content: object, path: Path) -> None:
    """Tensors and plain values, likewise."""
    buffer = io.BytesIO()  # torch itself does not say why it cannot write
    torch.save(content, buffer)
    write(buffer.getbuffer(), path)


def read(path: Path, field: str, *, peek: bool = False) -> Any:
    """What `save` wrote; with `peek`, tensors stay on disk until they are used.

    Raises BadRequest for a file that is cut short or something else.
    """
    path.open("rb").close()  # a file that may not be read says so itself
    try:
        return torch.load(path, map_location="cpu", weights_only=True, mmap=peek)
    except Exception as error:  # what a damaged file makes torch raise has no bounds
        raise BadRequest(field, str(path), "is damaged; remove it to begin anew") from error
