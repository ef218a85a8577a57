"""The application that every command joins, and what several commands share."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec

import typer

from armillary import terminal
from armillary.errors import BadRequest
from armillary.terminal import guarded, note

if TYPE_CHECKING:
    from armillary.requests import Request
    from armillary.world import World

P = ParamSpec("P")
HELP = """Cosmos 3 in one package: it reasons, generates, acts and trains with one set of weights.

\b
  armillary generate "a red disc slides right and hits the wall" --sound -o out.mp4
  armillary reason "Describe this." --video out.mp4
  armillary policy "push the red disc right" --image now.png --domain tabletop -o actions.json

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
SAME = "The same options as the command it is for."
validate = typer.Typer(
    help=f"Check a request; no weights are read.\n\n{SAME}", no_args_is_help=True, rich_markup_mode=None
)
app.add_typer(validate, name="validate")
explain = typer.Typer(
    help=(
        "Show the sequence that a request becomes.\n\n"
        f"No weights are read. {SAME} -o names a picture, .svg or .png; "
        "without it the sequence is printed as a table."
    ),
    no_args_is_help=True,
    rich_markup_mode=None,
)
app.add_typer(explain, name="explain")
plan = typer.Typer(
    help=(
        "Tell what a request will take; no weights are read.\n\n"
        f"{SAME} Printed are the bytes of each stage in each memory mode, tokens, and work.\n\n"
        '\b\narmillary plan generate "a red disc slides right" --sound'
    ),
    no_args_is_help=True,
    rich_markup_mode=None,
)
app.add_typer(plan, name="plan")


@app.callback()
def _every_command(version: terminal.Version = False) -> None:
    """What may stand before a command; the help page is `HELP`."""


def request(command: Callable[P, None]) -> Callable[P, None]:
    """Adds a command that asks a model, and the same after `validate`, `explain` and `plan`."""
    for place in (app, validate, explain, plan):
        place.command()(guarded(command))
    return command


def asked(context: typer.Context, request: "type[Request]") -> dict[str, Any]:
    """The options of a command that are fields of its request and were given: both have the same names."""
    given = {name: value for name, value in context.params.items() if name in request.model_fields}
    return {name: value for name, value in given.items() if value not in (None, ()) and value is not False}


def needs_no_weights(
    context: typer.Context, task: str, options: dict[str, Any], where: Callable[[], object]
) -> bool:
    """Check the request and `where` its result goes: no weights yet. `validate` and the like end here."""
    from armillary.guard import find_guard
    from armillary.loading import check
    from armillary.loading import validate as count

    given, before = context.params, context.parent.info_name if context.parent else None
    only, files = before in ("validate", "explain", "plan"), (given.get("output"), given.get("clip"))
    _check_world(given)
    guard = given["guard"] = find_guard(given.get("guard"))
    receipt = (count if before == "validate" else check)(task, given["model"], guard=guard, **options)
    if before == "explain":
        _explain(task, options, given)
        return True
    if not only or any(files):
        where()
        for file in files:
            terminal.check_rate(file, receipt.used)
    if before == "plan":
        _plan(task, options, given)
    elif only:
        terminal.tell_receipt(receipt.to_dict(), as_json=given["as_json"])
    return only


def _check_world(given: dict[str, Any]) -> None:
    """Refuse what a world cannot be: also where none is loaded. Raises BadRequest."""
    from armillary.adapters import read_adapter
    from armillary.locate import find_device, find_dtype
    from armillary.lowbit import check_form
    from armillary.memory import check_mode

    check_mode(given["memory"])
    check_form(given["weights"])
    find_dtype(given["dtype"], find_device(given["device"]))
    for text in given["adapter"] or ():
        read_adapter(terminal.weighted("adapter", text)[0])


def _explain(task: str, options: dict[str, Any], given: dict[str, Any]) -> None:
    from armillary.layout.rows import check_picture
    from armillary.loading import explain as lay_out

    output: Path | None = given.get("output")
    if given.get("clip") is not None:
        raise BadRequest("clip", str(given["clip"]), "explain draws a sequence, no clip; leave it out")
    if output is not None:
        check_picture(output)
        terminal.check_folder(output)
    layout = lay_out(task, given["model"], **options)
    if output is not None:
        layout.draw(output)
    if given["as_json"]:
        terminal.say_json({"path": output and str(output), "rows": layout.rows()})
    else:
        terminal.say(layout.table() if output is None else str(output))


def _plan(task: str, options: dict[str, Any], given: dict[str, Any]) -> None:
    from armillary.loading import plan as estimate

    held = {name: given[name] for name in ("memory", "device", "dtype", "weights")}
    found = estimate(task, given["model"], **held, **options)
    if given["as_json"]:
        terminal.say_json(found.to_dict())
    else:
        terminal.say(found.table())


def asked_world(context: typer.Context, **parts: Any) -> "World":
    """The world that the options of a request name; `parts` are what is wanted of it, as in `load`."""
    names = ("model", "device", "dtype", "memory", "weights", "adapter", "guard")
    return load_world(**{name: context.params[name] for name in names}, **parts)


def load_world(model: str, *, adapter: list[str] | None, **how: Any) -> "World":
    """The world that a command's options name; `how` are further options of `armillary.load`."""
    from armillary.loading import load

    adapters = [terminal.weighted("adapter", text) for text in adapter or ()]
    note(f"loading {model}")
    world = load(model, adapters=adapters, **how)
    for remark in world.notes:
        note(f"{model}: {remark}")
    return world
