"""Prometheus metrics: figures about all runs come from the read model, the rest is counted here."""

import platform
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.metadata import version

from msgspec import Struct
from msgspec.structs import replace
from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.core import GaugeMetricFamily, Metric, UnknownMetricFamily
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pyoco_server.domain.executions.model import ExecutionStatus
from pyoco_server.domain.queues import Queue
from pyoco_server.domain.runs.model import RunStatus

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_RUN_SECONDS = (0.01, 0.05, 0.1, 0.5, 1, 5, 10, 30, 60, 300, 900, 3600, 21600)
_HTTP_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5)
_LATE_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 15, 60, 300, 3600)
_METHODS = frozenset({"GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"})


# Creation times of counters would double the number of series.
disable_created_metrics()  # type: ignore[no-untyped-call]


def new_registry() -> CollectorRegistry:
    """With what is true of every process of ours: its version, and its use of the machine."""
    registry = CollectorRegistry()
    build = Gauge(
        "pyoco_build_info", "1, with the versions that run.", ["version", "python"], registry=registry
    )
    build.labels(version("pyoco-server"), platform.python_version()).set(1)
    ProcessCollector(registry=registry)
    return registry


class Metrics:
    """One per gateway. Labels have few values: never a run, flow, path or key."""

    def __init__(self) -> None:
        self.registry = new_registry()
        self.queue_series = QueueSeries()
        self._add_run_metrics()
        self._add_http_metrics()
        self._add_execution_metrics()
        self._add_schedule_metrics()

    def _add_run_metrics(self) -> None:
        self.submitted = Counter(
            "pyoco_runs_submitted", "Runs accepted by this gateway.", registry=self.registry
        )
        self.events = Counter(
            "pyoco_workflow_events",
            "Workflow events and manual starts that this gateway has handled, by outcome.",
            ["outcome"],
            registry=self.registry,
        )
        self._bulk_items = Counter(
            "pyoco_bulk_items",
            "Items of bulk operations that this gateway has acted on.",
            ["action", "outcome"],
            registry=self.registry,
        )
        self._ends_counted = Counter(
            "pyoco_stats_runs_counted",
            "Ended runs that this gateway has added to the statistics.",
            registry=self.registry,
        )
        self._stats_lag = Gauge(
            "pyoco_stats_lag_seconds",
            "From the end of the last run that this gateway has added to the statistics until it was added.",
            registry=self.registry,
        )
        self._deliveries = Counter(
            "pyoco_alert_deliveries",
            "Attempts of this gateway to deliver a message of an alert, by what became of it.",
            ["status"],
            registry=self.registry,
        )
        self.cancels = Counter(
            "pyoco_run_cancels_requested", "Cancel requests accepted by this gateway.", registry=self.registry
        )
        self.watchers = Gauge("pyoco_watchers", "Open watch connections.", registry=self.registry)
        self._durations = Histogram(
            "pyoco_run_duration_seconds",
            "From start to end, of runs that ended while this gateway was up.",
            ["status"],
            buckets=_RUN_SECONDS,
            registry=self.registry,
        )
        self._queue_waits = Histogram(
            "pyoco_run_queue_wait_seconds",
            "From submit or the end of a delay to start, of runs that started while this gateway was up.",
            buckets=_RUN_SECONDS,
            registry=self.registry,
        )
        self._lateness = Histogram(
            "pyoco_run_start_lateness_seconds",
            "Of delayed runs and next tries: from the time they were due to start.",
            buckets=_RUN_SECONDS,
            registry=self.registry,
        )
        self._redeliveries = Counter(
            "pyoco_run_redeliveries", "Runs taken over by a later delivery.", registry=self.registry
        )

    def _add_http_metrics(self) -> None:
        self._http = Histogram(
            "pyoco_http_request_duration_seconds",
            "Time to the first byte of a response.",
            ["method", "route", "status"],
            buckets=_HTTP_SECONDS,
            registry=self.registry,
        )

    def _add_execution_metrics(self) -> None:
        self._rejected = Counter(
            "pyoco_execution_commands_rejected",
            "Rejected execution commands, by code.",
            ["code"],
            registry=self.registry,
        )
        self._executions_ended = Counter(
            "pyoco_executions_ended",
            "Executions that ended while this gateway was up, by status.",
            ["status"],
            registry=self.registry,
        )
        self._lag = Histogram(
            "pyoco_orchestrator_lag_seconds",
            "Orchestration delay: from an event of an execution to what follows from it.",
            buckets=_HTTP_SECONDS,
            registry=self.registry,
        )

    def _add_schedule_metrics(self) -> None:
        self._ticks = Counter(
            "pyoco_schedule_ticks",
            "Ticks of schedules that this gateway recorded, by status.",
            ["status"],
            registry=self.registry,
        )
        self._tick_lateness = Histogram(
            "pyoco_schedule_lateness_seconds",
            "From when a tick was due to its start, without jitter.",
            buckets=_LATE_SECONDS,
            registry=self.registry,
        )

        self._limit_waits = Histogram(
            "pyoco_limit_wait_seconds",
            "From the submission of a run, or the end of its delay, until it got its place in all limits.",
            buckets=_LATE_SECONDS,
            registry=self.registry,
        )
        self._limit_refusals = Counter(
            "pyoco_limit_refusals", "Submissions refused because a limit was reached.", registry=self.registry
        )

    def admitted(self, waited_sec: float) -> None:
        self._limit_waits.observe(waited_sec)

    def refused(self) -> None:
        self._limit_refusals.inc()

    def ticked(self, status: str, count: int, late_sec: float | None) -> None:
        self._ticks.labels(status).inc(count)
        if late_sec is not None:
            self._tick_lateness.observe(late_sec)

    def rejected(self, code: str) -> None:
        self._rejected.labels(code).inc()

    def execution_ended(self, status: str) -> None:
        self._executions_ended.labels(status).inc()

    def attended(self, lag_sec: float) -> None:
        self._lag.observe(lag_sec)

    def started(self, queue_wait_sec: float, *, is_delayed: bool) -> None:
        self._queue_waits.observe(queue_wait_sec)
        if is_delayed:
            self._lateness.observe(queue_wait_sec)

    def delivery(self, status: str) -> None:
        self._deliveries.labels(status.lower()).inc()

    def bulk_items(self, action: str, done: int, failed: int) -> None:
        self._bulk_items.labels(action, "done").inc(done)
        self._bulk_items.labels(action, "failed").inc(failed)

    def ends_counted(self, count: int, behind_sec: float) -> None:
        self._ends_counted.inc(count)
        self._stats_lag.set(behind_sec)

    def redelivered(self) -> None:
        self._redeliveries.inc()

    def ended(self, status: RunStatus, duration_sec: float | None) -> None:
        if duration_sec is not None:
            self._durations.labels(status.value).observe(duration_sec)

    def answered(self, method: str, route: str, status: int, seconds: float) -> None:
        known = method if method in _METHODS else "other"
        self._http.labels(known, route, f"{status // 100}xx").observe(seconds)

    def text(
        self,
        runs: dict[RunStatus, int],
        workers_alive: int,
        dead_letters: int,
        executions: dict[ExecutionStatus, int],
        queues: Sequence[Queue] = (),
        waiting: int = 0,
        *,
        storage: Mapping[str, int] | None = None,
    ) -> bytes:
        """All metrics; the three of the contract come first.

        `waiting`: runs without a place in a limit. `storage`: bytes by stream.
        """
        now = CollectorRegistry()
        now.register(
            _Now(runs, workers_alive, dead_letters, executions, queues, waiting, storage=storage or {})
        )
        return generate_latest(now) + generate_latest(self.registry)


class _Now:
    """Figures from the read model.

    Three names of the contract end in _total, although they are no counters: they have no type, as checkers
    of metrics want it. The same figures have names without it.
    """

    def __init__(
        self,
        runs: dict[RunStatus, int],
        workers_alive: int,
        dead_letters: int,
        executions: dict[ExecutionStatus, int],
        queues: Sequence[Queue],
        waiting: int,
        *,
        storage: Mapping[str, int],
    ) -> None:
        self._storage = storage
        self._queues = queues
        self._waiting = waiting
        self._runs = runs
        self._executions = executions
        self._workers_alive = workers_alive
        self._dead_letters = dead_letters

    def collect(self) -> Iterable[Metric]:
        for kind, end in ((UnknownMetricFamily, "_total"), (GaugeMetricFamily, "")):
            runs = kind(f"pyoco_runs{end}", "Runs in the store, by status.", labels=["status"])
            for status, count in self._runs.items():
                runs.add_metric([status.value], count)
            yield runs
            yield kind(f"pyoco_workers_alive{end}", "Workers that are alive.", self._workers_alive)
            name = "pyoco_dlq_messages_total" if end else "pyoco_dead_letters"
            yield kind(name, "Dead letters in the store.", self._dead_letters)
        executions = GaugeMetricFamily("pyoco_executions", "Executions, by status.", labels=["status"])
        for state, number in self._executions.items():
            executions.add_metric([state.value], number)
        yield executions
        yield GaugeMetricFamily(
            "pyoco_runs_waiting", "Runs that wait for a place in a limit or for a paused flow.", self._waiting
        )
        stored = GaugeMetricFamily("pyoco_storage_bytes", "Bytes on disk, by stream.", labels=["stream"])
        for name, size in self._storage.items():
            stored.add_metric([name], size)
        yield stored
        yield from self._of_queues()

    def _of_queues(self) -> Iterable[Metric]:
        for name, meaning, value in _QUEUES:
            family = GaugeMetricFamily(f"pyoco_queue_{name}", meaning, labels=["tag"])
            for queue in self._queues:
                family.add_metric([queue.tag], value(queue))
            yield family


_QUEUES: tuple[tuple[str, str, Callable[[Queue], float]], ...] = (
    ("waiting", "Runs that wait for a worker, by tag.", lambda queue: queue.waiting),
    ("running", "Runs that are running, by tag.", lambda queue: queue.running),
    ("oldest_wait_seconds", "How long the oldest waiting run has waited.", lambda one: one.oldest_wait_sec),
    ("paused", "1 while the queue is paused.", lambda queue: queue.paused is not None),
)

# Series of queues

EMPTY_SEC = 3600.0
MAX_TAGS = 100
OTHER_TAGS = "(other)"
"""All further tags together. No tag can have this name."""


class _Series(Struct):
    """A tag with series: since when, and when its queue was last not empty."""

    since: float
    busy_at: float


class QueueSeries:
    """The tags that have series, until their queue has been empty for an hour: a scaler has to see zero.

    Anybody who may submit can use any tag, so their number is limited. Tags with live workers or a pause come
    first, then those that have been there the longest.
    """

    def __init__(self) -> None:
        self._of_tenants: dict[str | None, dict[str, _Series]] = {}

    def shown(self, tenant_id: str | None, queues: Sequence[Queue], now: float) -> list[Queue]:
        """`queues`: those that there are now."""
        known = self._of_tenants.setdefault(tenant_id, {})
        found = {queue.tag: queue for queue in queues}
        for queue in queues:
            series = known.setdefault(queue.tag, _Series(now, now))
            if not _is_empty(queue):
                series.busy_at = now
        for tag in [tag for tag, series in known.items() if _is_over(series, found.get(tag), now)]:
            del known[tag]
        order = sorted(known, key=lambda tag: (not _is_served(found.get(tag)), known[tag].since, tag))
        for tag in order[MAX_TAGS:]:
            del known[tag]
        shown = [found.get(tag) or _empty(tag) for tag in order[:MAX_TAGS]]
        others = [found[tag] for tag in order[MAX_TAGS:] if tag in found]
        return [*shown, *([_together(others)] if others else [])]


def _is_empty(queue: Queue) -> bool:
    return not (queue.waiting or queue.running or queue.throughput_per_min)


def _is_over(series: _Series, queue: Queue | None, now: float) -> bool:
    return now - series.busy_at >= EMPTY_SEC and (queue is None or queue.paused is None)


def _is_served(queue: Queue | None) -> bool:
    return queue is not None and (queue.workers > 0 or queue.paused is not None)


def _empty(tag: str) -> Queue:
    return Queue(
        tag=tag, waiting=0, running=0, paused=None, oldest_wait_sec=0.0, workers=0, throughput_per_min=0
    )


def _together(queues: Sequence[Queue]) -> Queue:
    return replace(
        _empty(OTHER_TAGS),
        waiting=sum(queue.waiting for queue in queues),
        running=sum(queue.running for queue in queues),
        oldest_wait_sec=max(queue.oldest_wait_sec for queue in queues),
    )


class MeasureRequests:
    """Pure ASGI middleware: two clock readings per request."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = time.perf_counter()

        async def send_and_measure(message: Message) -> None:
            if message["type"] == "http.response.start":
                route = getattr(scope.get("route"), "path", "other")
                seconds = time.perf_counter() - started
                self._metrics.answered(scope["method"], route, message["status"], seconds)
            await send(message)

        await self._app(scope, receive, send_and_measure)
