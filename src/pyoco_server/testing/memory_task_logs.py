"""What flows print, in memory."""

from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

from pyoco_server.domain.task_logs import LogLine


class MemoryTaskLogs:
    def __init__(self) -> None:
        self._lines: dict[str, list[LogLine]] = defaultdict(list)
        self._followers: dict[str, list[Callable[[Sequence[LogLine]], None]]] = defaultdict(list)

    async def append(self, run_id: str, lines: Sequence[LogLine]) -> None:
        self._lines[run_id].extend(lines)
        for callback in list(self._followers[run_id]):
            callback(lines)

    async def read(self, run_id: str) -> AsyncIterator[LogLine]:
        for line in list(self._lines[run_id]):
            yield line

    async def follow(
        self, run_id: str, callback: Callable[[Sequence[LogLine]], None]
    ) -> Callable[[], Awaitable[None]]:
        self._followers[run_id].append(callback)

        async def stop() -> None:
            self._followers[run_id].remove(callback)

        return stop
