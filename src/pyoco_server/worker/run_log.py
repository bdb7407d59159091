"""What a run prints, on its way into the store: kept until it is written, also while NATS is away."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress

from msgspec.structs import replace

from pyoco_server.domain.runs import Owner
from pyoco_server.domain.task_logs import LogEntry, LogLine, cut_text, line_of
from pyoco_server.domain.wire import Unreadable
from pyoco_server.errors import NatsUnavailable
from pyoco_server.logs import get_logger
from pyoco_server.usecases.ports import TooManyLines, WorkerBackend

log = get_logger(__name__)

BATCH_BYTES = 128 * 1024
"""Text in one write; escaped as JSON it may be six times that, and must fit a message."""
LINE_BYTES = 100
"""What a line takes beside its text."""
RETRY_SEC = 0.5
REFUSED_PATIENCE_SEC = 10.0
"""A run whose log alone cannot be written ends without it then; without NATS it could not end, either."""


class RunLog:
    """One write in flight. The executor bounds what a run may print, so what waits here is bounded too."""

    def __init__(self, backend: WorkerBackend, run_id: str, owner: Owner) -> None:
        self._backend = backend
        self._run_id = run_id
        self._owner = owner
        self._waiting: list[LogLine] = []
        self._next = 0
        self._writes = 0
        self._batch_bytes = BATCH_BYTES
        self._writing: asyncio.Task[None] | None = None
        self._showing: asyncio.Task[None] | None = None

    def add(self, entries: Sequence[LogEntry]) -> None:
        excerpt: list[LogLine] = []
        for entry in entries:
            n = self._next if entry.n < 0 else entry.n
            self._next = max(self._next, n + 1)
            (excerpt if entry.is_excerpt else self._waiting).append(line_of(entry, self._owner.attempt, n))
        if excerpt:
            self._showing = asyncio.ensure_future(self._show(excerpt))
        if self._waiting and (self._writing is None or self._writing.done()):
            self._writing = asyncio.ensure_future(self._write_waiting())

    async def is_written(self) -> None:
        """Or cannot be: whoever sees the run's end is to find its whole log."""
        if self._writing is None:
            return
        refused_for = 0.0
        while not self._writing.done() and refused_for < REFUSED_PATIENCE_SEC:
            await asyncio.wait({self._writing}, timeout=RETRY_SEC)
            if not self._writing.done() and await self._store_answers():
                refused_for += RETRY_SEC
        if self._waiting:
            log.error(
                "the end of the run's log could not be written",
                action="run.log_lost",
                run_id=self._run_id,
                lines=len(self._waiting),
                **NatsUnavailable().ids,
            )

    async def is_written_soon(self) -> None:
        """As far as a moment goes: the run is done again elsewhere."""
        if self._writing is not None:
            await asyncio.wait({self._writing}, timeout=RETRY_SEC)

    def close(self) -> None:
        for task in (self._writing, self._showing):
            if task is not None:
                task.cancel()

    async def _store_answers(self) -> bool:
        """Whether it is the log alone that cannot be written."""
        try:
            await self._backend.runs.get(self._run_id)
        except NatsUnavailable:
            return False
        except Unreadable:
            return True
        return True

    async def _write_waiting(self) -> None:
        is_delayed = False
        batch: list[LogLine] = []
        while self._waiting:
            # The same lines again under the same id: what seemed to fail may have been stored.
            batch = batch or _first_of(self._waiting, self._batch_bytes)
            write_id = f"{self._run_id}.{self._owner.instance_id}.{self._owner.attempt}.{self._writes}"
            try:
                await self._backend.task_logs.append(self._run_id, batch, write_id)
            except TooManyLines:
                self._make_smaller(batch)
                batch = []
            except NatsUnavailable as error:
                if not is_delayed:
                    self._warn(error)
                is_delayed = True
                await asyncio.sleep(RETRY_SEC)
            else:
                del self._waiting[: len(batch)]
                self._writes += 1
                batch, is_delayed = [], False

    def _make_smaller(self, batch: Sequence[LogLine]) -> None:
        """The server takes smaller messages than usual."""
        if len(batch) > 1:
            self._batch_bytes //= 2
            return
        size = len(batch[0].text.encode())
        self._waiting[0] = replace(batch[0], text=cut_text(1, size), cut_lines=1, cut_bytes=size)

    def _warn(self, error: NatsUnavailable) -> None:
        log.warning(
            "the run's log is not written yet",
            action="run.log_delayed",
            run_id=self._run_id,
            exc_info=error,
        )

    async def _show(self, lines: list[LogLine]) -> None:
        with suppress(NatsUnavailable):  # it is for those who watch, and nobody can
            await self._backend.task_logs.show(self._run_id, lines)


def _first_of(lines: Sequence[LogLine], size: int) -> list[LogLine]:
    """As many as fit one write."""
    left = size
    for index, line in enumerate(lines):
        left -= len(line.text) + LINE_BYTES
        if left < 0 and index:
            return list(lines[:index])
    return list(lines)
