"""Wheels: the registry with its history, and the sync of a worker."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from functools import partial
from typing import BinaryIO

from msgspec import Struct
from packaging.tags import Tag

from pyoco_server.domain.audit_trail import ChangeTarget
from pyoco_server.domain.wheels import (
    Actor,
    InstalledWheel,
    Plan,
    Selection,
    SkippedWheel,
    Source,
    SyncResult,
    Wheel,
    WheelAction,
    WheelEvent,
    WheelSync,
    after_failures,
    check_version,
    check_wheel,
    described,
    is_wheel_name,
    plan,
    select,
)
from pyoco_server.errors import NatsUnavailable, WheelNotFound, WheelSyncFailed
from pyoco_server.logs import best_effort, get_logger
from pyoco_server.usecases.audit_trail import AuditTrail
from pyoco_server.usecases.auth import Caller
from pyoco_server.usecases.ports.runs import WheelHistory, WheelInstaller, WheelStore
from pyoco_server.usecases.ports.stores import Clock

log = get_logger(__name__)

CHUNK_BYTES = 128 * 1024
COLLECT_INTERVAL_SEC = 3600.0
UPLOAD_SEC = 3600.0
"""An upload without progress for this long is considered abandoned."""


class Author(Struct, frozen=True, kw_only=True):
    """Who changes the registry, for the audit trail and for the history of the wheels."""

    caller: Caller
    actor: Actor
    source: Source


class Upload(Struct, frozen=True, kw_only=True):
    name: str
    file: BinaryIO
    size: int
    tags: tuple[str, ...]
    replace: bool
    author: Author


class ManageWheels:
    def __init__(
        self,
        wheels: WheelStore,
        history: WheelHistory,
        clock: Clock,
        new_id: Callable[[], str],
        trail: AuditTrail,
    ) -> None:
        self._trail = trail
        self._wheels = wheels
        self._history = history
        self._clock = clock
        self._new_id = new_id

    async def upload(self, upload: Upload) -> Wheel:
        """Raises InvalidRequest for an invalid file, WheelVersionConflict unless the version is newer."""
        # In a thread, because a directory with thousands of members takes a while.
        name = await asyncio.to_thread(check_wheel, upload.name, upload.file, upload.size)
        wheel = await self._wheels.put(
            upload.name, _chunks(upload.file), upload.tags, partial(check_version, name)
        )
        await self._record(WheelAction.UPLOAD, wheel, upload.author, replace=upload.replace)
        await self._trail.record(upload.author.caller, "wheel.upload", _target(wheel), None, _state(wheel))
        return wheel

    async def keep_collecting(self) -> None:
        """Remove chunks of uploads whose gateway crashed."""
        while True:
            with best_effort(log, "wheel.collect", NatsUnavailable):
                if count := await self._wheels.collect(UPLOAD_SEC):
                    log.info("removed unfinished uploads", action="wheel.collected", count=count)
            await asyncio.sleep(COLLECT_INTERVAL_SEC)

    async def find(self, name: str) -> Wheel:
        wheel = await self._wheels.get(name) if is_wheel_name(name) else None
        if wheel is None:
            raise WheelNotFound
        return wheel

    async def list_wheels(self) -> list[Wheel]:
        return await self._wheels.list_wheels()

    def read(self, wheel: Wheel) -> AsyncIterator[bytes]:
        return self._wheels.read(wheel)

    async def delete(self, name: str, author: Author) -> Wheel:
        wheel = await self._wheels.delete(name) if is_wheel_name(name) else None
        if wheel is None:
            raise WheelNotFound
        await self._record(WheelAction.DELETE, wheel, author, replace=None)
        await self._trail.record(author.caller, "wheel.delete", _target(wheel), _state(wheel), None)
        return wheel

    async def history(
        self, wheel_name: str | None, action: WheelAction | None, limit: int
    ) -> list[WheelEvent]:
        events = await self._history.list_events()
        wanted = [
            event
            for event in events
            if wheel_name in (None, event.wheel_name) and action in (None, event.action)
        ]
        return wanted[:limit]

    async def _record(
        self, action: WheelAction, wheel: Wheel, author: Author, *, replace: bool | None
    ) -> None:
        """Best effort, because the wheel is already registered or removed."""
        event = WheelEvent(
            event_id=self._new_id(),
            occurred_at=self._clock(),
            action=action,
            wheel_name=wheel.name,
            tags=wheel.tags,
            size_bytes=wheel.size_bytes,
            sha256_hex=wheel.sha256_hex,
            replace=replace,
            actor=author.actor,
            source=author.source,
        )
        log.info("wheel registry changed", action=f"wheel.{action}", wheel=wheel.name, tags=wheel.tags)
        with best_effort(log, "wheel.history", NatsUnavailable, wheel=wheel.name):
            await self._history.append(event)


def _target(wheel: Wheel) -> ChangeTarget:
    return ChangeTarget("wheel", wheel.name)


def _state(wheel: Wheel) -> dict[str, object]:
    return {"tags": wheel.tags, "size_bytes": wheel.size_bytes, "sha256": wheel.sha256_hex}


async def _chunks(file: BinaryIO) -> AsyncIterator[bytes]:
    file.seek(0)
    while chunk := file.read(CHUNK_BYTES):
        yield chunk


# Sync of a worker with the registered wheels, between runs. A wheel that cannot be installed is skipped.

Use = Callable[[Sequence[InstalledWheel]], Awaitable[str | None]]
"""Start executors with these wheels. Returns the problem if they cannot be used."""


class SyncWheels:
    def __init__(
        self,
        wheels: WheelStore,
        installer: WheelInstaller,
        worker_tags: Sequence[str],
        supported: Sequence[Tag],
        clock: Clock,
    ) -> None:
        self._wheels = wheels
        self._installer = installer
        self._worker_tags = worker_tags
        self._supported = supported
        self._clock = clock
        self.active: tuple[InstalledWheel, ...] = ()
        """The wheels for newly started executors."""
        self.status = WheelSync(enabled=True, last_result=SyncResult.IDLE)
        self._failed: frozenset[str] = frozenset()
        """Failed installations of the last sync, by nuid."""
        self._refused: tuple[InstalledWheel, ...] | None = None
        """The set of wheels with which the flows could not be loaded."""

    async def is_due(self, *, with_retries: bool) -> bool:
        """Whether a sync would change anything; `with_retries`: or retry failed installations."""
        attempt = self._clock()
        try:
            selection = select(await self._wheels.list_wheels(), self._worker_tags, self._supported)
        except NatsUnavailable as error:
            self._fail(attempt, error.detail)
            return False
        planned = plan(selection.wheels, self.active)
        target = self._target(planned, frozenset() if with_retries else self._failed)
        if target == self.active or (target == self._refused and not with_retries):
            if not planned.install:
                self._report(attempt, selection, planned, [], [], [])
            return False
        return True

    def _target(self, planned: Plan, failed: Collection[str]) -> tuple[InstalledWheel, ...]:
        """The active set if everything but `failed` is installed."""
        good = [described(wheel) for wheel in planned.install if wheel.nuid not in failed]
        bad = [wheel for wheel in planned.install if wheel.nuid in failed]
        return tuple(after_failures(planned, good, bad))

    async def __call__(self, use: Use) -> None:
        """One sync. `use` receives a changed set; a set it cannot use is discarded."""
        attempt = self._clock()
        try:
            selection = select(await self._wheels.list_wheels(), self._worker_tags, self._supported)
        except NatsUnavailable as error:
            self._fail(attempt, error.detail)
            return
        planned = plan(selection.wheels, self.active)
        installed, failures = await self._install(planned.install)
        self._failed = frozenset(wheel.nuid for wheel, _ in failures)
        active = tuple(after_failures(planned, installed, [wheel for wheel, _ in failures]))
        if active != self.active:
            problem = await use(active)
            if problem is not None:
                self._refused = active
                self._fail(attempt, f"the flows cannot be loaded with the new wheels: {problem}")
                return
        self._refused = None
        dropped = [wheel for wheel in planned.drop if wheel not in active]
        self.active = active
        await self._installer.keep_only(active)
        self._report(attempt, selection, planned, installed, dropped, failures)

    async def _install(self, wheels: Sequence[Wheel]) -> tuple[list[InstalledWheel], list[tuple[Wheel, str]]]:
        installed, failures = [], []
        for wheel in wheels:
            try:
                installed.append(await self._installer.install(wheel, self._wheels.read(wheel)))
            except (WheelSyncFailed, NatsUnavailable) as error:
                log.exception(
                    "cannot install a wheel; continuing without it",
                    action="wheel.install_failed",
                    wheel=wheel.name,
                    reason=error.detail,
                    **WheelSyncFailed().ids,
                )
                failures.append((wheel, error.detail))
        return installed, failures

    def _report(
        self,
        attempt: float,
        selection: Selection,
        planned: Plan,
        installed: Sequence[InstalledWheel],
        dropped: Sequence[InstalledWheel],
        failures: Sequence[tuple[Wheel, str]],
    ) -> None:
        before, changed = self.status, bool(installed or dropped)
        skipped = tuple(SkippedWheel(wheel.name, reason) for wheel, reason in selection.skipped)
        result = SyncResult.ERROR if failures else SyncResult.OK if changed else SyncResult.IDLE
        self.status = WheelSync(
            enabled=True,
            last_result=result,
            last_attempt_at=attempt,
            last_success_at=before.last_success_at if failures else attempt,
            last_synced_at=attempt if changed else before.last_synced_at,
            selected_count=len(selection.wheels),
            updated_count=len(installed),
            removed_count=len(dropped),
            skipped_incompatible_count=len(skipped),
            selected_wheels=tuple(wheel.name for wheel in selection.wheels),
            updated_wheels=tuple(wheel.name for wheel in installed),
            removed_wheels=tuple(wheel.name for wheel in dropped),
            skipped_incompatible=skipped,
            installed_wheels=self.active,
            error="; ".join(f"{wheel.name}: {reason}" for wheel, reason in failures) or None,
        )
        if changed:
            log.info(
                "wheels synced",
                action="wheel.synced",
                installed=[wheel.name for wheel in installed],
                removed=[wheel.name for wheel in dropped],
                kept=len(planned.keep),
            )

    def _fail(self, attempt: float, error: str) -> None:
        log.warning("wheel sync failed", action="wheel.sync_failed", reason=error, **WheelSyncFailed().ids)
        self.status = WheelSync(
            enabled=True,
            last_result=SyncResult.ERROR,
            last_attempt_at=attempt,
            last_success_at=self.status.last_success_at,
            last_synced_at=self.status.last_synced_at,
            installed_wheels=self.active,
            error=error,
        )
