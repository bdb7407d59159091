"""Real executor processes, and handles of the flows in them."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from pyoco_server.domain.runs.jobs import FlowOutcome, FlowProgress
from pyoco_server.domain.runs.logs import LogEntry
from pyoco_server.domain.runs.task_requests import TaskAnswer, TaskRequest
from pyoco_server.engine.executors.pool import ProcessExecutors
from pyoco_server.engine.executors.process import ExecutorProcess
from pyoco_server.engine.executors.process_flow import ProcessFlowHandle
from pyoco_server.engine.executors.protocol import MAX_QUEUE, ExecutorSpec, Limits
from support import process_flows
from support.builders import a_job
from support.waiting import PATIENCE_SEC, until

TINY_ONES = 30
"""Enough runs for the prefetch to learn that flows are tiny."""


class Listener:
    """Remembers what was reported to it."""

    def __init__(self) -> None:
        self.steps: list[FlowProgress] = []
        self.lines: list[str] = []
        self.flow: ProcessFlowHandle | None = None

    def progressed(self, progress: FlowProgress) -> None:
        self.steps.append(progress)
        if self.flow is not None:
            self.flow.written()

    def printed(self, entries: Sequence[LogEntry]) -> None:
        self.lines += [entry.text for entry in entries]

    def asked(self, request: TaskRequest, answer: Callable[[TaskAnswer], None]) -> None:
        raise NotImplementedError


class Lab:
    def __init__(self, executors: ProcessExecutors, marks: Path) -> None:
        self.executors = executors
        self.marks = marks

    async def start(self, flow: str, **params: Any) -> ProcessFlowHandle:
        job = a_job(flow_name=flow, params={"marks": str(self.marks), **params})
        listener = Listener()
        started = await self.executors.start(job, listener, PATIENCE_SEC)
        assert started is not None
        listener.flow = started
        return started

    async def tiny(self) -> ProcessFlowHandle:
        started = await self.executors.start(a_job(flow_name="tiny", params={}), Listener(), PATIENCE_SEC)
        assert started is not None
        return started

    async def learn_that_flows_are_tiny(self) -> None:
        for _ in range(TINY_ONES):
            await ended(await self.tiny())
        setattr(self.executors.prefetch, "queue_length", lambda: MAX_QUEUE)  # noqa: B010 - on a slow machine, too

    async def reached(self, name: str) -> int:
        """The process that got there."""

        async def look() -> bool:
            return (self.marks / name).exists()

        await until(look)
        return int((self.marks / name).read_text())

    def let_go(self) -> None:
        (self.marks / "go").touch()

    @property
    def processes(self) -> list[ExecutorProcess]:
        return list(self.executors._all)


@asynccontextmanager
async def lab(
    marks: Path, concurrency: int = 1, flows: str | None = None, **limits: float
) -> AsyncIterator[Lab]:
    spec = ExecutorSpec(flow_resolver=f"{flows or process_flows.__file__}:resolve")
    executors = ProcessExecutors(spec, concurrency, Limits(**{"move_timeout_sec": PATIENCE_SEC, **limits}))  # type: ignore[arg-type]
    await executors.open()
    try:
        yield Lab(executors, marks)
    finally:
        await executors.close()


async def ended(flow: ProcessFlowHandle) -> FlowOutcome:
    async with asyncio.timeout(PATIENCE_SEC):
        outcome = await flow.outcome()
    assert outcome is not None
    return outcome


async def endings(flows: list[ProcessFlowHandle]) -> list[str]:
    return [(await ended(flow)).ending for flow in flows]
