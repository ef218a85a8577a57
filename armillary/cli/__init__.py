"""The command line: each command reads its options, calls one function, and gives out what it returns.

A module here holds commands that belong together; importing it adds them to `app`, in this order.
"""

from armillary.cli import making, acting, batch, tools, looking, serve  # isort: skip
from armillary.cli.app import app

__all__ = ["acting", "app", "batch", "looking", "main", "making", "serve", "tools"]


def main() -> None:
    """The entry point `armillary`."""
    app()
