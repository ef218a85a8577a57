"""`simulate`, `train`, `eval` and `convert`: data, weights and figures."""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, cast

import typer

from armillary import terminal
from armillary.cli.app import app, load_world
from armillary.errors import BadRequest, nearest
from armillary.terminal import guarded, log, note, progress, say, say_json


@app.command()
@guarded
def simulate(
    output: Annotated[
        Path, typer.Option("--output", "-o", help="The folder to make; with --policy a film, .mp4 or .gif.")
    ],
    kind: Annotated[
        list[str] | None,
        typer.Option(help="still, push, wander or slide; may be repeated.  [default: all that fit]"),
    ] = None,
    count: Annotated[int | None, typer.Option(help="How many episodes.  [default: 100]", min=1)] = None,
    frames: Annotated[
        int | None, typer.Option(help="Frames of a clip, 8 a second.  [default: 9]", min=5)
    ] = None,
    form: Annotated[
        str | None,
        typer.Option("--format", help="lerobot (clips with actions) or jsonl.  [default: jsonl]"),
    ] = None,
    split: Annotated[str | None, typer.Option(help="train, test or heldout_pairs.  [default: train]")] = None,
    seed: Annotated[int, typer.Option(help="Number of the first episode of each kind.", min=0)] = 0,
    policy: Annotated[str | None, typer.Option(help="Play the policy of this model instead.")] = None,
    episodes: Annotated[
        int | None, typer.Option(help="With --policy: how many starts.  [default: 8]", min=1)
    ] = None,
    candidates: Annotated[
        int | None,
        typer.Option(help="With --policy: imagine so many, let the reasoner choose.", min=2, max=64),
    ] = None,
) -> None:
    """Make data of the table-top, or play a policy there.

    Pictures, clips with sound, captions, questions with answers, boxes, events, actions: all exact.

    \b
    armillary simulate -o pushes --kind push --count 200 --format lerobot
    armillary simulate -o scenes --count 50

    A policy looks again after every chunk of actions, at starts that no training saw. The film shows what
    was imagined beside what happened; with --candidates the same starts are also played with one candidate
    and with a random one.

    \b
    armillary simulate --policy pocket --episodes 20 -o played.mp4
    armillary simulate --policy pocket --episodes 20 --candidates 8 -o judged.mp4
    """
    if policy is None:
        _only("policy", episodes=episodes, candidates=candidates)
        _make_data_set(output, kind, count or 100, frames or 9, form or "jsonl", split or "train", seed)
    else:
        _only(None, kind=kind, count=count, frames=frames, format=form, split=split)
        _play(output, policy, range(seed, seed + (episodes or 8)), candidates)


def _only(needed: str | None, **options: Any) -> None:
    """Refuse options that belong to the other half of `simulate`."""
    for name, value in options.items():
        if value:
            message = (
                f"counts with --{needed} only" if needed else "makes data sets; leave it out with --policy"
            )
            raise BadRequest(name, value, message)


def _make_data_set(
    output: Path, kind: list[str] | None, count: int, frames: int, form: str, split: Any, seed: int
) -> None:
    from armillary import sim

    write = {"lerobot": sim.write_lerobot, "jsonl": sim.write_jsonl}.get(form)
    if write is None:
        close = " or ".join(nearest(form, ("lerobot", "jsonl")))
        raise BadRequest("format", form, f"data sets are lerobot or jsonl; nearest: {close}")
    kinds: list[Any] = kind or (
        ["push", "wander"] if form == "lerobot" else ["still", "push", "wander", "slide"]
    )
    with progress("simulating") as tell:

        def made() -> Iterator[sim.Episode]:
            for i in range(count):
                tell(i, count)
                yield sim.episode(kinds[i % len(kinds)], seed + i // len(kinds), frames=frames, split=split)

        write(output, made())
    say(str(output))


def _play(output: Path, model: str, episodes: range, candidates: int | None) -> None:
    from armillary.eval.playing import alone, at_random, film, judged, play
    from armillary.eval.scores import share

    path = terminal.clip_path(output, picture=False, sound=False)
    world = load_world(model, adapter=None)
    players = {"one candidate": alone(world, show=candidates is None)}
    if candidates is not None:
        players = {f"the best of {candidates}, judged": judged(world, candidates), **players}
        players[f"a random one of {candidates}"] = at_random(world, candidates)
    results = dict[str, list[bool]]()
    for name, player in players.items():
        with progress(name) as tell:
            games = play(player, episodes, tell=tell)
        if not results:  # the first is the one to watch
            film(games).save(path)
            for number, game in zip(episodes, games, strict=True):
                told = f"{'success' if game.success else 'failed'} after {game.moves} moves"
                note(f"{number}: {game.instruction}: {told}")
        results[name] = [game.success for game in games]
    for name, right in results.items():
        found = share(right)
        say(f"{name}: success {found.value:.2f} ({found.low:.2f} to {found.high:.2f}, n = {found.n})")
    say(str(path))


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
    from armillary.train.recipe import read_recipe
    from armillary.train.stages import run

    say(str(run(read_recipe(recipe, setting or ()), tell=log)))


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

    def show(result: dict[str, Any]) -> None:
        if as_json:
            say_json(result)
            return
        for name, found in result["suites"].items():
            for figure in found["figures"]:
                say(f"{name}: {line(figure)}")

    measure(model, suites=suite or None, quick=quick, n=n, out=out, tell=note, on_result=show)


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
    weights: Annotated[
        str | None,
        typer.Option(help="int8 or int4: store the linear layers of both towers rounded, after merging."),
    ] = None,
) -> None:
    """Write a checkpoint in the published layout.

    diffusers and transformers load what is written. Without options every tensor stays as it is, bit by bit.
    With --weights it takes half the disk or less, and --memory stream uses it as it lies there; but only
    Armillary reads that. The folder appears when all of it is there.

    \b
    armillary convert ./downloaded ./published
    armillary convert ./published ./mine --dtype bfloat16 --merge style.safetensors=0.8
    armillary convert nvidia/Cosmos3-Nano ./nano-int8 --weights int8
    """
    from armillary.loading import convert as write

    note(f"reading {source}")
    adapters = [terminal.weighted("merge", text) for text in merge or ()]
    write(source, folder, dtype=dtype, adapters=adapters, weights=cast(Any, weights))
    say(str(folder))
