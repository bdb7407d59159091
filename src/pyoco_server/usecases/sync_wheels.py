"""Give a worker the code that is registered for it. Between runs only; a bad wheel is skipped and shown."""

from collections.abc import Awaitable, Callable, Collection, Sequence

from packaging.tags import Tag

from pyoco_server.domain.wheel_sync import (
    InstalledWheel,
    Plan,
    SkippedWheel,
    SyncResult,
    WheelSync,
    after_failures,
    described,
    plan,
)
from pyoco_server.domain.wheels import Selection, Wheel, select
from pyoco_server.errors import NatsUnavailable, WheelSyncFailed
from pyoco_server.logs import get_logger
from pyoco_server.usecases.ports import Clock, WheelInstaller, WheelStore

log = get_logger(__name__)


Use = Callable[[Sequence[InstalledWheel]], Awaitable[str | None]]
"""Start executors with these wheels. Answers with why they cannot be used, if they cannot."""


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
        """What executors that are started now get."""
        self.status = WheelSync(enabled=True, last_result=SyncResult.IDLE)
        self._failed: frozenset[str] = frozenset()
        """What could not be installed at the last sync, by nuid."""
        self._refused: tuple[InstalledWheel, ...] | None = None
        """The set with which the flows could not be loaded."""

    async def is_due(self, *, with_retries: bool) -> bool:
        """Whether a sync would change anything; `with_retries`: or would try again what has failed."""
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
        """What would be active if everything but `failed` could be installed."""
        good = [described(wheel) for wheel in planned.install if wheel.nuid not in failed]
        bad = [wheel for wheel in planned.install if wheel.nuid in failed]
        return tuple(after_failures(planned, good, bad))

    async def __call__(self, use: Use) -> None:
        """One sync. `use` gets the new set when it is another one; a set it cannot use is not kept."""
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
                    "a wheel could not be installed; the worker goes on without it",
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
        log.warning("wheels not synced", action="wheel.sync_failed", reason=error, **WheelSyncFailed().ids)
        self.status = WheelSync(
            enabled=True,
            last_result=SyncResult.ERROR,
            last_attempt_at=attempt,
            last_success_at=self.status.last_success_at,
            last_synced_at=self.status.last_synced_at,
            installed_wheels=self.active,
            error=error,
        )
