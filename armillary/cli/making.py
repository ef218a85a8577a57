"""`reason` and `generate`: answers, pictures and clips."""

import json
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from armillary import terminal
from armillary.cli import options
from armillary.cli.app import asked, asked_world, needs_no_weights, request
from armillary.requests import GenerateRequest
from armillary.terminal import drawing, note, say, say_json


@request
def reason(
    context: typer.Context,
    prompt: Annotated[str, typer.Argument(help="The question.", show_default=False)],
    output: terminal.JsonOut = None,
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
    memory: terminal.Memory = None,
    weights: terminal.Weights = None,
    adapter: terminal.Adapter = None,
    guard: terminal.Guarding = None,
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
    if needs_no_weights(context, "reason", options, partial(terminal.check_json, output)):
        return
    answer = None
    world = asked_world(context)
    for delta in world.reason(stream=True, **options):
        if not as_json and not output:
            say(delta.text, end="")
        answer = delta.answer or answer
    if answer is not None and output:
        terminal.write_whole(output, json.dumps(terminal.answer_fields(answer), ensure_ascii=False))
        terminal.tell_written(output, answer.receipt, as_json=as_json)
    elif answer is not None and as_json:
        say_json(terminal.answer_fields(answer))
    elif answer is not None:
        say("")
        if answer.finish_reason == "length":
            note("the answer was cut at its longest; give a larger --max-tokens")


@request
def generate(
    context: typer.Context,
    prompt: Annotated[str, typer.Argument(help="What to show.", show_default=False)],
    output: terminal.ClipOut = None,
    frames: options.Frames = None,
    fps: options.Fps = None,
    size: options.Size = None,
    image: terminal.Image = None,
    video: options.Video = None,
    keep: options.Keep = None,
    clean_latents: options.CleanLatents = None,
    sound: options.Sound = False,
    sound_file: options.SoundFile = None,
    edit: options.Edit = None,
    controls: options.Controls = None,
    control_guidance: options.ControlGuidance = None,
    control_interval: options.ControlInterval = None,
    chunk: options.Chunk = None,
    overlap: options.Overlap = None,
    n: options.Count = None,
    candidates: terminal.Candidates = None,
    judge: terminal.Judge = None,
    wanted: terminal.Wanted = None,
    negative: terminal.Negative = None,
    negative_style: options.NegativeStyle = None,
    system: options.System = None,
    verbatim: options.Verbatim = False,
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
    """Make a picture or a clip from words and from what is given beside them.

    \b
    armillary generate "a red disc rolls right and hits the wall" --sound -o out.mp4
    armillary generate "a marble table" --control edge=clip.mp4 --seed 7 -o out.mp4
    armillary generate "a red disc slides right" --candidates 4 \\
      --judge "Which way does the red disc slide?" --wanted right -o out.mp4
    """
    given = asked(context, GenerateRequest) | options.read_given(controls, sound_file)
    still, heard = frames == 1 or edit is not None, "sound" in given
    where = partial(terminal.clip_path, output, picture=still, sound=heard)
    if needs_no_weights(context, "generate", given, where):
        return
    path, world = where(), asked_world(context)
    with drawing("generating") as on_step:
        made = world.generate(**given, on_step=on_step)
    options.save_clips(path, made, as_json=as_json)
