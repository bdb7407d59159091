"""The output of a run, on its way to the store."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress

from msgspec.structs import replace

from pyoco_server.domain.codec import Unreadable
from pyoco_server.domain.runs.logs import LogEntry, LogLine, cut_text, line_of
from pyoco_server.domain.runs.model import Owner
from pyoco_server.errors import NatsUnavailable
from pyoco_server.logs import get_logger
from pyoco_server.usecases.ports.runs import TooManyLines, WorkerBackend

log = get_logger(__name__)

BATCH_BYTES = 128 * 1024
"""Text per write; escaped as JSON it may be six times that, and must fit into a message."""
LINE_BYTES = 100
"""Size of a line without its text."""
LOG_RETRY_SEC = 0.5
REFUSED_PATIENCE_SEC = 10.0
"""Timeout for a log or a value that cannot be written while NATS answers; then the run ends without it."""


class RunLog:
    """The output of a run, buffered until it is stored. One write in flight.

    The executor limits the output of a run, so the buffer is limited, too.
    """

    def __init__(
        self, backend: WorkerBackend, run_id: str, owner: Owner, patience_sec: float = REFUSED_PATIENCE_SEC
    ) -> None:
        self._backend = backend
        self._patience_sec = patience_sec
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

    async def flush(self) -> None:
        """Before the end of the run is written, so that its log is complete by then."""
        if self._writing is None:
            return
        refused_for = 0.0
        while not self._writing.done() and refused_for < self._patience_sec:
            await asyncio.wait({self._writing}, timeout=LOG_RETRY_SEC)
            if not self._writing.done() and await store_answers(self._backend, self._run_id):
                refused_for += LOG_RETRY_SEC
        if self._waiting:
            log.error(
                "end of the run's log could not be written",
                action="run.log_lost",
                run_id=self._run_id,
                lines=len(self._waiting),
                **NatsUnavailable().ids,
            )

    async def flush_briefly(self) -> None:
        """The run is repeated elsewhere: its log is not worth a long wait."""
        if self._writing is not None:
            await asyncio.wait({self._writing}, timeout=LOG_RETRY_SEC)

    def close(self) -> None:
        for task in (self._writing, self._showing):
            if task is not None:
                task.cancel()

    async def _write_waiting(self) -> None:
        is_delayed = False
        batch: list[LogLine] = []
        while self._waiting:
            # A retry has the same lines and the same id: the failed write may have been stored.
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
                await asyncio.sleep(LOG_RETRY_SEC)
            else:
                del self._waiting[: len(batch)]
                self._writes += 1
                batch, is_delayed = [], False

    def _make_smaller(self, batch: Sequence[LogLine]) -> None:
        """The server has a low message limit."""
        if len(batch) > 1:
            self._batch_bytes //= 2
            return
        size = len(batch[0].text.encode())
        self._waiting[0] = replace(batch[0], text=cut_text(1, size), cut_lines=1, cut_bytes=size)

    def _warn(self, error: NatsUnavailable) -> None:
        log.warning(
            "log of the run not written yet",
            action="run.log_delayed",
            run_id=self._run_id,
            exc_info=error,
        )

    async def _show(self, lines: list[LogLine]) -> None:
        with suppress(NatsUnavailable):  # only for watchers, and they are disconnected, too
            await self._backend.task_logs.show(self._run_id, lines)


async def store_answers(backend: WorkerBackend, run_id: str) -> bool:
    """Whether only something else than the run cannot be written."""
    try:
        await backend.runs.get(run_id)
    except NatsUnavailable:
        return False
    except Unreadable:
        return True
    return True


def _first_of(lines: Sequence[LogLine], size: int) -> list[LogLine]:
    """As many as fit into one write."""
    left = size
    for index, line in enumerate(lines):
        left -= len(line.text) + LINE_BYTES
        if left < 0 and index:
            return list(lines[:index])
    return list(lines)
