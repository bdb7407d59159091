"""Runs in SQLite: lists, filters, cursors and counts that cost the page, not the history."""

import sqlite3
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import msgspec

from pyoco_server.domain.listing import Place, RunFilter, summary
from pyoco_server.domain.runs import RunSnapshot, RunStatus, replace
from pyoco_server.logs import get_logger
from pyoco_server.usecases.ports import Change, FeedPosition, IndexedPage, Revision

log = get_logger(__name__)

SCHEMA_VERSION = 2
MAX_FILE_AGE_SEC = 12 * 3600
"""An older file may have missed a removal, whose mark is gone from the store by now."""
_SCHEMA = """
CREATE TABLE runs (
    run_id TEXT PRIMARY KEY,
    scope TEXT NOT NULL,
    status TEXT NOT NULL,
    flow TEXT NOT NULL,
    sha256 TEXT,
    updated_at REAL NOT NULL,
    revision INTEGER NOT NULL,
    expires_at REAL,
    summary BLOB NOT NULL
);
CREATE INDEX by_time ON runs (scope, updated_at, run_id);
CREATE INDEX by_status ON runs (scope, status, updated_at, run_id);
CREATE INDEX by_flow ON runs (scope, flow, updated_at, run_id);
CREATE INDEX by_sha256 ON runs (scope, sha256, updated_at, run_id) WHERE sha256 IS NOT NULL;
CREATE INDEX unfinished ON runs (run_id, revision) WHERE status IN ('PENDING', 'RUNNING', 'CANCELLING');
CREATE INDEX by_expiry ON runs (expires_at) WHERE expires_at IS NOT NULL;
CREATE TABLE tags (
    scope TEXT NOT NULL,
    tag TEXT NOT NULL,
    updated_at REAL NOT NULL,
    run_id TEXT NOT NULL,
    PRIMARY KEY (scope, tag, updated_at, run_id)
) WITHOUT ROWID;
CREATE TABLE facts (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
"""


MAX_WAITING = 500


class SqliteRunIndex:
    """One writer, one thread. `tenants` keeps the runs of different tenants in different lists.

    Changes wait in memory until somebody asks, or until they are many: a run is written several times in a
    moment, and only its last state is worth an insert.
    """

    def __init__(self, path: Path | None, *, tenants: bool) -> None:
        self._tenants = tenants
        self._kind = f"{SCHEMA_VERSION} {'tenants' if tenants else 'shared'}"
        self._db = _open(path, self._kind)
        self._waiting: dict[str, Change[RunSnapshot]] = {}
        self._position: FeedPosition | None = None
        self._counts: Counter[tuple[str, str]] = Counter(
            {(scope, status): n for scope, status, n in self._db.execute(
                "SELECT scope, status, count(*) FROM runs GROUP BY scope, status")}
        )  # fmt: skip

    def close(self) -> None:
        self._write_waiting()
        self._db.close()

    @property
    def position(self) -> FeedPosition | None:
        """How far the feed was read."""
        if self._position is not None:
            return self._position
        found = self._db.execute("SELECT value FROM facts WHERE name = 'position'").fetchone()
        return msgspec.json.decode(found[0], type=FeedPosition) if found else None

    def clear(self) -> None:
        self._waiting.clear()
        self._position = None
        with self._db:
            self._db.execute("DELETE FROM runs")
            self._db.execute("DELETE FROM tags")
            self._db.execute("DELETE FROM facts WHERE name = 'position'")
        self._counts.clear()

    def apply(self, changes: Iterable[Change[RunSnapshot]], position: FeedPosition) -> None:
        """Take changes over. Of several changes of one run only the last one matters."""
        self._waiting.update((change.key, change) for change in changes)
        self._position = position
        if len(self._waiting) >= MAX_WAITING:
            self._write_waiting()

    def _write_waiting(self) -> None:
        if self._position is None:
            return
        with self._db:
            for change in self._waiting.values():
                self._remove(change.key)
                if change.value is not None:
                    # The key is what a run is found by, whatever a writer of another make put in the record.
                    self._insert(replace(change.value, run_id=change.key), change)
            self._db.execute(
                "INSERT OR REPLACE INTO facts VALUES ('position', ?), ('written_at', ?)",
                (msgspec.json.encode(self._position).decode(), str(time.time())),
            )
        self._waiting.clear()

    def expire(self, now: float) -> int:
        """Forget what the store has forgotten by age. Answers with how many."""
        self._write_waiting()
        gone = [row[0] for row in self._db.execute("SELECT run_id FROM runs WHERE expires_at <= ?", (now,))]
        with self._db:
            for run_id in gone:
                self._remove(run_id)
        return len(gone)

    def forget(self, run_id: str) -> None:
        """The store does not have it, and no mark of its removal is left to be read."""
        self._write_waiting()
        with self._db:
            self._remove(run_id)

    def page(self, wanted: RunFilter, after: Place | None, limit: int) -> IndexedPage:
        """Up to `limit` summaries (as JSON) behind `after`, and the place of the last if there are more."""
        self._write_waiting()
        where, values = self._where(wanted, after)
        table = "runs" if wanted.tag is None else "tags AS t JOIN runs USING (run_id)"
        order = "runs" if wanted.tag is None else "t"
        rows = self._db.execute(
            f"SELECT summary, runs.updated_at, run_id FROM {table} WHERE {' AND '.join(where)} "  # noqa: S608
            f"ORDER BY {order}.updated_at DESC, {order}.run_id DESC LIMIT ?",
            (*values, limit + 1),
        ).fetchall()
        shown = rows[:limit]
        more = Place(shown[-1][1], shown[-1][2]) if len(rows) > limit else None
        return IndexedPage([row[0] for row in shown], [row[2] for row in shown], more)

    def counts(self, tenant_id: str | None) -> dict[RunStatus, int]:
        self._write_waiting()
        scope = self._scope(tenant_id)
        return {status: self._counts[scope, status.value] for status in RunStatus}

    def is_of(self, run_id: str, tenant_id: str) -> bool:
        """Whether a run belongs to a tenant, as far as this index knows."""
        self._write_waiting()
        found = self._db.execute("SELECT scope FROM runs WHERE run_id = ?", (run_id,)).fetchone()
        return found is not None and found[0] == tenant_id

    def unfinished(self) -> list[tuple[str, Revision, RunStatus]]:
        self._write_waiting()
        rows = self._db.execute(
            "SELECT run_id, revision, status FROM runs WHERE status IN ('PENDING', 'RUNNING', 'CANCELLING')"
        )
        return [(run_id, revision, RunStatus(status)) for run_id, revision, status in rows]

    def _where(self, wanted: RunFilter, after: Place | None) -> tuple[list[str], list[object]]:
        # By tag, the tags table is walked in order and the run looked up; otherwise the runs table alone.
        main = "runs" if wanted.tag is None else "t"
        conditions: list[tuple[str, tuple[object, ...]]] = [
            (f"{main}.scope = ?", (self._scope(wanted.tenant_id),))
        ]
        if wanted.tag is not None:
            conditions.append(("t.tag = ?", (wanted.tag,)))
        if wanted.status is not None:
            conditions.append(("runs.status = ?", (wanted.status.value,)))
        if wanted.flow is not None:
            conditions.append(("runs.flow = ?", (wanted.flow,)))
        if wanted.workflow_yaml_sha256 is not None:
            conditions.append(("runs.sha256 = ?", (wanted.workflow_yaml_sha256,)))
        if wanted.updated_after is not None:
            conditions.append((f"{main}.updated_at > ?", (wanted.updated_after,)))
        if after is not None:
            conditions.append(
                (f"({main}.updated_at, {main}.run_id) < (?, ?)", (after.updated_at, after.run_id))
            )
        return [text for text, _ in conditions], [value for _, values in conditions for value in values]

    def _insert(self, run: RunSnapshot, change: Change[RunSnapshot]) -> None:
        scope = self._scope(run.tenant_id)
        self._db.execute(
            "INSERT INTO runs VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                run.run_id,
                scope,
                run.status.value,
                run.flow_name,
                run.workflow_yaml_sha256,
                run.updated_at,
                change.revision,
                change.expires_at,
                msgspec.json.encode(summary(run)),
            ),
        )
        self._db.executemany(
            "INSERT OR IGNORE INTO tags VALUES (?, ?, ?, ?)",
            [(scope, tag, run.updated_at, run.run_id) for tag in _tags(run)],
        )
        self._counts[scope, run.status.value] += 1

    def _remove(self, run_id: str) -> None:
        found = self._db.execute(
            "DELETE FROM runs WHERE run_id = ? RETURNING scope, status, updated_at, summary", (run_id,)
        ).fetchone()
        if found is None:
            return
        scope, status, updated_at, stored = found
        self._counts[scope, status] -= 1
        tags = msgspec.json.decode(stored, type=_Tagged)
        self._db.executemany(
            "DELETE FROM tags WHERE scope = ? AND tag = ? AND updated_at = ? AND run_id = ?",
            [(scope, tag, updated_at, run_id) for tag in _tags(tags)],
        )

    def _scope(self, tenant_id: str | None) -> str:
        return (tenant_id or "") if self._tenants else ""


class _Tagged(msgspec.Struct):
    tag: str | None = None
    tags: tuple[str, ...] | None = None


def _tags(run: RunSnapshot | _Tagged) -> set[str]:
    """The tag that routes and the tags that people search for are both found."""
    return {tag for tag in (run.tag, *(run.tags or ())) if tag}


def _open(path: Path | None, kind: str) -> sqlite3.Connection:
    """The index in `path` if it is of our kind and whole, else a new one: it is a cache."""
    if path is None:
        return _new(":memory:", kind)
    path.parent.mkdir(parents=True, exist_ok=True)
    db = sqlite3.connect(path)
    if _is_usable(db, kind):
        db.execute("PRAGMA synchronous = OFF")
        return db
    db.close()
    log.info("the index of runs is made anew", action="index.new", path=str(path))
    for suffix in ("", "-wal", "-shm", "-journal"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)
    return _new(str(path), kind)


def _is_usable(db: sqlite3.Connection, kind: str) -> bool:
    try:
        facts = dict(db.execute("SELECT name, value FROM facts").fetchall())
        is_fresh = time.time() - float(facts.get("written_at", 0)) < MAX_FILE_AGE_SEC
        # Nothing waited for the disk, so a power failure may have left anything.
        is_whole = db.execute("PRAGMA quick_check(1)").fetchone() == ("ok",)
        return facts.get("kind") == kind and is_fresh and is_whole
    except sqlite3.DatabaseError:
        return False


def _new(path: str, kind: str) -> sqlite3.Connection:
    db = sqlite3.connect(path)
    # Losing it costs a rebuild, so nothing waits for the disk; WAL keeps it whole after a kill.
    db.execute("PRAGMA journal_mode = WAL")
    db.execute("PRAGMA synchronous = OFF")
    with db:
        db.executescript(_SCHEMA)
        db.execute("INSERT INTO facts VALUES ('kind', ?)", (kind,))
    return db
