"""`forward-dynamics`, `inverse-dynamics` and `policy`: what robots do."""

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from armillary import terminal
from armillary.cli.app import asked, asked_world, needs_no_weights, request
from armillary.cli.options import read_numbers
from armillary.requests import ForwardDynamicsRequest, InverseDynamicsRequest, PolicyRequest
from armillary.terminal import drawing, note


@request
def forward_dynamics(
    context: typer.Context,
    image: terminal.NeededImage,
    actions: Annotated[Path, typer.Option(help="A JSON file: rows of numbers, one row a frame to come.")],
    domain: terminal.Domain,
    output: terminal.ClipOut = None,
    sound: Annotated[bool, typer.Option("--sound", help="With sound that fits.")] = False,
    prompt: terminal.Doing = None,
    negative: terminal.Negative = None,
    seed: terminal.Seed = None,
    steps: terminal.Steps = None,
    guidance: terminal.Guidance = None,
    shift: terminal.Shift = None,
    grid: terminal.Grid = None,
    interval: terminal.Interval = None,
    noise: terminal.Noise = None,
    model: terminal.Model = "pocket",
    device: terminal.Device = "auto",
    dtype: terminal.Dtype = "auto",
    memory: terminal.Memory = None,
    weights: terminal.Weights = None,
    adapter: terminal.Adapter = None,
    guard: terminal.Guarding = None,
    as_json: terminal.Json = False,
) -> None:
    """Show what a robot's actions would do.

    \b
    armillary forward-dynamics --image now.png --actions actions.json --domain tabletop -o out.mp4
    """
    options = asked(context, ForwardDynamicsRequest)
    where = partial(terminal.clip_path, output, picture=False, sound=sound)
    if needs_no_weights(context, "forward_dynamics", options, where):
        return
    path = where()
    world = asked_world(context)
    with drawing("imagining") as on_step:
        clip = world.forward_dynamics(**options, on_step=on_step)
    clip.save(path)
    terminal.tell_written(path, clip.receipt, as_json=as_json)


@request
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
    grid: terminal.Grid = None,
    interval: terminal.Interval = None,
    noise: terminal.Noise = None,
    model: terminal.Model = "pocket",
    device: terminal.Device = "auto",
    dtype: terminal.Dtype = "auto",
    memory: terminal.Memory = None,
    weights: terminal.Weights = None,
    adapter: terminal.Adapter = None,
    guard: terminal.Guarding = None,
    as_json: terminal.Json = False,
) -> None:
    """Tell which actions made a clip.

    \b
    armillary inverse-dynamics --video clip.mp4 --domain tabletop -o actions.json
    """
    options = asked(context, InverseDynamicsRequest)
    where = partial(terminal.check_json, output)
    if needs_no_weights(context, "inverse_dynamics", options, where):
        return
    world = asked_world(context)
    with drawing("looking") as on_step:
        actions = world.inverse_dynamics(**options, on_step=on_step)
    terminal.give_actions(actions, output, as_json=as_json)


@request
def policy(
    context: typer.Context,
    instruction: Annotated[str, typer.Argument(help="What to do.", show_default=False)],
    image: terminal.NeededImage,
    domain: terminal.Domain,
    output: terminal.JsonOut = None,
    state: Annotated[
        str | None, typer.Option(help="The robot's numbers now, such as 0.1,0.2, for models that take them.")
    ] = None,
    candidates: terminal.Candidates = None,
    judge: terminal.Judge = None,
    wanted: terminal.Wanted = None,
    negative: terminal.Negative = None,
    clip: Annotated[
        Path | None, typer.Option(help="Also write what this would look like: .mp4 or .gif.")
    ] = None,
    seed: terminal.Seed = None,
    steps: terminal.Steps = None,
    guidance: terminal.Guidance = None,
    shift: terminal.Shift = None,
    grid: terminal.Grid = None,
    interval: terminal.Interval = None,
    noise: terminal.Noise = None,
    model: terminal.Model = "pocket",
    device: terminal.Device = "auto",
    dtype: terminal.Dtype = "auto",
    memory: terminal.Memory = None,
    weights: terminal.Weights = None,
    adapter: terminal.Adapter = None,
    guard: terminal.Guarding = None,
    as_json: terminal.Json = False,
) -> None:
    """Tell a robot what to do now.

    \b
    armillary policy "push the red disc right" --image now.png --domain tabletop -o actions.json
    armillary policy "push the red disc right" --image now.png --domain tabletop --clip imagined.mp4
    armillary policy "push the red disc right" --image now.png --domain tabletop --candidates 8 \\
      --judge "Is the red disc pushed right?"
    """
    options = asked(context, PolicyRequest)
    options |= {"prompt": instruction, "state": read_numbers(state), "decode": clip is not None}
    where = partial(terminal.check_action_files, output, clip)
    if needs_no_weights(context, "policy", options, where):
        return
    world = asked_world(context)
    with drawing("deciding") as on_step:
        actions = world.policy(**options, on_step=on_step)
    if clip and actions.clip:
        actions.clip.save(clip)
        note(f"wrote {clip}")
    terminal.give_actions(actions, output, as_json=as_json)
