"""`reason` and `generate`: answers, pictures and clips."""

import json
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from armillary import terminal
from armillary.cli.app import asked, load_world, needs_no_weights, request
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
    world = load_world(
        model,
        device=device,
        dtype=dtype,
        memory=memory,
        weights=weights,
        adapter=adapter,
        guard=context.params["guard"],
    )
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
    candidates: terminal.Candidates = None,
    judge: terminal.Judge = None,
    wanted: terminal.Wanted = None,
    negative: terminal.Negative = None,
    seed: terminal.Seed = None,
    steps: terminal.Steps = None,
    guidance: terminal.Guidance = None,
    shift: terminal.Shift = None,
    grid: terminal.Grid = None,
    interval: terminal.Interval = None,
    noise: terminal.Noise = None,
    n: Annotated[
        int | None, typer.Option("-n", help="So many, seeds counting up, in files out-1.mp4, out-2.mp4, ...")
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
    """Make a picture or a clip from words.

    --image gives the first frame; --video gives a clip to continue.

    \b
    armillary generate "a red disc rolls right and hits the wall" --sound -o out.mp4
    armillary generate "a green square on the table" --frames 1 -o out.png
    armillary generate "the disc rolls on" --image first.png --seed 7 -o out.mp4
    armillary generate "a red disc slides right" --candidates 4 \\
      --judge "Which way does the red disc slide?" --wanted right -o out.mp4
    """
    options = asked(context, GenerateRequest)
    where = partial(terminal.clip_path, output, picture=frames == 1, sound=sound)
    if needs_no_weights(context, "generate", options, where):
        return
    path = where()
    world = load_world(
        model,
        device=device,
        dtype=dtype,
        memory=memory,
        weights=weights,
        adapter=adapter,
        guard=context.params["guard"],
    )
    with drawing("generating") as on_step:
        made = world.generate(**options, on_step=on_step)
    clips = [made] if n is None else made
    for name, clip in zip(terminal.numbered(path, n), clips, strict=True):
        clip.save(name)
        terminal.tell_written(name, clip.receipt, as_json=as_json)
