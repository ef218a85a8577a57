"""Requests that nobody would write, a few of each kind; `benchmarks/fuzz.py` sends many."""

import runpy
from pathlib import Path

import pytest

from tests.serve.conftest import Live

SCRIPT = Path(__file__).parents[2] / "benchmarks/fuzz.py"


@pytest.mark.filterwarnings("ignore::Warning")  # of the tools that draw the requests
def test_no_request_ends_in_a_fault_of_the_server_or_hangs(live: Live) -> None:
    fuzz = runpy.run_path(str(SCRIPT))["fuzz"]
    assert fuzz(live.url, examples=1) == []
    assert live.service.worker.alive
