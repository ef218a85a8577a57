"""`batch`: many requests from one file."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from armillary import terminal
from armillary.cli.app import app, load_world
from armillary.terminal import guarded, note, progress, say


@app.command()
@guarded
def batch(
    jobs: Annotated[Path, typer.Argument(help="A file of JSON objects, one a line.", show_default=False)],
    output: Annotated[Path, typer.Option("--output", "-o", help="The folder for the results.")],
    model: terminal.Model = "pocket",
    device: terminal.Device = "auto",
    dtype: terminal.Dtype = "auto",
    memory: terminal.Memory = None,
    weights: terminal.Weights = None,
    adapter: terminal.Adapter = None,
    guard: terminal.Guarding = None,
) -> None:
    """Serve many requests, one a line.

    A line holds `task`, the options of that task, and an `id` that names the result. All lines are checked
    before anything is computed. Started again, it goes on where it was stopped. What fails is listed in
    failures.jsonl, and the exit code is then 1.

    \b
    {"task": "generate", "prompt": "a red disc slides right", "sound": true, "id": "disc"}
    {"task": "reason", "prompt": "How many objects are there?", "images": ["table.png"]}
    armillary batch jobs.jsonl -o results
    """
    from armillary.batch import open_folder, read_jobs, run
    from armillary.guard import find_guard
    from armillary.locate import JSON_FILES, locate
    from armillary.tasks.ready import checker, read_facts

    watch = find_guard(guard)
    facts = replace(read_facts(*locate(model, files=JSON_FILES)), guard=watch)
    asked = read_jobs(jobs, lambda task, options: checker(task)(options, facts))
    changing = {"dtype": dtype, "weights": weights, "adapter": adapter or None, "guard": guard}
    told = {name: value for name, value in changing.items() if value not in (None, "auto")}
    with open_folder(output, asked, f"{model} {told}" if told else model) as left:
        failed, found = 0, len(asked) - len(left)
        note(f"{found} of {len(asked)} are done")
        if left:
            how = {"device": device, "dtype": dtype, "memory": memory, "weights": weights}
            world = load_world(model, adapter=adapter, guard=watch, **how)
            with progress("requests") as tell:
                tell(0, len(left))
                for count, failure in enumerate(run(world, left, output), 1):
                    failed += failure is not None
                    tell(count, len(left))
    if found:
        say(f"{found} of {len(asked)} were done before, {len(left) - failed} were made now")
    say(str(output))
    if failed:
        note(f"{failed} of {len(left)} failed: see {output / 'failures.jsonl'}")
        raise typer.Exit(terminal.FAILED)
