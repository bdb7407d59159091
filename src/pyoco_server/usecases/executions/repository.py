"""The folded states of executions: from memory, from the cache, or from the log, and always the same."""

from collections import OrderedDict

from msgspec import Struct

from pyoco_server.domain.codec import Unreadable
from pyoco_server.domain.executions.events import Commit
from pyoco_server.domain.executions.records import (
    ExecutionRecord,
    LoggedCommit,
    advance,
    memory_of_commit,
    memory_of_state,
    replace,
    summarise,
)
from pyoco_server.errors import NatsUnavailable, SnapshotTooLarge
from pyoco_server.logs import best_effort, get_logger
from pyoco_server.usecases.concurrency import BoundedMemory
from pyoco_server.usecases.ports.executions import ExecutionCache, ExecutionIndex, ExecutionLog
from pyoco_server.usecases.ports.stores import Change, Revision, Versioned, WrongRevision

log = get_logger(__name__)

MAX_IN_MEMORY = 2_000
MAX_BYTES_IN_MEMORY = 16_000_000
"""An input of 256 KiB may take 10 MB once it is decoded; the cache has it for whoever needs it again."""
SAVE_TRIES = 5
FAR_BEHIND = 50
"""Events that a reader folds from the log with less effort than writing the cache for each would take."""


class _Held(Struct, frozen=True):
    record: ExecutionRecord
    cached: Revision | None = None
    """The cache's revision when it was last read or written."""
    cached_version: int = 0


class ExecutionRepository:
    def __init__(self, executions: ExecutionLog, cache: ExecutionCache, index: ExecutionIndex) -> None:
        """`index` knows the newest version of each execution that this process has heard of."""
        self._log = executions
        self._cache = cache
        self._index = index
        self._memory: BoundedMemory[_Held] = BoundedMemory(MAX_IN_MEMORY, MAX_BYTES_IN_MEMORY)
        self._written: OrderedDict[Revision, None] = OrderedDict()
        """Commits of this process that it has not heard of yet."""

    async def known(self, execution_id: str) -> ExecutionRecord | None:
        """The state as this process knows it: right enough to act on, since the log refuses what is late."""
        held = self._memory.used(execution_id)
        if held is not None:
            return held.record
        return await self.stored(execution_id)

    async def stored(self, execution_id: str) -> ExecutionRecord | None:
        """The state in the cache, with whatever the log has beyond it."""
        cached = await self._cached(execution_id)
        if cached is None:
            record = await self._caught_up(execution_id, None)
        elif cached.value.state.version < self._index.version(execution_id):
            record = await self._caught_up(execution_id, cached.value)
        else:
            record = cached.value
        if record is None:
            return None
        if cached is None:
            self._remember(execution_id, _Held(record))
        else:
            self._remember(execution_id, _Held(record, cached.revision, cached.value.state.version))
        if cached is None or record is not cached.value:
            await self.save(record)
        return record

    async def fresh(self, execution_id: str) -> ExecutionRecord | None:
        """The state with everything that is in the log now."""
        known = await self.known(execution_id)
        return await self._caught_up(execution_id, known)

    async def append(self, record: ExecutionRecord | None, commit: Commit) -> ExecutionRecord:
        """The record with the commit. Raises WrongRevision when the log has gone on without us."""
        expected = Revision(0 if record is None else record.log_revision)
        after = advance(record, commit, 0)
        assert after is not None  # noqa: S101 - the first commit creates it
        logged = LoggedCommit(commit, summarise(after.state))
        try:
            revision = await self._log.append(logged, expected)
        except WrongRevision:
            self._memory.forget(commit.execution_id)
            raise
        self._index.apply([Change(commit.execution_id, revision, logged, None)])  # lists show it at once
        self._written[revision] = None
        while len(self._written) > MAX_IN_MEMORY:
            self._written.popitem(last=False)
        appended = ExecutionRecord(state=after.state, log_revision=revision, keys=after.keys)
        self._go_on(appended, self._grown_by(commit))
        return appended

    async def save_if_far(self, record: ExecutionRecord) -> None:
        """For commits that others follow soon: the cache is written at the end, and now and then."""
        held = self._memory.get(record.state.execution_id)
        behind = record.state.version - (0 if held is None else held.cached_version)
        if record.state.is_terminal or behind >= FAR_BEHIND:
            await self.save(record)

    async def save(self, record: ExecutionRecord) -> None:
        """Best effort: a cache that is behind costs its next reader a look into the log."""
        with best_effort(log, "execution.cache", NatsUnavailable, execution_id=record.state.execution_id):
            try:
                await self._save(record)
            except SnapshotTooLarge as error:
                log.warning(
                    "an execution's state is too large for its cache; it is folded from the log instead",
                    action="execution.too_large",
                    execution_id=record.state.execution_id,
                    detail=str(error),
                )

    def heard(self, logged: LoggedCommit, revision: Revision) -> bool:
        """A commit that is in the log. False: it was written here, by somebody who knows what follows.

        One that was only read here, by somebody who asked for the state before the feed told of it, is news
        all the same. What is in memory goes on with it, or is forgotten.
        """
        is_news = revision not in self._written
        self._written.pop(revision, None)
        execution_id = logged.commit.execution_id
        held = self._memory.get(execution_id)
        if held is None or held.record.log_revision >= revision:
            return is_news
        after = None
        if held.record.state.version + 1 == logged.commit.first_sequence:
            after = advance(held.record, logged.commit, revision)
        if after is None:
            self._memory.forget(execution_id)
        else:
            size = self._memory.size(execution_id) + memory_of_commit(logged.commit)
            self._memory.keep(execution_id, replace(held, record=after), size)
        return is_news

    def forget_all(self) -> None:
        self._memory.clear()
        self._written.clear()

    async def _cached(self, execution_id: str) -> Versioned[ExecutionRecord] | None:
        """A cache that cannot be read is as good as none: the log has it all."""
        try:
            return await self._cache.get(execution_id)
        except (NatsUnavailable, Unreadable) as error:
            log.warning(
                "the state of an execution is not in its cache; it is folded from the log",
                action="execution.not_cached",
                execution_id=execution_id,
                exc_info=error,
            )
            return None

    async def _caught_up(self, execution_id: str, record: ExecutionRecord | None) -> ExecutionRecord | None:
        after = Revision(0 if record is None else record.log_revision)
        start, heard_of = record, self._index.version(execution_id)
        async for logged, revision in self._log.read(execution_id, after):
            if logged is not None:
                record = advance(record, logged.commit, revision)
            elif record is not None:  # the log goes on behind it, so its place counts
                record = replace(record, log_revision=revision)
        if (0 if record is None else record.state.version) < heard_of:
            # Told by a server that was cut off: nobody is to be refused for what others have done meanwhile.
            raise NatsUnavailable("the execution has gone on, but its log cannot be read yet")
        if record is not None and record is not start:
            self._go_on(record)
        return record

    async def _save(self, record: ExecutionRecord) -> None:
        execution_id = record.state.execution_id
        held = self._memory.get(execution_id)
        cached = None if held is None else held.cached
        for _ in range(SAVE_TRIES):
            try:
                if cached is None:
                    revision = await self._cache.create(execution_id, record)
                else:
                    revision = await self._cache.update(execution_id, record, cached)
            except WrongRevision:
                found = await self._cache.get(execution_id)
                cached = None if found is None else found.revision
                if found is None or found.value.state.version < record.state.version:
                    continue
                revision = found.revision
            self._note_cached(execution_id, revision, record.state.version)
            return

    def _note_cached(self, execution_id: str, revision: Revision, version: int) -> None:
        held = self._memory.get(execution_id)
        if held is not None:
            size = self._memory.size(execution_id)
            self._memory.keep(execution_id, _Held(held.record, revision, version), size)

    def _grown_by(self, commit: Commit) -> int | None:
        """What an execution takes with one more commit, if what it took is known."""
        before = self._memory.size(commit.execution_id)
        return before + memory_of_commit(commit) if before or commit.first_sequence == 1 else None

    def _go_on(self, record: ExecutionRecord, size: int | None = None) -> None:
        """With a newer record; of the cache we know what we knew."""
        held = self._memory.get(record.state.execution_id)
        self._remember(
            record.state.execution_id, _Held(record) if held is None else replace(held, record=record), size
        )

    def _remember(self, execution_id: str, held: _Held, size: int | None = None) -> None:
        known = self._memory.get(execution_id)
        if known is not None and known.record.log_revision >= held.record.log_revision:
            held, size = replace(held, record=known.record), self._memory.size(execution_id)
        if size is None:
            size = memory_of_state(held.record.state)
        self._memory.keep(execution_id, held, size)
