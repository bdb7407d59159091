"""Real processes only, as a user starts them."""

import os
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from pyoco_server.wiring import EmbeddedNats
from support.lab import Lab, new_lab
from support.programs import Programs

CAMPAIGN = int(os.environ["PYOCO_TEST_CAMPAIGN"]) if "PYOCO_TEST_CAMPAIGN" in os.environ else None
"""Read before the tests' environment is cleared of everything that begins with PYOCO_."""


@pytest.fixture
def programs(tmp_path: Path) -> Iterator[Programs]:
    """Nothing that a test started may be left when it ends."""
    started = Programs(tmp_path)
    yield started
    assert started.are_gone(), f"left behind: {started.pids()}"


@pytest.fixture
async def labs(programs: Programs, nats_server: EmbeddedNats) -> AsyncIterator[Callable[..., Any]]:
    """Opens a lab with settings of the test's choice."""
    async with AsyncExitStack() as stack:

        async def opened(**settings: Any) -> Lab:
            return await stack.enter_async_context(new_lab(nats_server.url, programs, **settings))

        yield opened


@pytest.fixture
def campaign() -> int | None:
    """How many runs a campaign has; None: as many as are right for every day."""
    return CAMPAIGN
