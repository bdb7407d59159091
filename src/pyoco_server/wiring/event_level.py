"""The levels of workflow events and of schedules, put together."""

import os
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

from pyoco_server.config import NatsBackendConfig
from pyoco_server.domain.events.retry import WEBHOOK_FORM, RetryPolicy, is_webhook_url
from pyoco_server.domain.schedules.timing import is_zone
from pyoco_server.errors import ConfigError, NatsUnavailable
from pyoco_server.usecases.audit_trail import AuditTrail
from pyoco_server.usecases.coordination import Lease
from pyoco_server.usecases.events.audit import Audit, Summarise
from pyoco_server.usecases.events.definitions import ManageActions, ManageSources, ManageTemplates
from pyoco_server.usecases.events.notify import ManageNotificationSettings, NotifyEscalations
from pyoco_server.usecases.events.receive import ReceiveEvent
from pyoco_server.usecases.events.resume import ResumeWaits
from pyoco_server.usecases.events.retry import DrainRetryJobs, RetryQueue
from pyoco_server.usecases.events.start import PATIENCE_SEC, StartTemplate
from pyoco_server.usecases.events.transfer import ImportFiles
from pyoco_server.usecases.ports.gateway import Executions, Notifier, ServerBackend, Waits
from pyoco_server.usecases.ports.runs import RunStore
from pyoco_server.usecases.ports.stores import Clock
from pyoco_server.usecases.runs.submit import SubmitRun
from pyoco_server.usecases.schedules.attend import AttendSchedule, FireSchedules, TickMeter
from pyoco_server.usecases.schedules.follow import FollowSchedules
from pyoco_server.usecases.schedules.manage import ManageSchedules
from pyoco_server.usecases.schedules.start import StartScheduled
from pyoco_server.wiring.gateway_backend import new_audit_log, new_event_files, new_notifier


class EventLevel:
    """Receives events and records each, also before NATS is there; everything else needs it."""

    def __init__(self, config: NatsBackendConfig, clock: Clock, new_id: Callable[[], str]) -> None:
        self.token_tenant = None if config.http_auth_mode == "none" else config.workflow_event_tenant
        self.audit = Audit(new_audit_log(config), clock, new_id)
        self.receive = ReceiveEvent(
            parts=lambda: self._parts,
            audit=self.audit,
            clock=clock,
            new_id=new_id,
            token=config.workflow_event_token,
            token_tenant=self.token_tenant,
        )
        self._connected: EventUseCases | None = None

    def connect(self, parts: "EventUseCases") -> None:
        self._connected = parts

    @property
    def _parts(self) -> "EventUseCases":
        if self._connected is None:
            raise NatsUnavailable("nats unavailable: not connected yet")
        return self._connected

    @property
    def templates(self) -> ManageTemplates:
        return self._parts.templates

    @property
    def actions(self) -> ManageActions:
        return self._parts.actions

    @property
    def sources(self) -> ManageSources:
        return self._parts.sources

    @property
    def retry_queue(self) -> RetryQueue:
        return self._parts.retry_queue

    @property
    def drain_retry_jobs(self) -> DrainRetryJobs:
        return self._parts.drain_retry_jobs

    @property
    def resume_waits(self) -> ResumeWaits:
        return self._parts.resume_waits

    @property
    def notification_settings(self) -> ManageNotificationSettings:
        return self._parts.notification_settings

    @property
    def notify_escalations(self) -> NotifyEscalations:
        return self._parts.notify_escalations

    @property
    def summarise(self) -> Summarise:
        return self._parts.summarise

    def background(self) -> dict[str, Callable[[], Awaitable[None]]]:
        return self._parts.background()


def check_settings(config: NatsBackendConfig) -> None:
    """Raises ConfigError."""
    if config.google_chat_webhook_url and not is_webhook_url(config.google_chat_webhook_url):
        raise ConfigError([f"AX_GOOGLE_CHAT_WEBHOOK_URL=***: must have the form {WEBHOOK_FORM}"])


class EventUseCases:
    """What the level has once NATS is there."""

    def __init__(  # noqa: PLR0913 - one argument per part it is put together from
        self,
        *,
        backend: ServerBackend,
        config: NatsBackendConfig,
        level: EventLevel,
        submit_run: SubmitRun,
        executions: Executions,
        waits: Waits,
        clock: Clock,
        new_id: Callable[[], str],
        trail: AuditTrail,
        monotonic: Clock = time.monotonic,
        repeat_patience_sec: float = PATIENCE_SEC,
    ) -> None:
        events = backend.events
        level.audit.attach(events.audit)
        self._events = events
        self._config = config
        self._clock = clock
        self._new_id = new_id
        self.audit = level.audit
        self.audit_stream = events.audit
        self._trail = trail
        self.templates = ManageTemplates(events.templates, clock, trail)
        self.actions = ManageActions(events.actions, clock, trail)
        self.sources = ManageSources(events.sources, clock, trail)
        self.retry_queue = RetryQueue(events.retry_jobs, retry_policy(config), clock, trail)
        self.start_template = self._start_template(
            backend.runs, submit_run, executions, monotonic, repeat_patience_sec
        )
        self.resume_waits = self._resume_waits(waits)
        notifier = new_notifier(config)
        self.notification_settings = self._notification_settings(notifier)
        self.notify_escalations = self._notify_escalations(notifier)
        self.drain_retry_jobs = self._drain_retry_jobs()
        self.summarise = self._summarise()
        self.import_files = self._import_files(level.token_tenant)

    def _start_template(
        self,
        runs: RunStore,
        submit_run: SubmitRun,
        executions: Executions,
        monotonic: Clock,
        patience_sec: float,
    ) -> StartTemplate:
        return StartTemplate(
            receipts=self._events.receipts,
            slots=self._events.slots,
            runs=runs,
            actions=self.actions,
            submit_run=submit_run,
            executions=executions,
            clock=self._clock,
            new_run_id=self._new_id,
            receipt_ttl_days=self._config.workflow_event_receipt_ttl_days,
            runs_retention_sec=self._config.runs_retention_sec,
            strict_keys=self._config.workflow_event_strict_keys,
            default_tag=self._config.default_tag,
            patience_sec=patience_sec,
            monotonic=monotonic,
        )

    def _resume_waits(self, waits: Waits) -> ResumeWaits:
        return ResumeWaits(
            resumes=self._events.resumes,
            receipts=self._events.receipts,
            waits=waits,
            audit=self.audit,
            clock=self._clock,
            new_id=self._new_id,
            max_kept=self._config.workflow_event_max_resumes,
            ttl_days=self._config.workflow_event_resume_ttl_days,
            receipt_ttl_days=self._config.workflow_event_receipt_ttl_days,
            strict_keys=self._config.workflow_event_strict_keys,
            poll_seconds=self._config.workflow_event_retry_worker_poll_seconds,
        )

    def _notification_settings(self, notifier: Notifier) -> ManageNotificationSettings:
        return ManageNotificationSettings(
            self._events.notification_settings,
            notifier,
            self.audit,
            self._clock,
            self._new_id,
            self._config.google_chat_webhook_url,
            trail=self._trail,
        )

    def _notify_escalations(self, notifier: Notifier) -> NotifyEscalations:
        return NotifyEscalations(
            jobs=self._events.retry_jobs,
            leases=self._events.leases,
            settings=self.notification_settings,
            notifier=notifier,
            clock=self._clock,
            holder=self._new_id(),
            poll_seconds=self._config.workflow_event_retry_worker_poll_seconds,
        )

    def _drain_retry_jobs(self) -> DrainRetryJobs:
        return DrainRetryJobs(
            jobs=self._events.retry_jobs,
            leases=self._events.leases,
            queue=self.retry_queue,
            templates=self.templates,
            start_template=self.start_template,
            audit=self.audit,
            clock=self._clock,
            new_id=self._new_id,
            poll_seconds=self._config.workflow_event_retry_worker_poll_seconds,
            on_escalated=self.notify_escalations.wake,
        )

    def _summarise(self) -> Summarise:
        limits = {
            "ttl_days": self._config.workflow_event_receipt_ttl_days,
            "max_receipts": self._config.workflow_event_max_receipts,
        }
        return Summarise(self._events.audit_feed, self.audit, self.retry_queue.counts, limits)

    def _import_files(self, tenant_id: str | None) -> ImportFiles:
        return ImportFiles(
            files=new_event_files(self._config),
            events=self._events,
            policy=self.retry_queue.policy,
            clock=self._clock,
            tenant_id=tenant_id,
            receipt_ttl_days=self._config.workflow_event_receipt_ttl_days,
            max_receipts=self._config.workflow_event_max_receipts,
        )

    def background(self) -> dict[str, Callable[[], Awaitable[None]]]:
        work: dict[str, Callable[[], Awaitable[None]]] = {
            "write-audit": self.audit.run,
            "count-refusals": self.audit.run_counts,
            "follow-audit": self.summarise.run,
            "resume-waits": self.resume_waits.run,
            "notify-escalations": self.notify_escalations.run,
        }
        if self._config.workflow_event_retry_worker_enabled:
            work["drain-retry-jobs"] = self.drain_retry_jobs.run
        return work


def retry_policy(config: NatsBackendConfig) -> RetryPolicy:
    return RetryPolicy(
        max_attempts=config.workflow_event_retry_max_attempts,
        base_delay_seconds=config.workflow_event_retry_base_delay_seconds,
        terminal_ttl_days=config.workflow_event_retry_terminal_ttl_days,
        max_jobs=config.workflow_event_retry_max_jobs,
    )


# Schedules

CHECK_BEAT_SEC = 5.0
CHECK_SILENT_SEC = 20.0
"""Lease timeout before another gateway searches for stalled schedules."""
MAX_UNSURE_SEC = 86_400.0


class ScheduleLevel:
    """Schedules. They go by the clock of the store, because it keeps their timers."""

    def __init__(
        self,
        backend: ServerBackend,
        config: NatsBackendConfig,
        work: StartScheduled,
        meter: TickMeter,
        new_id: Callable[[], str],
        trail: AuditTrail,
    ) -> None:
        clock = backend.shared_clock
        self.follow = FollowSchedules(backend.schedule_feed)
        self.attend = AttendSchedule(
            schedules=backend.schedules,
            pages=backend.tick_pages,
            timers=backend.timers,
            followed=self.follow,
            work=work,
            clock=clock,
            meter=meter,
            unsure_sec=min(MAX_UNSURE_SEC, config.runs_retention_sec / 2 or MAX_UNSURE_SEC),
        )
        self.manage = ManageSchedules(
            schedules=backend.schedules,
            claims=backend.claims,
            pages=backend.tick_pages,
            timers=backend.timers,
            followed=self.follow,
            attend=self.attend,
            work=work,
            clock=clock,
            new_id=new_id,
            queue=backend.queue,
            trail=trail,
        )
        lease = Lease(
            backend.leases,
            "schedules",
            new_id(),
            clock,
            lasts_sec=CHECK_SILENT_SEC,
            beat_sec=CHECK_BEAT_SEC,
        )
        self.fire = FireSchedules(
            timers=backend.timers, followed=self.follow, attend=self.attend, lease=lease, clock=clock
        )

    def background(self) -> dict[str, Callable[[], Awaitable[None]]]:
        return {
            "follow-schedules": self.follow.run,
            "fire-schedules": self.fire.run,
            "follow-ends": self.fire.run_ended,
            "check-schedules": self.fire.check,
        }


def default_timezone(name: str, environ: Mapping[str, str] = os.environ) -> str:
    """`name`, or the time zone of this machine; UTC if it has none. Raises ConfigError."""
    if name and not is_zone(name):
        raise ConfigError([f"PYOCO_TIMEZONE={name!r}: is not an IANA time zone, as Europe/Berlin"])
    if name:
        return name
    local = environ.get("TZ", "").removeprefix(":") or str(Path("/etc/localtime").resolve())
    found = local.rpartition("zoneinfo/")[2]
    return found if is_zone(found) else "UTC"
