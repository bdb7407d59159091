"""What flows print, in memory."""

from collections import defaultdict
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence

from pyoco_server.domain.task_logs import LogLine, LogRecord


class MemoryTaskLogs:
    def __init__(self) -> None:
        self._records: dict[str, list[LogRecord]] = defaultdict(list)
        self._written: set[str] = set()
        self._followers: dict[str, list[Callable[[Sequence[LogLine]], None]]] = defaultdict(list)

    async def append(self, run_id: str, lines: Sequence[LogLine], write_id: str = "") -> None:
        if write_id in self._written:
            return
        if write_id:
            self._written.add(write_id)
        records = self._records[run_id]
        records.append(LogRecord(len(records) + 1, list(lines)))
        await self.show(run_id, lines)

    async def show(self, run_id: str, lines: Sequence[LogLine]) -> None:
        for callback in list(self._followers[run_id]):
            callback(lines)

    async def read(self, run_id: str, after: int = 0) -> AsyncGenerator[LogRecord, None]:
        for record in self._records[run_id][after:]:
            yield record

    async def follow(
        self, run_id: str, callback: Callable[[Sequence[LogLine]], None]
    ) -> Callable[[], Awaitable[None]]:
        self._followers[run_id].append(callback)

        async def stop() -> None:
            self._followers[run_id].remove(callback)

        return stop
