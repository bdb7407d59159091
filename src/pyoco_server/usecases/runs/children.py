"""Child runs of tasks, submitted by a gateway: only it knows limits, lanes and the flows of all workers."""

import asyncio

from pyoco_server.domain.runs.children import (
    ChildAnswer,
    ChildOrder,
    child_run_id,
    is_another,
    refusal_of,
    submission_of,
)
from pyoco_server.errors import NatsUnavailable, PyocoServerError
from pyoco_server.logs import best_effort, get_logger
from pyoco_server.usecases.ports.runs import ChildRuns, RunStore
from pyoco_server.usecases.runs.submit import SubmitRun, is_first_try_pending

log = get_logger(__name__)

RETRY_SEC = 1.0


class SubmitChildren:
    def __init__(self, children: ChildRuns, runs: RunStore, submit_run: SubmitRun) -> None:
        self._children = children
        self._runs = runs
        self._submit_run = submit_run

    async def run(self) -> None:
        """Answer the requests of workers."""
        while True:
            with best_effort(log, "children.serve", NatsUnavailable):
                stop = await self._children.serve(self)
                try:
                    await asyncio.get_running_loop().create_future()
                finally:
                    await stop()
            await asyncio.sleep(RETRY_SEC)

    async def __call__(self, order: ChildOrder) -> ChildAnswer:
        try:
            return await self._answer(order)
        except PyocoServerError as error:
            is_passing = isinstance(error, NatsUnavailable)
            return ChildAnswer(error=f"{error.detail} ({error.ids['err_id']})", is_passing=is_passing)

    async def _answer(self, order: ChildOrder) -> ChildAnswer:
        parent = await self._runs.get(order.parent_run_id)
        refusal = refusal_of(None if parent is None else parent.value, order)
        if refusal is not None or parent is None:
            return refusal or ChildAnswer()
        submission, run_id = submission_of(parent.value, order.child), child_run_id(order)
        known = await self._runs.get(run_id)
        if known is None:
            await self._submit_run.check_request(submission)
        elif is_another(known.value, submission):
            return ChildAnswer(error=f"key {order.child.key!r} was used with another flow or other params")
        if known is None or is_first_try_pending(known.value):
            await self._submit_run.place_new(submission, run_id)
        return ChildAnswer(run_id=run_id)
