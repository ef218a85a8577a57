"""`simulate`, `train`, `eval` and `convert`: data, weights and figures."""

import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from armillary import arguments, terminal
from armillary.cli.app import app, load_world
from armillary.errors import BadRequest, nearest
from armillary.terminal import guarded, log, note, progress, say, say_json

if TYPE_CHECKING:
    from armillary.eval.playing import Game, Player


@app.command()
@guarded
def simulate(
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            help="The folder to make; with --policy a film, .mp4 or .gif, of the first 20 games, if wanted.",
        ),
    ] = None,
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
    and with a random one. Without -o there is no film.

    \b
    armillary simulate --policy pocket --episodes 20 -o played.mp4
    armillary simulate --policy pocket --episodes 20 --candidates 8 -o judged.mp4
    """
    if policy is None:
        _only("policy", episodes=episodes, candidates=candidates)
        if output is None:
            raise BadRequest("output", None, "name a folder to make, such as -o scenes")
        _make_data_set(output, kind, count or 100, frames or 9, form or "jsonl", split or "train", seed)
    else:
        _only(None, kind=kind, count=count, frames=frames, format=form, split=split)
        _play(output, policy, _starts(seed, episodes or 8), candidates)


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


def _starts(first: int, count: int) -> range:
    from armillary.eval.playing import LAST

    arguments.whole(count, "episodes", 1, LAST)
    arguments.whole(first, "seed", 0, LAST - count)
    return range(first, first + count)


def _play(output: Path | None, model: str, episodes: range, candidates: int | None) -> None:
    from armillary.eval.playing import alone, at_random, film, judged

    path = None if output is None else _film_path(output)
    world = load_world(model, adapter=None)
    players = {"one candidate": alone(world, show=path is not None and candidates is None)}
    if candidates is not None:
        players = {f"the best of {candidates}, judged": judged(world, candidates), **players}
        players[f"a random one of {candidates}"] = at_random(world, candidates)
    for number, (name, player) in enumerate(players.items()):
        games = _games(name, player, episodes)
        if path is not None and number == 0:  # the first is the one to watch
            film(games).save(path)
    if path is not None:
        say(str(path))


def _games(name: str, player: "Player", episodes: range) -> "list[Game]":
    """Play, tell each result as it comes, and give back as many games as a film shows."""
    from armillary.eval.playing import FILMED, Game, play
    from armillary.eval.scores import share

    games, right = list[Game](), list[bool]()
    with progress(name) as tell:
        for number, game in zip(episodes, play(player, episodes), strict=True):
            right.append(game.success)
            games += [game] * (len(games) < FILMED)
            tell(len(right), len(episodes))
            result = f"{'success' if game.success else 'failed'} after {game.moves} moves"
            log(f"{name}: {number}: {game.instruction}: {result}")
    found = share(right)
    say(f"{name}: success {found.value:.2f} ({found.low:.2f} to {found.high:.2f}, n = {found.n})")
    return games


def _film_path(output: Path) -> Path:
    """Where the film may be written, tried before anything is played. Raises BadRequest."""
    try:
        path = terminal.clip_path(output, picture=False, sound=False)
        with suppress(FileNotFoundError):
            path.lstat()  # a name may be too long
        tempfile.TemporaryFile(dir=path.parent).close()
    except OSError as error:
        raise BadRequest("output", str(output), f"cannot be written: {error.strerror}") from None
    return path


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
