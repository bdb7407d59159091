"""What flows print, in real executor processes: all of it is caught, by task and in order, within limits."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from pyoco_server.domain.runs.jobs import FlowOutcome, FlowProgress
from pyoco_server.domain.runs.logs import MAX_TASK_BYTES, LogEntry
from pyoco_server.domain.runs.task_requests import TaskAnswer, TaskRequest
from pyoco_server.engine.executors.pool import ProcessExecutors
from pyoco_server.engine.executors.process_flow import ProcessFlowHandle
from pyoco_server.engine.executors.protocol import ExecutorSpec, Limits
from support import printing_flows
from support.builders import a_job
from support.waiting import PATIENCE_SEC, until

MAX_GROWN_KIB = 20 * 1024


class Log:
    """What was reported of one run."""

    def __init__(self) -> None:
        self.entries: list[LogEntry] = []

    def progressed(self, progress: FlowProgress) -> None:
        pass

    def asked(self, request: TaskRequest, answer: Callable[[TaskAnswer], None]) -> None:
        raise NotImplementedError

    def printed(self, entries: Sequence[LogEntry]) -> None:
        self.entries += entries

    @property
    def kept(self) -> list[LogEntry]:
        return sorted((entry for entry in self.entries if not entry.is_excerpt), key=lambda entry: entry.n)

    def lines(self, stream: str | None = None) -> list[str]:
        return [entry.text.rstrip("\n") for entry in self.kept if stream in (None, entry.stream)]


class Ran:
    def __init__(self, outcome: FlowOutcome, log: Log) -> None:
        self.ending = str(outcome.ending)
        self.error = outcome.error
        self.result = next(iter((outcome.result or {None: None}).values()))
        self.log = log


class Runner:
    def __init__(self, executors: ProcessExecutors, marks: Path) -> None:
        self._executors = executors
        self._marks = marks

    async def start(self, flow: str, **params: Any) -> tuple[ProcessFlowHandle, Log]:
        log = Log()
        started = await self._executors.start(a_job(flow_name=flow, params=params), log, PATIENCE_SEC)
        assert started is not None
        return started, log

    async def run(self, flow: str, *, is_live: bool = False, **params: Any) -> Ran:
        started, log = await self.start(flow, **params)
        if is_live:
            started.go_live()
        return await self.ended(started, log)

    async def ended(self, flow: ProcessFlowHandle, log: Log) -> Ran:
        async with asyncio.timeout(PATIENCE_SEC):
            outcome = await flow.outcome()
        assert outcome is not None
        return Ran(outcome, log)


@pytest.fixture
async def runner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Runner]:
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)  # C code would hold nothing back
    spec = ExecutorSpec(flow_resolver=f"{printing_flows.__file__}:resolve")
    executors = ProcessExecutors(spec, 1, Limits())
    await executors.open()
    try:
        yield Runner(executors, tmp_path)
    finally:
        await executors.close()


async def test_what_no_encoding_has_is_printed_escaped(runner: Runner) -> None:
    """D24"""
    ran = await runner.run("undecodable")
    assert ran.ending == "completed", ran.error
    assert ran.log.lines() == [r"caf\udce9", r"\ud800", "after"]


async def test_stdout_is_all_that_a_stdout_is(runner: Runner) -> None:
    """D24"""
    ran = await runner.run("as_a_stream")
    assert ran.ending == "completed", ran.error
    assert ran.result == {
        "encoding": "utf-8",
        "tty": False,
        "fds": [1, 1, 2],
        "writable": True,
        "name": "<stdout>",
        "closed": False,
    }
    assert ran.log.lines() == [
        "grüße",
        r"raw \xff",
        "é",
        "a",
        "b",
        "left and right",
        "write() argument must be str, not bytes",
        "by name",
    ]


async def test_output_of_children_stands_where_it_was_printed(runner: Runner) -> None:
    """D28"""
    ran = await runner.run("with_children")
    assert ran.ending == "completed", ran.error
    expected = ["before", "child", "between", r"not text \xff", "forked", "from C", "after"]
    assert ran.log.lines("stdout") == expected
    assert ran.log.lines("stderr") == ["problem", "descriptor"]
    assert {entry.task for entry in ran.log.kept} == {"with_children"}


async def test_output_of_c_code_is_not_left_for_the_next_run(runner: Runner) -> None:
    """D28"""
    ran = await runner.run("c_without_newline")
    assert ran.log.lines() == ["never ended"]
    assert (await runner.run("undecodable")).log.lines()[0] == r"caf\udce9"


async def test_log_records_are_kept_from_info_up(runner: Runner) -> None:
    """D28"""
    lines = (await runner.run("logs_only")).log.lines("logging")
    assert lines[:3] == [
        "INFO acme.flows: loaded 3 rows",
        "ERROR acme.flows: it failed",
        "Traceback (most recent call last):",
    ]
    assert lines[-2:] == ["ValueError: why", "INFO quiet: as a library"]


async def test_log_records_that_a_flow_prints_itself_are_kept_once(runner: Runner) -> None:
    """D28: `logging.basicConfig` works as anywhere else."""
    ran = await runner.run("configures_logging")
    assert [(entry.stream, entry.text) for entry in ran.log.kept] == [
        ("stderr", "mine: once\n"),
        ("stderr", "mine: as asked for\n"),
    ]


async def test_the_first_and_the_last_lines_are_kept_and_the_rest_is_counted(runner: Runner) -> None:
    """D28"""
    ran = await runner.run("prints_much", lines=100_000)
    lines = ran.log.lines()
    (mark,) = (entry for entry in ran.log.kept if entry.cut_lines)
    assert (lines[0], lines[1][:14], lines[-1]) == ("first", "line 000000000", "last")
    assert mark.text == f"… {mark.cut_lines:,} lines ({mark.cut_bytes:,} bytes) were cut here …\n"
    assert mark.cut_lines + len(lines) - 1 == 100_002
    assert mark.cut_bytes == mark.cut_lines * len("line 000000000 " + "x" * 80 + "\n")
    kept = sum(len(entry.text) for entry in ran.log.kept)
    assert 0.95 * MAX_TASK_BYTES < kept < 1.05 * MAX_TASK_BYTES
    assert ran.result < MAX_GROWN_KIB


async def test_a_line_that_never_ends_takes_bounded_room(runner: Runner) -> None:
    """D28"""
    ran = await runner.run("never_ends_its_line")
    text = "".join(entry.text for entry in ran.log.kept if not entry.cut_bytes)
    (mark,) = (entry for entry in ran.log.kept if entry.cut_bytes)
    assert text.endswith("the end\n")
    assert mark.text == f"… {mark.cut_bytes:,} bytes were cut here …\n"
    assert mark.cut_bytes + len(text) == 50_000_000 + len("the end\n")
    assert ran.result < MAX_GROWN_KIB


async def test_those_who_watch_see_the_newest_of_what_is_not_stored_yet(
    runner: Runner, tmp_path: Path
) -> None:
    """D28"""
    flow, log = await runner.start("watched", marks=str(tmp_path))
    flow.go_live()

    async def newest() -> int:
        return max((entry.n for entry in log.entries), default=-1)

    await until(newest, lambda n: n == 1_999)
    assert any(entry.is_excerpt for entry in log.entries)
    assert len(log.kept) < 1_000
    (tmp_path / "go").touch()
    ran = await runner.ended(flow, log)
    assert ran.log.lines()[-1].startswith("line 000001999")


async def test_a_thread_that_outlives_its_run_does_not_print_into_the_next(
    runner: Runner, tmp_path: Path
) -> None:
    """D11"""
    ran = await runner.run("leaves_a_thread", marks=str(tmp_path))
    assert ran.log.lines()[0] == "mine"
    after = await runner.run("waits_a_moment", is_live=True, marks=str(tmp_path))
    assert after.log.lines() == ["begin", "end"]


async def test_the_last_output_of_a_crashed_executor_is_kept(runner: Runner, tmp_path: Path) -> None:
    """D28: what it printed, and where in its code it crashed."""
    flow, log = await runner.start("crashes", marks=str(tmp_path))
    flow.go_live()

    async def printed() -> list[str]:
        return log.lines()

    await until(printed)
    (tmp_path / "go").touch()
    ran = await runner.ended(flow, log)
    assert ran.ending == "execution_error"
    texts = [entry.text for entry in log.entries]
    assert texts[0] == "soon\n"
    assert "Segmentation fault" in texts[1]
    assert "crashes" in texts[1]
    assert "was killed by SIGSEGV; the last lines before that may be missing" in texts[-1]
