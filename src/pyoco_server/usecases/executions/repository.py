"""Folded states of executions, from memory, the cache or the log."""

from collections import OrderedDict
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress

from msgspec import UNSET, Struct

from pyoco_server.domain.codec import Unreadable
from pyoco_server.domain.executions.events import Commit
from pyoco_server.domain.executions.model import MAX_TOTAL_BYTES
from pyoco_server.domain.executions.records import (
    REDUCER,
    ExecutionRecord,
    LoggedCommit,
    advance,
    memory_of_commit,
    memory_of_state,
    replace,
    summarise,
)
from pyoco_server.errors import IndexLost, NatsUnavailable, SnapshotTooLarge
from pyoco_server.logs import best_effort, get_logger
from pyoco_server.usecases.concurrency import ROOM_WAIT_SEC, BoundedMemory, Room
from pyoco_server.usecases.ports.gateway import ExecutionCache, ExecutionIndex, ExecutionLog
from pyoco_server.usecases.ports.stores import Change, Revision, Versioned, WrongRevision

log = get_logger(__name__)

MAX_IN_MEMORY = 2_000
MAX_BYTES_IN_MEMORY = 16_000_000
"""Memory limit; an input of 256 KiB may take 10 MB when decoded, and the cache still has it."""
ROOM_BYTES = MAX_TOTAL_BYTES
"""States decoded at the same time, as JSON. A small one needs no room."""
SMALL_BYTES = 8 * 1024
SAVE_TRIES = 5
FAR_BEHIND = 50
"""Number of events that are cheaper to fold from the log than to cache one by one."""


class _Cached(Struct, frozen=True):
    """The cache of an execution at the last read or write. Known also of those too large for memory."""

    revision: Revision
    version: int


class ExecutionRepository:
    def __init__(self, executions: ExecutionLog, cache: ExecutionCache, index: ExecutionIndex) -> None:
        """`index` has the newest known version of each execution."""
        self._log = executions
        self._cache = cache
        self._index = index
        self._memory: BoundedMemory[ExecutionRecord] = BoundedMemory(MAX_IN_MEMORY, MAX_BYTES_IN_MEMORY)
        self._caches: BoundedMemory[_Cached] = BoundedMemory(MAX_IN_MEMORY, MAX_IN_MEMORY)
        self._room = Room(ROOM_BYTES)
        self._written: OrderedDict[Revision, None] = OrderedDict()
        """Commits of this process that the feed has not delivered yet."""

    @asynccontextmanager
    async def room_for(
        self, *execution_ids: str, within_sec: float | None = ROOM_WAIT_SEC
    ) -> AsyncGenerator[None, None]:
        """Around all work on the state of one of these executions. Raises GatewayOverloaded.

        Without it, reads of a few large executions at the same time would take hundreds of megabytes.
        """
        size = max(map(self._index.held_bytes, execution_ids), default=0)
        if size <= SMALL_BYTES:
            yield
            return
        async with self._room.holding(size, within_sec):
            yield

    async def known(self, execution_id: str) -> ExecutionRecord | None:
        """The state known to this process, sufficient to act on because the log refuses stale writes."""
        held = self._memory.used(execution_id)
        return await self.stored(execution_id) if held is None else held

    async def is_taken(self, execution_id: str) -> bool:
        """Whether its log has anything, also if it was deleted."""
        async for _ in self._log.read(execution_id):
            return True
        return False

    async def bury(self, record: ExecutionRecord, logged: LoggedCommit, ttl_sec: float | None) -> None:
        """Delete it by its last commit. Raises WrongRevision if the log has advanced."""
        execution_id = record.state.execution_id
        try:
            await self._log.bury(logged, Revision(record.log_revision), ttl_sec)
        finally:
            self._memory.forget(execution_id)
        self._show(logged, Revision(record.log_revision))
        await self.erase(execution_id)

    async def erase(self, execution_id: str) -> None:
        """What is left of a deleted one."""
        await self._log.erase(execution_id)
        await self._cache.remove(execution_id, None)
        self._caches.forget(execution_id)

    async def stored(self, execution_id: str) -> ExecutionRecord | None:
        """The cached state with later commits of the log."""
        if self._index.is_deleted(execution_id):
            return None
        cached = await self._cached(execution_id)
        if cached is None:
            record = await self._caught_up(execution_id, None)
        elif cached.value.state.version < self._index.version(execution_id):
            record = await self._caught_up(execution_id, cached.value)
        else:
            record = cached.value
        if record is None:
            return None
        if cached is not None:
            self._note_cached(execution_id, cached.revision, cached.value.state.version)
        self._remember(record)
        if cached is None or record is not cached.value:
            await self.save(record)
        return record

    async def fresh(self, execution_id: str, known: ExecutionRecord | None = None) -> ExecutionRecord | None:
        """The state with all commits in the log. `known`: what the caller has, to be read on from there."""
        if known is None:
            known = await self.known(execution_id)
        return await self._caught_up(execution_id, known)

    async def append(self, record: ExecutionRecord | None, commit: Commit) -> ExecutionRecord:
        """The record with the commit. Raises WrongRevision if the log has advanced."""
        expected = Revision(0 if record is None else record.log_revision)
        after = advance(record, commit, 0)
        assert after is not None  # noqa: S101 - the first commit creates it
        logged = LoggedCommit(commit, summarise(after.state))
        try:
            revision = await self._log.append(logged, expected)
        except WrongRevision:
            self._memory.forget(commit.execution_id)
            raise
        self._show(logged, revision)
        self._written[revision] = None
        while len(self._written) > MAX_IN_MEMORY:
            self._written.popitem(last=False)
        appended = replace(after, log_revision=revision)
        self._remember(appended, self._grown_by(commit))
        return appended

    def _show(self, logged: LoggedCommit, revision: Revision) -> None:
        """In lists, at once. An index that fails just now is read again, with this commit."""
        with suppress(IndexLost):
            self._index.apply([Change(logged.commit.execution_id, revision, logged, None)])

    async def save_if_far(self, record: ExecutionRecord) -> None:
        """For a series of commits: the cache is written at the end, and now and then."""
        cached = self._caches.get(record.state.execution_id)
        behind = record.state.version - (0 if cached is None else cached.version)
        if record.state.is_terminal or behind >= FAR_BEHIND:
            await self.save(record)

    async def save(self, record: ExecutionRecord) -> None:
        """Best effort: with a stale cache the next reader has to read the log."""
        with best_effort(log, "execution.cache", NatsUnavailable, execution_id=record.state.execution_id):
            try:
                await self._save(record)
            except SnapshotTooLarge as error:
                log.warning(
                    "execution state is too large for its cache; folding it from the log instead",
                    action="execution.too_large",
                    execution_id=record.state.execution_id,
                    detail=str(error),
                )

    def heard(self, logged: LoggedCommit, revision: Revision, *, is_ours: bool = False) -> bool:
        """Handle a commit of the feed. False: this process wrote it and has handled it.

        A commit that was only read here before the feed delivered it is still new. The state in memory is
        advanced, or dropped. `is_ours`: this process attends to it, so a new one is kept from the beginning.
        """
        is_news = revision not in self._written
        self._written.pop(revision, None)
        execution_id = logged.commit.execution_id
        if logged.summary.deleted_at is not UNSET:
            self._memory.forget(execution_id)
            return False
        held = self._memory.get(execution_id)
        if held is None:
            if is_ours and logged.commit.first_sequence == 1:
                self._begin(logged.commit, revision)
            return is_news
        if held.log_revision >= revision:
            return is_news
        after = None
        if held.state.version + 1 == logged.commit.first_sequence:
            after = advance(held, logged.commit, revision)
        if after is None:
            self._memory.forget(execution_id)
        else:
            size = self._memory.size(execution_id) + memory_of_commit(logged.commit)
            self._memory.keep(execution_id, after, size)
        return is_news

    def _begin(self, commit: Commit, revision: Revision) -> None:
        """Without it, the first evaluation of what another gateway has created would read the log."""
        created = advance(None, commit, revision)
        if created is not None:
            self._remember(created)

    def forget_all(self) -> None:
        self._memory.clear()
        self._caches.clear()
        self._written.clear()

    async def _cached(self, execution_id: str) -> Versioned[ExecutionRecord] | None:
        """One that is unreadable, or of another reducer, counts as missing: the log has everything."""
        try:
            found = await self._cache.get(execution_id)
        except (NatsUnavailable, Unreadable) as error:
            log.warning(
                "execution state is not in its cache; folding it from the log",
                action="execution.not_cached",
                execution_id=execution_id,
                exc_info=error,
            )
            return None
        return found if found is None or found.value.reducer >= REDUCER else None

    async def _caught_up(self, execution_id: str, record: ExecutionRecord | None) -> ExecutionRecord | None:
        after = Revision(0 if record is None else record.log_revision)
        start, heard_of = record, self._index.version(execution_id)
        async for logged, revision in self._log.read(execution_id, after):
            if logged is not None and logged.summary.deleted_at is not UNSET:
                return None
            if logged is not None:
                record = advance(record, logged.commit, revision)
            elif record is not None:  # the log goes on behind it, so its place counts
                record = replace(record, log_revision=revision)
        if (0 if record is None else record.state.version) < heard_of:
            # From a partitioned server: a conflict with unreadable commits must not reject the request.
            raise NatsUnavailable("the execution has advanced, but its log is not readable yet")
        if record is not None and record is not start:
            self._remember(record)
        return record

    async def _save(self, record: ExecutionRecord) -> None:
        execution_id = record.state.execution_id
        known = self._caches.used(execution_id)
        cached = None if known is None else known.revision
        for _ in range(SAVE_TRIES):
            try:
                if cached is None:
                    revision = await self._cache.create(execution_id, record)
                else:
                    revision = await self._cache.update(execution_id, record, cached)
            except WrongRevision:
                found = await self._cache.get(execution_id)
                cached = None if found is None else found.revision
                if found is None or _is_older(found.value, record):
                    continue
                revision = found.revision
            self._note_cached(execution_id, revision, record.state.version)
            return

    def _note_cached(self, execution_id: str, revision: Revision, version: int) -> None:
        self._caches.keep(execution_id, _Cached(revision, version), 1)

    def _grown_by(self, commit: Commit) -> int | None:
        """Memory of an execution with one more commit, if known before."""
        before = self._memory.size(commit.execution_id)
        return before + memory_of_commit(commit) if before or commit.first_sequence == 1 else None

    def _remember(self, record: ExecutionRecord, size: int | None = None) -> None:
        """Unless a newer one is known."""
        execution_id = record.state.execution_id
        known = self._memory.used(execution_id)
        if known is None or known.log_revision < record.log_revision:
            self._memory.keep(execution_id, record, memory_of_state(record.state) if size is None else size)


def _is_older(cached: ExecutionRecord, record: ExecutionRecord) -> bool:
    return (cached.state.version, cached.reducer) < (record.state.version, record.reducer)
