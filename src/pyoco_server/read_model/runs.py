"""Index of runs in SQLite: lists, filters, cursors and counts at the cost of a page, not the history."""

import hashlib
import sqlite3
import time
from collections import Counter
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import msgspec

from pyoco_server.domain.runs.listing import Place, RunFilter, changed_at, is_beat, summary
from pyoco_server.domain.runs.model import RunSnapshot, RunStatus, replace
from pyoco_server.logs import get_logger
from pyoco_server.usecases.ports.runs import IndexedPage
from pyoco_server.usecases.ports.stores import Change, FeedPosition, Revision

log = get_logger(__name__)

SCHEMA_VERSION = 4
MAX_FILE_AGE_SEC = 12 * 3600
"""An older file may have missed a removal whose marker has expired."""
_SCHEMA = """
CREATE TABLE runs (
    run_id TEXT PRIMARY KEY,
    scope TEXT NOT NULL,
    status TEXT NOT NULL,
    written_at REAL NOT NULL,
    changed_at REAL NOT NULL,
    revision INTEGER NOT NULL,
    expires_at REAL,
    summary BLOB NOT NULL
);
CREATE INDEX unfinished ON runs (run_id, revision) WHERE status IN ('PENDING', 'RUNNING', 'CANCELLING');
CREATE INDEX by_expiry ON runs (expires_at) WHERE expires_at IS NOT NULL;
CREATE TABLE listed (
    list BLOB NOT NULL,
    status TEXT NOT NULL,
    changed_at REAL NOT NULL,
    run_id TEXT NOT NULL,
    PRIMARY KEY (list, status, changed_at, run_id)
) WITHOUT ROWID;
CREATE TABLE flows (
    scope TEXT NOT NULL,
    name TEXT NOT NULL,
    runs INTEGER NOT NULL,
    PRIMARY KEY (scope, name)
) WITHOUT ROWID;
CREATE TABLE facts (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
"""


MAX_WAITING = 500


class SqliteRunIndex:
    """One writer, one thread. `tenants`: separate lists per tenant.

    A run is in one list per filter combination of flow, tag and flow.yaml, so that every page is a walk along
    one index; without a status, six parallel walks.

    Changes are buffered in memory until a query or a limit, because a run changes several times in a moment
    and only its last state needs an insert.
    """

    def __init__(self, path: Path | None, *, tenants: bool, max_waiting: int = MAX_WAITING) -> None:
        self._tenants = tenants
        self._kind = f"{SCHEMA_VERSION} {'tenants' if tenants else 'shared'}"
        self._db = _open(path, self._kind)
        self._waiting: dict[str, _Waiting] = {}
        self._max_waiting = max_waiting
        self._position: FeedPosition | None = None
        self._new_runs: Counter[tuple[str, str]] = Counter()
        """Runs added and removed per scope and flow, until the end of the transaction."""
        self._counts: Counter[tuple[str, str]] = Counter(
            {(scope, status): n for scope, status, n in self._db.execute(
                "SELECT scope, status, count(*) FROM runs GROUP BY scope, status")}
        )  # fmt: skip

    def close(self) -> None:
        self._write_waiting()
        self._db.close()

    @property
    def position(self) -> FeedPosition | None:
        """Position of the feed."""
        if self._position is not None:
            return self._position
        found = self._db.execute("SELECT value FROM facts WHERE name = 'position'").fetchone()
        return msgspec.json.decode(found[0], type=FeedPosition) if found else None

    def clear(self) -> None:
        self._waiting.clear()
        self._position = None
        with self._db:
            self._db.execute("DELETE FROM runs")
            self._db.execute("DELETE FROM listed")
            self._db.execute("DELETE FROM flows")
            self._db.execute("DELETE FROM facts WHERE name = 'position'")
        self._counts.clear()

    def apply(self, changes: Iterable[Change[RunSnapshot]], position: FeedPosition) -> None:
        """Apply changes. Only the last of several changes of a run matters."""
        for change in changes:
            self._waiting[change.key] = _Waiting(_lean(change), self._changed_at(change))
        self._position = position
        if len(self._waiting) >= self._max_waiting:
            self._write_waiting()

    def _write_waiting(self) -> None:
        if self._position is None:
            return
        with self._db:
            for change, changed in self._waiting.values():
                self._remove(change.key)
                if change.value is not None:
                    # The key identifies the run, whatever another implementation wrote into the record.
                    self._insert(replace(change.value, run_id=change.key), change, changed)
            self._write_flows()
            self._db.execute(
                "INSERT OR REPLACE INTO facts VALUES ('position', ?), ('written_at', ?)",
                (msgspec.json.encode(self._position).decode(), str(time.time())),
            )
        self._waiting.clear()

    def expire(self, now: float) -> int:
        """Remove runs that have expired in the store; their number."""
        self._write_waiting()
        gone = [row[0] for row in self._db.execute("SELECT run_id FROM runs WHERE expires_at <= ?", (now,))]
        with self._db:
            for run_id in gone:
                self._remove(run_id)
            self._write_flows()
        return len(gone)

    def forget(self, run_id: str) -> None:
        """Remove a run that the store does not have, without a marker in the feed."""
        self._write_waiting()
        with self._db:
            self._remove(run_id)
            self._write_flows()

    def flows(self, tenant_id: str | None, after: str, limit: int) -> list[str]:
        """Names of flows that have runs, in order, following `after`."""
        self._write_waiting()
        rows = self._db.execute(
            "SELECT name FROM flows WHERE scope = ? AND name > ? ORDER BY name LIMIT ?",
            (self._scope(tenant_id), after, limit),
        )
        return [name for (name,) in rows]

    def page(self, wanted: RunFilter, after: Place | None, limit: int) -> IndexedPage:
        """Up to `limit` summaries (as JSON) after `after`, and the place of the last if there are more."""
        self._write_waiting()
        statuses = list(RunStatus) if wanted.status is None else [wanted.status]
        within, values = _within(wanted, after)
        name = _name(self._scope(wanted.tenant_id), wanted.flow, wanted.tag, wanted.workflow_yaml_sha256)
        walk = (
            f"SELECT * FROM (SELECT changed_at, run_id FROM listed WHERE list = ? AND status = ?{within} "  # noqa: S608
            "ORDER BY changed_at DESC, run_id DESC LIMIT ?)"
        )
        rows = self._db.execute(
            f"SELECT summary, page.changed_at, run_id FROM ({' UNION ALL '.join([walk] * len(statuses))} "  # noqa: S608
            "ORDER BY changed_at DESC, run_id DESC LIMIT ?) AS page JOIN runs USING (run_id) "
            "ORDER BY page.changed_at DESC, run_id DESC",
            [v for status in statuses for v in (name, status.value, *values, limit + 1)] + [limit + 1],
        ).fetchall()
        shown = rows[:limit]
        places = [Place(changed, run_id) for _, changed, run_id in shown]
        return IndexedPage([row[0] for row in shown], places, places[-1] if len(rows) > limit else None)

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

    def is_known(self, change: Change[RunSnapshot]) -> bool:
        known = self._known(change.key)
        return known is not None and change.value is not None and known[:2] == _state(change.value)

    def _changed_at(self, change: Change[RunSnapshot]) -> float:
        """A heartbeat does not move a run in the lists."""
        if change.value is None:
            return 0.0
        if is_beat(change.value):
            known = self._known(change.key)
            if known is not None and known[:2] == _state(change.value):
                return known[2]
        return changed_at(change.value, change.stored_at)

    def _known(self, run_id: str) -> tuple[str, float, float] | None:
        """Its status, the writer's `updated_at`, and its place in the lists."""
        waiting = self._waiting.get(run_id)
        if waiting is not None:
            run = waiting.change.value
            return None if run is None else (*_state(run), waiting.changed_at)
        found: tuple[str, float, float] | None = self._db.execute(
            "SELECT status, written_at, changed_at FROM runs WHERE run_id = ?", (run_id,)
        ).fetchone()
        return found

    def _insert(self, run: RunSnapshot, change: Change[RunSnapshot], changed: float) -> None:
        scope = self._scope(run.tenant_id)
        self._db.execute(
            "INSERT INTO runs VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            (
                run.run_id,
                scope,
                run.status.value,
                run.updated_at,
                changed,
                change.revision,
                change.expires_at,
                msgspec.json.encode(summary(run, changed)),
            ),
        )
        self._db.executemany(
            "INSERT OR IGNORE INTO listed VALUES (?, ?, ?, ?)",
            [(name, run.status.value, changed, run.run_id) for name in _lists_of(scope, run)],
        )
        self._counts[scope, run.status.value] += 1
        self._new_runs[scope, run.flow_name] += 1

    def _remove(self, run_id: str) -> None:
        found = self._db.execute(
            "DELETE FROM runs WHERE run_id = ? RETURNING scope, status, changed_at, summary", (run_id,)
        ).fetchone()
        if found is None:
            return
        scope, status, changed, stored = found
        self._counts[scope, status] -= 1
        listed = msgspec.json.decode(stored, type=_Listed)
        self._new_runs[scope, listed.flow_name] -= 1
        self._db.executemany(
            "DELETE FROM listed WHERE list = ? AND status = ? AND changed_at = ? AND run_id = ?",
            [(name, status, changed, run_id) for name in _lists_of(scope, listed)],
        )

    def _write_flows(self) -> None:
        """Most changes are of runs that stay: their flows are not written."""
        changed = [(*key, count) for key, count in self._new_runs.items() if count]
        self._new_runs.clear()
        self._db.executemany(
            "INSERT INTO flows VALUES (?, ?, ?) ON CONFLICT DO UPDATE SET runs = runs + excluded.runs",
            changed,
        )
        self._db.executemany(
            "DELETE FROM flows WHERE scope = ? AND name = ? AND runs <= 0",
            [(scope, name) for scope, name, count in changed if count < 0],
        )

    def _scope(self, tenant_id: str | None) -> str:
        return (tenant_id or "") if self._tenants else ""


class _Waiting(NamedTuple):
    change: Change[RunSnapshot]
    changed_at: float


def _lean(change: Change[RunSnapshot]) -> Change[RunSnapshot]:
    """Without fields that no list shows, because 500 buffered runs with large params would take gigabytes."""
    if change.value is None:
        return change
    return replace(change, value=replace(change.value, params={}, task_records=None, result=None))


class _Listed(msgspec.Struct):
    """The fields of a summary that determine its lists."""

    flow_name: str
    tag: str | None = None
    tags: tuple[str, ...] | None = None
    workflow_yaml_sha256: str | None = None


def _state(run: RunSnapshot) -> tuple[str, float]:
    return run.status.value, run.updated_at


def _lists_of(scope: str, run: RunSnapshot | _Listed) -> list[bytes]:
    """Both the routing tag and the labels."""
    tags = {tag for tag in (run.tag, *(run.tags or ())) if tag}
    sha256 = run.workflow_yaml_sha256
    return [
        _name(scope, flow, tag, file)
        for flow in (None, run.flow_name)
        for tag in (None, *tags)
        for file in ((None, sha256) if sha256 else (None,))
    ]


@lru_cache(maxsize=4096)
def _name(scope: str, flow: str | None, tag: str | None, sha256: str | None) -> bytes:
    """Key of a list, short because every run in it repeats it."""
    parts = msgspec.json.encode((scope, flow, tag, sha256))
    return hashlib.blake2b(parts, digest_size=12).digest()


def _within(wanted: RunFilter, after: Place | None) -> tuple[str, list[object]]:
    text, values = "", list[object]()
    if wanted.updated_after is not None:
        text += " AND changed_at > ?"
        values.append(wanted.updated_after)
    if after is not None:
        text += " AND (changed_at, run_id) < (?, ?)"
        values += [after.updated_at, after.run_id]
    return text, values


def _open(path: Path | None, kind: str) -> sqlite3.Connection:
    """The index in `path` if compatible and intact, else a new one."""
    if path is None:
        return _new(":memory:", kind)
    path.parent.mkdir(parents=True, exist_ok=True)
    db = sqlite3.connect(path)
    if _is_usable(db, kind):
        db.execute("PRAGMA synchronous = OFF")
        return db
    db.close()
    log.info("rebuilding the run index", action="index.new", path=str(path))
    for suffix in ("", "-wal", "-shm", "-journal"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)
    return _new(str(path), kind)


def _is_usable(db: sqlite3.Connection, kind: str) -> bool:
    try:
        facts = dict(db.execute("SELECT name, value FROM facts").fetchall())
        is_fresh = time.time() - float(facts.get("written_at", 0)) < MAX_FILE_AGE_SEC
        # Writes are not synced, so a power failure may have corrupted the file.
        is_whole = db.execute("PRAGMA quick_check(1)").fetchone() == ("ok",)
        return facts.get("kind") == kind and is_fresh and is_whole
    except sqlite3.DatabaseError:
        return False


def _new(path: str, kind: str) -> sqlite3.Connection:
    db = sqlite3.connect(path)
    # No sync, because a loss costs only a rebuild; WAL keeps the file intact after a kill.
    db.execute("PRAGMA journal_mode = WAL")
    db.execute("PRAGMA synchronous = OFF")
    with db:
        db.executescript(_SCHEMA)
        db.execute("INSERT INTO facts VALUES ('kind', ?)", (kind,))
    return db
