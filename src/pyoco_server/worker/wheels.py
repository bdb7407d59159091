"""Wheels on a worker: installed on its disk, and in sync with the registry.

Each wheel is installed into a temporary directory, which is renamed when it is complete. So a worker that is
killed meanwhile finds a consistent state, and the code of running executors never changes: another version is
another directory.
"""

import asyncio
import hashlib
import shutil
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from pathlib import Path
from typing import Protocol

import msgspec
from msgspec.structs import replace

from pyoco_server.domain.runs.model import CodeWheel
from pyoco_server.domain.wheels import InstalledWheel, Wheel, WheelSync, described
from pyoco_server.engine.executors.protocol import ExecutorSpec
from pyoco_server.errors import WheelSyncFailed
from pyoco_server.logs import get_logger
from pyoco_server.usecases.wheels import SyncWheels

log = get_logger(__name__)

CODE = "code"
MANIFEST = "wheel.json"
MAX_OUTPUT = 2_000
_PIP = ("-m", "pip", "install", "--no-deps", "--force-reinstall", "--no-index", "--no-input")
_QUIET = ("--quiet", "--disable-pip-version-check", "--no-warn-script-location")


class DirectoryInstaller:
    def __init__(self, directory: Path, timeout: float) -> None:
        self._directory = directory.absolute()
        self._timeout = timeout
        self._spared: set[str] = set()
        self.paths_in_use: Callable[[], Collection[str]] = frozenset
        """Directories of live executors: a flow may import or read files of its package at any time."""

    def path_of(self, wheel: InstalledWheel) -> str:
        """The directory for the import path."""
        return str(self._directory / wheel.nuid / CODE)

    async def install(self, wheel: Wheel, content: AsyncIterator[bytes]) -> InstalledWheel:
        """Raises WheelSyncFailed. An installed wheel is not installed again."""
        final = self._directory / wheel.nuid
        if (final / MANIFEST).exists():
            return _manifest(final)
        unfinished = await asyncio.to_thread(self._new_directory, wheel)
        try:
            file = unfinished / wheel.name
            await _download(wheel, content, file)
            await self._pip(file, unfinished / CODE)
            file.unlink()
            (unfinished / MANIFEST).write_bytes(msgspec.json.encode(described(wheel)))
            _give_name(unfinished, final)
        except OSError as error:
            raise WheelSyncFailed(f"{wheel.name}: {error}") from error
        finally:
            await asyncio.to_thread(shutil.rmtree, unfinished, ignore_errors=True)
        return _manifest(final)

    def _new_directory(self, wheel: Wheel) -> Path:
        """A unique one: the pip of a killed worker may still be running."""
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            return Path(tempfile.mkdtemp(prefix=f".unfinished-{wheel.nuid}-", dir=self._directory))
        except OSError as error:
            raise WheelSyncFailed(f"{wheel.name}: {error}") from error

    async def keep_only(self, wheels: Collection[InstalledWheel]) -> None:
        """Remove wheels that were replaced at an earlier sync and are not in use.

        Wheels replaced just now are kept: an executor that is starting may load them.
        """
        wanted = {wheel.nuid for wheel in wheels}
        spared, self._spared = self._spared, wanted
        in_use = {Path(path).parent.name for path in self.paths_in_use()}
        await asyncio.to_thread(self._remove_others, wanted | spared | in_use)

    def _remove_others(self, wanted: set[str]) -> None:
        if not self._directory.is_dir():
            return
        for entry in self._directory.iterdir():
            if entry.name not in wanted:
                shutil.rmtree(entry, ignore_errors=True)

    async def _pip(self, file: Path, target: Path) -> None:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, *_PIP, *_QUIET, "--target", str(target), str(file)),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        output = asyncio.ensure_future(process.communicate())
        done, _ = await asyncio.wait({output}, timeout=self._timeout)
        if not done:
            process.kill()
            await output
            raise WheelSyncFailed(f"{file.name}: pip timed out after {self._timeout:g} s")
        if process.returncode:
            text = output.result()[0].decode(errors="replace").strip()[-MAX_OUTPUT:]
            raise WheelSyncFailed(f"{file.name}: pip failed with code {process.returncode}: {text}")


def _manifest(directory: Path) -> InstalledWheel:
    return msgspec.json.decode((directory / MANIFEST).read_bytes(), type=InstalledWheel)


def _give_name(unfinished: Path, final: Path) -> None:
    """If it exists by now, it is the same wheel."""
    try:
        unfinished.rename(final)
    except OSError:
        if not (final / MANIFEST).exists():
            raise


async def _download(wheel: Wheel, content: AsyncIterator[bytes], file: Path) -> None:
    digest = hashlib.sha256()
    with file.open("wb") as out:
        async for chunk in content:
            digest.update(chunk)
            out.write(chunk)
    if wheel.sha256 is not None and digest.digest() != wheel.sha256:
        raise WheelSyncFailed(f"{wheel.name}: the download differs from the upload (sha256)")


class CodeUsers(Protocol):
    """Executors whose code can be changed."""

    @property
    def paths_in_use(self) -> Collection[str]: ...
    async def change_spec(self, *, path: tuple[str, ...], wheels: tuple[CodeWheel, ...]) -> str | None:
        """Use another `path` and `wheels`. Returns an error if they cannot be used."""
        ...


class KeepWheels:
    """Detects changes of the registry; the worker syncs when no run is active."""

    def __init__(
        self,
        sync_wheels: SyncWheels,
        installer: DirectoryInstaller,
        spec: ExecutorSpec,
        interval: float,
    ) -> None:
        self._sync_wheels = sync_wheels
        self._installer = installer
        installer.paths_in_use = self._paths_in_use
        self._interval = interval
        self.spec = spec
        """For the first executors."""
        self.executors: CodeUsers | None = None
        """None before the first executors are started."""
        self.is_due = False
        """Whether wheels have to be installed or removed."""
        self.when_due: Callable[[], None] = lambda: None
        self.is_idle: Callable[[], bool] = lambda: True
        """Whether no run is active. Failed wheels are retried only then, so that no job waits for them."""

    def status(self) -> WheelSync:
        return self._sync_wheels.status

    async def sync(self) -> None:
        """Only while no run is active."""
        self.is_due = False
        await self._sync_wheels(self._use)

    async def run(self) -> None:
        while True:
            await asyncio.sleep(self._interval)
            if not self.is_due and await self._sync_wheels.is_due(with_retries=self.is_idle()):
                self.is_due = True
                self.when_due()

    def _paths_in_use(self) -> set[str]:
        return set() if self.executors is None else set(self.executors.paths_in_use)

    async def _use(self, wheels: Sequence[InstalledWheel]) -> str | None:
        path = tuple(self._installer.path_of(wheel) for wheel in wheels)
        code = tuple(CodeWheel(wheel.name, wheel.version, wheel.sha256_hex) for wheel in wheels)
        if self.executors is not None:
            return await self.executors.change_spec(path=path, wheels=code)
        self.spec = replace(self.spec, path=path, wheels=code)
        return None
