"""Keeps the wheels of a worker in line with the registry, and its executors with the wheels."""

import asyncio
import time
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Protocol

from msgspec.structs import replace
from packaging.tags import sys_tags

from pyoco_server.config import NatsBackendConfig
from pyoco_server.domain.runs import CodeWheel
from pyoco_server.domain.wheel_sync import InstalledWheel, WheelSync
from pyoco_server.engine.executor_messages import ExecutorSpec
from pyoco_server.usecases.ports import WheelStore
from pyoco_server.usecases.sync_wheels import SyncWheels
from pyoco_server.worker.wheel_installer import DirectoryInstaller


class CodeUsers(Protocol):
    """Executors whose code can be changed."""

    @property
    def paths_in_use(self) -> Collection[str]: ...
    async def change_spec(self, *, path: tuple[str, ...], wheels: tuple[CodeWheel, ...]) -> str | None:
        """Use another `path` and `wheels`. Answers with why they cannot be used, if they cannot."""
        ...


class KeepWheels:
    """Finds out when the registry has changed; the worker syncs between two runs, when none is going."""

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
        self.executors: CodeUsers | None = None
        """Who has to change with the wheels; None before the first executors are started."""
        self.is_due = False
        """Whether there are wheels to install or to drop."""
        self.when_due: Callable[[], None] = lambda: None
        self.is_idle: Callable[[], bool] = lambda: True
        """Whether no run is going. What failed is tried again only then: it must not keep jobs waiting."""

    def status(self) -> WheelSync:
        return self._sync_wheels.status

    async def sync(self) -> None:
        """Only while no run is going."""
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


def new_keep_wheels(
    wheels: WheelStore,
    config: NatsBackendConfig,
    worker_id: str,
    tags: Sequence[str],
    spec: ExecutorSpec,
) -> KeepWheels:
    """As the settings want it."""
    directory = Path(config.wheel_sync_dir) / worker_id
    installer = DirectoryInstaller(directory, config.wheel_install_timeout_sec)
    sync = SyncWheels(wheels, installer, tags, list(sys_tags()), time.time)
    return KeepWheels(sync, installer, spec, config.wheel_sync_interval_sec)
