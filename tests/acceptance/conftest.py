"""Real processes only, as a user starts them."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.programs import Programs


@pytest.fixture
def programs(tmp_path: Path) -> Iterator[Programs]:
    """Nothing that a test started may be left when it ends."""
    started = Programs(tmp_path)
    yield started
    assert started.are_gone(), f"left behind: {started.pids()}"
