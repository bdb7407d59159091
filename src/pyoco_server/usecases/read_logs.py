"""What a run's flow printed."""

from collections.abc import AsyncIterator

from pyoco_server.domain.task_logs import LogLine
from pyoco_server.usecases.callers import Caller
from pyoco_server.usecases.ports import TaskLogs
from pyoco_server.usecases.read_run import ReadRun


class ReadLogs:
    def __init__(self, read_run: ReadRun, task_logs: TaskLogs) -> None:
        self._read_run = read_run
        self._task_logs = task_logs

    async def __call__(self, run_id: str, caller: Caller, task: str | None, limit: int) -> list[LogLine]:
        """The last `limit` lines (of one task, if asked for), oldest first. Raises RunNotFound."""
        await self._read_run(run_id, caller)
        lines = [line async for line in self._wanted(run_id, task)]
        return sorted(lines, key=lambda line: (line.attempt, line.n))[-limit:]

    async def _wanted(self, run_id: str, task: str | None) -> AsyncIterator[LogLine]:
        async for line in self._task_logs.read(run_id):
            if task is None or line.task == task:
                yield line
