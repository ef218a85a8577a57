"""What a request refers to: bytes sent along, data URIs, uploads, URLs, and files below one folder.

Whatever is not plainly permitted is a BadRequest that names the part of the request.
"""

import json
import os
import re
import secrets
import stat
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from starlette.exceptions import HTTPException

from armillary.errors import BadRequest
from armillary.media.source import read_data_uri
from armillary.serve.fetch import Fetcher
from armillary.serve.settings import Settings
from armillary.shards import write_json

FETCH_S = 20.0  # of one URL, at most
UPLOAD = re.compile(r"file-[0-9a-f]{32}")


@dataclass(frozen=True)
class Upload:
    """A file that was sent ahead, to be named in later requests. Times are Unix seconds."""

    id: str
    filename: str
    bytes: int
    purpose: str
    created_at: int
    expires_at: int

    def shown(self) -> dict[str, Any]:
        """As OpenAI's file object."""
        return {**asdict(self), "object": "file", "status": "processed"}


class Uploads:
    """Uploads on disk: two files each, the content and a note about it; gone after `keep_s`."""

    def __init__(self, settings: Settings) -> None:
        self._folder = settings.folder / "files"
        self._folder.mkdir(parents=True, exist_ok=True)
        self._keep_s, self._max_disk = settings.keep_s, settings.max_disk

    def add(self, content: bytes, filename: str, purpose: str) -> Upload:
        """Keep a file. Raises HTTPException 507 if the disk share of uploads is full."""
        self.sweep()
        left = self._max_disk - sum(f.bytes for f in self.list())
        if len(content) > left:
            said = f"these {len(content)} bytes do not fit: uploads have {left} left of {self._max_disk}"
            raise HTTPException(507, said + "; delete some" * (left < self._max_disk))
        now, name = int(time.time()), f"file-{secrets.token_hex(16)}"
        upload = Upload(name, filename, len(content), purpose, now, now + int(self._keep_s))
        (self._folder / name).write_bytes(content)
        write_json(asdict(upload), self._folder / f"{name}.json")
        return upload

    def get(self, name: str) -> Upload | None:
        """What is known of an upload that is still there."""
        note = self._folder / f"{name}.json"
        if not UPLOAD.fullmatch(name) or not note.exists():
            return None
        upload = Upload(**json.loads(note.read_text()))
        return upload if upload.expires_at > time.time() else None

    def read(self, name: str) -> bytes | None:
        return (self._folder / name).read_bytes() if self.get(name) else None

    def delete(self, name: str) -> bool:
        if not self.get(name):
            return False
        self._remove(name)
        return True

    def list(self) -> list[Upload]:
        """The newest first."""
        found = [self.get(note.stem) for note in self._folder.glob("file-*.json")]
        return sorted((f for f in found if f), key=lambda f: (-f.created_at, f.id))

    def sweep(self) -> None:
        """Remove what has expired, and content without a note: it was broken off."""
        for path in list(self._folder.iterdir()):
            name = path.name.removesuffix(".json")
            if not self.get(name) and path.exists() and path.stat().st_mtime < time.time() - 60:
                self._remove(name)

    def _remove(self, name: str) -> None:
        (self._folder / f"{name}.json").unlink(missing_ok=True)
        (self._folder / name).unlink(missing_ok=True)


class Door:
    """Turns what a request says about a picture or clip into bytes."""

    def __init__(self, settings: Settings, uploads: Uploads) -> None:
        self._root, self._uploads, self._limit = settings.root, uploads, settings.max_body
        self._fetcher = Fetcher(settings.hosts, settings.max_body, FETCH_S)

    def read(self, said: object, field: str) -> bytes:
        """The bytes behind a reference. It may wait for a disk or a network: call it from a thread."""
        if isinstance(said, Mapping):
            said = _named(said, field)
        if isinstance(said, bytes):
            return said
        if not isinstance(said, str):
            raise BadRequest(field, said, "a data URI, the id of an upload, or a URL")
        scheme = said[:8].lower()
        if scheme.startswith("data:"):
            return read_data_uri(said, field)
        if scheme.startswith(("http:", "https:")):
            return self._fetcher.fetch(said, field)
        if scheme.startswith("file:"):
            return self._local(said, field)
        content = self._uploads.read(said)
        if content is None:
            message = "no such upload; give a data URI, the id of an upload, or a permitted URL"
            raise BadRequest(field, said, message)
        return content

    def _local(self, url: str, field: str) -> bytes:
        if self._root is None:
            raise BadRequest(field, url, "this server reads no local files")
        try:
            parts = urlsplit(url)
            path = os.path.normpath(unquote(parts.path))
            inside = Path(path).relative_to(self._root)
        except ValueError:
            raise BadRequest(field, url, f"files are read below {self._root}") from None
        if parts.netloc not in ("", "localhost"):
            raise BadRequest(field, url, "a file of another machine")
        try:
            return read_below(self._root, inside, self._limit)
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            raise BadRequest(field, url, f"cannot be read: {reason}") from None


def _named(said: Mapping[Any, Any], field: str) -> Any:
    """The reference in an object such as {"image_url": ...} or {"file_id": ...}."""
    known = ("url", "image_url", "video_url", "file_id")
    if len(said) == 1 and (key := next(iter(said))) in known:
        inner = said[key]
        return _named(inner, field) if isinstance(inner, Mapping) and "url" in inner else inner
    raise BadRequest(field, dict(said), f"an object with one of {', '.join(known)}, and nothing else")


def read_below(root: Path, inside: Path, limit: int) -> bytes:
    """A regular file below `root`. No link is followed on the way, so nothing outside can be reached."""
    folder = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    try:
        for part in inside.parts[:-1]:
            deeper = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=folder)
            os.close(folder)
            folder = deeper
        name = inside.name or "."
        file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
    finally:
        os.close(folder)
    with os.fdopen(file, "rb") as opened:
        found = os.fstat(file)
        if not stat.S_ISREG(found.st_mode):
            raise ValueError("it is no regular file")
        if found.st_size > limit:
            raise ValueError(f"it is larger than {limit} bytes")
        return opened.read(limit)
