"""What tasks ask for while their flow runs: answered by the worker, or by a gateway through it."""

import asyncio
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Protocol

from msgspec import Struct
from msgspec.structs import replace

from pyoco_server.domain.artifacts import BINARY, RunArtifact, problem_with, refusal_of, replaced
from pyoco_server.domain.large_values import ARTIFACT, StoredValue, owned_as_artifact
from pyoco_server.domain.runs.children import ChildAnswer, ChildOrder
from pyoco_server.domain.runs.model import Owner, RunSnapshot
from pyoco_server.domain.runs.task_requests import ArtifactRequest, ChildRequest, TaskAnswer, TaskRequest
from pyoco_server.errors import NatsUnavailable, PyocoServerError
from pyoco_server.logs import best_effort, get_logger
from pyoco_server.usecases.ports.runs import WorkerBackend
from pyoco_server.usecases.ports.stores import Clock
from pyoco_server.worker.run_log import REFUSED_PATIENCE_SEC
from pyoco_server.worker.values import chunks_of, kept_trying

log = get_logger(__name__)

RETRY_SEC = 0.5
PATIENCE_SEC = 60.0
"""How long a task waits for a gateway, e.g. during an update of all."""


class AskingRun(Protocol):
    """The run of the task."""

    owner: Owner
    saving: asyncio.Lock
    """One artifact at a time: each counts against the quota of the next."""

    @property
    def run(self) -> RunSnapshot: ...
    async def keep_artifact(self, artifact: RunArtifact) -> bool:
        """False: the run is lost."""
        ...


class Quota(Struct, frozen=True):
    """Bytes of artifacts."""

    of_run: int
    of_tenant: int


class AnswerTasks:
    """Of all runs of a worker."""

    def __init__(
        self, backend: WorkerBackend, clock: Clock, quota: Quota, patience_sec: float = REFUSED_PATIENCE_SEC
    ) -> None:
        self._backend = backend
        self._patience_sec = patience_sec
        self._clock = clock
        self._quota = quota

    async def __call__(self, asking: AskingRun, request: TaskRequest) -> TaskAnswer:
        try:
            if isinstance(request, ChildRequest):
                return await self._child(ChildOrder(asking.run.run_id, asking.owner, request))
            return TaskAnswer(error=await self._artifact(asking, request))
        except PyocoServerError as error:
            return TaskAnswer(error=f"{error.detail} ({error.ids['err_id']})")

    # Child runs

    async def _child(self, order: ChildOrder) -> TaskAnswer:
        loop = asyncio.get_running_loop()
        until = loop.time() + PATIENCE_SEC
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

    # Artifacts

    async def _artifact(self, asking: AskingRun, request: ArtifactRequest) -> str | None:
        try:
            async with asking.saving:
                return problem_with(request.name, request.media_type) or await self._saved(asking, request)
        except _Refused as error:
            return str(error)
        except OSError as error:
            return f"artifact {request.name!r} cannot be read: {error.strerror}"
        finally:
            if request.is_temporary:
                _remove(request.path)

    async def _saved(self, asking: AskingRun, request: ArtifactRequest) -> str | None:
        run, path = asking.run, Path(request.path)
        size = (await asyncio.to_thread(path.stat)).st_size
        wanted = RunArtifact(request.name, size, request.media_type, "", request.task, self._clock())
        put = partial(self._put, run, wanted, request.path)
        stored = await kept_trying(self._backend, run.run_id, put, self._patience_sec)
        if stored is None:
            return f"artifact {request.name!r} could not be stored: NATS refuses it"
        artifact = replace(wanted, size=stored.size, sha256=stored.sha256)
        gone = replaced(asking.run.artifacts, artifact)
        if not await asking.keep_artifact(artifact):
            return "the run has ended, or another worker executes it"
        if gone is not None:
            with best_effort(log, "artifact.withdraw", NatsUnavailable, run_id=run.run_id):
                await self._backend.values.withdraw(run.tenant_id, owned_as_artifact(run.run_id), gone)
        return None

    async def _put(self, run: RunSnapshot, wanted: RunArtifact, path: str) -> StoredValue:
        values, quota = self._backend.values, self._quota
        of_tenant = await values.bytes_used(run.tenant_id, ARTIFACT)
        refusal = refusal_of(run.artifacts, wanted, quota.of_run, of_tenant, quota.of_tenant)
        if refusal is not None:
            raise _Refused(refusal)
        content = chunks_of(path, wanted.size)
        return await values.put(run.tenant_id, owned_as_artifact(run.run_id), BINARY, content)


def _remove(path: str) -> None:
    with suppress(OSError):
        Path(path).unlink()


class _Refused(Exception):
    """By a quota."""
