"""What tasks ask for while their flow runs: answered by the worker, or by a gateway through it."""

import asyncio

from pyoco_server.domain.runs.children import ChildAnswer, ChildOrder
from pyoco_server.domain.runs.model import Owner
from pyoco_server.domain.runs.task_requests import TaskAnswer, TaskRequest
from pyoco_server.errors import NatsUnavailable, PyocoServerError
from pyoco_server.logs import get_logger
from pyoco_server.usecases.ports.runs import WorkerBackend

log = get_logger(__name__)

RETRY_SEC = 0.5
PATIENCE_SEC = 60.0
"""How long a task waits for a gateway, e.g. during an update of all."""


class AnswerTasks:
    def __init__(self, backend: WorkerBackend, patience_sec: float = PATIENCE_SEC) -> None:
        self._backend = backend
        self._patience_sec = patience_sec

    async def __call__(self, run_id: str, owner: Owner, request: TaskRequest) -> TaskAnswer:
        try:
            return await self._child(ChildOrder(run_id, owner, request))
        except PyocoServerError as error:
            return TaskAnswer(error=f"{error.detail} ({error.ids['err_id']})")

    async def _child(self, order: ChildOrder) -> TaskAnswer:
        loop = asyncio.get_running_loop()
        until = loop.time() + self._patience_sec
        while True:
            answer = await self._asked(order)
            if not answer.is_passing or loop.time() > until:
                return TaskAnswer(run_id=answer.run_id, error=answer.error)
            await asyncio.sleep(RETRY_SEC)

    async def _asked(self, order: ChildOrder) -> ChildAnswer:
        try:
            return await self._backend.child_runs.request(order)
        except NatsUnavailable as error:
            log.warning("child run not started yet", action="child.delayed", exc_info=error)
            return ChildAnswer(error=f"no gateway answers: {error.detail}", is_passing=True)
