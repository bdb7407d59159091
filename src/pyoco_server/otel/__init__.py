"""Traces by OpenTelemetry, in every process that makes spans.

The gateway and the worker export (`exporting`). An executor makes the spans of tasks (`tasks`) and passes
them to its worker, so nothing is lost with it, and a fork never has the threads of an exporter. This module
imports nothing of OpenTelemetry itself, which is an extra.
"""

import os
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from importlib import import_module
from types import ModuleType

from pyoco_server import tracing
from pyoco_server.domain.runs.jobs import Job, Raised
from pyoco_server.domain.secrets.masking import Masks
from pyoco_server.domain.traces import Span
from pyoco_server.logs import get_logger

log = get_logger(__name__)

_ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
_lock = threading.Lock()
_users = 0

OnTask = Callable[[str | None], None]
"""Called with the task that the calling thread enters; None: it leaves its task."""
Describe = Callable[[BaseException], Raised]


def is_wanted() -> bool:
    """Whether the environment asks for traces."""
    exporter = os.environ.get("OTEL_TRACES_EXPORTER", "").strip().lower()
    if os.environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true" or exporter == "none":
        return False
    return bool(exporter or any(os.environ.get(name, "").strip() for name in _ENDPOINTS))


def start(service: str) -> None:
    """Export the spans of this process, if the environment asks for it. To be followed by `stop`.

    Whatever is wrong with that is a warning: a run matters more than its trace. Several gateways in one
    process share an exporter.
    """
    global _users  # noqa: PLW0603
    with _lock:
        _users += 1
        if _users > 1 or not is_wanted():
            return
        try:
            from pyoco_server.otel.exporting import start_exporting  # noqa: PLC0415 - an extra
        except ImportError as error:
            log.warning(
                "no traces: OpenTelemetry is not installed",
                action="traces.not_installed",
                reason=str(error),
                advice="pip install 'pyoco-server[otel]'",
            )
            return
        try:
            tracing.active = start_exporting(service)
        except Exception as error:  # any exporter can be named
            log.warning("no traces: the exporter cannot be set up", action="traces.failed", exc_info=error)


def stop() -> None:
    """Blocks until what is buffered is exported, for a few seconds at most."""
    global _users  # noqa: PLW0603
    with _lock:
        _users -= 1
        if _users > 0 or tracing.active is None:
            return
        from pyoco_server.otel.exporting import Exporting  # noqa: PLC0415 - an extra

        tracer, tracing.active = tracing.active, None
        if isinstance(tracer, Exporting):
            tracer.stop()


# Executors


def preload() -> None:
    """In the process that forks executors: only imports, no threads."""
    if is_wanted():
        _tasks_module()


def open_executor() -> None:
    """After the flows are loaded: spans of users' code are collected, unless it has a provider of its own."""
    if is_wanted() and (tasks := _tasks_module()) is not None:
        tasks.collect_for_everybody()


def task_spans(
    job: Job, describe: Describe, masks: Masks
) -> AbstractContextManager[Callable[[OnTask], OnTask]]:
    """Around a flow. It yields what adds spans to a callback for tasks. Their texts are masked."""
    is_traced = job.trace is not None and (_loaded is not None or tracing.active is not None)
    tasks = _tasks_module() if is_traced else None
    if tasks is None:
        return nullcontext(_unchanged)
    spans: AbstractContextManager[Callable[[OnTask], OnTask]] = tasks.around_flow(job, describe, masks)
    return spans


def collected() -> tuple[Span, ...]:
    """The spans that ended in this executor and were not passed on yet."""
    if _loaded is None:
        return ()
    spans: tuple[Span, ...] = _loaded.take()
    return spans


_loaded: ModuleType | None = None
_is_missing = False


def _tasks_module() -> ModuleType | None:
    """None: OpenTelemetry is not installed, which the worker has logged."""
    global _loaded, _is_missing  # noqa: PLW0603
    if _loaded is None and not _is_missing:
        try:
            _loaded = import_module("pyoco_server.otel.tasks")
        except ImportError:
            _is_missing = True
    return _loaded


def _unchanged(on_task: OnTask) -> OnTask:
    return on_task
