"""Metrics of a worker, from its record: the same at the worker and at a gateway."""

from collections.abc import Iterable

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from pyoco_server.domain.fleet import ALIVE, WorkerRecord


def worker_text(record: WorkerRecord) -> bytes:
    """`record`: as observed now."""
    registry = CollectorRegistry()
    registry.register(_Figures(record))
    return generate_latest(registry)


class _Figures:
    """All have the label `worker_id`, so that the series of several workers stay distinct."""

    def __init__(self, record: WorkerRecord) -> None:
        self._record = record

    def collect(self) -> Iterable[Metric]:
        record, figures = self._record, self._record.figures
        yield self._gauge("up", "1 while the worker is alive.", record.state in ALIVE)
        if record.slots is not None:
            yield self._gauge("slots", "Runs that the worker can run at once.", record.slots)
        if figures is None:  # an older worker
            return
        info = GaugeMetricFamily(
            "pyoco_worker_build_info",
            "1, with the versions that the worker runs.",
            labels=["worker_id", "version", "python"],
        )
        info.add_metric([record.worker_id, figures.version, figures.python], 1)
        yield info
        yield self._gauge("start_time_seconds", "Start of the worker, Unix time.", figures.started_at)
        yield self._gauge("active_runs", "Runs that the worker has.", figures.active)
        ended = CounterMetricFamily(
            "pyoco_worker_runs",
            "Runs that the worker had, by status; OTHER: they did not end there.",
            labels=["worker_id", "status"],
        )
        for status, count in sorted(figures.ended.items()):
            ended.add_metric([record.worker_id, status], count)
        yield ended
        yield self._counter("run_seconds", "Time that these runs took together.", figures.busy_sec)
        if figures.cpu_sec is not None:
            yield self._counter("cpu_seconds", "CPU time of the main process.", figures.cpu_sec)
        if figures.memory_bytes is not None:
            yield self._gauge("memory_bytes", "Resident memory of the main process.", figures.memory_bytes)

    def _gauge(self, name: str, meaning: str, value: float) -> Metric:
        family = GaugeMetricFamily(f"pyoco_worker_{name}", meaning, labels=["worker_id"])
        family.add_metric([self._record.worker_id], value)
        return family

    def _counter(self, name: str, meaning: str, value: float) -> Metric:
        family = CounterMetricFamily(f"pyoco_worker_{name}", meaning, labels=["worker_id"])
        family.add_metric([self._record.worker_id], value)
        return family
