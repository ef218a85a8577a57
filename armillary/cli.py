"""The command line: each command reads its options, calls one function, and gives out what it returns."""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from armillary import cli_convert, terminal
from armillary.errors import BadRequest, nearest
from armillary.terminal import guarded, note, progress, say, say_json

if TYPE_CHECKING:
    from armillary.world import World

HELP = """Cosmos 3 in one package: it reasons, generates, acts and trains with one set of weights.

\b
  armillary generate "a red disc rolls right and hits the wall" --sound -o out.mp4
  armillary reason "What happens?" --video out.mp4
  armillary policy "push the red disc left" --image now.png --domain tabletop -o actions.json

A result goes to standard output or to the file you name; progress shows on a terminal only. Exit code 0 is
success, 2 a request that cannot be served (one sentence says why), 130 Ctrl-C; nothing is left half written.
"""

app = typer.Typer(
    help=HELP,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
validate = typer.Typer(
    help="Check a request; no weights are read.\n\nThe same options as the command it is for.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
app.add_typer(validate, name="validate")


@app.callback()
def _every_command(version: terminal.Version = False) -> None:
    """What may stand before a command; the help page is `HELP`."""


@app.command()
@validate.command()
@guarded
def reason(
    context: typer.Context,
    prompt: Annotated[str, typer.Argument(help="The question.", show_default=False)],
    image: Annotated[list[Path] | None, typer.Option(help="A picture file; may be repeated.")] = None,
    video: Annotated[list[Path] | None, typer.Option(help="A clip file; may be repeated.")] = None,
    max_tokens: Annotated[int | None, typer.Option(help="Longest answer.  [default: 512]")] = None,
    temperature: Annotated[
        float | None, typer.Option(help="0 always takes the likeliest.  [default: 0]")
    ] = None,
    top_k: Annotated[int | None, typer.Option(help="Choose among this many tokens.")] = None,
    top_p: Annotated[float | None, typer.Option(help="Choose among this share of probability.")] = None,
    stop: Annotated[
        list[str] | None, typer.Option(help="Text that ends the answer; may be repeated.")
    ] = None,
    seed: Annotated[
        int | None, typer.Option(help="With a temperature: the same seed, the same answer.")
    ] = None,
    model: terminal.Model = "pocket",
    device: terminal.Device = "auto",
    dtype: terminal.Dtype = "auto",
    as_json: terminal.Json = False,
) -> None:
    """Answer a question about pictures and clips.

    \b
    armillary reason "Where is the red disc?" --image table.png
    armillary reason "What happens, and when?" --video clip.mp4 --json
    """
    options: dict[str, Any] = {"prompt": prompt, "images": image or None, "videos": video or None}
    options |= {"max_tokens": max_tokens, "temperature": temperature, "top_k": top_k, "top_p": top_p}
    options |= {"stop": stop or None, "seed": seed}
    if _only_validates(context, "reason", options, lambda: None):
        return
    world, answer = _load(model, device, dtype), None
    for delta in world.reason(stream=True, **options):
        if not as_json:
            say(delta.text, end="")
        answer = delta.answer or answer
    if answer is not None and as_json:
        say_json(terminal.answer_fields(answer))
    elif answer is not None:
        say("")
        if answer.finish_reason == "length":
            note("the answer was cut at its longest; give a larger --max-tokens")


@app.command()
@validate.command()
@guarded
def generate(
    context: typer.Context,
    prompt: Annotated[str, typer.Argument(help="What to show.", show_default=False)],
    output: terminal.ClipOut = None,
    image: terminal.Image = None,
    video: Annotated[Path | None, typer.Option(help="A clip file; its end is continued.")] = None,
    frames: Annotated[
        int | None,
        typer.Option(help="1 makes a picture; others become 4n+1, rounded up.  [default: the model's]"),
    ] = None,
    fps: Annotated[float | None, typer.Option(help="Frames a second.  [default: the model's]")] = None,
    size: Annotated[
        str | None, typer.Option(help="WxH in pixels, such as 64x64.  [default: the model's]")
    ] = None,
    sound: Annotated[bool, typer.Option("--sound", help="With sound that fits.")] = False,
    negative: terminal.Negative = None,
    seed: terminal.Seed = None,
    steps: terminal.Steps = None,
    guidance: terminal.Guidance = None,
    shift: terminal.Shift = None,
    model: terminal.Model = "pocket",
    device: terminal.Device = "auto",
    dtype: terminal.Dtype = "auto",
    as_json: terminal.Json = False,
) -> None:
    """Make a picture or a clip from words.

    --image gives the first frame; --video gives a clip to continue.

    \b
    armillary generate "a red disc rolls right and hits the wall" --sound -o out.mp4
    armillary generate "a green square on the table" --frames 1 -o out.png
    armillary generate "the disc rolls on" --image first.png --seed 7 -o out.mp4
    """
    options: dict[str, Any] = {"prompt": prompt, "negative": negative, "image": image, "video": video}
    options |= {"frames": frames, "fps": fps, "size": size, "sound": sound or None}
    options |= {"seed": seed, "steps": steps, "guidance": guidance, "shift": shift}
    where = partial(terminal.clip_path, output, picture=frames == 1, sound=sound)
    if _only_validates(context, "generate", options, where):
        return
    path = where()
    world = _load(model, device, dtype)
    with progress("generating") as on_step:
        clip = world.generate(**options, on_step=on_step)
    clip.save(path)
    terminal.tell_written(path, clip.receipt, as_json=as_json)


@app.command()
@validate.command()
@guarded
def forward_dynamics(
    context: typer.Context,
    image: terminal.NeededImage,
    actions: Annotated[Path, typer.Option(help="A JSON file: rows of numbers, one row a frame to come.")],
    domain: terminal.Domain,
    output: terminal.ClipOut = None,
    prompt: terminal.Doing = None,
    negative: terminal.Negative = None,
    seed: terminal.Seed = None,
    steps: terminal.Steps = None,
    guidance: terminal.Guidance = None,
    shift: terminal.Shift = None,
    model: terminal.Model = "pocket",
    device: terminal.Device = "auto",
    dtype: terminal.Dtype = "auto",
    as_json: terminal.Json = False,
) -> None:
    """Show what a robot's actions would do.

    \b
    armillary forward-dynamics --image now.png --actions actions.json --domain tabletop -o out.mp4
    """
    options: dict[str, Any] = {"image": image, "actions": actions, "domain": domain, "prompt": prompt}
    options |= {"negative": negative, "seed": seed, "steps": steps, "guidance": guidance, "shift": shift}
    where = partial(terminal.clip_path, output, picture=False, sound=False)
    if _only_validates(context, "forward_dynamics", options, where):
        return
    path = where()
    world = _load(model, device, dtype)
    with progress("imagining") as on_step:
        clip = world.forward_dynamics(**options, on_step=on_step)
    clip.save(path)
    terminal.tell_written(path, clip.receipt, as_json=as_json)


@app.command()
@validate.command()
@guarded
def inverse_dynamics(
    context: typer.Context,
    video: Annotated[Path, typer.Option(help="A clip file.")],
    domain: terminal.Domain,
    output: terminal.JsonOut = None,
    prompt: terminal.Doing = None,
    negative: terminal.Negative = None,
    seed: terminal.Seed = None,
    steps: terminal.Steps = None,
    guidance: terminal.Guidance = None,
    shift: terminal.Shift = None,
    model: terminal.Model = "pocket",
    device: terminal.Device = "auto",
    dtype: terminal.Dtype = "auto",
    as_json: terminal.Json = False,
) -> None:
    """Tell which actions made a clip.

    \b
    armillary inverse-dynamics --video clip.mp4 --domain tabletop -o actions.json
    """
    options: dict[str, Any] = {"video": video, "domain": domain, "prompt": prompt}
    options |= {"negative": negative, "seed": seed, "steps": steps, "guidance": guidance, "shift": shift}
    where = partial(terminal.check_json, output)
    if _only_validates(context, "inverse_dynamics", options, where):
        return
    world = _load(model, device, dtype)
    with progress("looking") as on_step:
        actions = world.inverse_dynamics(**options, on_step=on_step)
    terminal.give_actions(actions, output, as_json=as_json)


@app.command()
@validate.command()
@guarded
def policy(
    context: typer.Context,
    instruction: Annotated[str, typer.Argument(help="What to do.", show_default=False)],
    image: terminal.NeededImage,
    domain: terminal.Domain,
    output: terminal.JsonOut = None,
    negative: terminal.Negative = None,
    clip: Annotated[
        Path | None, typer.Option(help="Also write what this would look like: .mp4 or .gif.")
    ] = None,
    seed: terminal.Seed = None,
    steps: terminal.Steps = None,
    guidance: terminal.Guidance = None,
    shift: terminal.Shift = None,
    model: terminal.Model = "pocket",
    device: terminal.Device = "auto",
    dtype: terminal.Dtype = "auto",
    as_json: terminal.Json = False,
) -> None:
    """Tell a robot what to do now.

    \b
    armillary policy "push the red disc left" --image now.png --domain tabletop -o actions.json
    armillary policy "push the red disc left" --image now.png --domain tabletop --clip imagined.mp4
    """
    options: dict[str, Any] = {"prompt": instruction, "image": image, "domain": domain}
    options |= {"decode": clip is not None, "negative": negative, "seed": seed, "steps": steps}
    options |= {"guidance": guidance, "shift": shift}
    where = partial(terminal.check_action_files, output, clip)
    if _only_validates(context, "policy", options, where):
        return
    world = _load(model, device, dtype)
    with progress("deciding") as on_step:
        actions = world.policy(**options, on_step=on_step)
    if clip and actions.clip:
        actions.clip.save(clip)
        note(f"wrote {clip}")
    terminal.give_actions(actions, output, as_json=as_json)


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


app.command()(cli_convert.convert)


def main() -> None:
    """The entry point `armillary`."""
    app()


def _only_validates(
    context: typer.Context, task: str, options: dict[str, Any], where: Callable[[], object]
) -> bool:
    """Check the request and `where` its result goes: no weights yet. `validate` prints what would be used."""
    from armillary.world import validate as check

    given, only = context.params, context.parent is not None and context.parent.info_name == "validate"
    receipt = check(task, given["model"], **options)
    if not only or given.get("output") or given.get("clip"):
        where()
    if only:
        terminal.tell_receipt(receipt.to_dict(), as_json=given["as_json"])
    return only


def _load(model: str, device: str, dtype: str) -> "World":
    from armillary.world import load

    note(f"loading {model}")
    world = load(model, device=device, dtype=dtype)
    for remark in world.notes:
        note(f"{model}: {remark}")
    return world
