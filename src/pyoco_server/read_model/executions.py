"""Index of executions in SQLite: lists, waits and counts at the cost of a page, not the history.

It is filled from the last commit of each execution, which contains its summary.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from msgspec import UNSET

from pyoco_server.domain.executions.model import ExecutionStatus
from pyoco_server.domain.executions.records import ExecutionSummary, LoggedCommit, Wait
from pyoco_server.domain.runs.listing import Place
from pyoco_server.errors import IndexLost
from pyoco_server.read_model.index_tables import Layout, StoredIndex, or_lost
from pyoco_server.usecases.ports.gateway import ExecutionFilter, SummaryPage
from pyoco_server.usecases.ports.stores import Change, FeedPosition, Revision

_encode = msgspec.json.Encoder().encode

MAX_UNCOMMITTED = 500
"""Changes of one transaction. Queries see them; a killed gateway reads them again."""

_SCHEMA = """
CREATE TABLE executions (
    execution_id TEXT PRIMARY KEY,
    scope TEXT NOT NULL,
    status TEXT NOT NULL,
    graph_id TEXT NOT NULL,
    archived INTEGER NOT NULL,
    created_at REAL NOT NULL,
    version INTEGER NOT NULL,
    held_bytes INTEGER NOT NULL,
    ended_at REAL,
    summary BLOB NOT NULL
) WITHOUT ROWID;
CREATE INDEX by_end ON executions (ended_at, execution_id) WHERE ended_at IS NOT NULL;
CREATE INDEX by_time ON executions (scope, archived, created_at, execution_id);
CREATE INDEX by_status ON executions (scope, archived, status, created_at, execution_id);
CREATE INDEX by_graph ON executions (scope, archived, graph_id, created_at, execution_id);
CREATE INDEX by_both ON executions (scope, archived, graph_id, status, created_at, execution_id);
CREATE INDEX active ON executions (execution_id) WHERE status = 'ACTIVE';
CREATE TABLE tallies (
    scope TEXT NOT NULL,
    archived INTEGER NOT NULL,
    graph_id TEXT NOT NULL,
    status TEXT NOT NULL,
    executions INTEGER NOT NULL,
    PRIMARY KEY (scope, archived, graph_id, status)
) WITHOUT ROWID;
CREATE TABLE deleted (
    execution_id TEXT PRIMARY KEY,
    revision INTEGER NOT NULL,
    expires_at REAL
) WITHOUT ROWID;
CREATE INDEX by_expiry ON deleted (expires_at) WHERE expires_at IS NOT NULL;
CREATE TABLE waits (
    execution_id TEXT NOT NULL,
    node_id TEXT NOT NULL,
    scope TEXT NOT NULL,
    waiting_at REAL NOT NULL,
    wait_key TEXT,
    line BLOB NOT NULL,
    PRIMARY KEY (execution_id, node_id)
) WITHOUT ROWID;
CREATE INDEX oldest ON waits (scope, waiting_at, execution_id, node_id);
CREATE INDEX by_key ON waits (scope, wait_key, waiting_at, execution_id, node_id);
"""
EXECUTION_TABLES = Layout("executions", version=1, schema=_SCHEMA, cache_kib=16 * 1024)


class _Group(NamedTuple):
    """What executions are counted by. An execution changes it a few times in its life."""

    scope: str
    archived: int
    graph_id: str
    status: str


class SqliteExecutionIndex(StoredIndex):
    """Changes are written at once, and committed in larger numbers."""

    def __init__(self, path: Path | None, *, tenants: bool) -> None:
        super().__init__(path, EXECUTION_TABLES, tenants=tenants)

    def _begin(self) -> None:
        self._uncommitted = 0
        self._counts: Counter[_Group] = Counter()
        for *group, count in self._db.execute("SELECT * FROM tallies"):
            self._counts[_Group(*group)] = count
        self._tally: Counter[_Group] = Counter()
        """Executions added and removed since the last commit."""

    @or_lost
    def clear(self) -> None:
        self._start_again()

    @or_lost
    def apply(self, changes: Sequence[Change[LoggedCommit]], position: FeedPosition | None = None) -> None:
        """Only the last of several commits of an execution matters. `position`: of the feed after them."""
        latest: dict[str, tuple[Revision, ExecutionSummary]] = {}
        for change in changes:
            if change.value is None:
                continue
            if change.value.summary.deleted_at is UNSET:
                latest[change.key] = change.revision, change.value.summary
            else:
                self._forget(change)
                latest.pop(change.key, None)
        for revision, summary in latest.values():
            self._take(revision, summary)
        self._position = position or self._position
        self._uncommitted += len(changes)
        if self._uncommitted >= MAX_UNCOMMITTED:
            self._write_waiting()

    def _take(self, revision: Revision, summary: ExecutionSummary) -> None:
        before = self._stored(summary.execution_id)
        if before is None:
            if not self._is_history(summary.execution_id, revision):
                self._put(summary, None)
        elif summary.version > before[0]:
            self._put(summary, before[1])

    def _is_history(self, execution_id: str, revision: Revision) -> bool:
        """Of a deleted execution. Once its id is free again, another may have it."""
        deleted_at = self._value("SELECT revision FROM deleted WHERE execution_id = ?", execution_id)
        if deleted_at is None or revision <= deleted_at:
            return deleted_at is not None
        self._db.execute("DELETE FROM deleted WHERE execution_id = ?", (execution_id,))
        return False

    def _forget(self, change: Change[LoggedCommit]) -> None:
        """Also those whose last commit has expired, as the stream shows the time."""
        before = self._stored(change.key)
        if before is not None:
            self._count(before[1], -1)
            for table in ("executions", "waits"):
                self._db.execute(f"DELETE FROM {table} WHERE execution_id = ?", (change.key,))  # noqa: S608
        self._db.execute(
            "INSERT OR REPLACE INTO deleted VALUES (?, ?, ?)",
            (change.key, change.revision, change.expires_at),
        )
        if change.stored_at is not None:
            self._db.execute("DELETE FROM deleted WHERE expires_at < ?", (change.stored_at,))

    def _write_waiting(self) -> None:
        changed = [(*group, count) for group, count in self._tally.items() if count]
        self._db.executemany(
            "INSERT INTO tallies VALUES (?, ?, ?, ?, ?)"
            " ON CONFLICT DO UPDATE SET executions = executions + excluded.executions",
            changed,
        )
        self._db.execute("DELETE FROM tallies WHERE executions = 0")
        if self._position is not None:
            self._write_position(self._position)
        self._db.commit()
        self._tally.clear()
        self._uncommitted = 0

    def is_deleted(self, execution_id: str) -> bool:
        return self._value("SELECT 1 FROM deleted WHERE execution_id = ?", execution_id) is not None

    @or_lost
    def ended_before(self, at: float, limit: int) -> list[str]:
        rows = self._db.execute(
            "SELECT execution_id FROM executions WHERE ended_at < ? ORDER BY ended_at LIMIT ?", (at, limit)
        )
        return [execution_id for (execution_id,) in rows]

    def version(self, execution_id: str) -> int:
        found = self._value("SELECT version FROM executions WHERE execution_id = ?", execution_id)
        return int(found or 0)

    def held_bytes(self, execution_id: str) -> int:
        found = self._value("SELECT held_bytes FROM executions WHERE execution_id = ?", execution_id)
        return int(found or 0)

    def has_ended(self, execution_id: str) -> bool:
        """Also False if the index has just been lost: it is asked about every change of a run."""
        try:
            found = self._value("SELECT status FROM executions WHERE execution_id = ?", execution_id)
        except IndexLost:
            return False
        return found is not None and found != ExecutionStatus.ACTIVE.value

    @or_lost
    def _value(self, query: str, execution_id: str) -> Any:
        found = self._db.execute(query, (execution_id,)).fetchone()
        return None if found is None else found[0]

    @or_lost
    def page(self, wanted: ExecutionFilter, after: Place | None, limit: int) -> SummaryPage:
        where, values = "scope = ? AND archived = ?", [*self._scope_of(wanted)]
        if wanted.graph_id is not None:
            where += " AND graph_id = ?"
            values.append(wanted.graph_id)
        if wanted.status is not None:
            where += " AND status = ?"
            values.append(wanted.status.value)
        if after is not None:
            where += " AND (created_at, execution_id) < (?, ?)"
            values += [after.updated_at, after.run_id]
        rows = self._db.execute(
            f"SELECT summary, created_at, execution_id FROM executions WHERE {where} "  # noqa: S608
            "ORDER BY created_at DESC, execution_id DESC LIMIT ?",
            (*values, limit + 1),
        ).fetchall()
        return _page(rows, limit)

    def _scope_of(self, wanted: ExecutionFilter) -> tuple[Any, ...]:
        return self._scope(wanted.tenant_id), int(wanted.archived)

    @or_lost
    def waits(self, tenant_id: str | None, after: Place | None, limit: int) -> SummaryPage:
        where = ""
        values: list[Any] = [self._scope(tenant_id)]
        if after is not None:
            # The first condition is what the walk along the index begins with.
            where = "AND waiting_at >= ? AND (waiting_at, execution_id || '/' || node_id) > (?, ?) "
            values += [after.updated_at, after.updated_at, after.run_id]
        rows = self._db.execute(
            "SELECT line, waiting_at, execution_id || '/' || node_id AS place FROM waits "  # noqa: S608
            f"WHERE scope = ? {where}ORDER BY waiting_at, place LIMIT ?",
            (*values, limit + 1),
        ).fetchall()
        return _page(rows, limit)

    @or_lost
    def is_waiting(self, tenant_id: str | None, execution_id: str, node_id: str) -> bool:
        found = self._db.execute(
            "SELECT 1 FROM waits WHERE execution_id = ? AND node_id = ? AND scope = ?",
            (execution_id, node_id, self._scope(tenant_id)),
        )
        return found.fetchone() is not None

    @or_lost
    def waiting_with(self, tenant_id: str | None, wait_key: str) -> list[tuple[str, str]]:
        """With the tenants' ids."""
        rows = self._db.execute(
            "SELECT line FROM waits WHERE scope = ? AND wait_key = ? "
            "ORDER BY waiting_at, execution_id, node_id",
            (self._scope(tenant_id), wait_key),
        )
        waits = [msgspec.json.decode(line, type=Wait) for (line,) in rows]
        return [(wait.execution_id, wait.node_id) for wait in waits]

    def counts(self, tenant_id: str | None) -> dict[ExecutionStatus, int]:
        scope = self._scope(tenant_id)
        return self._counted(lambda group: group.scope == scope)

    def matching(self, wanted: ExecutionFilter) -> dict[ExecutionStatus, int]:
        scope, graph_id = self._scope_of(wanted), wanted.graph_id
        return self._counted(lambda group: group[:2] == scope and graph_id in (None, group.graph_id))

    def _counted(self, is_wanted: Callable[[_Group], bool]) -> dict[ExecutionStatus, int]:
        found: Counter[str] = Counter()
        for group, count in self._counts.items():
            if is_wanted(group):
                found[group.status] += count
        return {status: found[status.value] for status in ExecutionStatus}

    @or_lost
    def active(self) -> Iterable[str]:
        rows = self._db.execute("SELECT execution_id FROM executions WHERE status = 'ACTIVE'")
        return [row[0] for row in rows]

    def _stored(self, execution_id: str) -> tuple[int, _Group] | None:
        """Its version and what it is counted by."""
        found = self._db.execute(
            "SELECT version, scope, archived, graph_id, status FROM executions WHERE execution_id = ?",
            (execution_id,),
        ).fetchone()
        return None if found is None else (found[0], _Group(*found[1:]))

    def _put(self, summary: ExecutionSummary, before: _Group | None) -> None:
        group = _Group(
            self._scope(summary.tenant_id),
            int(summary.archived_at is not None),
            summary.graph_id,
            summary.status.value,
        )
        if before == group:
            self._update(summary)
        else:
            self._count(before, -1)
            self._count(group, 1)
            self._insert(summary, group)
        self._put_waits(summary, group.scope)

    def _update(self, summary: ExecutionSummary) -> None:
        """Most commits leave an execution in its place in all lists."""
        self._db.execute(
            "UPDATE executions SET version = ?, held_bytes = ?, ended_at = ?, summary = ?"
            " WHERE execution_id = ?",
            (
                summary.version,
                summary.held_bytes or 0,
                summary.ended_at,
                _encode(summary.shown()),
                summary.execution_id,
            ),
        )

    def _insert(self, summary: ExecutionSummary, group: _Group) -> None:
        self._db.execute(
            "INSERT OR REPLACE INTO executions VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                summary.execution_id,
                group.scope,
                group.status,
                group.graph_id,
                group.archived,
                summary.created_at,
                summary.version,
                summary.held_bytes or 0,
                summary.ended_at,
                _encode(summary.shown()),
            ),
        )

    def _put_waits(self, summary: ExecutionSummary, scope: str) -> None:
        self._db.execute("DELETE FROM waits WHERE execution_id = ?", (summary.execution_id,))
        if summary.status is ExecutionStatus.ACTIVE:
            self._db.executemany(
                "INSERT INTO waits VALUES (?, ?, ?, ?, ?, ?)",
                [
                    (summary.execution_id, wait.node_id, scope, wait.waiting_at, wait.wait_key, _encode(wait))
                    for wait in summary.waits
                ],
            )

    def _count(self, group: _Group | None, by: int) -> None:
        if group is not None:
            self._counts[group] += by
            self._tally[group] += by


def _page(rows: list[Any], limit: int) -> SummaryPage:
    shown = rows[:limit]
    more = Place(shown[-1][1], shown[-1][2]) if len(rows) > limit else None
    return SummaryPage([row[0] for row in shown], more)
