"""Ask again for a cancel that was overwritten, until it is seen.

Our own workers write with the revision they decided on, so a cancel cannot get lost between them and us. A
worker of another make may write its whole snapshot over it.
"""

import asyncio
from collections.abc import Iterable

from pyoco_server.domain.run_changes import RequestCancel
from pyoco_server.domain.runs import RunSnapshot, RunStatus
from pyoco_server.errors import NatsUnavailable
from pyoco_server.logs import best_effort, get_logger
from pyoco_server.usecases.change_run import change_run
from pyoco_server.usecases.ports import Change, Clock, RunStore

log = get_logger(__name__)

MAX_REMEMBERED = 10_000
"""The end of a run may pass before its cancel is remembered; such a one must not stay for ever."""


class KeepCancels:
    def __init__(self, runs: RunStore, clock: Clock) -> None:
        self._runs = runs
        self._clock = clock
        self._accepted: dict[str, RequestCancel] = {}
        self._overwritten: set[str] = set()
        self._wake = asyncio.Event()

    def accepted(self, run_id: str, cancel: RequestCancel) -> None:
        """Remembered until the run has ended."""
        self._accepted[run_id] = cancel
        if len(self._accepted) > MAX_REMEMBERED:
            del self._accepted[next(iter(self._accepted))]

    def look(self, changes: Iterable[Change[RunSnapshot]]) -> None:
        """Every change of a run passes here."""
        for change in changes:
            if change.key not in self._accepted:
                continue
            if change.value is None or change.value.status.is_terminal:
                del self._accepted[change.key]
            elif change.value.status is not RunStatus.CANCELLING:
                self._overwritten.add(change.key)
                self._wake.set()

    async def run(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._overwritten:
                await self._ask_again(self._overwritten.pop())

    async def _ask_again(self, run_id: str) -> None:
        cancel = self._accepted.get(run_id)
        if cancel is None:
            return
        log.warning("a cancel was overwritten; asking again", action="run.cancel_again", run_id=run_id)
        with best_effort(log, "run.cancel_again", NatsUnavailable, run_id=run_id):
            await change_run(self._runs, run_id, cancel, self._clock)
