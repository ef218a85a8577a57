"""A checkpoint of pocket's form that has learnt nothing."""

from pathlib import Path

import pytest

from tests.random_pocket import random_pocket


@pytest.fixture(scope="session")
def untrained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its folder."""
    return random_pocket(tmp_path_factory.mktemp("checkpoints") / "untrained")
