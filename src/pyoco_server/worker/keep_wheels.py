"""Keeps the wheels of a worker in line with the registry, and its executors with the wheels."""

import asyncio
from collections.abc import Sequence

from msgspec.structs import replace

from pyoco_server.domain.runs import CodeWheel
from pyoco_server.domain.wheel_sync import InstalledWheel, WheelSync
from pyoco_server.engine.executor_messages import ExecutorSpec
from pyoco_server.engine.process_executors import ProcessExecutors
from pyoco_server.usecases.sync_wheels import SyncWheels
from pyoco_server.worker.wheel_installer import DirectoryInstaller


class KeepWheels:
    """A run that is going ends with the code it began with; the next one gets the new code."""

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
        """What the first executors get."""
        self.executors: ProcessExecutors | None = None
        """Who has to be told of changes; None before the first executors are started."""

    def status(self) -> WheelSync:
        return self._sync_wheels.status

    async def sync(self) -> None:
        await self._sync_wheels(self._use)

    async def run(self) -> None:
        while True:
            await asyncio.sleep(self._interval)
            await self.sync()

    def _paths_in_use(self) -> set[str]:
        return set() if self.executors is None else self.executors.paths_in_use

    async def _use(self, wheels: Sequence[InstalledWheel]) -> str | None:
        path = tuple(self._installer.path_of(wheel) for wheel in wheels)
        code = tuple(CodeWheel(wheel.name, wheel.version, wheel.sha256_hex) for wheel in wheels)
        if self.executors is not None:
            return await self.executors.change_spec(path=path, wheels=code)
        self.spec = replace(self.spec, path=path, wheels=code)
        return None
