"""What the command line shows and writes: progress on a terminal, results, files, one sentence for an error."""

import functools
import json
import secrets
import sys
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn, ParamSpec

import typer

from armillary.errors import BadRequest, Cancelled, nearest

P = ParamSpec("P")
FAILED, BAD_REQUEST, INTERRUPTED = 1, 2, 130
CLIPS = (".mp4", ".gif", ".png")


def guarded(command: Callable[P, None]) -> Callable[P, None]:
    """The command with its errors as exit codes: 2 and one sentence for a bad request, 130 for Ctrl-C."""

    @functools.wraps(command)
    def run(*args: P.args, **options: P.kwargs) -> None:
        try:
            command(*args, **options)
        except BadRequest as error:
            _end(BAD_REQUEST, str(error))
        except (KeyboardInterrupt, Cancelled):
            _end(INTERRUPTED, "stopped; nothing is left half written")
        except FloatingPointError as error:
            _end(FAILED, f"{error}; nothing was written")

    return run


def _end(code: int, sentence: str) -> NoReturn:
    print(f"armillary: {' '.join(sentence.split())}", file=sys.stderr)  # noqa: T201
    raise typer.Exit(code)


def say(text: str, *, end: str = "\n") -> None:
    """A result, or a piece of one, on standard output."""
    print(text, end=end, flush=True)  # noqa: T201


def say_json(value: Mapping[str, Any]) -> None:
    """A result for programs: one JSON object on one line."""
    say(json.dumps(value, ensure_ascii=False))


def note(text: str) -> None:
    """A remark for a person who looks on; a pipe gets none."""
    if sys.stderr.isatty():
        print(text, file=sys.stderr)  # noqa: T201


@contextmanager
def progress(label: str) -> Generator[Callable[[int, int], None]]:
    """`tell(step, of)` moves a bar with step, of and time on a terminal's standard error; a pipe gets none."""
    if not sys.stderr.isatty():
        yield lambda step, of: None
        return
    from rich import progress as rich
    from rich.console import Console

    columns = (
        rich.TextColumn("{task.description}"),
        rich.BarColumn(),
        rich.MofNCompleteColumn(),
        rich.TimeElapsedColumn(),
        rich.TimeRemainingColumn(),
    )
    with rich.Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(label, total=None)
        yield lambda step, of: bar.update(task, completed=step, total=of)


def clip_path(output: Path | None, *, picture: bool, sound: bool) -> Path:
    """Where a clip may be written, checked before anything is computed. Raises BadRequest."""
    if output is None:
        raise BadRequest("output", None, "name a file to write, such as -o out.mp4")
    suffix = output.suffix.lower()
    if suffix not in CLIPS:
        close = " or ".join(nearest(suffix, CLIPS))
        raise BadRequest("output", str(output), f"clips end in {', '.join(CLIPS)}; nearest: {close}")
    if suffix == ".png" and not picture:
        raise BadRequest(
            "output", str(output), "a PNG holds one picture: use --frames 1, or write .mp4 or .gif"
        )
    if suffix != ".mp4" and sound:
        raise BadRequest("output", str(output), f"{suffix} files have no sound: write .mp4")
    check_folder(output)
    return output


def check_folder(output: Path | None) -> None:
    """Refuse a file whose folder does not exist, and a folder in place of a file."""
    if output is not None and not output.parent.is_dir():
        raise BadRequest("output", str(output), f"there is no folder {str(output.parent)!r}")
    if output is not None and output.is_dir():
        raise BadRequest("output", str(output), "is a folder; name a file in it")


def write_whole(path: Path, text: str) -> None:
    """A text file, whole or not at all."""
    partial = path.with_name(f".{secrets.token_hex(8)}{path.suffix}")
    try:
        partial.write_text(text + "\n", encoding="utf-8")
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
