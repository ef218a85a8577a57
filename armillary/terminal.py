"""What commands share: options, progress, results, files, and one sentence for an error."""

import functools
import json
import os
import sys
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn, ParamSpec

import typer

from armillary import __version__
from armillary.errors import BadRequest, Cancelled
from armillary.step import OnStep

if TYPE_CHECKING:
    from armillary.answers import Answer, TokenLogprob
    from armillary.robots import Actions

P = ParamSpec("P")
FAILED, BAD_REQUEST, INTERRUPTED = 1, 2, 130
CLIPS = (".mp4", ".gif", ".png")


def _tell_version(asked: bool) -> None:
    if asked:
        say(__version__)
        raise typer.Exit


Version = Annotated[
    bool, typer.Option("--version", callback=_tell_version, is_eager=True, help="Show the version and exit.")
]
Model = Annotated[
    str, typer.Option("--model", "-m", help="pocket, a folder, or a hub name such as nvidia/Cosmos3-Nano.")
]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1, ...")]
Dtype = Annotated[str, typer.Option(help="auto, float32, bfloat16 or float16.")]
Memory = Annotated[
    str | None,
    typer.Option(
        help="resident, tower (one at a time) or stream (from disk); the same results.  [default: what fits]"
    ),
]
Weights = Annotated[
    str | None,
    typer.Option(help="int8 or int4: round both towers, for less memory.  [default: as stored]"),
]
Adapter = Annotated[
    list[str] | None,
    typer.Option(help="A LoRA: FILE, or FILE=WEIGHT such as style.safetensors=0.8; repeats."),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object with the receipt.")]
Candidates = Annotated[
    int | None, typer.Option(help="Draw so many and keep the one that --judge likes best.")
]
Judge = Annotated[str | None, typer.Option(help="What the reasoner is asked about each candidate.")]
Wanted = Annotated[str | None, typer.Option(help="How the right answer begins.  [default: yes]")]
Guarding = Annotated[
    str | None,
    typer.Option(
        "--guard", help="Look at what is asked and made: a file of words, or cosmos.  [default: off]"
    ),
]
Seed = Annotated[int | None, typer.Option(help="The same seed gives the same result.  [default: 0]")]
Steps = Annotated[int | None, typer.Option(help="Denoising steps.  [default: the model's]")]
Guidance = Annotated[
    float | None, typer.Option(help="How strongly the prompt is followed; 1 is none.  [default: the model's]")
]
Shift = Annotated[
    float | None, typer.Option(help="Above 1, more steps where it is noisy.  [default: the model's]")
]
Grid = Annotated[
    str | None, typer.Option(help="Where the steps lie: native, stock or karras.  [default: the model's]")
]
Interval = Annotated[
    tuple[float, float] | None,
    typer.Option(help="Guide only between these times, 0 (clean) to 1000 (noise).", metavar="LOW HIGH"),
]
Noise = Annotated[
    str | None, typer.Option(help="own, or diffusers to start where that library starts.  [default: own]")
]
Negative = Annotated[str | None, typer.Option(help="What to stay away from; needs a guidance above 1.")]
Doing = Annotated[str | None, typer.Option("--prompt", help="What is done, in words.")]
Domain = Annotated[str, typer.Option(help="The robot: a name such as tabletop, or a .toml file.")]
Image = Annotated[Path | None, typer.Option(help="A picture file.")]
NeededImage = Annotated[Path, typer.Option(help="A picture file.")]
ClipOut = Annotated[Path | None, typer.Option("--output", "-o", help="Where to write: .mp4, .gif or .png.")]
JsonOut = Annotated[
    Path | None,
    typer.Option("--output", "-o", help="Where to write it: .json.  [default: standard output]"),
]


def weighted(option: str, text: str) -> tuple[str, float]:
    """A LoRA named as FILE or FILE=WEIGHT."""
    path, equals, weight = text.rpartition("=")
    if not equals or Path(text).exists():
        return text, 1.0
    try:
        return path, float(weight)
    except ValueError:
        raise BadRequest(option, text, "a weight is a number, as in style.safetensors=0.8") from None


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
        except BrokenPipeError:  # whoever read our output has read enough, as `head` does
            _forget_output()
            raise typer.Exit(FAILED) from None
        except (FloatingPointError, OSError) as error:
            _end(FAILED, f"{error}; nothing is left half written")

    return run


def _end(code: int, sentence: str) -> NoReturn:
    print(f"armillary: {' '.join(sentence.split())}", file=sys.stderr)  # noqa: T201
    raise typer.Exit(code)


def _forget_output() -> None:
    """Point standard output nowhere, so that nothing is said about what it still holds when Python ends."""
    with open(os.devnull, "w") as nowhere:  # noqa: PTH123
        os.dup2(nowhere.fileno(), sys.stdout.fileno())


def say(text: str, *, end: str = "\n") -> None:
    """A result, or a piece of one, on standard output; letters that it cannot show are spelled `\\u1234`."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"  # None: it is closed
    print(text.encode(encoding, "backslashreplace").decode(encoding), end=end, flush=True)  # noqa: T201


def say_json(value: Mapping[str, Any]) -> None:
    """A result for programs: one JSON object on one line."""
    say(json.dumps(value, ensure_ascii=False))


def _watched() -> bool:
    """Is standard error a terminal? Where it is closed, Python has none."""
    return sys.stderr is not None and sys.stderr.isatty()  # pyright: ignore[reportUnnecessaryComparison]


def note(text: str) -> None:
    """A remark for a person who looks on; a pipe gets none."""
    if _watched():
        print(text, file=sys.stderr)  # noqa: T201


def log(text: str) -> None:
    """A line of the diary of work that takes hours, and so may run in the background: a file gets it too. The
    work goes on where it cannot be written, as when nobody reads on or the disk of the file is full."""
    if sys.stderr is not None:  # pyright: ignore[reportUnnecessaryComparison]
        with suppress(OSError):
            print(text, file=sys.stderr, flush=True)  # noqa: T201


@contextmanager
def progress(label: str) -> Generator[Callable[[int, int], None]]:
    """`tell(step, of)` moves a bar with step, of and time on a terminal; a pipe gets none."""
    if not _watched():
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


@contextmanager
def drawing(label: str) -> Generator[OnStep]:
    """`on_step` for a drawing: its progress as a bar."""
    with progress(label) as tell:
        yield lambda done: tell(done.step, done.of)


def clip_path(output: Path | None, *, picture: bool, sound: bool) -> Path:
    """Where a clip may be written, checked before anything is computed. Raises BadRequest."""
    legal = (".png", *CLIPS[:2]) if picture else (".mp4",) if sound else CLIPS[:2]
    if output is None:
        raise BadRequest("output", None, f"name a file to write, such as -o out{legal[0]}")
    suffix = output.suffix.lower()
    if suffix not in CLIPS:
        made = "a picture ends" if picture else "clips with sound end" if sound else "clips end"
        raise BadRequest("output", str(output), f"{made} in {' or '.join(legal)}; name it so")
    if suffix == ".png" and not picture:
        raise BadRequest(
            "output", str(output), "a PNG holds one picture: use --frames 1, or write .mp4 or .gif"
        )
    if suffix != ".mp4" and sound:
        raise BadRequest("output", str(output), f"{suffix} files have no sound: write .mp4")
    check_folder(output)
    return output


def check_rate(output: Path | None, used: Mapping[str, Any]) -> None:
    """Refuse a GIF of more frames a second than it shows. Raises BadRequest."""
    from armillary.media.encode import GIF_MAX_FPS

    fps = used.get("fps", 0)
    if output is not None and output.suffix.lower() == ".gif" and fps > GIF_MAX_FPS:
        message = f"a GIF shows at most {GIF_MAX_FPS} frames a second, and here are {fps:g}: write .mp4"
        raise BadRequest("output", str(output), message)


def check_json(output: Path | None) -> None:
    """Refuse a file for JSON that is named otherwise: it may be the very picture that is read."""
    if output is not None and output.suffix.lower() != ".json":
        raise BadRequest("output", str(output), "this is written as JSON; name a .json file")
    check_folder(output)


def check_action_files(output: Path | None, clip: Path | None) -> None:
    """Refuse what cannot be written of a policy's two files: its actions, and what they would look like."""
    check_json(output)
    if clip is not None:
        clip_path(clip, picture=False, sound=False)


def check_folder(output: Path | None) -> None:
    """Refuse a file whose folder does not exist, and a folder in place of a file."""
    if output is not None and not output.parent.is_dir():
        raise BadRequest("output", str(output), f"there is no folder {str(output.parent)!r}")
    if output is not None and not os.access(output.parent, os.W_OK | os.X_OK):
        raise BadRequest("output", str(output), f"nothing may be written in {str(output.parent)!r}")
    if output is not None and output.is_dir():
        raise BadRequest("output", str(output), "is a folder; name a file in it")
    if output is not None and output.exists() and not output.is_file():
        raise BadRequest(
            "output", str(output), "is a device or pipe, no file; leave -o out for standard output"
        )


def write_whole(path: Path, text: str) -> None:
    """A text file, whole or not at all."""
    from armillary.media.encode import replacing

    with replacing(path) as temporary:
        temporary.write_text(text + "\n", encoding="utf-8")


def tell_receipt(receipt: Mapping[str, Any], *, as_json: bool) -> None:
    """What would be used, one option a line."""
    if as_json:
        say_json(receipt)
        return
    for name, value in receipt["used"].items():
        asked = receipt["rounded"].get(name)
        remark = "  (default)" if name in receipt["defaulted"] else ""
        remark = f"  (asked {asked['asked']})" if asked else remark
        say(f"{name}: {value}{remark}")
    if receipt["tokens"]:
        say("tokens: " + ", ".join(f"{count:,} {kind}" for kind, count in receipt["tokens"].items()))


def tell_written(path: Path, receipt: Mapping[str, Any], *, as_json: bool) -> None:
    """The path of what was written, and for a person what was rounded."""
    if as_json:
        say_json({"path": str(path), "receipt": receipt})
        return
    for name, sizes in receipt["rounded"].items():
        note(f"{name}: asked {sizes['asked']}, made {sizes['made']}")
    say(str(path))


def give_actions(actions: "Actions", output: Path | None, *, as_json: bool) -> None:
    """Actions as JSON into a file, or on standard output where none is named."""
    if output is None:
        say(actions.to_json())
        return
    write_whole(output, actions.to_json())
    tell_written(output, actions.receipt, as_json=as_json)


def answer_fields(answer: "Answer") -> dict[str, Any]:
    """An answer as plain JSON."""
    return {
        "text": answer.text,
        "thinking": answer.thinking,
        "finish_reason": answer.finish_reason,
        "boxes": [asdict(box) for box in answer.boxes],
        "points": [asdict(point) for point in answer.points],
        "trajectories": [asdict(path) for path in answer.trajectories],
        "events": [asdict(event) for event in answer.events],
        "usage": asdict(answer.usage),
        "receipt": dict(answer.receipt),
        **({"parsed": answer.parsed} if "schema" in answer.receipt.get("used", {}) else {}),
        **({"logprobs": [_logprob_fields(token) for token in answer.logprobs]} if answer.logprobs else {}),
        **({"others": [answer_fields(other) for other in answer.others]} if answer.others else {}),
    }


def _logprob_fields(token: "TokenLogprob") -> dict[str, Any]:
    fields = {"token": token.text, "id": token.id, "logprob": token.logprob}
    return {**fields, "top": [_logprob_fields(other) for other in token.top]} if token.top else fields
