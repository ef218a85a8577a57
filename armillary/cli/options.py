"""The options of `generate`, what their texts mean, and the files of its results."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from armillary import terminal
from armillary.errors import BadRequest

if TYPE_CHECKING:
    from armillary.media import Clip

Frames = Annotated[
    int | None,
    typer.Option(help="1 makes a picture; others become 4n+1, rounded up.  [default: the model's]"),
]
Fps = Annotated[float | None, typer.Option(help="Frames a second.  [default: the model's]")]
Size = Annotated[str | None, typer.Option(help="WxH in pixels, such as 64x64.  [default: the model's]")]
Video = Annotated[Path | None, typer.Option(help="A clip file; its end is continued.")]
Keep = Annotated[
    str | None, typer.Option(help="Which end of --video is kept: first or last.  [default: last]")
]
CleanLatents = Annotated[
    list[int] | None,
    typer.Option(
        "--clean-latent", help="A latent frame that --video fills; may be repeated.  [default: 0, 1]"
    ),
]
Sound = Annotated[bool, typer.Option("--sound", help="With sound that fits.")]
SoundFile = Annotated[
    Path | None, typer.Option(help="A sound that the clip goes with: a file of sound, or a clip.")
]
Edit = Annotated[Path | None, typer.Option(help="A picture file; PROMPT says how to change it.")]
Controls = Annotated[
    list[str] | None,
    typer.Option(
        "--control",
        metavar="KIND=FILE",
        help="A clip that says how things move: edge, blur, depth, seg or wsm; may be repeated. After the "
        "file: ,strength=WORD ,weight=NUMBER ,ready (it holds edges or blur already).",
    ),
]
ControlGuidance = Annotated[
    float | None, typer.Option(help="How strongly controls are followed; 1 is only seen.")
]
ControlInterval = Annotated[
    tuple[float, float] | None,
    typer.Option(help="Guide by controls only between these times.", metavar="LOW HIGH"),
]
Chunk = Annotated[int | None, typer.Option(help="Frames drawn at once, 4n+1.  [default: the model's]")]
Overlap = Annotated[int | None, typer.Option(help="Frames of a chunk that repeat the one before, 4n+1.")]
Count = Annotated[
    int | None, typer.Option("-n", help="So many, seeds counting up, in files out-1.mp4, out-2.mp4, ...")
]
System = Annotated[str | None, typer.Option(help="Another system sentence; empty for none.")]
Upsample = Annotated[
    bool, typer.Option("--upsample", help="The reasoner first writes the prompt out as a structured caption.")
]
Verbatim = Annotated[
    bool, typer.Option("--verbatim", help="Add nothing to the prompt about duration, size and controls.")
]
NegativeStyle = Annotated[
    str | None,
    typer.Option(help="What follows the negative: inverse, same or plain.  [default: inverse]"),
]


def read_given(controls: list[str] | None, sound: bool, sound_file: Path | None) -> dict[str, Any]:
    """Controls and sound as the request has them. Raises BadRequest."""
    given: dict[str, Any] = {}
    for text in controls or ():
        hint, control = read_control(text)
        if hint in given.setdefault("controls", {}):
            raise BadRequest("control", text, f"{hint} is given twice; give it once")
        given["controls"][hint] = control
    if sound and sound_file is not None:
        raise BadRequest("sound", sound, "a sound is drawn or given: leave --sound or --sound-file out")
    if sound_file is not None:
        given["sound"] = sound_file
    return given


def read_control(text: str) -> tuple[str, dict[str, Any]]:
    """KIND=FILE[,weight=W][,strength=S][,ready] as the kind and what belongs to it. Raises BadRequest."""
    hint, equals, rest = text.partition("=")
    file, *more = rest.split(",")
    if not equals or not file:
        raise BadRequest("control", text, "say a kind and a file, such as edge=clip.mp4")
    found: dict[str, Any] = {"clip": Path(file)}
    known: dict[str, Callable[[str], Any]] = {"weight": float, "strength": str, "ready": _yes}
    for item in more:
        name, _, value = item.partition("=")
        try:
            found[name] = known[name](value)
        except (KeyError, ValueError):
            legal = "after the file come weight=NUMBER, strength=WORD or ready"
            raise BadRequest("control", text, legal) from None
    return hint, found


def _yes(text: str) -> bool:
    """What stands alone is true. Raises ValueError for anything after it."""
    if text:
        raise ValueError(text)
    return True


def clip_names(path: Path, n: int | None) -> list[Path]:
    """The path for one result; out-1.png, out-2.png, ... for a list of `n`."""
    several = [path.with_name(f"{path.stem}-{i + 1}{path.suffix}") for i in range(n or 0)]
    return [path] if n is None else several


def check_clips(output: Path | None, *, picture: bool, sound: bool, n: int | None) -> Path:
    """Where results may be written, each of several checked beforehand. Raises BadRequest."""
    path = terminal.clip_path(output, picture=picture, sound=sound)
    for name in clip_names(path, n):
        terminal.check_folder(name)
    return path


def save_clips(path: Path, made: "Clip | list[Clip]", *, as_json: bool) -> None:
    """Write one clip at the path, or several beside it: out-1.png, out-2.png, ..."""
    clips = made if isinstance(made, list) else [made]
    names = clip_names(path, len(made) if isinstance(made, list) else None)
    for name, clip in zip(names, clips, strict=True):
        clip.save(name)
        terminal.tell_written(name, clip.receipt, as_json=as_json)


def read_numbers(text: str | None) -> list[float] | None:
    """Numbers between commas. Raises BadRequest naming `state`."""
    try:
        return None if text is None else [float(number) for number in text.split(",")]
    except ValueError:
        raise BadRequest("state", text, "say numbers with commas between them, such as 0.1,0.2") from None
