"""Which tests share a process when several run the suite (`--dist loadgroup`)."""

from pathlib import Path

import pytest

TESTS = Path(__file__).parent


@pytest.hookimpl(tryfirst=True)  # before xdist reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A file stays whole, for its fixtures, and so do the oracles: diffusers takes seconds to import."""
    for item in items:
        file = item.path.relative_to(TESTS)
        group = "oracles" if file.parts[0] == "oracles" else file.as_posix()
        item.add_marker(pytest.mark.xdist_group(group))
