"""Large values of a run on their way between its executor and the store.

An executor writes a value to a file, in a directory of its worker; the worker stores it in pieces. Those in
params come the same way. So the worker never holds a value, however large it is.
"""

import asyncio
import errno
import fcntl
import os
import shutil
import tempfile
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import aclosing, asynccontextmanager, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

from msgspec.structs import replace

from pyoco_server.domain.large_values import (
    JSON,
    Place,
    StoredValue,
    owned_by_run,
    reference_at,
    reference_to,
    written_place,
)
from pyoco_server.domain.runs.jobs import Ending, FlowOutcome, FlowProgress, Job, ParamFile, ValueFile
from pyoco_server.domain.runs.model import Reusable
from pyoco_server.domain.values import bounded_warnings
from pyoco_server.errors import NatsUnavailable, Unresolvable
from pyoco_server.logs import get_logger
from pyoco_server.usecases.ports.runs import WorkerBackend
from pyoco_server.worker.run_log import REFUSED_PATIENCE_SEC, store_answers

log = get_logger(__name__)

CHUNK_BYTES = 128 * 1024
RETRY_SEC = 0.5
LOCK = "lock"
_PREFIX = "pyoco-values-"


@contextmanager
def values_directory() -> Iterator[str]:
    """For one worker process. What a killed one has left is removed by the next on this machine."""
    for left in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        _remove_left(left)
    path, lock = _locked_directory()
    try:
        yield str(path)
    finally:
        shutil.rmtree(path, ignore_errors=True)
        lock.close()


def _locked_directory() -> tuple[Path, BinaryIO]:
    """Another worker that starts now may remove a directory before it is locked: then a new one is made."""
    while True:
        path = Path(tempfile.mkdtemp(prefix=_PREFIX))
        with suppress(FileNotFoundError):
            lock = (path / LOCK).open("wb")
            fcntl.flock(lock, fcntl.LOCK_EX)
            if (path / LOCK).exists():
                return path, lock
            lock.close()


def _remove_left(directory: Path) -> None:
    """Its worker holds the lock. A pid would not do: containers that share a disk have their own."""
    try:
        with (directory / LOCK).open("rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(directory, ignore_errors=True)
    except OSError as error:  # it is locked, of another user, or has no lock yet
        log.debug("kept a directory of values", action="value.kept", exc_info=error)


class FetchValues:
    """Reads the stored values in the params of a job into files."""

    def __init__(self, backend: WorkerBackend, directory: str) -> None:
        """`directory`: empty: that of temporary files."""
        self._backend = backend
        self._directory = directory or None

    @asynccontextmanager
    async def files_of(self, job: Job) -> AsyncGenerator[tuple[ParamFile, ...], None]:
        """They are removed in the end. Raises Unresolvable, NatsUnavailable."""
        paths: dict[str, str] = {}
        try:
            yield tuple([await self._file(job, place, paths) for place in job.values])
        finally:
            _remove(paths.values())

    async def _file(self, job: Job, place: Place, paths: dict[str, str]) -> ParamFile:
        try:
            reference = reference_at({"params": job.params}, place)
            if reference.sha256 not in paths:
                await self._fetch(job, place, reference.sha256, paths)
        except ValueError as error:
            raise Unresolvable(str(error)) from None
        except OSError as error:
            problem = f"{written_place(place)}: a large value cannot be written to a file: {error.strerror}"
            raise Unresolvable(problem) from error
        return ParamFile(place[1:], paths[reference.sha256], reference.part)

    async def _fetch(self, job: Job, place: Place, sha256: str, paths: dict[str, str]) -> None:
        found = await self._backend.values.find(job.tenant_id, sha256)
        if found is None:
            raise Unresolvable(f"{written_place(place)}: its stored value does not exist any more")
        descriptor, paths[sha256] = tempfile.mkstemp(prefix=f"{job.run_id}.", dir=self._directory)
        with os.fdopen(descriptor, "wb") as file:
            async with aclosing(self._backend.values.read(found)) as chunks:
                async for chunk in chunks:
                    await asyncio.to_thread(file.write, chunk)


class StoreValues:
    """Stores what a flow has returned, and puts references in place of it."""

    def __init__(self, backend: WorkerBackend, patience_sec: float = REFUSED_PATIENCE_SEC) -> None:
        self._backend = backend
        self._patience_sec = patience_sec

    async def __call__(self, job: Job, outcome: FlowOutcome) -> FlowOutcome:
        """Waits for NATS, as the end of the run does."""
        try:
            if outcome.ending is not Ending.COMPLETED:
                return replace(outcome, files=())
            for file in outcome.files:
                reference = await self._stored(job, file)
                if reference is None:
                    return _without_result(outcome, file)
                outcome = _with_reference(outcome, file, reference)
            return replace(outcome, files=())
        finally:
            _remove([file.path for file in outcome.files])

    async def _stored(self, job: Job, file: ValueFile) -> dict[str, Any] | None:
        """None: NATS answers, but refuses it."""
        values, owner = self._backend.values, owned_by_run(job.run_id)
        try:
            stored = await kept_trying(
                self._backend,
                job.run_id,
                lambda: values.put(job.tenant_id, owner, JSON, chunks_of(file.path)),
                self._patience_sec,
            )
        except OSError:
            log.exception("file of a large value is gone", action="value.lost")
            return None
        return None if stored is None else reference_to(stored)


async def kept_trying(
    backend: WorkerBackend, run_id: str, put: Callable[[], Awaitable[StoredValue]], patience_sec: float
) -> StoredValue | None:
    """Waits for NATS. None: it answers, but refuses the value."""
    refused_for = 0.0
    while refused_for < patience_sec:
        try:
            return await put()
        except NatsUnavailable as error:
            log.warning("large value not stored yet", action="value.delayed", exc_info=error)
            refused_for += RETRY_SEC if await store_answers(backend, run_id) else 0.0
            await asyncio.sleep(RETRY_SEC)
    log.error("large value could not be stored", action="value.lost", **NatsUnavailable().ids)
    return None


def _remove(paths: Iterable[str]) -> None:
    for path in paths:
        with suppress(OSError):
            Path(path).unlink()


async def chunks_of(path: str, most_bytes: int | None = None) -> AsyncIterator[bytes]:
    """Raises OSError, also if the file has become larger than `most_bytes`."""
    left = most_bytes
    with await asyncio.to_thread(Path(path).open, "rb") as file:
        while chunk := await asyncio.to_thread(partial(file.read, CHUNK_BYTES)):
            if left is not None:
                left -= len(chunk)
                if left < 0:
                    raise OSError(errno.EFBIG, "it grows while it is saved")
            yield chunk


def _with_reference(outcome: FlowOutcome, file: ValueFile, reference: dict[str, Any]) -> FlowOutcome:
    """In the result, and in the record of the task that returned it."""
    result = {**(outcome.result or {}), file.task: reference}
    places: list[Place] = [("result", file.task)]
    progress = outcome.progress
    record = progress.task_records.get(file.task)
    if record is not None:
        places.append(("task_records", file.task, "output"))
        progress = _with_output(progress, file.task, reference)
    return replace(outcome, result=result, progress=progress, values=(*outcome.values, *places))


def _with_output(progress: FlowProgress, task: str, reference: dict[str, Any]) -> FlowProgress:
    """A retry from the failed tasks does not keep it: its worker would need the value itself."""
    record = replace(progress.task_records[task], output=reference, reusable=Reusable.NOT_EXACT)
    return replace(progress, task_records={**progress.task_records, task: record})


def _without_result(outcome: FlowOutcome, file: ValueFile) -> FlowOutcome:
    text = f"task {file.task!r} returned {file.size:,} bytes of JSON, which could not be stored"
    warnings = bounded_warnings([text, *outcome.warnings])
    return replace(
        outcome, result=None, result_truncated=True, values=(), files=outcome.files, warnings=warnings
    )
