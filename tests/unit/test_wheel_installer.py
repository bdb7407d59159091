"""F12: wheels on a worker's disk are whole or not there."""

import asyncio
import hashlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from pyoco_server.domain.wheels import Wheel
from pyoco_server.errors import WheelSyncFailed
from pyoco_server.worker.wheels import DirectoryInstaller
from support.wheels import a_wheel, wheel_name

DATA = a_wheel(files={"my_flows/tasks.py": "X = 1\n"})
WHEEL = Wheel(
    name=wheel_name(),
    size_bytes=len(DATA),
    bucket="wheels",
    nuid="n1",
    modified=0.0,
    sha256=hashlib.sha256(DATA).digest(),
    tags=(),
)


def names_in(directory: Path, pattern: str = "*") -> list[str]:
    return [path.name for path in directory.glob(pattern)]


async def in_halves(gate: asyncio.Event | None = None) -> AsyncIterator[bytes]:
    yield DATA[:100]
    if gate is not None:
        await gate.wait()
    yield DATA[100:]


async def test_an_install_does_not_disturb_another_of_the_same_wheel(tmp_path: Path) -> None:
    """The pip of a worker that was killed goes on while the next worker installs the same."""
    killed, successor = DirectoryInstaller(tmp_path, 60.0), DirectoryInstaller(tmp_path, 60.0)
    gate = asyncio.Event()
    going = asyncio.ensure_future(killed.install(WHEEL, in_halves(gate)))
    while not names_in(tmp_path, f".unfinished-*/{WHEEL.name}"):  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    installed = await successor.install(WHEEL, in_halves())
    gate.set()
    assert await going == installed
    assert names_in(Path(successor.path_of(installed)), "my_flows/tasks.py") == ["tasks.py"]
    assert names_in(tmp_path) == [WHEEL.nuid]


async def test_what_was_downloaded_wrongly_leaves_nothing_behind(tmp_path: Path) -> None:
    async def half() -> AsyncIterator[bytes]:
        yield DATA[:100]

    with pytest.raises(WheelSyncFailed, match="sha256"):
        await DirectoryInstaller(tmp_path, 60.0).install(WHEEL, half())
    assert names_in(tmp_path) == []


async def test_a_directory_that_cannot_be_written_fails_the_sync_and_not_the_worker(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(WheelSyncFailed):
        await DirectoryInstaller(tmp_path / "file", 60.0).install(WHEEL, in_halves())


async def test_what_an_executor_uses_is_kept_until_it_ends(tmp_path: Path) -> None:
    installer = DirectoryInstaller(tmp_path, 60.0)
    installed = await installer.install(WHEEL, in_halves())
    in_use = {installer.path_of(installed)}
    installer.paths_in_use = lambda: in_use
    for _ in range(3):
        await installer.keep_only([])
    assert names_in(tmp_path) == [WHEEL.nuid]
    in_use.clear()
    await installer.keep_only([])
    assert names_in(tmp_path) == []
