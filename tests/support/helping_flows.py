"""Flows whose tasks use the helpers of `pyoco_server`."""

import asyncio
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyoco import Flow, task

from pyoco_server import current_run, log, progress
from pyoco_server.task_helpers import CurrentRun


def _flow(work: Callable[..., Any]) -> Flow:
    return Flow(name=work.__name__) >> task(work)


def _facts() -> dict[str, Any]:
    run = current_run()
    return {} if run is None else {name: getattr(run, name) for name in ("run_id", "task", "attempt")}


def _in_thread(work: Callable[[], Any]) -> Any:
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(work()))
    thread.start()
    thread.join()
    return found[0]


def places() -> dict[str, Any]:
    """Where a task may use them."""
    progress(0.25, "in a task")
    child = os.fork()
    if child == 0:
        progress(1.0, "in a fork")
        log("in a fork")
        os._exit(0 if current_run() is None else 1)
    _, status = os.waitpid(child, 0)
    return {"task": _facts(), "thread": _in_thread(_facts), "fork": status}


async def waits() -> dict[str, Any]:
    return {"coroutine": _facts(), "thread": await asyncio.to_thread(_facts)}


def branches() -> Flow:
    """Two tasks that run at the same time."""
    meeting = threading.Barrier(2)

    @task
    def start() -> None:
        """Before both."""

    @task
    def left() -> Any:
        meeting.wait()
        return _facts()["task"]

    @task
    def right() -> Any:
        meeting.wait()
        return _facts()["task"]

    return Flow(name="branches") >> start >> (left & right)


def logs() -> None:
    log("loaded", rows=3, source=Path("a.csv"), secret="hunter2-hunter2")  # noqa: S106
    log("two\nlines", level="WARNING", big="x" * 20_000)


def counts(marks: str) -> None:
    """Reports its progress 20,000 times, then waits."""
    for n in range(20_000):
        progress(n / 20_000, f"row {n}")
    progress(1, "hunter2-hunter2 done")
    (Path(marks) / "counted").touch()
    while not (Path(marks) / "go").exists():
        time.sleep(0.01)


def until_cancelled(marks: str) -> float | None:
    run = current_run()
    assert isinstance(run, CurrentRun)
    (Path(marks) / "waiting").touch()
    while not run.is_cancelled:
        time.sleep(0.01)
    return run.deadline


FLOWS = {work.__name__: work for work in (places, waits, logs, counts, until_cancelled)}


def resolve(name: str) -> Flow:
    return branches() if name == "branches" else _flow(FLOWS[name])
