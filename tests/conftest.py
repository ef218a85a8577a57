"""What tests of several files need: the command line as a person calls it."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from armillary import cli

Run = Callable[..., int]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    """`run(*arguments)` is the exit code of that command line, in an empty folder."""
    monkeypatch.chdir(tmp_path)

    def command(*arguments: str) -> int:
        monkeypatch.setattr(sys, "argv", ["armillary", *arguments])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        return int(ended.value.code or 0)

    return command
