"""REQ-0003: a run is accepted as a whole, or not at all."""

import pytest

from pyoco_server.config import NatsBackendConfig
from pyoco_server.domain.runs.jobs import Job, pending
from pyoco_server.domain.runs.model import RunSnapshot, RunStatus
from pyoco_server.errors import NatsUnavailable, PyocoServerError, RequestTooLarge
from pyoco_server.memory import MemoryBackend, open_memory_backend
from pyoco_server.memory.queue import MemoryQueue
from pyoco_server.memory.stores import MemoryStore
from pyoco_server.usecases.ports.queues import JobQueue
from pyoco_server.usecases.ports.runs import RunStore
from pyoco_server.usecases.ports.stores import Revision, WrongRevision
from pyoco_server.usecases.runs.submit import SubmitRun
from support.builders import NOW, RUN_ID, a_job, a_snapshot, a_submission
from support.captured_logs import capture_logs


class FailingQueue(MemoryQueue):
    def __init__(self, error: PyocoServerError) -> None:
        super().__init__(NatsBackendConfig())
        self._error = error

    async def publish(self, job: Job, revision: Revision, message_id: str | None = None) -> bool:
        raise self._error


class AnsweringTooLate(MemoryQueue):
    """The job arrives and a worker has it, but the answer to the publish is lost."""

    def __init__(self, runs: RunStore) -> None:
        super().__init__(NatsBackendConfig())
        self._runs = runs

    async def publish(self, job: Job, revision: Revision, message_id: str | None = None) -> bool:
        await self._runs.update(job.run_id, a_snapshot(), revision)
        raise NatsUnavailable


class CannotRemove(MemoryStore[RunSnapshot]):
    async def remove(self, key: str, expected: Revision | None) -> None:
        raise NatsUnavailable


class CannotCreate(MemoryStore[RunSnapshot]):
    async def create(self, key: str, value: RunSnapshot) -> Revision:
        await super().create(key, value)
        raise NatsUnavailable("written, but the answer is lost")


class UnderWay(MemoryStore[RunSnapshot]):
    """Refuses, for the sake of a write that is not stored and may never be."""

    async def create(self, key: str, value: RunSnapshot) -> Revision:
        raise WrongRevision(key)


def submit(runs: RunStore, queue: JobQueue) -> SubmitRun:
    return SubmitRun(runs, queue, lambda: NOW, lambda: RUN_ID)


def store(kind: type[MemoryStore[RunSnapshot]], backend: MemoryBackend) -> MemoryStore[RunSnapshot]:
    return kind(backend.runs._encode, backend.runs._decode)


async def test_an_accepted_run_has_its_snapshot_and_its_job_knows_the_revision() -> None:
    async with open_memory_backend() as backend:
        snapshot = await submit(backend.runs, backend.queue)(a_submission())
        stored = await backend.runs.get(RUN_ID)
        delivery = backend.queue.take(["pyoco.work.default"])
    assert stored is not None
    assert stored.value == snapshot
    assert delivery is not None
    assert delivery.revision == stored.revision


@pytest.mark.parametrize("error", [NatsUnavailable(), RequestTooLarge("the job has 2 MB")])
async def test_a_run_whose_job_cannot_be_queued_leaves_no_snapshot(error: PyocoServerError) -> None:
    async with open_memory_backend() as backend:
        with pytest.raises(type(error)):
            await submit(backend.runs, FailingQueue(error))(a_submission())
        assert await backend.runs.get(RUN_ID) is None


async def test_a_snapshot_whose_write_was_not_answered_is_taken_back() -> None:
    async with open_memory_backend() as backend:
        runs = store(CannotCreate, backend)
        with pytest.raises(NatsUnavailable):
            await submit(runs, backend.queue)(a_submission())
        assert await runs.get(RUN_ID) is None
        assert backend.queue.take(["pyoco.work.default"]) is None


async def test_a_snapshot_that_cannot_be_taken_back_is_told_to_the_operator() -> None:
    async with open_memory_backend() as backend:
        runs = store(CannotRemove, backend)
        with capture_logs() as logs, pytest.raises(NatsUnavailable):
            await submit(runs, FailingQueue(NatsUnavailable()))(a_submission())
    (line,) = [line for line in logs if line["action"] == "run.withdraw"]
    assert (line["err_id"], line["msg_id"], line["run_id"]) == ("ERR-PYOCO-0004", "MSG-PYOCO-0004", RUN_ID)


async def test_a_run_that_a_worker_has_already_taken_was_accepted() -> None:
    async with open_memory_backend() as backend:
        snapshot = await submit(backend.runs, AnsweringTooLate(backend.runs))(a_submission())
        assert snapshot.run_id == RUN_ID
        assert await backend.runs.get(RUN_ID) is not None


async def test_a_try_that_was_overtaken_by_its_own_repeat_was_accepted() -> None:
    """The repeat, at another gateway, wrote snapshot and job between our claim and our snapshot."""
    async with open_memory_backend() as backend:
        submit = SubmitRun(backend.runs, backend.queue, lambda: NOW, lambda: RUN_ID)
        job = a_job(run_id=RUN_ID)
        await submit.place_claimed(job)
        await submit.place_claimed(job)
        assert await backend.queue.run_ids() == {RUN_ID}
        assert len(backend.queue._messages) == 1


async def test_a_derived_run_that_another_has_placed_without_its_job_gets_it() -> None:
    """The other one was frozen in between, and has lost the right to go on."""
    async with open_memory_backend() as backend:
        await backend.runs.create(RUN_ID, pending(a_job(run_id=RUN_ID)))
        await submit(backend.runs, backend.queue).place_derived(a_job(run_id=RUN_ID))
        assert await backend.queue.run_ids() == {RUN_ID}
        await submit(backend.runs, backend.queue).place_derived(a_job(run_id=RUN_ID))
        assert len(backend.queue._messages) == 1


async def test_f6_a_run_that_is_not_there_was_not_placed() -> None:
    """F6: answered or taken for placed, an event has lost its run, and an execution waits for ever."""
    async with open_memory_backend() as backend:
        runs = store(UnderWay, backend)
        with pytest.raises(NatsUnavailable):
            await submit(runs, backend.queue).place_claimed(a_job(run_id=RUN_ID))
        with pytest.raises(NatsUnavailable):
            await submit(runs, backend.queue).place_derived(a_job(run_id=RUN_ID))
        assert await backend.queue.run_ids() == set()


async def test_a_derived_run_that_a_worker_has_is_left_alone() -> None:
    async with open_memory_backend() as backend:
        await backend.runs.create(RUN_ID, a_snapshot(status=RunStatus.RUNNING))
        await submit(backend.runs, backend.queue).place_derived(a_job(run_id=RUN_ID))
        assert await backend.queue.run_ids() == set()
