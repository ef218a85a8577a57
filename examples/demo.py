"""The main job on the shipped checkpoint: imagine a clip, look at it, act. On a CPU, in under a minute.

    make demo

Files go to out/. What the model says is printed as it is, right or wrong, beside the truth where the
simulator knows it.
"""

import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from rich.console import Console
from rich.markup import escape

import armillary
from armillary import Actions, Clip
from armillary.media import draw_boxes, write_png
from armillary.sim import Episode, episode, replay, success
from armillary.sim.experts import progress as moved
from armillary.terminal import drawing

if TYPE_CHECKING:
    from armillary import World  # the heavy part: torch is loaded when the first line is on the screen

OUT = Path("out")
PROMPT = "a red disc slides right and hits the wall"
ASKED = ("Describe this.", "Did the red disc hit the wall?", "When did the red disc hit the wall?")
FIND = "Find all objects. Answer with boxes."
KNOWN_KINDS = ("caption", "which way", "did it hit", "when")
LONGEST = 200  # tokens of an answer

console = Console(highlight=False, soft_wrap=True)  # colours on a terminal, plain lines in a pipe


@dataclass
class Notes:
    """What was asked and answered, for out/answers.json."""

    rows: list[dict[str, str]] = field(default_factory=list)

    def add(self, about: str, question: str, answer: str, truth: str | None = None) -> None:
        """Print and keep one answer, with the truth where it is known."""
        told = f"   {question}\n      pocket says  [bold]{escape(answer) or '(nothing)'}[/]"
        if truth is not None:
            told += f"\n      the truth is {escape(truth)}  ({verdict(answer, truth)})"
        console.print(told)
        row = {"about": about, "question": question, "answer": answer}
        self.rows.append(row if truth is None else row | {"truth": truth})


def verdict(answer: str, truth: str) -> str:
    """As the evaluation judges: a time may be a frame off."""
    from armillary.eval.asking import near_in_time

    if answer == truth:
        return "[green]right[/]"
    return "[green]right within a frame[/]" if near_in_time(answer, truth) else "[yellow]wrong[/]"


def main() -> None:
    started = time.perf_counter()
    OUT.mkdir(exist_ok=True)
    notes = Notes()
    console.print("[bold]Armillary[/]: one model of two towers imagines, looks and acts, on this machine.")
    with stage("Loading pocket"), console.status("reading weights"):
        world = armillary.load("pocket")
    clip = imagine(world)
    look(world, clip, notes)
    compare(world, notes)
    act(world)
    console.print()
    wrote(OUT / "answers.json", "all questions and answers", json.dumps(notes.rows, indent=2) + "\n")
    farewell(time.perf_counter() - started)


# -- the four parts --------------------------------------------------------------------------------------


def imagine(world: "World") -> Clip:
    """A clip with sound from words alone."""
    with stage(f'1  Imagine: "{PROMPT}"'):
        with drawing("drawing picture and sound") as on_step:
            # some seeds draw a clip in which nothing is heard; this is not one of them
            clip = world.generate(PROMPT, sound=True, seed=6, on_step=on_step)
        clip.save(OUT / "clip.mp4")
        clip.sheet(columns=5).save(OUT / "clip.png")
        clip.waveform().save(OUT / "clip-sound.png")
        wrote(OUT / "clip.mp4", f"{clip.duration_s:.1f} s of picture and sound, 64x64, made by the model")
        wrote(OUT / "clip.png", "every frame on one sheet")
        wrote(OUT / "clip-sound.png", "its sound as a curve, left above right")
        console.print(
            "   A thing that slides draws a trail, so that one picture shows where to and how fast."
        )
    return clip


def look(world: "World", clip: Clip, notes: Notes) -> None:
    """The reasoner looks at what the generator made."""
    with stage("2  Look: what does the reasoner see in that clip?"):
        for question in ASKED:
            with console.status("looking"):
                answer = world.reason(question, videos=[clip], max_tokens=LONGEST)
            notes.add("out/clip.mp4", question, answer.text)
        with console.status("looking"):
            found = world.reason(FIND, images=[clip.frames[0]], max_tokens=LONGEST)
        notes.add("out/clip.mp4, first frame", FIND, found.text)
        boxes = [(box.x1, box.y1, box.x2, box.y2) for box in found.boxes]
        names = [box.label for box in found.boxes]
        draw_boxes(clip.frames[0], boxes, labels=names).save(OUT / "boxes.png")
        wrote(OUT / "boxes.png", f"the first frame with {len(boxes)} {'box' if len(boxes) == 1 else 'boxes'}")


def compare(world: "World", notes: Notes) -> None:
    """The same kinds of question about a clip of the simulator, which knows the answers."""
    real = episode("slide", 0, split="test")
    receipt = {"task": "simulate", "kind": real.kind, "seed": real.seed, "split": "test"}
    clip = Clip(real.frames, real.fps, real.sound, real.sample_rate, receipt=receipt)
    with stage("3  Compare: a clip of the simulator, where the truth is known"):
        for question in real.questions():
            if question.kind in KNOWN_KINDS:
                with console.status("looking"):
                    answer = world.reason(question.text, videos=[clip], max_tokens=LONGEST)
                notes.add("out/simulated.mp4", question.text, answer.text, question.answer)
        clip.save(OUT / "simulated.mp4")
        wrote(OUT / "simulated.mp4", "that clip: physics and sound computed, not imagined")


def act(world: "World") -> None:
    """One picture, two instructions: decide, imagine the outcome, then do it in the simulator."""
    with stage("4  Act: one start, two instructions, carried out in the simulator"):
        for number in (1, 2):
            push = episode("push", number - 1, split="test")
            with drawing(f"deciding how to {push.instruction}") as on_step:
                actions = world.policy(
                    str(push.instruction), push.picture(), domain="tabletop", on_step=on_step
                )
            real = carry_out(push, actions)
            tell_outcome(real)
            clip = beside(actions.clip, real)
            clip.save(OUT / f"push-{number}.mp4")
            clip.sheet(scale=1, columns=3).save(OUT / f"push-{number}.png")
            wrote(OUT / f"push-{number}.mp4", "imagined on the left, real on the right")
            wrote(OUT / f"push-{number}.png", "the same, frame by frame")
            wrote(OUT / f"push-{number}.json", "the actions", actions.to_json() + "\n")
        write_png(OUT / "start.png", push.picture())
        wrote(OUT / "start.png", "the start that both saw")


def carry_out(push: Episode, actions: Actions) -> Episode:
    """What the actions really do from this start."""
    run = replay(push.start, actions.values)
    return replace(
        push,
        positions=run.positions,
        velocities=run.velocities,
        pusher=run.pusher,
        actions=run.actions,
        events=run.events,
    )


def tell_outcome(real: Episode) -> None:
    assert real.goal is not None  # every push has one
    along, aside = moved(real.goal, real.positions)
    thing = real.objects[real.goal.index].name
    verdict = "[green]success[/]" if success(real, real.positions) else "[yellow]no success[/]"
    console.print(f"   [bold]{real.instruction}[/]: {verdict}")
    console.print(f"      the {thing} went {along:.1f} pixels {real.goal.direction} and {aside:.1f} aside")


def beside(imagined: Clip | None, real: Episode, enlarge: int = 3) -> Clip:
    """Two clips as one, with the sound of the real one and the receipt of the imagined one."""
    assert imagined is not None  # the policy was asked for it
    gap = np.full((len(real.frames), 64, 4, 3), 255, np.uint8)
    frames = np.concatenate([imagined.frames, gap, real.frames], axis=2)
    large = frames.repeat(enlarge, axis=1).repeat(enlarge, axis=2)
    return Clip(large, real.fps, real.sound, real.sample_rate, receipt=imagined.receipt)


# -- the terminal ----------------------------------------------------------------------------------------


@contextmanager
def stage(title: str) -> Iterator[None]:
    """A heading, and at the end how long it took."""
    started = time.perf_counter()
    console.print(f"\n[bold cyan]{escape(title)}[/]")
    yield
    console.print(f"   [dim]{time.perf_counter() - started:.1f} s[/]")


def wrote(path: Path, what: str, text: str | None = None) -> None:
    """Say where a file is; write it first if it is text."""
    if text is not None:
        path.write_text(text, encoding="utf-8")
    console.print(f"   [cyan]{path!s:<20}[/] {what}")


def farewell(seconds: float) -> None:
    command = Path(sys.executable).parent / "armillary"
    if command.is_relative_to(Path.cwd()):
        command = command.relative_to(Path.cwd())
    console.print(f"\n[bold]Done in {seconds:.0f} seconds.[/] Everything is in {escape(str(OUT.resolve()))}")
    console.print("Pocket is under 16 MB and often wrong; the same code runs the large checkpoints.")
    console.print("Now try:")
    console.print(f'   {command} generate "a green disc slides up and hits the wall" --sound -o out/mine.mp4')
    console.print(f'   {command} reason "Describe this." --video out/mine.mp4')
    console.print(f'   {command} policy "push the red disc right" --image out/start.png --domain tabletop')
    console.print("   and read docs/quickstart.md")


if __name__ == "__main__":
    main()
