"""Fabricated checkpoints and the two libraries that they are read with, made once a run."""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """diffusers' schedulers hand tensors to numpy in a way that numpy 2 deprecates."""
    known = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning:diffusers")
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(known, append=False)


@pytest.fixture(scope="session")
def nano_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tests.oracles.fabricate import nano_like

    return nano_like(tmp_path_factory.mktemp("nano"))


@pytest.fixture(scope="session")
def edge_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tests.oracles.fabricate import edge_like

    return edge_like(tmp_path_factory.mktemp("edge"))


@pytest.fixture(scope="session")
def written(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Path, Path]]:
    """`written(kind)`: a fabricated checkpoint of `fabricate.MAKE`, and what `World.save` makes of it."""
    from armillary import load
    from tests.oracles.fabricate import MAKE

    @cache
    def write(kind: str) -> tuple[Path, Path]:
        folder = tmp_path_factory.mktemp("written")
        original = MAKE[kind](folder / "original")
        load(original, device="cpu").save(folder / "saved")
        return original, folder / "saved"

    return write


@pytest.fixture(scope="session")
def diffusers_pipeline() -> Callable[[Path], Any]:
    """`diffusers_pipeline(folder)` is the folder's `Cosmos3OmniPipeline`. It is shared: leave it as it is."""
    from tests.oracles import fabricate

    return fabricate.diffusers_pipeline


@pytest.fixture(scope="session")
def transformers_reasoner() -> Callable[[Path], Any]:
    """`transformers_reasoner(folder)` is the folder's reasoner, loaded with no missing or extra key."""
    from tests.oracles import fabricate

    return fabricate.transformers_reasoner
