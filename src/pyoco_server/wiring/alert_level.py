"""Alerts, put together: definitions, what notices happenings, what sends messages."""

import secrets

from pyoco_server.domain.dead_letters import StoredLetter
from pyoco_server.domain.inputs import is_run_id
from pyoco_server.usecases.alerts.attend import LASTS_SEC, AttendAlerts
from pyoco_server.usecases.alerts.channels import ManageChannels, ReadyChannels, SealChannels
from pyoco_server.usecases.alerts.follow import FollowAlerts, FollowDeliveries
from pyoco_server.usecases.alerts.manage import ManageAlerts, ManageDeliveries
from pyoco_server.usecases.alerts.notice import NoticeHappenings, StartNoticing
from pyoco_server.usecases.alerts.scan import ScanForLasting, Sources
from pyoco_server.usecases.alerts.send import SendDeliveries
from pyoco_server.usecases.coordination import Lease
from pyoco_server.usecases.ports.alerts import Outbound
from pyoco_server.usecases.ports.gateway import ServerBackend
from pyoco_server.usecases.ports.runs import RunStore
from pyoco_server.wiring.event_level import retry_policy
from pyoco_server.wiring.gateway_backend import new_outbound
from pyoco_server.wiring.run_level import Background, ExecutionLevel, RunLevel, Setup

SECRET_BYTES = 32


class AlertLevel:
    """Alerts, channels and deliveries."""

    def __init__(
        self, backend: ServerBackend, setup: Setup, runs: RunLevel, executions: ExecutionLevel
    ) -> None:
        stored, clock = backend.alerts, backend.shared_clock
        self.follow = FollowAlerts(stored.definition_feed)
        self._follow_deliveries = FollowDeliveries(stored.delivery_feed, clock)
        outbound = new_outbound(setup.config)
        self._seal = SealChannels(runs.seal)
        self._ready = ReadyChannels(self._seal, runs.resolve_texts)
        self._add_management(backend, setup, runs, outbound)
        self._add_work(backend, setup, runs, executions, outbound)

    def _add_management(
        self, backend: ServerBackend, setup: Setup, runs: RunLevel, outbound: Outbound
    ) -> None:
        stored, clock = backend.alerts, backend.shared_clock
        self.manage = ManageAlerts(
            stored.definitions, self.follow, StartNoticing(stored), clock, setup.new_id, runs.trail
        )
        self.channels = ManageChannels(
            definitions=stored.definitions,
            followed=self.follow,
            seal=self._seal,
            ready=self._ready,
            outbound=outbound,
            allow_private=setup.config.alerts_allow_private,
            clock=clock,
            new_secret=lambda: secrets.token_bytes(SECRET_BYTES),
            trail=runs.trail,
        )
        self.deliveries = ManageDeliveries(
            stored.deliveries, self._follow_deliveries, self.follow, clock, runs.trail
        )

    def _add_work(
        self,
        backend: ServerBackend,
        setup: Setup,
        runs: RunLevel,
        executions: ExecutionLevel,
        outbound: Outbound,
    ) -> None:
        stored, clock = backend.alerts, backend.shared_clock
        notice = NoticeHappenings(
            backend=stored,
            tick_pages=backend.tick_pages,
            alerts=self.follow,
            deliveries=self._follow_deliveries,
            clock=clock,
            tenant_of=LetterTenants(backend.runs),
        )
        scan = ScanForLasting(
            _sources(backend, runs, executions),
            self.follow,
            notice.take,
            clock,
            silent_sec=setup.config.worker_disconnect_timeout_sec,
            scan_sec=setup.tuning.alert_scan_sec,
        )
        self.send = SendDeliveries(
            deliveries=stored.deliveries,
            followed=self._follow_deliveries,
            alerts=self.follow,
            ready=self._ready,
            outbound=outbound,
            policy=retry_policy(setup.config),
            clock=clock,
            meter=setup.meter,
        )
        lease = Lease(backend.leases, "alerts", setup.new_id(), clock, lasts_sec=LASTS_SEC)
        self.attend = AttendAlerts(self.follow, self._follow_deliveries, notice, scan, self.send, lease)

    def background(self) -> Background:
        return {
            "follow-alerts": self.follow.run,
            "follow-deliveries": self._follow_deliveries.run,
            "attend-alerts": self.attend.run,
        }


def _sources(backend: ServerBackend, runs: RunLevel, executions: ExecutionLevel) -> Sources:
    def is_stale() -> bool:
        are_known = runs.is_caught_up and executions.is_caught_up
        return not are_known or max(runs.stale_sec, executions.stale_sec) > 0

    return Sources(
        runs=backend.runs,
        run_index=backend.run_index,
        execution_index=backend.execution_index,
        workers=runs.follow_workers,
        list_workers=runs.list_workers,
        lines=runs.limits.board.lines,
        retry_jobs=backend.events.retry_jobs,
        is_stale=is_stale,
    )


class LetterTenants:
    """The tenant of a dead letter. Older workers store none: its run has it."""

    def __init__(self, runs: RunStore) -> None:
        self._runs = runs

    async def __call__(self, stored: StoredLetter) -> str | None:
        if stored.tenant_id is not None or stored.letter.run_id is None:
            return stored.tenant_id
        if not is_run_id(stored.letter.run_id):
            return None
        run = await self._runs.get(stored.letter.run_id)
        return None if run is None else run.value.tenant_id
