"""Many requests from one file, on one World: gone on with after a break, with a list of what failed.

A line of the file is a JSON object: `task`, an `id` that names the result (else the number of the line), and
the options of the task. A result is there whole or not at all, so what is there is what is done.
"""

import hashlib
import json
import re
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast, get_args

from armillary.alone import alone
from armillary.errors import BadRequest
from armillary.requests import Task
from armillary.terminal import answer_fields, write_whole

if TYPE_CHECKING:
    from armillary.world import World

NAME = re.compile(r"[\w][\w.-]{0,99}")
UNFINISHED = re.compile(r"\.[0-9a-f]{16}\.\w+")  # the name of a file while it is written


@dataclass(frozen=True)
class Job:
    """One line: what to do, and the name of its result."""

    line: int
    name: str
    task: str
    options: dict[str, Any]

    @property
    def file(self) -> str:
        """The result's file; the last that is written where there are several."""
        if self.task == "generate":
            still = self.options.get("frames") == 1 or "edit" in self.options
            return f"{self.name}.{'png' if still else 'mp4'}"
        return f"{self.name}.{'mp4' if self.task == 'forward_dynamics' else 'json'}"

    def digest(self, whom: str) -> str:
        """Twelve hexadecimal digits of what is asked of whom."""
        asked = json.dumps([whom, self.task, self.options], sort_keys=True)
        return hashlib.sha256(asked.encode()).hexdigest()[:12]


def read_jobs(path: Path, check: Callable[[str, dict[str, Any]], object]) -> list[Job]:
    """All lines, each `check`ed by task and options. Raises BadRequest naming line and field."""
    try:
        lines = path.read_text(encoding="utf-8-sig").split("\n")  # JSON texts may hold other line ends
    except (OSError, ValueError) as error:
        raise BadRequest("jobs", str(path), f"cannot be read: {error}") from None
    jobs, lines_of = list[Job](), dict[str, int]()
    for number, text in enumerate(lines, 1):
        if text.strip():
            try:
                job = _job(number, text)
                same = job.name.casefold()  # some disks do not tell A from a
                if same in lines_of:
                    raise BadRequest("id", job.name, f"is that of line {lines_of[same]} too")
                check(job.task, job.options)
            except BadRequest as error:
                raise BadRequest(f"line {number}: {error.field}", error.value, error.message) from None
            jobs.append(job)
            lines_of[same] = number
    if not jobs:
        raise BadRequest("jobs", str(path), "holds no request: write one JSON object a line")
    return jobs


def _job(number: int, text: str) -> Job:
    try:
        content: Any = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadRequest("json", text, f"is not valid JSON ({error})") from None
    if not isinstance(content, dict):
        raise BadRequest("json", text, 'must be an object, such as {"task": "generate", "prompt": "..."}')
    options = cast("dict[str, Any]", content)
    task, name = options.pop("task", None), options.pop("id", f"{number:05d}")
    if not isinstance(task, str):
        raise BadRequest("task", task, f"is needed: {', '.join(get_args(Task))}")
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise BadRequest("id", name, "names a file: letters, digits, dots, dashes; at most 100")
    if name.casefold() == "jobs":
        raise BadRequest("id", name, "names the list of what was asked; choose another")
    if "n" in options:
        raise BadRequest("n", options["n"], "write a line for each result, with a seed of its own")
    return Job(number, name, task, options)


@contextmanager
def open_folder(folder: Path, jobs: Sequence[Job], whom: str) -> Generator[list[Job]]:
    """Make the folder ready and hold it; gives the jobs that are still to do.

    whom: the model, and what else the results depend on. What a break left unfinished is removed. Raises
    BadRequest where another process has the folder, and where a name stands for another request.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with alone(folder):
        yield _left(folder, jobs, whom)


def _left(folder: Path, jobs: Sequence[Job], whom: str) -> list[Job]:
    file = folder / "jobs.json"
    known = _known(file) if file.exists() else {}
    for job in jobs:
        if known.get(job.name, job.digest(whom)) != job.digest(whom):
            message = (
                f"is another request in {str(folder)!r}, or of another model; choose another id or folder"
            )
            raise BadRequest(f"line {job.line}: id", job.name, message)
    for left in folder.iterdir():
        if UNFINISHED.fullmatch(left.name):
            left.unlink()
    write_whole(file, json.dumps(known | {job.name: job.digest(whom) for job in jobs}, indent=1))
    (folder / "failures.jsonl").unlink(missing_ok=True)
    return [job for job in jobs if not (folder / job.file).exists()]


def _known(file: Path) -> dict[str, str]:
    """What was asked under which name, as an earlier run wrote it."""
    try:
        known: Any = json.loads(file.read_text(encoding="utf-8"))
    except ValueError:
        known = None
    if not isinstance(known, dict):
        raise BadRequest("folder", str(file), "is damaged; remove it, or name another folder")
    return cast("dict[str, str]", known)


def run(world: "World", jobs: Sequence[Job], folder: Path) -> Iterator[Job | None]:
    """Do the jobs one after the other; gives each that failed, None for each that is done.

    Failures are in `failures.jsonl` as soon as they happen: id, line and the error.
    """
    failures: list[str] = []
    for job in jobs:
        try:
            _save(getattr(world, job.task)(**job.options), job, folder)
        except Exception as error:  # noqa: BLE001 - one bad request must not end the others
            told = f"{type(error).__name__}: {error}"
            failures.append(json.dumps({"id": job.name, "line": job.line, "error": told}))
            write_whole(folder / "failures.jsonl", "\n".join(failures))
            yield job
        else:
            yield None


def _save(result: Any, job: Job, folder: Path) -> None:
    if job.task in ("generate", "forward_dynamics"):
        result.save(folder / job.file)
    elif job.task == "upsample":
        write_whole(folder / job.file, json.dumps(result, ensure_ascii=False))
    elif job.task == "reason":
        write_whole(folder / job.file, json.dumps(answer_fields(result), ensure_ascii=False))
    else:
        if result.clip is not None:
            result.clip.save(folder / f"{job.name}.mp4")
        write_whole(folder / job.file, result.to_json())
