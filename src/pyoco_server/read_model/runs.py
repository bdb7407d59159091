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

from pyoco_server.domain.limits.holders import Standing, replace, standing_of
from pyoco_server.domain.runs.listing import Place, RunFilter, RunSummary, changed_at, is_beat, summary
from pyoco_server.domain.runs.model import RunSnapshot, RunStatus
from pyoco_server.logs import get_logger
from pyoco_server.usecases.ports.runs import IndexedPage
from pyoco_server.usecases.ports.stores import Change, FeedPosition, Revision

log = get_logger(__name__)
_decode_standing = msgspec.json.Decoder(Standing).decode

SCHEMA_VERSION = 6
MAX_FILE_AGE_SEC = 12 * 3600
"""An older file may have missed a removal whose marker has expired."""
_SCHEMA = """
CREATE TABLE runs (
    run_id TEXT PRIMARY KEY,
    scope TEXT NOT NULL,
    status TEXT NOT NULL,
    written_at REAL NOT NULL,
    changed_at REAL NOT NULL,
    lists BLOB NOT NULL,
    revision INTEGER NOT NULL,
    expires_at REAL,
    summary BLOB NOT NULL,
    limited BLOB
);
CREATE INDEX unfinished ON runs (run_id, revision) WHERE status IN ('PENDING', 'RUNNING', 'CANCELLING');
CREATE INDEX limited ON runs (run_id) WHERE limited IS NOT NULL;
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
    and only its last state needs an insert. Counts include them, so that watching costs no insert.
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
            waiting = self._waiting.get(change.key)
            stored = self._stored(change.key) if waiting is None else waiting.stored
            before = stored if waiting is None else waiting.row
            after = self._row(change, before)
            self._count(before, -1)
            self._count(after, 1)
            self._waiting[change.key] = _waiting(change, after, stored)
        self._position = position
        if len(self._waiting) >= self._max_waiting:
            self._write_waiting()

    def _write_waiting(self) -> None:
        if self._position is None:
            return
        with self._db:
            for run_id, (_, row, stored) in self._waiting.items():
                if stored is not None and (row is None or row.lists != stored.lists):
                    self._remove(run_id)
            self._insert(_inserts(self._waiting))
            self._update(_updates(self._waiting))
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
                self._count(self._stored(run_id), -1)
                self._remove(run_id)
            self._write_flows()
        return len(gone)

    def forget(self, run_id: str) -> None:
        """Remove a run that the store does not have, without a marker in the feed."""
        self._write_waiting()
        with self._db:
            self._count(self._stored(run_id), -1)
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
        scope = self._scope(tenant_id)
        return {status: self._counts[scope, status.value] for status in RunStatus}

    def is_of(self, run_id: str, tenant_id: str) -> bool:
        """Whether a run belongs to a tenant, as far as this index knows."""
        known = self._known(run_id)
        return known is not None and known.scope == tenant_id

    def unfinished(self) -> list[tuple[str, Revision, RunStatus]]:
        self._write_waiting()
        rows = self._db.execute(
            "SELECT run_id, revision, status FROM runs WHERE status IN ('PENDING', 'RUNNING', 'CANCELLING')"
        )
        return [(run_id, revision, RunStatus(status)) for run_id, revision, status in rows]

    def limited(self) -> list[Standing]:
        """At the start of a gateway; afterwards it follows the feed itself."""
        self._write_waiting()
        rows = self._db.execute("SELECT limited, revision FROM runs WHERE limited IS NOT NULL")
        return [replace(_decode_standing(data), revision=revision) for data, revision in rows]

    def is_known(self, change: Change[RunSnapshot]) -> bool:
        known = self._known(change.key)
        return known is not None and change.value is not None and known.is_of(change.value)

    def _known(self, run_id: str) -> "_Row | None":
        waiting = self._waiting.get(run_id)
        return self._stored(run_id) if waiting is None else waiting.row

    def _stored(self, run_id: str) -> "_Row | None":
        found = self._db.execute(
            "SELECT scope, status, written_at, changed_at, lists, limited FROM runs WHERE run_id = ?",
            (run_id,),
        ).fetchone()
        return None if found is None else _Row(*found)

    def _row(self, change: Change[RunSnapshot], before: "_Row | None") -> "_Row | None":
        run = change.value
        if run is None:
            return None
        if before is not None and is_beat(run) and before.is_of(run):
            return before  # a heartbeat does not move a run in the lists
        scope, changed = self._scope(run.tenant_id), changed_at(run, change.stored_at)
        lists = _lists_of(scope, run.flow_name, run.tag, run.tags, run.workflow_yaml_sha256)
        return _Row(scope, run.status.value, run.updated_at, changed, lists, _limited(run, before))

    def _count(self, row: "_Row | None", by: int) -> None:
        if row is not None:
            self._counts[row.scope, row.status] += by

    def _insert(self, runs: "list[_Written]") -> None:
        self._db.executemany(
            "INSERT INTO runs VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            [
                (run.shown.run_id, *row[:5], run.revision, run.expires_at, run.json(), row.limited)
                for run, row, _ in runs
            ],
        )
        self._db.executemany(
            "INSERT OR IGNORE INTO listed VALUES (?, ?, ?, ?)",
            [
                (name, row.status, row.changed_at, run.shown.run_id)
                for run, row, _ in runs
                for name in _names_in(row.lists)
            ],
        )
        self._new_runs.update((row.scope, run.shown.flow_name) for run, row, _ in runs)

    def _update(self, runs: "list[_Written]") -> None:
        """Runs that stay in their lists."""
        self._db.executemany(
            "UPDATE runs SET status = ?, written_at = ?, changed_at = ?, revision = ?, expires_at = ?,"
            " summary = ?, limited = ? WHERE run_id = ?",
            [
                (*row[1:4], run.revision, run.expires_at, run.json(), row.limited, run.shown.run_id)
                for run, row, _ in runs
            ],
        )
        self._db.executemany(
            "UPDATE OR REPLACE listed SET status = ?, changed_at = ?"
            " WHERE list = ? AND status = ? AND changed_at = ? AND run_id = ?",
            [
                (row.status, row.changed_at, name, old.status, old.changed_at, run.shown.run_id)
                for run, row, old in runs
                if old is not None and (row.status, row.changed_at) != (old.status, old.changed_at)
                for name in _names_in(row.lists)
            ],
        )

    def _remove(self, run_id: str) -> None:
        found = self._db.execute(
            "DELETE FROM runs WHERE run_id = ? RETURNING scope, status, changed_at, lists, summary", (run_id,)
        ).fetchone()
        if found is None:
            return
        scope, status, changed, lists, stored = found
        self._new_runs[scope, msgspec.json.decode(stored, type=_FlowName).flow_name] -= 1
        self._db.executemany(
            "DELETE FROM listed WHERE list = ? AND status = ? AND changed_at = ? AND run_id = ?",
            [(name, status, changed, run_id) for name in _names_in(lists)],
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


class _Row(NamedTuple):
    """The place of a run in the lists."""

    scope: str
    status: str
    written_at: float
    changed_at: float
    lists: bytes
    limited: bytes | None = None
    """What limits have to know of it."""

    def is_of(self, run: RunSnapshot) -> bool:
        return self.status == run.status.value and self.written_at == run.updated_at


def _limited(run: RunSnapshot, before: _Row | None) -> bytes | None:
    """A worker of another make drops the mark of a run; until its end the last one counts."""
    if run.limits is None and (before is None or before.limited is None):
        return None
    standing = standing_of(run, 0)
    if standing is not None:
        return msgspec.json.encode(standing)
    return None if before is None or run.status.is_terminal else before.limited


class _Shown(NamedTuple):
    """Without fields that no list shows, because 500 buffered runs with large params would take gigabytes."""

    shown: RunSummary
    revision: int
    expires_at: float | None

    def json(self) -> bytes:
        return msgspec.json.encode(self.shown)


class _Waiting(NamedTuple):
    run: _Shown | None
    """None: removed."""
    row: _Row | None
    stored: _Row | None
    """Its row in the table, to be replaced."""


_Written = tuple[_Shown, _Row, _Row | None]


def _waiting(change: Change[RunSnapshot], row: _Row | None, stored: _Row | None) -> _Waiting:
    if change.value is None or row is None:
        return _Waiting(None, None, stored)
    shown = summary(change.value, change.key, row.changed_at)
    return _Waiting(_Shown(shown, change.revision, change.expires_at), row, stored)


def _inserts(waiting: dict[str, _Waiting]) -> list[_Written]:
    return [
        (run, row, stored)
        for run, row, stored in waiting.values()
        if run is not None and row is not None and (stored is None or row.lists != stored.lists)
    ]


def _updates(waiting: dict[str, _Waiting]) -> list[_Written]:
    return [
        (run, row, stored)
        for run, row, stored in waiting.values()
        if run is not None and row is not None and stored is not None and row.lists == stored.lists
    ]


class _FlowName(msgspec.Struct):
    flow_name: str


_NAME_BYTES = 12


@lru_cache(maxsize=4096)
def _lists_of(
    scope: str, flow_name: str, tag: str | None, labels: tuple[str, ...] | None, sha256: str | None
) -> bytes:
    """The names of a run's lists in one piece. Both the routing tag and the labels have lists."""
    tags = sorted({text for text in (tag, *(labels or ())) if text})
    return b"".join(
        _name(scope, flow, one, file)
        for flow in (None, flow_name)
        for one in (None, *tags)
        for file in ((None, sha256) if sha256 else (None,))
    )


@lru_cache(maxsize=4096)
def _names_in(lists: bytes) -> tuple[bytes, ...]:
    return tuple(lists[start : start + _NAME_BYTES] for start in range(0, len(lists), _NAME_BYTES))


def _name(scope: str, flow: str | None, tag: str | None, sha256: str | None) -> bytes:
    """Key of a list, short because every run in it repeats it."""
    parts = msgspec.json.encode((scope, flow, tag, sha256))
    return hashlib.blake2b(parts, digest_size=_NAME_BYTES).digest()


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
