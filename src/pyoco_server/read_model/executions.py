"""Index of executions in SQLite, in memory: lists, waits and counts at the cost of a page, not the history.

It is rebuilt at every start from the last commit of each execution, which contains its summary.
"""

import sqlite3
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
from msgspec import UNSET

from pyoco_server.domain.executions.model import ExecutionStatus
from pyoco_server.domain.executions.records import ExecutionSummary, LoggedCommit, Wait
from pyoco_server.domain.runs.listing import Place
from pyoco_server.usecases.ports.gateway import ExecutionFilter, SummaryPage
from pyoco_server.usecases.ports.stores import Change

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
CREATE TABLE deleted (execution_id TEXT PRIMARY KEY) WITHOUT ROWID;
CREATE INDEX by_end ON executions (ended_at, execution_id) WHERE ended_at IS NOT NULL;
CREATE INDEX by_time ON executions (scope, archived, created_at, execution_id);
CREATE INDEX by_status ON executions (scope, archived, status, created_at, execution_id);
CREATE INDEX by_graph ON executions (scope, archived, graph_id, created_at, execution_id);
CREATE INDEX counted ON executions (scope, status);
CREATE INDEX active ON executions (execution_id) WHERE status = 'ACTIVE';
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


class SqliteExecutionIndex:
    """`tenants`: separate lists per tenant."""

    def __init__(self, *, tenants: bool) -> None:
        self._tenants = tenants
        self._db = sqlite3.connect(":memory:", isolation_level=None)
        self._db.executescript(_SCHEMA)

    def close(self) -> None:
        self._db.close()

    def clear(self) -> None:
        for table in ("executions", "waits", "deleted"):
            self._db.execute(f"DELETE FROM {table}")  # noqa: S608

    def apply(self, changes: Sequence[Change[LoggedCommit]]) -> None:
        """Only the last of several commits of an execution matters."""
        latest = {change.key: change.value for change in changes}
        self._db.execute("BEGIN")
        for execution_id, logged in latest.items():
            if logged is None or self.is_deleted(execution_id):
                continue
            if logged.summary.deleted_at is not UNSET:
                self._forget(execution_id)
            elif logged.summary.version > self.version(execution_id):
                self._put(logged.summary)
        self._db.execute("COMMIT")

    def _forget(self, execution_id: str) -> None:
        for table in ("executions", "waits"):
            self._db.execute(f"DELETE FROM {table} WHERE execution_id = ?", (execution_id,))  # noqa: S608
        self._db.execute("INSERT OR IGNORE INTO deleted VALUES (?)", (execution_id,))

    def is_deleted(self, execution_id: str) -> bool:
        found = self._db.execute("SELECT 1 FROM deleted WHERE execution_id = ?", (execution_id,))
        return found.fetchone() is not None

    def ended_before(self, at: float, limit: int) -> list[str]:
        rows = self._db.execute(
            "SELECT execution_id FROM executions WHERE ended_at < ? ORDER BY ended_at LIMIT ?", (at, limit)
        )
        return [execution_id for (execution_id,) in rows]

    def version(self, execution_id: str) -> int:
        found = self._db.execute(
            "SELECT version FROM executions WHERE execution_id = ?", (execution_id,)
        ).fetchone()
        return int(found[0]) if found else 0

    def held_bytes(self, execution_id: str) -> int:
        found = self._db.execute(
            "SELECT held_bytes FROM executions WHERE execution_id = ?", (execution_id,)
        ).fetchone()
        return int(found[0]) if found else 0

    def has_ended(self, execution_id: str) -> bool:
        found = self._db.execute(
            "SELECT status FROM executions WHERE execution_id = ?", (execution_id,)
        ).fetchone()
        return found is not None and found[0] != ExecutionStatus.ACTIVE.value

    def page(self, wanted: ExecutionFilter, after: Place | None, limit: int) -> SummaryPage:
        where, values = self._where(wanted)
        if wanted.status is not None:
            where.append("status = ?")
            values.append(wanted.status.value)
        if after is not None:
            where.append("(created_at, execution_id) < (?, ?)")
            values += [after.updated_at, after.run_id]
        rows = self._db.execute(
            f"SELECT summary, created_at, execution_id FROM executions WHERE {' AND '.join(where)} "  # noqa: S608
            "ORDER BY created_at DESC, execution_id DESC LIMIT ?",
            (*values, limit + 1),
        ).fetchall()
        return _page(rows, limit)

    def waits(self, tenant_id: str | None, after: Place | None, limit: int) -> SummaryPage:
        where = ""
        values: list[Any] = [self._scope(tenant_id)]
        if after is not None:
            where = "AND (waiting_at, execution_id || '/' || node_id) > (?, ?) "
            values += [after.updated_at, after.run_id]
        rows = self._db.execute(
            "SELECT line, waiting_at, execution_id || '/' || node_id AS place FROM waits "  # noqa: S608
            f"WHERE scope = ? {where}ORDER BY waiting_at, place LIMIT ?",
            (*values, limit + 1),
        ).fetchall()
        return _page(rows, limit)

    def is_waiting(self, tenant_id: str | None, execution_id: str, node_id: str) -> bool:
        found = self._db.execute(
            "SELECT 1 FROM waits WHERE execution_id = ? AND node_id = ? AND scope = ?",
            (execution_id, node_id, self._scope(tenant_id)),
        )
        return found.fetchone() is not None

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
        rows = self._db.execute(
            "SELECT status, count(*) FROM executions WHERE scope = ? GROUP BY status",
            (self._scope(tenant_id),),
        )
        return _counted(rows)

    def matching(self, wanted: ExecutionFilter) -> dict[ExecutionStatus, int]:
        where, values = self._where(wanted)
        return _counted(
            self._db.execute(
                f"SELECT status, count(*) FROM executions WHERE {' AND '.join(where)} GROUP BY status",  # noqa: S608
                values,
            )
        )

    def _where(self, wanted: ExecutionFilter) -> tuple[list[str], list[Any]]:
        where = ["scope = ?", "archived = ?"]
        values: list[Any] = [self._scope(wanted.tenant_id), int(wanted.archived)]
        if wanted.graph_id is not None:
            where.append("graph_id = ?")
            values.append(wanted.graph_id)
        return where, values

    def active(self) -> Iterable[str]:
        rows = self._db.execute("SELECT execution_id FROM executions WHERE status = 'ACTIVE'")
        return [row[0] for row in rows]

    def _put(self, summary: ExecutionSummary) -> None:
        scope = self._scope(summary.tenant_id)
        self._db.execute(
            "INSERT OR REPLACE INTO executions VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                summary.execution_id,
                scope,
                summary.status.value,
                summary.graph_id,
                int(summary.archived_at is not None),
                summary.created_at,
                summary.version,
                summary.held_bytes or 0,
                summary.ended_at,
                msgspec.json.encode(summary.shown()),
            ),
        )
        self._db.execute("DELETE FROM waits WHERE execution_id = ?", (summary.execution_id,))
        if summary.status is ExecutionStatus.ACTIVE:
            self._db.executemany(
                "INSERT INTO waits VALUES (?, ?, ?, ?, ?, ?)",
                [
                    (
                        summary.execution_id,
                        wait.node_id,
                        scope,
                        wait.waiting_at,
                        wait.wait_key,
                        msgspec.json.encode(wait),
                    )
                    for wait in summary.waits
                ],
            )

    def _scope(self, tenant_id: str | None) -> str:
        return (tenant_id or "") if self._tenants else ""


def _counted(rows: Iterable[Any]) -> dict[ExecutionStatus, int]:
    found = dict(rows)
    return {status: found.get(status.value, 0) for status in ExecutionStatus}


def _page(rows: list[Any], limit: int) -> SummaryPage:
    shown = rows[:limit]
    more = Place(shown[-1][1], shown[-1][2]) if len(rows) > limit else None
    return SummaryPage([row[0] for row in shown], more)
