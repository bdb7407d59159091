"""What a task can do with its server, in real executor processes, in a thread, and without a server."""

import asyncio
import logging
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from pyoco_server import current_run, log, progress
from pyoco_server.domain.runs.jobs import FlowOutcome, FlowProgress, Job, ResolvedJob
from pyoco_server.domain.runs.logs import LogEntry
from pyoco_server.domain.runs.task_requests import TaskAnswer, TaskRequest
from pyoco_server.engine.executors.pool import ProcessExecutors
from pyoco_server.engine.executors.protocol import ExecutorSpec, Limits
from pyoco_server.engine.executors.thread import ThreadExecutors
from support import helping_flows
from support.builders import RUN_ID, a_job
from support.waiting import PATIENCE_SEC, until

Executors = ProcessExecutors | ThreadExecutors
SECRET = "hunter2-hunter2"  # noqa: S105


class Heard:
    """What one run has reported."""

    def __init__(self) -> None:
        self.marks: list[tuple[float | None, str | None]] = []
        self.entries: list[LogEntry] = []
        self.flow: Any = None

    def progressed(self, progress: FlowProgress) -> None:
        if progress.progress is not None:
            self.marks.append((progress.progress.value, progress.progress.message))
        self.flow.written()

    def asked(self, request: TaskRequest, answer: Callable[[TaskAnswer], None]) -> None:
        raise NotImplementedError

    def printed(self, entries: Sequence[LogEntry]) -> None:
        self.entries += entries


@pytest.fixture(params=["processes", "thread"])
async def executors(request: pytest.FixtureRequest) -> AsyncIterator[Executors]:
    if request.param == "thread":
        thread = ThreadExecutors(helping_flows.resolve)
        yield thread
        await thread.close()
        return
    processes = ProcessExecutors(ExecutorSpec(flow_resolver=f"{helping_flows.__file__}:resolve"), 1, Limits())
    await processes.open()
    yield processes
    await processes.close()


async def start(executors: Executors, flow: str, **changes: Any) -> tuple[Any, Heard]:
    heard = Heard()
    job = ResolvedJob(**_fields(a_job(flow_name=flow, run_id=RUN_ID)) | {"params": {}} | changes)
    heard.flow = await executors.start(job, heard, PATIENCE_SEC)
    return heard.flow, heard


def _fields(job: Job) -> dict[str, Any]:
    return {name: getattr(job, name) for name in job.__struct_fields__}


async def ended(flow: Any) -> FlowOutcome:
    async with asyncio.timeout(PATIENCE_SEC):
        outcome: FlowOutcome | None = await flow.outcome()
    assert outcome is not None
    return outcome


async def result(executors: Executors, flow: str, **changes: Any) -> Any:
    outcome = await ended((await start(executors, flow, **changes))[0])
    assert outcome.error is None
    return outcome.result


async def test_a_task_knows_its_run_in_whatever_thread_it_works(executors: Executors) -> None:
    facts = {"run_id": RUN_ID, "task": "places", "attempt": 3}
    (found,) = (await result(executors, "places", attempt=3)).values()
    assert found == {"task": facts, "thread": facts, "fork": 0}
    facts |= {"task": "waits", "attempt": 1}
    (found,) = (await result(executors, "waits")).values()
    assert found == {"coroutine": facts, "thread": facts}
    assert await result(executors, "branches") == {"left": "left", "right": "right"}


async def test_of_many_progress_calls_few_are_written_and_the_last_always(
    executors: Executors, tmp_path: Path
) -> None:
    flow, heard = await start(executors, "counts", params={"marks": str(tmp_path)}, secrets=(SECRET,))
    flow.go_live()

    async def newest() -> Any:
        return heard.marks[-1] if heard.marks else None

    began = time.monotonic()
    await until(newest, lambda mark: mark == (1.0, "••• done"))
    assert len(heard.marks) <= 3 + (time.monotonic() - began) / 0.2
    (tmp_path / "go").touch()
    outcome = await ended(flow)
    assert outcome.progress.progress is not None
    assert outcome.progress.progress.message == "••• done"


async def test_log_lines_have_a_level_and_fields(executors: Executors) -> None:
    flow, heard = await start(executors, "logs", secrets=(SECRET,))
    if isinstance(executors, ThreadExecutors):
        assert (await ended(flow)).error is None
    flow.go_live()
    await ended(flow)

    async def lines() -> list[LogEntry]:
        return heard.entries

    first, second, third = await until(lines, lambda entries: len(entries) == 3)
    assert (first.task, first.text, first.level) == ("logs", "loaded\n", "info")
    assert first.fields == {"rows": 3, "source": "a.csv", "secret": "•••"}
    assert [(line.text, line.level) for line in (second, third)] == [
        ("two\n", "warning"),
        ("lines\n", "warning"),
    ]
    assert second.fields is not None
    assert second.fields.keys() == {"big"}
    assert len(second.fields["big"]) < 1_000
    assert third.fields is None


async def test_a_task_notices_a_cancel_and_knows_its_deadline(executors: Executors, tmp_path: Path) -> None:
    before = time.time()
    flow, _ = await start(executors, "until_cancelled", params={"marks": str(tmp_path)}, timeout_sec=500.0)

    async def is_waiting() -> bool:
        return (tmp_path / "waiting").exists()

    await until(is_waiting)
    flow.cancel()
    outcome = await ended(flow)
    deadline = outcome.progress.task_records["until_cancelled"].output
    assert before + 500 <= deadline <= time.time() + 500


def test_without_a_server_helpers_do_no_harm(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        progress(0.5, "half")
        log("loaded", rows=3)
    assert current_run() is None
    assert caplog.record_tuples == [("pyoco_server.task", logging.INFO, "loaded rows=3")]


def test_what_no_helper_can_use_is_an_error_everywhere() -> None:
    with pytest.raises(ValueError, match="not a number"):
        progress(float("nan"))
    with pytest.raises(ValueError, match="'loud' is none of debug, info, warning, error, critical"):
        log("x", level="loud")


def test_the_import_of_a_helper_imports_no_part_of_the_server() -> None:
    program = (
        "import sys; from pyoco_server import current_run, log, progress; "
        "print(sorted(name for name in sys.modules if name.startswith(('pyoco', 'msgspec', 'nats'))))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['pyoco_server', 'pyoco_server.task_helpers']"
