"""`simulate`, `train`, `eval` and `convert`: data, weights and figures."""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from armillary import terminal
from armillary.cli.app import app
from armillary.errors import BadRequest, nearest
from armillary.terminal import guarded, note, progress, say, say_json


@app.command()
@guarded
def simulate(
    output: Annotated[Path, typer.Option("--output", "-o", help="The folder to make.")],
    kind: Annotated[
        list[str] | None,
        typer.Option(help="still, push, wander or slide; may be repeated.  [default: all that fit]"),
    ] = None,
    count: Annotated[int, typer.Option(help="How many episodes.", min=1)] = 100,
    frames: Annotated[int, typer.Option(help="Frames of a clip, 8 a second.", min=5)] = 9,
    form: Annotated[
        str, typer.Option("--format", help="lerobot (clips with actions) or jsonl (everything).")
    ] = "jsonl",
    split: Annotated[str, typer.Option(help="train, test or heldout_pairs.")] = "train",
    seed: Annotated[int, typer.Option(help="Number of the first episode of each kind.", min=0)] = 0,
) -> None:
    """Make a data set of the table-top world.

    Pictures, clips with sound, captions, questions with answers, boxes, events, actions: all exact.

    \b
    armillary simulate -o pushes --kind push --count 200 --format lerobot
    armillary simulate -o scenes --count 50
    """
    from armillary import sim

    write = {"lerobot": sim.write_lerobot, "jsonl": sim.write_jsonl}.get(form)
    if write is None:
        close = " or ".join(nearest(form, ("lerobot", "jsonl")))
        raise BadRequest("format", form, f"data sets are lerobot or jsonl; nearest: {close}")
    kinds: list[Any] = kind or (
        ["push", "wander"] if form == "lerobot" else ["still", "push", "wander", "slide"]
    )
    asked: Any = split
    with progress("simulating") as tell:

        def episodes() -> Iterator[sim.Episode]:
            for i in range(count):
                tell(i, count)
                yield sim.episode(kinds[i % len(kinds)], seed + i // len(kinds), frames=frames, split=asked)

        write(output, episodes())
    say(str(output))


@app.command()
@guarded
def train(
    recipe: Annotated[Path, typer.Argument(help="A TOML file, such as recipes/pocket.toml.")],
    setting: Annotated[
        list[str] | None,
        typer.Option("--set", help="Change a value: seed=1 or generator.steps=100; may be repeated."),
    ] = None,
) -> None:
    """Train what a recipe says.

    Started again, it goes on where it was stopped.

    \b
    armillary train recipes/pocket.toml
    armillary train recipes/pocket.toml --set folder=run --set generator.steps=100
    """
    from armillary.train.recipe import read_recipe, run

    say(str(run(read_recipe(recipe, setting or ()), tell=note)))


@app.command(name="eval")
@guarded
def evaluate(
    model: Annotated[str, typer.Argument(help="pocket, a folder, or a hub name.")],
    suite: Annotated[
        list[str] | None,
        typer.Option(help="codecs, reasoner, image, video, sound, dynamics or policy; may be repeated."),
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="24 cases a figure in place of 256.")] = False,
    n: Annotated[int | None, typer.Option("-n", "--n", help="Cases a figure.")] = None,
    out: Annotated[Path | None, typer.Option(help="A folder for the report with pictures.")] = None,
    as_json: terminal.Json = False,
) -> None:
    """Measure a checkpoint on the table-top world.

    \b
    armillary eval pocket --quick
    armillary eval pocket --suite policy --suite dynamics --out report
    """
    from armillary.eval import evaluate as measure
    from armillary.eval.report import line

    result = measure(model, suites=suite or None, quick=quick, n=n, out=out, tell=note)
    if as_json:
        say_json(result)
        return
    for name, found in result["suites"].items():
        for figure in found["figures"]:
            say(f"{name}: {line(figure)}")


@app.command()
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
    from armillary.loading import convert as write

    note(f"reading {source}")
    write(source, folder, dtype=dtype, adapters=[terminal.weighted("merge", text) for text in merge or ()])
    say(str(folder))
