"""What whoever starts a server decides: who may ask, what may be read, and how much of everything."""

import hashlib
import hmac
import ipaddress
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from armillary.errors import BadRequest
from armillary.robots import Robot

MIB = 2**20


@dataclass(frozen=True)
class Settings:
    """How a server is run.

    folder: where jobs and uploads are kept. keys: those that may ask; none means everyone. root: the only
    folder from which `file:` references are read; None reads none. hosts: names from which URLs are fetched;
    none fetches none. names: what a request's Host header may say; none means anything. domain: the robot
    that is meant where a request names none: one of the table by its name, or one of one's own. Sizes are
    bytes, times seconds.
    """

    folder: Path
    keys: tuple[str, ...] = ()
    root: Path | None = None
    hosts: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    domain: str | Robot | None = None
    max_body: int = 64 * MIB
    max_tokens: int = 4096
    max_waiting: int = 128
    max_jobs: int = 1000
    max_disk: int = 2048 * MIB
    keep_s: float = 24 * 3600.0
    grace_s: float = 30.0

    @property
    def robots(self) -> Mapping[str, Robot]:
        """Robots that stand in no table, by their names."""
        return {self.domain.name: self.domain} if isinstance(self.domain, Robot) else {}

    def embodied(self, options: Mapping[str, Any]) -> Mapping[str, Any]:
        """Options of a task, with the robot itself where they name one of ours."""
        own = self.robots.get(str(options.get("domain")))
        return options if own is None else {**options, "domain": own}

    def knows(self, key: str) -> bool:
        """Is this one of the keys? It takes as long for a wrong key as for a right one."""
        given = hashlib.sha256(key.encode(errors="surrogatepass")).digest()
        found = [hmac.compare_digest(given, hashlib.sha256(k.encode()).digest()) for k in self.keys]
        return any(found)


def check_public(host: str, *, keys: tuple[str, ...], open_to_all: bool) -> None:
    """Refuse an address that others can reach when nobody is asked for a key."""
    if keys or open_to_all or is_loopback(host):
        return
    message = "others can reach this address: give --api-key-file, or --open-to-all if everyone may ask"
    raise BadRequest("host", host, message)


def is_loopback(host: str) -> bool:
    """Can only this machine reach the address?"""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def names_of(host: str) -> tuple[str, ...]:
    """What requests to this address may call it. A loopback address has few names, so that no page of a
    foreign host, resolved to this machine, can speak to it."""
    return ("localhost", "127.0.0.1", "::1", host.strip("[]")) if is_loopback(host) else ()


def default_folder() -> Path:
    """Where a server keeps its jobs unless told otherwise (XDG Base Directory, state)."""
    state = os.environ.get("XDG_STATE_HOME", "")
    return (Path(state) if state else Path.home() / ".local/state") / "armillary"


def read_keys(key: str | None, file: Path | None) -> tuple[str, ...]:
    """One key as given, and those of a file, one a line."""
    try:
        lines = file.read_text(encoding="utf-8").split() if file else []
    except (OSError, UnicodeDecodeError) as error:
        raise BadRequest("api-key-file", str(file), f"cannot be read: {error}") from None
    if file and not lines:
        raise BadRequest("api-key-file", str(file), "holds no key")
    if key is not None and not key.strip():
        raise BadRequest("api-key", key, "is empty; leave it out, or give a key")
    return (*([key.strip()] if key else []), *lines)
