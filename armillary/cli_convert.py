"""The command that writes checkpoints."""

from pathlib import Path
from typing import Annotated

import typer

from armillary.errors import BadRequest
from armillary.terminal import guarded, note, say


@guarded
def convert(
    source: Annotated[str, typer.Argument(help="pocket, a folder in any layout, or a hub name.")],
    folder: Annotated[Path, typer.Argument(help="The folder to make.")],
    dtype: Annotated[
        str | None, typer.Option(help="float32, bfloat16 or float16.  [default: each tensor's own]")
    ] = None,
    merge: Annotated[
        list[str] | None,
        typer.Option(help="A LoRA to fold in: FILE, or FILE=WEIGHT such as style.safetensors=0.8; repeats."),
    ] = None,
) -> None:
    """Write a checkpoint in the published layout.

    diffusers and transformers load what is written. Without --dtype and --merge every tensor stays as it is,
    bit by bit. The folder appears when all of it is there.

    \b
    armillary convert ./downloaded ./published
    armillary convert ./published ./mine --dtype bfloat16 --merge style.safetensors=0.8
    """
    from armillary.world import convert as write

    note(f"reading {source}")
    write(source, folder, dtype=dtype, adapters=[_weighted(text) for text in merge or ()])
    say(str(folder))


def _weighted(text: str) -> tuple[str, float]:
    """FILE or FILE=WEIGHT."""
    path, equals, weight = text.rpartition("=")
    if not equals or Path(text).exists():
        return text, 1.0
    try:
        return path, float(weight)
    except ValueError:
        raise BadRequest("merge", text, "a weight is a number, as in style.safetensors=0.8") from None
