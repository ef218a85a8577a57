"""Jobs on disk: one SQLite file, one row a job, what it reads and makes in a folder of its own.

A job is stored before it is started. Its state goes queued -> running -> done, failed or cancelled, and only
that way; a row never says running once its server has gone.
"""

import fcntl
import json
import os
import shutil
import sqlite3
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from armillary.errors import BadRequest
from armillary.serve.settings import Settings

State = Literal["queued", "running", "done", "failed", "cancelled"]
FORGOTTEN_S = 600.0
_ALIVE = "(state IN ('queued', 'running') OR expires > ?)"  # however long it waits or takes
ENDED = ("done", "failed", "cancelled")
SCHEMA = """
CREATE TABLE IF NOT EXISTS jobs (
    number INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT UNIQUE NOT NULL, owner TEXT NOT NULL,
    task TEXT NOT NULL, options TEXT NOT NULL, asked TEXT NOT NULL, state TEXT NOT NULL,
    created REAL NOT NULL, started REAL, finished REAL, expires REAL NOT NULL,
    made TEXT, error TEXT, key TEXT UNIQUE, digest TEXT)
"""
DIED = "the server ended while this was being made; ask again"


@dataclass(frozen=True)
class Job:
    """One piece of work as it is stored. Times are Unix seconds.

    options: what the world's method `task` is given; a picture or clip stands as {"file": NAME}. asked: what
    the request said, for answers about the job. made: the result, with `file` its name in the job's folder.
    """

    id: str
    owner: str
    task: str
    options: Mapping[str, Any]
    asked: Mapping[str, Any]
    state: State
    created: float
    started: float | None
    finished: float | None
    expires: float
    made: Mapping[str, Any] | None
    error: Mapping[str, Any] | None
    digest: str | None

    @property
    def ended(self) -> bool:
        return self.state in ENDED


class Store:
    """The jobs of one folder. One server at a time has it."""

    def __init__(self, settings: Settings) -> None:
        self._settings, self._folder = settings, settings.folder / "jobs"
        self._folder.mkdir(parents=True, exist_ok=True)
        self._lock = (settings.folder / "lock").open("w")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._lock.close()
            raise BadRequest("folder", str(settings.folder), "another server has it; name another") from None
        # Autocommit; the write-ahead log survives a killed process without waiting for the disk each time.
        path = settings.folder / "jobs.sqlite"
        self._base = sqlite3.connect(path, isolation_level=None, check_same_thread=False)  # the loop's alone
        self._base.row_factory = sqlite3.Row
        for command in ("PRAGMA journal_mode=WAL", "PRAGMA synchronous=NORMAL", SCHEMA):
            self._base.execute(command)

    def close(self) -> None:
        self._base.close()
        self._lock.close()

    def recover(self) -> list[Job]:
        """After a start: what ran when the last server ended has failed; gives what waited."""
        for job in self._select("WHERE state = 'running'"):
            self.end(job.id, "failed", error={"message": DIED, "code": "server_ended"})
        return self._select("WHERE state = 'queued' ORDER BY number")

    def write(self, job_id: str, files: Mapping[str, bytes]) -> None:
        """The files that a job will read, before it is added. It may take a while: not for the loop."""
        self.folder(job_id).mkdir()
        for name, content in files.items():
            (self.folder(job_id) / name).write_bytes(content)

    def add(self, job: Job, key: str | None) -> None:
        """Store a queued job whose files are written; only then may it be started."""
        texts = [json.dumps(job.options), json.dumps(job.asked)]
        self._base.execute(
            "INSERT INTO jobs (id, owner, task, options, asked, state, created, expires, key, digest)"
            " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (job.id, job.owner, job.task, *texts, job.state, job.created, job.expires, key, job.digest),
        )

    def start(self, job_id: str) -> None:
        """The worker has begun with it."""
        self._base.execute(
            "UPDATE jobs SET state = 'running', started = ? WHERE id = ? AND state = 'queued'",
            (time.time(), job_id),
        )

    def requeue(self, job_id: str) -> None:
        """The server is ending in peace: the next one begins this job anew."""
        self._base.execute(
            "UPDATE jobs SET state = 'queued', started = NULL WHERE id = ? AND state = 'running'", (job_id,)
        )

    def end(
        self,
        job_id: str,
        state: State,
        *,
        made: Mapping[str, Any] | None = None,
        error: Mapping[str, Any] | None = None,
    ) -> None:
        """It is over; its result is kept for `keep_s` from now on, what it read is not."""
        now = time.time()
        self._base.execute(
            "UPDATE jobs SET state = ?, finished = ?, expires = ?, made = ?, error = ? WHERE id = ?"
            " AND state IN ('queued', 'running')",
            (state, now, now + self._settings.keep_s, _text(made), _text(error), job_id),
        )
        with suppress(FileNotFoundError):  # a folder that somebody removed
            for path in self.folder(job_id).iterdir():
                if made is None or path.name != made.get("file"):
                    path.unlink()

    def get(self, job_id: str) -> Job | None:
        found = self._select(f"WHERE id = ? AND {_ALIVE}", job_id, time.time())
        return found[0] if found else None

    def by_key(self, key: str) -> Job | None:
        """The job that was asked for under an idempotency key."""
        for job in self._select("WHERE key = ?", key):
            if job.expires > time.time() or not job.ended:
                return job
            self.delete(job.id)
        return None

    def page(self, *, after: str | None, limit: int, newest_first: bool) -> list[Job]:
        """At most `limit` jobs, following `after` in the given order."""
        order, sign = ("DESC", "<") if newest_first else ("ASC", ">")
        where, values = f"WHERE {_ALIVE}", list[Any]([time.time()])
        if after is not None:
            where += f" AND number {sign} (SELECT number FROM jobs WHERE id = ?)"
            values.append(after)
        return self._select(f"{where} ORDER BY number {order} LIMIT {limit:d}", *values)

    def delete(self, job_id: str) -> None:
        self._base.execute("DELETE FROM jobs WHERE id = ?", (job_id,))
        shutil.rmtree(self.folder(job_id), ignore_errors=True)

    def folder(self, job_id: str) -> Path:
        """Where a job's files lie."""
        return self._folder / job_id

    def sweep(self) -> None:
        """Delete ended jobs that have expired, or are the oldest of too many, or take up too much room."""
        now, room = time.time(), self._settings.max_disk
        ended = self._select("WHERE state IN ('done', 'failed', 'cancelled') ORDER BY number DESC")
        alive = [job for job in ended if job.expires > now]
        kept = set[str]()
        for job in alive[: self._settings.max_jobs]:
            room -= _size(self.folder(job.id))
            if room >= 0:
                kept.add(job.id)
        for job in ended:
            if job.id not in kept:
                self.delete(job.id)
        known = {row["id"] for row in self._base.execute("SELECT id FROM jobs")}
        for path in self._folder.iterdir():
            if path.name not in known and path.stat().st_mtime < now - FORGOTTEN_S:  # never stored
                shutil.rmtree(path, ignore_errors=True)

    def _select(self, rest: str, *values: Any) -> list[Job]:
        return [_job(row) for row in self._base.execute(f"SELECT * FROM jobs {rest}", values)]


def _job(row: sqlite3.Row) -> Job:
    found = {name: row[name] for name in Job.__dataclass_fields__}
    for name in ("options", "asked", "made", "error"):
        found[name] = None if found[name] is None else json.loads(found[name])
    return Job(**found)


def _text(value: Mapping[str, Any] | None) -> str | None:
    return None if value is None else json.dumps(value)


def _size(folder: Path) -> int:
    try:
        return sum(entry.stat().st_size for entry in os.scandir(folder))
    except OSError:
        return 0
