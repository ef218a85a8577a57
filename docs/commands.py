"""The help pages of every command, as `--help` prints them, on one page.

python docs/commands.py [docs/commands.md]
"""

import sys
from pathlib import Path
from typing import Any

from typer.main import get_command

from armillary import cli

HEAD = """# Commands

What `armillary --help` and `armillary COMMAND --help` print, on one page; `make docs` writes it. To learn
what to do with them, start with [quickstart.md](quickstart.md).
"""
VALIDATE = (
    "After `validate` comes one of the commands above, with the arguments and options of that command.\n"
)


def page() -> str:
    """The whole page as Markdown, its help pages 110 columns wide whatever terminal there is."""
    whole: Any = get_command(cli.app)
    top = whole.make_context(
        "armillary", [], resilient_parsing=True, terminal_width=110, max_content_width=110
    )
    parts = [HEAD, _section("armillary", whole.get_help(top))]
    for name, command in whole.commands.items():
        inner = command.make_context(name, [], parent=top, resilient_parsing=True)
        parts.append(_section(f"armillary {name}", command.get_help(inner)))
    return "\n".join([*parts, VALIDATE])


def _section(title: str, text: str) -> str:
    return f"## {title}\n\n```\n{text}\n```\n"


if __name__ == "__main__":
    target = Path(sys.argv[1] if len(sys.argv) > 1 else "docs/commands.md")
    target.write_text(page(), encoding="utf-8")
    print(target)
