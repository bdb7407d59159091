"""Large values: read by callers of their tenant, and removed with the last run that uses them."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

from pyoco_server.domain.artifacts import RunArtifact
from pyoco_server.domain.inputs import is_run_id
from pyoco_server.domain.large_values import ByteRange, StoredValue, ValueUse, run_of_owner, sha256_in
from pyoco_server.errors import ArtifactNotFound, NatsUnavailable, RunNotFound, ValueNotFound
from pyoco_server.logs import best_effort, get_logger
from pyoco_server.usecases.auth import Caller, may_see
from pyoco_server.usecases.ports.runs import RunIndex, RunStore, ValueStore

log = get_logger(__name__)

UPLOAD_SEC = 3600.0
"""An upload without progress for this long is considered abandoned."""
SETTLED_SEC = 600.0
"""A gateway may not have seen the run of a younger use yet."""


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


class SweepValues:
    """Every use of a value names its run, so the index answers whether it is needed: no run is read."""

    def __init__(
        self,
        values: ValueStore,
        index: RunIndex,
        interval_sec: float,
        *,
        settled_sec: float = SETTLED_SEC,
        upload_sec: float = UPLOAD_SEC,
    ) -> None:
        self._values = values
        self._index = index
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
        run_id = run_of_owner(use.owner)
        return run_id is not None and use.age_sec > self._settled_sec and not self._index.knows(run_id)
