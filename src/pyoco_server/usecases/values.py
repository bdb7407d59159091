"""Large values: read by callers of their tenant, and removed with the last run that uses them."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Mapping
from contextlib import aclosing
from typing import Any, Protocol

import msgspec
from msgspec.structs import replace

from pyoco_server.domain.artifacts import RunArtifact
from pyoco_server.domain.fleet import READS_VALUES
from pyoco_server.domain.inputs import is_run_id
from pyoco_server.domain.large_values import (
    JSON,
    ByteRange,
    Place,
    StoredValue,
    ValueUse,
    execution_of_owner,
    hashes_in,
    owned_by_run,
    reference_to,
    run_of_owner,
    sha256_in,
    to_store,
    written_place,
)
from pyoco_server.domain.runs.jobs import Job, Submission
from pyoco_server.errors import ArtifactNotFound, InvalidRequest, NatsUnavailable, RunNotFound, ValueNotFound
from pyoco_server.logs import best_effort, get_logger
from pyoco_server.usecases.auth import Caller, may_see
from pyoco_server.usecases.ports.runs import RunIndex, RunStore, ValueStore

log = get_logger(__name__)

PIECE_BYTES = 128 * 1024
UPLOAD_SEC = 3600.0
"""An upload without progress for this long is considered abandoned."""
SETTLED_SEC = 600.0
"""A gateway may not have seen the run of a younger use yet."""


class StoreParams:
    """Stores large params beside their run, so that a job and a snapshot can hold the rest."""

    def __init__(self, values: ValueStore) -> None:
        self._values = values

    async def __call__(self, job: Job, most_bytes: int) -> Job:
        """What names secrets or stored values stays."""
        params = job.params or {}
        fixed = {str(one.path[0]) for one in job.references or () if one.path}
        fixed |= {place[1] for place in job.values}
        encoded = {name: msgspec.json.encode(value) for name, value in params.items()}
        stored: dict[str, Any] = {}
        for name in to_store({name: len(data) for name, data in encoded.items()}, fixed, most_bytes):
            chunks = _pieces(encoded[name])
            value = await self._values.put(job.tenant_id, owned_by_run(job.run_id), JSON, chunks)
            stored[name] = reference_to(value)
        if not stored:
            return job
        values = (*job.values, *(("params", name) for name in stored))
        return replace(job, params={**params, **stored}, values=values)


class StoreRequest:
    """Stores the large params of a client, before its run exists."""

    def __init__(
        self,
        values: ValueStore,
        lacking: Callable[[str, str], list[str]],
        new_id: Callable[[], str],
    ) -> None:
        """`lacking`: ids of live workers that are too old for a feature, of a tag."""
        self._values = values
        self._lacking = lacking
        self._new_id = new_id

    async def __call__(self, submission: Submission, large: Mapping[str, AsyncIterator[bytes]]) -> Submission:
        """Raises InvalidRequest, NatsUnavailable. What nobody uses in the end is swept."""
        if older := self._lacking(READS_VALUES, submission.tag):
            raise InvalidRequest(too_old(("params", next(iter(large))), submission.tag, older))
        owner, params = owned_by_run(self._new_id()), dict(submission.params)
        for name, chunks in large.items():
            params[name] = reference_to(await self._values.put(submission.tenant_id, owner, JSON, chunks))
        return replace(submission, params=params, values=tuple(("params", name) for name in large))


def too_old(place: Place, tag: str, older: list[str]) -> str:
    return (
        f"{written_place(place)} is a large value; workers that are too old to read it have the tag {tag!r}: "
        f"{', '.join(older[:5])}; update them"
    )


async def _pieces(data: bytes) -> AsyncIterator[bytes]:
    for start in range(0, len(data), PIECE_BYTES):
        yield data[start : start + PIECE_BYTES]


class KnowsExecutions(Protocol):
    """Of the index of executions."""

    def version(self, execution_id: str) -> int: ...
    def is_deleted(self, execution_id: str) -> bool: ...


class ReadValue:
    def __init__(self, values: ValueStore) -> None:
        self._values = values

    async def find(self, name: str, caller: Caller) -> StoredValue:
        """`name`: a hash, with or without `sha256:`. Another tenant's value is treated as missing.

        Raises ValueNotFound.
        """
        sha256 = sha256_in(name)
        found = None
        if sha256 is not None:
            is_any = caller.tenant_id is None
            found = await self._values.find(caller.tenant_id, sha256, of_any=is_any)
        if found is None:
            raise ValueNotFound
        return found

    async def read(self, value: StoredValue, wanted: ByteRange) -> AsyncGenerator[bytes, None]:
        position = 0
        async with aclosing(self._values.read(value)) as chunks:
            async for chunk in chunks:
                part = chunk[max(0, wanted.start - position) : max(0, wanted.end - position)]
                position += len(chunk)
                if part:
                    yield part
                if position >= wanted.end:
                    return


class ReadArtifact:
    def __init__(self, runs: RunStore, values: ValueStore) -> None:
        self._runs = runs
        self._values = values

    async def list(self, run_id: str, caller: Caller) -> tuple[RunArtifact, ...]:
        """Raises RunNotFound."""
        found = await self._runs.get(run_id) if is_run_id(run_id) else None
        if found is None or not may_see(caller, found.value):
            raise RunNotFound
        return found.value.artifacts

    async def find(self, run_id: str, name: str, caller: Caller) -> tuple[RunArtifact, StoredValue]:
        """Raises RunNotFound or ArtifactNotFound."""
        for artifact in await self.list(run_id, caller):
            if artifact.name == name:
                is_any = caller.tenant_id is None
                value = await self._values.find(caller.tenant_id, artifact.sha256, of_any=is_any)
                if value is not None:
                    return artifact, value
        raise ArtifactNotFound


class UseValues:
    """Makes runs and executions users of the stored values that they refer to, before they refer to them."""

    def __init__(self, values: ValueStore) -> None:
        self._values = values

    async def __call__(
        self, tenant_id: str | None, owner: str, value: Mapping[str, Any], places: Iterable[Place]
    ) -> bool:
        """False: one of them is not stored any more."""
        for sha256 in hashes_in(value, places):
            if await self._values.use(tenant_id, owner, sha256) is None:
                return False
        return True

    async def of_job(self, job: Job) -> None:
        """Raises InvalidRequest."""
        owner = owned_by_run(job.run_id)
        if not await self(job.tenant_id, owner, {"params": job.params}, job.values):
            raise InvalidRequest("params: a stored value does not exist any more")


class SweepValues:
    """Every use of a value names its run or execution, so the indexes answer whether it is needed."""

    def __init__(
        self,
        values: ValueStore,
        index: RunIndex,
        executions: KnowsExecutions,
        interval_sec: float,
        *,
        settled_sec: float = SETTLED_SEC,
        upload_sec: float = UPLOAD_SEC,
    ) -> None:
        self._values = values
        self._index = index
        self._executions = executions
        self._interval_sec = interval_sec
        self._settled_sec = settled_sec
        self._upload_sec = upload_sec
        self._unneeded: set[tuple[str, str, str]] = set()
        """Of the last sweep."""

    async def run(self, is_index_complete: Callable[[], bool]) -> None:
        while True:
            await asyncio.sleep(self._interval_sec)
            with best_effort(log, "value.sweep", NatsUnavailable):
                if is_index_complete():  # otherwise it may lack runs
                    await self.sweep()

    async def sweep(self) -> None:
        """Remove uses whose runs were gone at the last sweep, too; then content without uses."""
        unneeded = {use.key: use for use in await self._values.uses() if self._is_unneeded(use)}
        gone = unneeded.keys() & self._unneeded
        for key in gone:
            await self._values.release(unneeded[key])
        self._unneeded = unneeded.keys() - gone
        collected = await self._values.collect(self._upload_sec)
        if gone or collected:
            log.info("removed unused values", action="value.swept", uses=len(gone), contents=collected)

    def _is_unneeded(self, use: ValueUse) -> bool:
        return use.age_sec > self._settled_sec and not self._is_known(use.owner)

    def _is_known(self, owner: str) -> bool:
        """Also an owner of a kind that a newer version has."""
        if (run_id := run_of_owner(owner)) is not None:
            return self._index.knows(run_id)
        execution_id = execution_of_owner(owner)
        if execution_id is None:
            return True
        return self._executions.version(execution_id) > 0 and not self._executions.is_deleted(execution_id)
