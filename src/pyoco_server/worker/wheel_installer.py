"""Wheels on a worker's disk: each in a directory of its own, whole or not there.

A wheel is installed into a temporary directory, which gets its final name only when everything is in it. So
a worker that is killed in between starts again into a whole state, and what executors use is never changed
under them: another version is another directory.
"""

import asyncio
import hashlib
import shutil
import sys
from collections.abc import AsyncIterator, Collection
from pathlib import Path

import msgspec

from pyoco_server.domain.wheel_sync import InstalledWheel, described
from pyoco_server.domain.wheels import Wheel
from pyoco_server.errors import WheelSyncFailed
from pyoco_server.logs import get_logger

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

    def path_of(self, wheel: InstalledWheel) -> str:
        """What goes on an executor's import path."""
        return str(self._directory / wheel.nuid / CODE)

    async def install(self, wheel: Wheel, content: AsyncIterator[bytes]) -> InstalledWheel:
        """Raises WheelSyncFailed. A wheel that is there already is not installed again."""
        final = self._directory / wheel.nuid
        if (final / MANIFEST).exists():
            return msgspec.json.decode((final / MANIFEST).read_bytes(), type=InstalledWheel)
        unfinished = self._directory / f".unfinished-{wheel.nuid}"
        try:
            await asyncio.to_thread(_empty, unfinished)
            file = unfinished / wheel.name
            await _download(wheel, content, file)
            await self._pip(file, unfinished / CODE)
            file.unlink()
            installed = described(wheel)
            (unfinished / MANIFEST).write_bytes(msgspec.json.encode(installed))
            unfinished.rename(final)
        except OSError as error:
            raise WheelSyncFailed(f"{wheel.name}: {error}") from error
        finally:
            await asyncio.to_thread(shutil.rmtree, unfinished, ignore_errors=True)
        return installed

    async def keep_only(self, wheels: Collection[InstalledWheel]) -> None:
        """Remove what was replaced at an earlier sync; what was replaced just now may still be in use."""
        wanted = {wheel.nuid for wheel in wheels}
        spared, self._spared = self._spared, wanted
        await asyncio.to_thread(self._remove_others, wanted | spared)

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
        talking = asyncio.ensure_future(process.communicate())
        done, _ = await asyncio.wait({talking}, timeout=self._timeout)
        if not done:
            process.kill()
            await talking
            raise WheelSyncFailed(f"{file.name}: pip took longer than {self._timeout:g} s")
        if process.returncode:
            said = talking.result()[0].decode(errors="replace").strip()[-MAX_OUTPUT:]
            raise WheelSyncFailed(f"{file.name}: pip failed with code {process.returncode}: {said}")


def _empty(directory: Path) -> None:
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)


async def _download(wheel: Wheel, content: AsyncIterator[bytes], file: Path) -> None:
    digest = hashlib.sha256()
    with file.open("wb") as out:
        async for chunk in content:
            digest.update(chunk)
            out.write(chunk)
    if wheel.sha256 is not None and digest.digest() != wheel.sha256:
        raise WheelSyncFailed(f"{wheel.name}: what was downloaded is not what was uploaded (sha256)")
