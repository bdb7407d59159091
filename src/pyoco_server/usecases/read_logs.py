"""What a run's flow printed."""

import re
from contextlib import aclosing

from msgspec import Struct

from pyoco_server.domain.task_logs import LogLine, LogRecord, in_order
from pyoco_server.errors import InvalidRequest
from pyoco_server.usecases.callers import Caller
from pyoco_server.usecases.ports import TaskLogs
from pyoco_server.usecases.read_run import ReadRun

_CURSOR = re.compile(r"(\d{1,19})(?:\.(\d{1,9}))?", re.ASCII)


class LogPage(Struct, frozen=True, kw_only=True):
    lines: list[LogLine]
    next_cursor: str
    """Behind the last line that was read."""
    has_earlier: bool = False
    """There are lines before these."""
    has_more: bool = False
    """There are lines behind these, now."""


class _Position(Struct, frozen=True):
    """Behind the first `taken` lines of the record after `seq`."""

    seq: int = 0
    taken: int = 0

    def __str__(self) -> str:
        return f"{self.seq}.{self.taken}" if self.taken else str(self.seq)


class ReadLogs:
    def __init__(self, read_run: ReadRun, task_logs: TaskLogs) -> None:
        self._read_run = read_run
        self._task_logs = task_logs

    async def last(self, run_id: str, caller: Caller, task: str | None, limit: int) -> LogPage:
        """The last `limit` lines (of one task, if asked for), oldest first. Raises RunNotFound."""
        await self._read_run(run_id, caller)
        found: list[LogLine] = []
        position = _Position()
        async with aclosing(self._task_logs.read(run_id)) as records:
            async for record in records:
                found += _of_task(record.lines, task)
                position = _Position(record.seq)
        lines = in_order(found)
        return LogPage(lines=lines[-limit:], next_cursor=str(position), has_earlier=len(lines) > limit)

    async def page(self, run_id: str, caller: Caller, task: str | None, limit: int, cursor: str) -> LogPage:
        """Up to `limit` lines behind the cursor, in the order in which they were stored.

        The last lines of a task that printed more than is kept are stored when it has ended, behind what
        other tasks printed later: a reader of all pages sorts the lines by attempt and n.
        """
        await self._read_run(run_id, caller)
        position = _position(cursor)
        found: list[LogLine] = []
        async with aclosing(self._task_logs.read(run_id, position.seq)) as records:
            async for record in records:
                if len(found) >= limit:
                    return _page(found, position, has_more=True)
                lines, position = _taken(record, position, limit - len(found))
                found += _of_task(lines, task)
                if position.taken:
                    return _page(found, position, has_more=True)
        return _page(found, position, has_more=False)


def _taken(record: LogRecord, position: _Position, limit: int) -> tuple[list[LogLine], _Position]:
    """Lines of the record, and the position behind them."""
    end = position.taken + limit
    lines = record.lines[position.taken : end]
    return lines, _Position(record.seq) if end >= len(record.lines) else _Position(position.seq, end)


def _page(found: list[LogLine], position: _Position, *, has_more: bool) -> LogPage:
    return LogPage(lines=in_order(found), next_cursor=str(position), has_more=has_more)


def _of_task(lines: list[LogLine], task: str | None) -> list[LogLine]:
    return lines if task is None else [line for line in lines if line.task == task]


def _position(cursor: str) -> _Position:
    match = _CURSOR.fullmatch(cursor)
    if match is None:
        raise InvalidRequest("cursor: not one of this route; 0 is the start of the log")
    return _Position(int(match[1]), int(match[2] or 0))
