"""Prometheus metrics: figures about all runs come from the read model, the rest is counted here."""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.core import GaugeMetricFamily, Metric
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


class Metrics:
    """One per gateway. Labels have few values: never a run, flow, path or key."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
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
    """Gauges, although some names of the contract end in _total."""

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
        # Anybody may submit with any tag; those with workers or a pause are few.
        self._queues = [one for one in queues if one.workers or one.paused is not None][:MAX_TAGS]
        self._waiting = waiting
        self._runs = runs
        self._executions = executions
        self._workers_alive = workers_alive
        self._dead_letters = dead_letters

    def collect(self) -> Iterable[Metric]:
        runs = GaugeMetricFamily("pyoco_runs_total", "Runs in the store, by status.", labels=["status"])
        for status, count in self._runs.items():
            runs.add_metric([status.value], count)
        yield runs
        yield GaugeMetricFamily("pyoco_workers_alive_total", "Workers that are alive.", self._workers_alive)
        yield GaugeMetricFamily("pyoco_dlq_messages_total", "Dead letters in the store.", self._dead_letters)
        yield GaugeMetricFamily("pyoco_dead_letters", "Dead letters in the store.", self._dead_letters)
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


MAX_TAGS = 100
_QUEUES: tuple[tuple[str, str, Callable[[Queue], float]], ...] = (
    ("waiting_runs", "Runs that wait for a worker, by tag.", lambda queue: queue.waiting),
    ("oldest_wait_seconds", "How long the oldest of them has waited.", lambda queue: queue.oldest_wait_sec),
    ("paused", "1 while the queue is paused.", lambda queue: queue.paused is not None),
)
"""Of tags with live workers or a pause."""


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
