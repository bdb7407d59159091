"""One real nats-server per session; names of their own for every test."""

import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, chdir
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from pyoco_server.config import NatsBackendConfig
from pyoco_server.wiring import EmbeddedNats
from support.installation import Lab, new_lab
from support.nats_server import delete_streams_of, free_port, unique_config
from support.programs import SETTINGS, FreshPrograms, Programs

# Some machines forbid bytecode files: every process that a test starts would compile every module again.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# Whoever runs the tests may ignore signals (`nohup`, a background job): what tests start would inherit that.
for one, handler in ((signal.SIGHUP, signal.SIG_DFL), (signal.SIGINT, signal.default_int_handler)):
    if signal.getsignal(one) is signal.SIG_IGN:
        signal.signal(one, handler)

# The same examples on every machine: a failure is a finding, never a matter of luck.
settings.register_profile("pyoco", derandomize=True, deadline=None, database=None)
settings.load_profile("pyoco")

LONGEST_FIRST = ("web", "acceptance", "simulation", "attacks", "integration")
"""Folders whose files take long. What comes last is short, so no worker of pytest idles at the end."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=_place)


def _place(item: pytest.Item) -> int:
    folder = item.path.parent.name
    return LONGEST_FIRST.index(folder) if folder in LONGEST_FIRST else len(LONGEST_FIRST)


@pytest.fixture(scope="session", autouse=True)
def _away_from_the_repository(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What fixtures of a module or a session start does not write into the repository either."""
    with chdir(tmp_path_factory.mktemp("elsewhere")):
        yield


@pytest.fixture(autouse=True)
def _own_directory_and_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """pyoco writes ./artifacts, and settings come from the environment and ./.env: each test has its own."""
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith(SETTINGS)]:
        monkeypatch.delenv(name)


@pytest.fixture(scope="session")
def nats_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedNats]:
    with EmbeddedNats(tmp_path_factory.mktemp("nats"), durability="fast", port=free_port()) as server:
        yield server


@pytest.fixture
async def config(nats_server: EmbeddedNats) -> AsyncIterator[NatsBackendConfig]:
    """Settings with names that no other test uses; what they name is deleted afterwards."""
    settings_of_test = unique_config(nats_server.url)
    yield settings_of_test
    await delete_streams_of(settings_of_test)


@pytest.fixture
def own_nats(tmp_path: Path) -> Iterator[EmbeddedNats]:
    """A server of the test's own, to be stopped, frozen and killed."""
    with EmbeddedNats(tmp_path / "nats", durability="fast", port=free_port()) as server:
        yield server


@pytest.fixture
def programs(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Programs]:
    """Nothing that a test started may be left when it ends."""
    kind = Programs if request.node.get_closest_marker("fresh_start") is None else FreshPrograms
    started = kind(tmp_path)
    yield started
    assert started.are_gone(), f"left behind: {started.pids()}"


@pytest.fixture
async def labs(programs: Programs, nats_server: EmbeddedNats) -> AsyncIterator[Callable[..., Any]]:
    """Opens a lab with settings of the test's choice."""
    async with AsyncExitStack() as stack:

        async def opened(**settings: Any) -> Lab:
            return await stack.enter_async_context(new_lab(nats_server.url, programs, **settings))

        yield opened
