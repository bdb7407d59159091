"""Cancel a run. What was answered CANCELLING ends CANCELLED, with or without a worker."""

from pyoco_server.domain.names import is_run_id
from pyoco_server.domain.run_changes import ConvergeCancel, Refusal, RequestCancel
from pyoco_server.domain.runs import RunSnapshot, RunStatus
from pyoco_server.errors import NatsUnavailable, RunNotFound
from pyoco_server.logs import best_effort, get_logger
from pyoco_server.usecases.callers import Caller, may_see
from pyoco_server.usecases.change_run import change_run
from pyoco_server.usecases.keep_cancels import KeepCancels
from pyoco_server.usecases.own_writes import OwnWrites
from pyoco_server.usecases.ports import Clock, RunStore, Versioned

log = get_logger(__name__)


class CancelRun:
    def __init__(
        self, runs: RunStore, own_writes: OwnWrites, keep_cancels: KeepCancels, clock: Clock
    ) -> None:
        self._runs = runs
        self._own_writes = own_writes
        self._keep_cancels = keep_cancels
        self._clock = clock

    async def __call__(self, run_id: str, caller: Caller, reason: str | None) -> RunSnapshot:
        """The run as it is after the request: CANCELLING, or whatever it ended as before."""
        current = await self._runs.get(run_id) if is_run_id(run_id) else None
        if current is None or not may_see(caller, current.value):
            raise RunNotFound
        return await self._ask(run_id, current, RequestCancel(requested_by=caller.name, reason=reason))

    async def of_system(self, run_id: str, requested_by: str, reason: str) -> None:
        """A cancel by a part of the server. A run that is not there needs none."""
        current = await self._runs.get(run_id)
        if current is not None:
            await self._ask(run_id, current, RequestCancel(requested_by=requested_by, reason=reason))

    async def _ask(self, run_id: str, current: Versioned[RunSnapshot], change: RequestCancel) -> RunSnapshot:
        asked = await change_run(self._runs, run_id, change, self._clock, known=current)
        if asked is None or isinstance(asked, Refusal):
            raise RunNotFound
        self._own_writes.wrote(asked.revision)
        if asked.value.status is RunStatus.CANCELLING:
            log.info("cancel accepted", action="run.cancel_requested", run_id=run_id, by=change.requested_by)
            self._keep_cancels.accepted(run_id, change)
            await self._converge(run_id, asked)
        return asked.value

    async def _converge(self, run_id: str, asked: Versioned[RunSnapshot]) -> None:
        """A run that no worker holds is ended here. If that fails, it is ended like one that has a worker."""
        if asked.value.owner is not None:
            return
        with best_effort(log, "run.cancel_converge", NatsUnavailable, run_id=run_id):
            ended = await change_run(self._runs, run_id, ConvergeCancel(), self._clock, known=asked)
            if isinstance(ended, Versioned):
                self._own_writes.wrote(ended.revision)
