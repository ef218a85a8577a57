"""What the tests of media share."""

from collections.abc import Callable

import pytest

from tests.make_clip import make_clip as make

MakeClip = Callable[..., bytes]


@pytest.fixture
def make_clip() -> MakeClip:
    return make
