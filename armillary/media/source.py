"""What pictures and clips share on the way in: opening bytes, the size limit, turning upright, the
background.

Legend: H height, W width, C channels.
"""

import base64
import binascii
import os
import stat
from collections.abc import Generator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import IO, NamedTuple, TypeAlias
from urllib.parse import unquote_to_bytes

import numpy as np
from numpy.typing import NDArray

from armillary.errors import BadRequest

FileSource: TypeAlias = str | os.PathLike[str] | bytes
Pixels: TypeAlias = NDArray[np.uint8]

MAX_PIXELS = 80_000_000
"""Largest picture or frame, in pixels."""


class Turn(NamedTuple):
    """How stored pixels become upright ones: first swap rows and columns, then flip each axis."""

    transpose: bool = False
    flip_rows: bool = False
    flip_columns: bool = False

    def apply(self, pixels_HWC: Pixels) -> Pixels:
        upright = pixels_HWC.swapaxes(0, 1) if self.transpose else pixels_HWC
        rows, columns = (slice(None, None, -1 if flip else 1) for flip in self[1:])
        return upright[rows, columns].copy()


# EXIF 2.32, tag 0x0112: where the stored first row and first column belong in the upright picture.
EXIF_TURNS = {
    1: Turn(False, False, False),
    2: Turn(False, False, True),
    3: Turn(False, True, True),
    4: Turn(False, True, False),
    5: Turn(True, False, False),
    6: Turn(True, False, True),
    7: Turn(True, True, True),
    8: Turn(True, True, False),
}


@contextmanager
def open_binary(source: FileSource, field: str) -> Generator[IO[bytes]]:
    """The source as a seekable file; what is no path or cannot be opened is a BadRequest naming `field`.

    A string may also be a data URI. Addresses of the web are refused: nothing here opens a connection.
    """
    if isinstance(source, str) and source[:5].lower() == "data:":
        source = read_data_uri(source, field)
    if isinstance(source, bytes):
        yield BytesIO(source)
        return
    if isinstance(source, str) and source[:8].lower().startswith(("http://", "https://")):
        raise BadRequest(field, source, "addresses are not fetched here: fetch it, and give its bytes")
    if not isinstance(source, str | os.PathLike):  # pyright: ignore[reportUnnecessaryIsInstance] - a person's
        raise BadRequest(field, shown(source), "give a path, the bytes of a file, or pixels as uint8")
    try:
        regular = stat.S_ISREG(Path(source).stat().st_mode)
        file = Path(source).open("rb") if regular else None  # noqa: SIM115 (closed below)
    except OSError as error:
        raise BadRequest(field, shown(source), f"cannot be opened: {error.strerror}") from error
    except ValueError as error:  # a zero byte, or half of a character
        raise BadRequest(field, shown(source), f"cannot be the name of a file: {error}") from error
    if file is None:  # a folder, or a pipe: that may never begin or end, and cannot be read twice
        raise BadRequest(field, shown(source), "is no file on a disk: a folder, a pipe or a device")
    with file:
        yield file


def read_data_uri(uri: str, field: str) -> bytes:
    """The bytes in data:[type];base64,... (RFC 2397). The type is not believed: bytes tell what they are.

    White space, percent signs, the URL-safe alphabet and missing padding are put up with. Raises BadRequest
    naming `field` for another form, for broken base64, and for no bytes at all.
    """
    head, comma, body = uri.partition(",")
    if head[:5].lower() != "data:" or not comma or not head.lower().endswith(";base64"):
        raise BadRequest(field, shown(uri), "a data URI reads data:image/png;base64,... and nothing else")
    letters = (
        b"".join(unquote_to_bytes(body.encode(errors="replace")).split())
        .translate(bytes.maketrans(b"-_", b"+/"))
        .rstrip(b"=")
    )
    try:
        found = base64.b64decode(letters + b"=" * (-len(letters) % 4), validate=True)
    except binascii.Error as error:
        raise BadRequest(field, shown(uri), f"its base64 is broken: {error}") from None
    if not found:
        raise BadRequest(field, shown(uri), "holds no bytes")
    return found


def shown(source: object) -> str:
    """The source in a few words, for messages: never megabytes of bytes."""
    if isinstance(source, str) and source[:5].lower() == "data:":
        return f"{source[:40]}... ({len(source)} characters)"
    if isinstance(source, bytes):
        return f"<{len(source)} bytes>"
    if isinstance(source, str | os.PathLike):
        return os.fspath(source)
    return f"<{type(source).__name__}>"


def check_size(width: int, height: int, field: str, source: object) -> None:
    """Refuse sizes that no honest request has, before memory is taken for them."""
    if not 0 < width * height <= MAX_PIXELS:
        message = f"{width}x{height} pixels; between 1 and {MAX_PIXELS:,} pixels are read"
        raise BadRequest(field, shown(source), message)


def looks_like(file: IO[bytes]) -> str:
    """'a picture', 'a clip' or 'neither a picture nor a clip', by the first bytes and not by a name."""
    file.seek(0)
    head = file.read(12)
    pictures = (b"\xff\xd8\xff", b"\x89PNG", b"GIF8", b"BM", b"II*\0", b"MM\0*")
    if head.startswith(pictures) or head[8:] in (b"WEBP", b"avif", b"heic", b"mif1"):
        return "a picture"
    if head[4:8] == b"ftyp" or head.startswith(b"\x1a\x45\xdf\xa3") or head[8:] == b"AVI ":
        return "a clip"
    return "neither a picture nor a clip"


def on_white(pixels_HWC: Pixels) -> Pixels:
    """RGBA over white, as RGB: the background of everything transparent that enters the model."""
    colour, alpha = pixels_HWC[..., :3].astype(np.uint32), pixels_HWC[..., 3:].astype(np.uint32)
    return ((colour * alpha + 255 * (255 - alpha) + 127) // 255).astype(np.uint8)
