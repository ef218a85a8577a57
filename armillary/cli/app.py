"""The application that every command joins, and what several commands share."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import typer

from armillary import terminal
from armillary.terminal import note

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


def only_validates(
    context: typer.Context, task: str, options: dict[str, Any], where: Callable[[], object]
) -> bool:
    """Check the request and `where` its result goes: no weights yet. `validate` prints what would be used."""
    from armillary.loading import validate as check

    given, only = context.params, context.parent is not None and context.parent.info_name == "validate"
    receipt = check(task, given["model"], **options)
    if not only or given.get("output") or given.get("clip"):
        where()
    if only:
        terminal.tell_receipt(receipt.to_dict(), as_json=given["as_json"])
    return only


def load_world(model: str, device: str, dtype: str) -> "World":
    from armillary.loading import load

    note(f"loading {model}")
    world = load(model, device=device, dtype=dtype)
    for remark in world.notes:
        note(f"{model}: {remark}")
    return world
