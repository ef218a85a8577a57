"""`reason`, `upsample` and `generate`: answers, captions, pictures and clips."""

import json
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from armillary import terminal
from armillary.cli import options
from armillary.cli.app import asked, asked_world, needs_no_weights, request
from armillary.errors import BadRequest
from armillary.requests import GenerateRequest, UpsampleRequest
from armillary.terminal import drawing, note, say, say_json

if TYPE_CHECKING:
    from armillary.tasks.deltas import Delta

# How an answer is worded.
Temperature = Annotated[float | None, typer.Option(help="0 always takes the likeliest.  [default: 0]")]
Stop = Annotated[list[str] | None, typer.Option(help="Text that ends the answer; may be repeated.")]
RepetitionPenalty = Annotated[
    float | None, typer.Option(help="Above 1: what prompt or answer holds comes less often again.")
]
PresencePenalty = Annotated[
    float | None, typer.Option(help="Above 0: what the answer holds comes less often again.")
]
Seed = Annotated[int | None, typer.Option(help="With a temperature: the same seed, the same answer.")]
Schema = Annotated[Path | None, typer.Option(help="A JSON schema file: the answer is JSON of that form.")]
Logprobs = Annotated[
    int | None, typer.Option(help="With --json or -o: tell so many alternatives of each token.")
]


@request
def reason(
    context: typer.Context,
    prompt: Annotated[str, typer.Argument(help="The question.", show_default=False)],
    output: terminal.JsonOut = None,
    image: Annotated[list[Path] | None, typer.Option(help="A picture file; may be repeated.")] = None,
    video: Annotated[list[Path] | None, typer.Option(help="A clip file; may be repeated.")] = None,
    max_tokens: Annotated[int | None, typer.Option(help="Longest answer.  [default: 512]")] = None,
    temperature: Temperature = None,
    top_k: Annotated[int | None, typer.Option(help="Choose among this many tokens.")] = None,
    top_p: Annotated[float | None, typer.Option(help="Choose among this share of probability.")] = None,
    stop: Stop = None,
    repetition_penalty: RepetitionPenalty = None,
    presence_penalty: PresencePenalty = None,
    seed: Seed = None,
    n: Annotated[int | None, typer.Option("-n", help="With a temperature: so many answers.")] = None,
    schema: Schema = None,
    thinking_budget: Annotated[int | None, typer.Option(help="Longest thinking, in tokens.")] = None,
    logprobs: Logprobs = None,
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
    armillary reason "What happens when? Answer with events." --video clip.mp4 --json
    """
    options: dict[str, Any] = {"prompt": prompt, "images": image or None, "videos": video or None}
    options |= {"max_tokens": max_tokens, "temperature": temperature, "top_k": top_k, "top_p": top_p}
    options |= {"repetition_penalty": repetition_penalty, "presence_penalty": presence_penalty}
    options |= {"stop": stop or None, "seed": seed, "n": n, "thinking_budget": thinking_budget}
    options |= {"schema": schema and _read_schema(schema), "logprobs": logprobs}
    if logprobs is not None and not as_json and not output:
        raise BadRequest("logprobs", logprobs, "needs --json or -o FILE: text has no room for them")
    if needs_no_weights(context, "reason", options, partial(terminal.check_json, output)):
        return
    world = asked_world(context, want=("sight",))
    deltas, shown = list["Delta"](), not as_json and not output
    for delta in world.reason(stream=True, **options):
        deltas.append(delta)
        if shown and n in (None, 1):
            say(delta.text, end="")
    _tell_answer(deltas, output, as_json=as_json)


def _tell_answer(deltas: "list[Delta]", output: Path | None, *, as_json: bool) -> None:
    """The answer as JSON; or the end of a text that was shown as it came, or the texts of several."""
    from armillary.tasks.reason import gather

    answer = gather(deltas)
    if output:
        terminal.write_whole(output, json.dumps(terminal.answer_fields(answer), ensure_ascii=False))
        terminal.tell_written(output, answer.receipt, as_json=as_json)
    elif as_json:
        say_json(terminal.answer_fields(answer))
    else:
        say("\n".join([a.text for a in (answer, *answer.others)]) if answer.others else "")
        if "length" in [a.finish_reason for a in (answer, *answer.others)]:
            note("an answer was cut at its longest; give a larger --max-tokens")


def _read_schema(path: Path) -> Any:
    try:
        return json.loads(path.read_text())
    except OSError as error:
        raise BadRequest("schema", str(path), f"cannot be opened: {error.strerror}") from None
    except ValueError as error:
        raise BadRequest("schema", str(path), f"is no JSON: {error}") from None


@request
def upsample(
    context: typer.Context,
    prompt: Annotated[str, typer.Argument(help="What to show, in short.", show_default=False)],
    image: terminal.Image = None,
    frames: options.Frames = None,
    fps: options.Fps = None,
    size: options.Size = None,
    seed: Annotated[int | None, typer.Option(help="Where words are drawn: the same seed, the same.")] = None,
    model: terminal.Model = "pocket",
    device: terminal.Device = "auto",
    dtype: terminal.Dtype = "auto",
    memory: terminal.Memory = None,
    weights: terminal.Weights = None,
    adapter: terminal.Adapter = None,
    guard: terminal.Guarding = None,
    as_json: terminal.Json = False,
) -> None:
    """Turn a short prompt into a structured caption.

    The generator was trained to read such captions. --image gives the first frame of what shall be made.
    The caption goes to standard output as JSON, for
    `generate` to take as a prompt.

    \b
    armillary upsample "a red disc slides right"
    armillary upsample "the disc rolls on" --image first.png --frames 17 --json
    """
    given = asked(context, UpsampleRequest)
    if needs_no_weights(context, "upsample", given, lambda: None):
        return
    caption = asked_world(context).upsample(**given)
    say(json.dumps(caption, indent=None if as_json else 2))


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
    upsample: options.Upsample = False,
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
    """Make a picture or a clip from words, and from media.

    \b
    armillary generate "a red disc slides right and hits the wall" --sound -o out.mp4
    armillary generate "a marble table" --control edge=clip.mp4 --seed 7 -o out.mp4
    armillary generate "a disc slides right" --candidates 4 --judge "Does it slide right?" -o out.mp4
    """
    given = asked(context, GenerateRequest) | options.read_given(controls, sound, sound_file)
    still, heard = frames == 1 or edit is not None, "sound" in given
    where = partial(options.check_clips, output, picture=still, sound=heard, n=n)
    if needs_no_weights(context, "generate", given, where):
        return
    path, world = where(), asked_world(context)
    with drawing("generating") as on_step:
        made = world.generate(**given, on_step=on_step)
    options.save_clips(path, made, as_json=as_json)
