"""`doctor`: what is found here and in a checkpoint."""

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from armillary import terminal
from armillary.cli.app import app
from armillary.errors import BadRequest
from armillary.terminal import guarded, note, say, say_json


@app.command()
@guarded
def doctor(
    model: Annotated[str | None, typer.Argument(help="pocket, a folder, or a hub name.")] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Also measure what bf16, int8 and int4 change; reads the weights.")
    ] = False,
    device: terminal.Device = "auto",
    dtype: terminal.Dtype = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Tell what is found on this machine, and in a model.

    Of a model: its parts, its defaults and where they come from. Without --check no weights are read.

    \b
    armillary doctor
    armillary doctor nvidia/Cosmos3-Nano
    armillary doctor pocket --check
    """
    from armillary import doctor as find

    if check and model is None:
        raise BadRequest("check", check, "is of a model: name one, such as pocket")
    found: dict[str, Any] = {"machine": find.machine(device, dtype)}
    if model is not None:
        found["model"] = find.describe(model)
    if check and model is not None:
        note(f"measuring {model}")
        found["check"] = find.check(model)
    if as_json:
        say_json(found)
    else:
        _tell(found)
    if not found["machine"]["attention"]["sound"]:
        raise typer.Exit(terminal.FAILED)


def _tell(found: Mapping[str, Any]) -> None:
    _table("this machine", _machine_rows(found["machine"]))
    if "model" in found:
        model = found["model"]
        _table(model["model"], _model_rows(model))
        for task, numbers in model["defaults"].items():
            rows = [(name, _shown(told["value"]), told["from"]) for name, told in numbers.items()]
            _table(f"{task}, unless asked otherwise", rows)
    if "check" in found:
        heads = [
            (form, *(f"{kind} {error:.2%}" for kind, error in e.items()))
            for form, e in found["check"].items()
        ]
        _table("relative error against fp32", heads)


def _machine_rows(told: Mapping[str, Any]) -> list[tuple[str, ...]]:
    memory, attention = told["memory"], told["attention"]
    verdict = "agrees" if attention["sound"] else "DISAGREES"
    packages = {**told["packages"], **{name: v for name, v in told["extras"].items() if v}}
    return [
        ("armillary", f"{told['armillary']} on Python {told['python']}"),
        (
            "device",
            f"{told['device']}, {told['threads']} thread{'s' * (told['threads'] > 1)}, {told['dtype']}",
        ),
        ("memory", f"{memory['free'] / 1e9:.1f} GB free of {memory['total'] / 1e9:.1f} GB"),
        (
            "attention",
            f"{attention['form']}; {verdict} with the plain formula within {attention['error']:.1e}",
        ),
        ("packages", ", ".join(f"{name} {version or 'MISSING'}" for name, version in packages.items())),
    ]


def _model_rows(told: Mapping[str, Any]) -> list[tuple[str, ...]]:
    towers, parts = told["towers"], [name for name, there in told["parts"].items() if there]
    both = "one that reads, one that draws" if towers["draws"] else "one that reads"
    size = f"{towers['layers']} layers, {towers['width']} wide, {towers['heads'][0]} heads"
    return [
        ("folder", told["folder"]),
        ("layout", told["layout"]),
        ("variant", told["variant"]),
        ("towers", f"{both}; {size}"),
        ("heads", ", ".join(told["heads"]) or "none"),
        ("parts", ", ".join(parts) or "none"),
        ("robots", ", ".join(told["robots"]) or "none"),
        *(("note", text) for text in told["notes"]),
    ]


def _shown(value: object) -> str:
    return "none" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def _table(title: str, rows: list[tuple[str, ...]]) -> None:
    """A titled table, as wide as it needs to be; plain text in a pipe."""
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title, title_justify="left", show_header=False, box=None, padding=(0, 2, 0, 0))
    for row in rows:
        table.add_row(*row)
    console = Console()
    with console.capture() as captured:
        console.print(table)
    say("\n".join(line.rstrip() for line in captured.get().splitlines()), end="\n\n")
