"""Index of runs in SQLite: lists, filters, cursors and counts at the cost of a page, not the history."""

import hashlib
import time
from collections import Counter
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import msgspec

from pyoco_server.domain.limits.holders import Standing, replace, standing_of
from pyoco_server.domain.queues import QueueFigures
from pyoco_server.domain.runs.listing import Place, RunFilter, RunSummary, changed_at, is_beat, summary
from pyoco_server.domain.runs.model import TERMINAL, RunSnapshot, RunStatus
from pyoco_server.read_model.queues import QueueCounts
from pyoco_server.read_model.run_tables import open_tables
from pyoco_server.usecases.ports.runs import IndexedPage
from pyoco_server.usecases.ports.stores import Change, FeedPosition, Revision

_decode_standing = msgspec.json.Decoder(Standing).decode

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
        kind = "tenants" if tenants else "shared"
        self._db = open_tables(path, kind)
        self._waiting: dict[str, _Waiting] = {}
        self._max_waiting = max_waiting
        self._position: FeedPosition | None = None
        self._new_runs: Counter[tuple[str, str]] = Counter()
        """Runs added and removed per scope and flow, until the end of the transaction."""
        found = self._db.execute("SELECT scope, tag, status, count(*) FROM runs GROUP BY scope, tag, status")
        self._queues = QueueCounts(counts := found.fetchall())
        self._counts: Counter[tuple[str, str]] = Counter()
        for scope, _, status, count in counts:
            self._counts[scope, status] += count

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
        self._queues.clear()

    def apply(self, changes: Iterable[Change[RunSnapshot]], position: FeedPosition) -> None:
        """Apply changes. Only the last of several changes of a run matters."""
        for change in changes:
            waiting = self._waiting.get(change.key)
            stored = self._stored(change.key) if waiting is None else waiting.stored
            before = stored if waiting is None else waiting.row
            after = self._row(change, before)
            self._count(before, -1)
            self._count(after, 1)
            if after is not None and after.is_ended and (before is None or not before.is_ended):
                self._queues.ended((after.scope, after.tag), after.changed_at)
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

    def queues(self, tenant_id: str | None, now: float) -> dict[str, QueueFigures]:
        scope = self._scope(tenant_id)
        self._write_waiting()
        return self._queues.figures(self._db, scope, now)

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
            "SELECT scope, status, written_at, changed_at, lists, tag, waits_from, limited"
            " FROM runs WHERE run_id = ?",
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
        waits_from = max(run.submitted_at or changed, run.not_before or 0.0)
        return _Row(
            scope,
            run.status.value,
            run.updated_at,
            changed,
            lists,
            run.tag or "",
            waits_from,
            _limited(run, before),
        )

    def _count(self, row: "_Row | None", by: int) -> None:
        if row is not None:
            self._counts[row.scope, row.status] += by
            self._queues.add((row.scope, row.tag), row.status, by)

    def _insert(self, runs: "list[_Written]") -> None:
        self._db.executemany(
            "INSERT INTO runs VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            [(run.shown.run_id, *row, run.revision, run.expires_at, run.json()) for run, row, _ in runs],
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
            "UPDATE runs SET status = ?, written_at = ?, changed_at = ?, waits_from = ?, limited = ?,"
            " revision = ?, expires_at = ?, summary = ? WHERE run_id = ?",
            [
                (*row[1:4], *row[6:8], run.revision, run.expires_at, run.json(), run.shown.run_id)
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
    tag: str
    waits_from: float
    limited: bytes | None
    """What limits have to know of it."""

    @property
    def is_ended(self) -> bool:
        return self.status in TERMINAL

    def is_of(self, run: RunSnapshot) -> bool:
        return self.status == run.status.value and self.written_at == run.updated_at


def _limited(run: RunSnapshot, before: _Row | None) -> bytes | None:
    """A worker from another implementation drops the mark of a run; until its end the last one counts."""
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
