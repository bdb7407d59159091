"""Index of runs in SQLite: lists, filters, cursors and counts at the cost of a page, not the history."""

from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import msgspec

from pyoco_server.domain.limits.holders import Standing, replace
from pyoco_server.domain.queues import QueueFigures
from pyoco_server.domain.runs.listing import Place, RunFilter
from pyoco_server.domain.runs.model import RunSnapshot, RunStatus
from pyoco_server.read_model.index_tables import StoredIndex, or_lost
from pyoco_server.read_model.queues import QueueCounts, runs_before
from pyoco_server.read_model.run_rows import (
    NAME_BYTES,
    STATUSES,
    FlowName,
    Row,
    Waiting,
    Written,
    inserts,
    key_of,
    list_name,
    names_in,
    row_of,
    run_id_of,
    updates,
    waiting_of,
    walks_along,
    within,
)
from pyoco_server.read_model.run_tables import LAST_ACTIVE, RUN_TABLES, STATUS_CODES
from pyoco_server.usecases.ports.runs import IndexedPage
from pyoco_server.usecases.ports.stores import NO_HORIZON, Change, FeedPosition, Revision

_decode_standing = msgspec.json.Decoder(Standing).decode

MAX_WAITING = 500
MAX_FILLING = 1000
"""Runs of one transaction while the index is filled."""


class SqliteRunIndex(StoredIndex):
    """A run is in one list per filter combination of flow, tag and flow.yaml.

    So every page is a walk along one index; without a status, six walks that SQLite merges.

    Changes are buffered in memory until a query or a limit, because a run changes several times in a moment
    and only its last state needs an insert. Counts include them, so that watching costs no insert.
    """

    def __init__(self, path: Path | None, *, tenants: bool, max_waiting: int = MAX_WAITING) -> None:
        self._max_waiting = max_waiting
        super().__init__(path, RUN_TABLES, tenants=tenants)

    def _begin(self) -> None:
        self._waiting: dict[str, Waiting] = {}
        self._horizon = NO_HORIZON
        self._reached = 0
        self._new_runs: Counter[tuple[str, str]] = Counter()
        """Runs added and removed per scope and flow, until the end of the transaction."""
        self._tally: Counter[tuple[str, str, int]] = Counter()
        """The same per scope, tag and status."""
        found = self._db.execute("SELECT scope, tag, status, runs FROM tallies").fetchall()
        self._queues = QueueCounts((scope, tag, STATUSES[code], runs) for scope, tag, code, runs in found)
        self._counts: Counter[tuple[str, int]] = Counter()
        for scope, _, code, runs in found:
            self._counts[scope, code] += runs

    @or_lost
    def clear(self, horizon: Revision = NO_HORIZON) -> None:
        """`horizon`: up to this revision, changes are the only ones of their run."""
        self._start_again()
        self._horizon = horizon

    @or_lost
    def apply(self, changes: Iterable[Change[RunSnapshot]], position: FeedPosition) -> None:
        """Apply changes. Only the last of several changes of a run matters."""
        for change in changes:
            self._take(change)
        self._position = position
        if len(self._waiting) >= (
            self._max_waiting if position.last_revision > self._horizon else MAX_FILLING
        ):
            self._write_waiting()

    def _take(self, change: Change[RunSnapshot]) -> None:
        waiting = self._waiting.get(change.key)
        if waiting is not None:
            stored, before = waiting.stored, waiting.row
        else:
            stored = before = None if change.revision <= self._horizon else self._stored(change.key)
        run = change.value
        after = None if run is None else row_of(run, self._scope(run.tenant_id), change.stored_at, before)
        if after is not before:
            self._count(before, -1)
            self._count(after, 1)
        if after is not None and after.is_ended and (before is None or not before.is_ended):
            self._queues.ended((after.scope, after.tag), after.changed_at)
        self._waiting[change.key] = waiting_of(change, after, stored)

    def _write_waiting(self) -> None:
        if self._position is None:
            return
        with self._db:
            for run_id, (_, row, stored) in self._waiting.items():
                if stored is not None and (row is None or row.lists != stored.lists):
                    self._remove(run_id)
            self._insert(inserts(self._waiting))
            self._update(updates(self._waiting))
            self._write_sums()
            self._write_position(self._position)
        self._waiting.clear()

    @or_lost
    def expire(self, now: float) -> int:
        """Remove runs that have expired in the store; their number."""
        self._write_waiting()
        found = self._db.execute("SELECT key FROM runs WHERE expires_at <= ?", (now,))
        return self._drop([run_id_of(key) for (key,) in found])

    @or_lost
    def forget(self, run_id: str) -> None:
        """Remove a run that the store does not have, without a marker in the feed."""
        self._write_waiting()
        self._drop([run_id])

    def _drop(self, run_ids: list[str]) -> int:
        if run_ids:
            with self._db:
                for run_id in run_ids:
                    self._count(self._stored(run_id), -1)
                    self._remove(run_id)
                self._write_sums()
        return len(run_ids)

    @or_lost
    def flows(self, tenant_id: str | None, after: str, limit: int) -> list[str]:
        """Names of flows that have runs, in order, following `after`."""
        self._write_waiting()
        rows = self._db.execute(
            "SELECT name FROM flows WHERE scope = ? AND name > ? ORDER BY name LIMIT ?",
            (self._scope(tenant_id), after, limit),
        )
        return [name for (name,) in rows]

    @or_lost
    def page(self, wanted: RunFilter, after: Place | None, limit: int) -> IndexedPage:
        """Up to `limit` summaries (as JSON) after `after`, and the place of the last if there are more."""
        self._write_waiting()
        walks, values = walks_along(wanted, self._scope(wanted.tenant_id), after)
        rows = self._db.execute(
            f"SELECT summary, page.changed_at, page.key, runs.status FROM ({walks} "  # noqa: S608
            "ORDER BY changed_at DESC, key DESC LIMIT ?) AS page CROSS JOIN runs ON runs.id = page.run "
            "ORDER BY page.changed_at DESC, page.key DESC",
            [*values, limit + 1],
        ).fetchall()
        shown = rows[:limit]
        places = [Place(changed, run_id_of(key)) for _, changed, key, _ in shown]
        return IndexedPage(
            [row[0] for row in shown],
            places,
            [STATUSES[row[3]] for row in shown],
            places[-1] if len(rows) > limit else None,
        )

    @or_lost
    def ended_before(self, at: float, limit: int) -> list[str]:
        self._write_waiting()
        found: list[str] = []
        for scope, code in [key for key, count in self._counts.items() if count and key[1] > LAST_ACTIVE]:
            rows = self._db.execute(
                "SELECT key FROM listed WHERE list = ? AND status = ? AND changed_at < ?"
                " ORDER BY changed_at LIMIT ?",
                (list_name(scope, None, None, None), code, at, limit - len(found)),
            )
            found += [run_id_of(key) for (key,) in rows]
        return found

    @or_lost
    def matching(self, wanted: RunFilter) -> list[str]:
        """In one query, because runs move in the lists while they are read page by page."""
        self._write_waiting()
        walks, values = walks_along(wanted, self._scope(wanted.tenant_id), None)
        rows = self._db.execute(f"{walks} ORDER BY changed_at DESC, key DESC", values)
        return [run_id_of(key) for _, key, _ in rows]

    def counts(self, tenant_id: str | None) -> dict[RunStatus, int]:
        scope = self._scope(tenant_id)
        return {status: self._counts[scope, code] for status, code in STATUS_CODES.items()}

    @or_lost
    def counts_within(self, wanted: RunFilter, most: int) -> dict[RunStatus, int]:
        """Runs of each status with the flow, the tag and the times that are wanted, counted up to `most`."""
        self._write_waiting()
        name = list_name(self._scope(wanted.tenant_id), wanted.flow, wanted.tag, None)
        conditions, values = within(wanted, None)
        found = f"SELECT 1 FROM listed WHERE list = ? AND status = ?{conditions} LIMIT ?"  # noqa: S608
        count = f"SELECT COUNT(*) FROM ({found})"  # noqa: S608
        return {
            status: self._db.execute(count, (name, code, *values, most)).fetchone()[0]
            for status, code in STATUS_CODES.items()
        }

    @or_lost
    def queues(self, tenant_id: str | None, now: float) -> dict[str, QueueFigures]:
        scope = self._scope(tenant_id)
        self._write_waiting()
        return self._queues.figures(self._db, scope, now)

    @or_lost
    def runs_ahead(self, run_id: str, most: int) -> int | None:
        self._write_waiting()
        row = self._stored(run_id)
        if row is None or row.status != STATUS_CODES[RunStatus.PENDING]:
            return None
        return runs_before(self._db, (row.scope, row.tag), row.waits_from, most)

    @or_lost
    def knows(self, run_id: str) -> bool:
        return self._known(run_id) is not None

    @or_lost
    def is_of(self, run_id: str, tenant_id: str) -> bool:
        """Whether a run belongs to a tenant, as far as this index knows."""
        known = self._known(run_id)
        return known is not None and known.scope == tenant_id

    @or_lost
    def unfinished(self, *statuses: RunStatus) -> list[tuple[str, Revision, RunStatus]]:
        """With one of the statuses; without any: with one that is not final."""
        self._write_waiting()
        codes = [STATUS_CODES[status] for status in statuses] or range(1, LAST_ACTIVE + 1)
        return [
            (run_id_of(key), revision, STATUSES[code])
            for code in codes
            for key, revision in self._db.execute(
                "SELECT key, revision FROM runs WHERE status <= 3 AND status = ?", (code,)
            )
        ]

    @or_lost
    def active(self, status: RunStatus, after: Revision, limit: int) -> list[tuple[str, Revision, bytes]]:
        self._write_waiting()
        rows = self._db.execute(
            "SELECT key, revision, summary FROM runs WHERE status <= 3 AND status = ? AND revision > ?"
            " ORDER BY revision LIMIT ?",
            (STATUS_CODES[status], after, limit),
        )
        return [(run_id_of(key), Revision(revision), summary) for key, revision, summary in rows]

    @or_lost
    def limited(self) -> list[Standing]:
        """At the start of a gateway; afterwards it follows the feed itself."""
        self._write_waiting()
        rows = self._db.execute("SELECT limited, revision FROM runs WHERE limited IS NOT NULL")
        return [replace(_decode_standing(data), revision=revision) for data, revision in rows]

    @or_lost
    def is_known(self, change: Change[RunSnapshot]) -> bool:
        known = self._known(change.key)
        return known is not None and change.value is not None and known.is_of(change.value)

    def _known(self, run_id: str) -> Row | None:
        waiting = self._waiting.get(run_id)
        return self._stored(run_id) if waiting is None else waiting.row

    def _stored(self, run_id: str) -> Row | None:
        found = self._db.execute(
            "SELECT scope, status, written_at, changed_at, lists, tag, waits_from, limited"
            " FROM runs WHERE key = ?",
            (key_of(run_id),),
        ).fetchone()
        return None if found is None else Row(*found)

    def _count(self, row: Row | None, by: int) -> None:
        if row is not None:
            self._counts[row.scope, row.status] += by
            self._tally[row.scope, row.tag, row.status] += by

    def _insert(self, runs: list[Written]) -> None:
        if not runs:
            return
        self._reach(max(len(row.lists) for _, row, _ in runs))
        (last,) = self._db.execute("SELECT coalesce(max(id), 0) FROM runs").fetchone()
        self._db.executemany(
            "INSERT INTO runs VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            [
                (n, run.key, *row, run.revision, run.expires_at, run.json)
                for n, (run, row, _) in enumerate(runs, last + 1)
            ],
        )
        # One statement for all lists of all runs, in the order of the table.
        self._db.execute(
            "INSERT INTO listed SELECT substr(lists, start, ?), status, changed_at, key, id"
            " FROM runs CROSS JOIN steps WHERE id > ? AND start < length(lists) ORDER BY 1, 2, 3, 4",
            (NAME_BYTES, last),
        )
        self._new_runs.update((row.scope, run.summary.flow_name) for run, row, _ in runs)

    def _reach(self, length: int) -> None:
        """Make `steps` name every start of a list name in `length` bytes."""
        if length > self._reached:
            starts = range(self._reached + 1, length + 1, NAME_BYTES)
            self._db.executemany("INSERT OR IGNORE INTO steps VALUES (?)", [(start,) for start in starts])
            self._reached = length

    def _update(self, runs: list[Written]) -> None:
        """Runs that stay in their lists."""
        self._db.executemany(
            "UPDATE runs SET status = ?, written_at = ?, changed_at = ?, waits_from = ?, limited = ?,"
            " revision = ?, expires_at = ?, summary = ? WHERE key = ?",
            [(*row[1:4], *row[6:8], run.revision, run.expires_at, run.json, run.key) for run, row, _ in runs],
        )
        self._db.executemany(
            "UPDATE listed SET status = ?, changed_at = ?"
            " WHERE list = ? AND status = ? AND changed_at = ? AND key = ?",
            [
                (row.status, row.changed_at, name, old.status, old.changed_at, key)
                for run, row, old in runs
                if old is not None and (row.status, row.changed_at) != (old.status, old.changed_at)
                for key in [run.key]
                for name in names_in(row.lists)
            ],
        )

    def _remove(self, run_id: str) -> None:
        key = key_of(run_id)
        found = self._db.execute(
            "DELETE FROM runs WHERE key = ? RETURNING scope, status, changed_at, lists, summary", (key,)
        ).fetchone()
        if found is None:
            return
        scope, status, changed, lists, stored = found
        self._new_runs[scope, msgspec.json.decode(stored, type=FlowName).flow_name] -= 1
        self._db.executemany(
            "DELETE FROM listed WHERE list = ? AND status = ? AND changed_at = ? AND key = ?",
            [(name, status, changed, key) for name in names_in(lists)],
        )

    def _write_sums(self) -> None:
        """In the transaction of the runs. Most changes are of runs that stay: their flows are not written."""
        flows = [(*key, count) for key, count in self._new_runs.items() if count]
        self._db.executemany(
            "INSERT INTO flows VALUES (?, ?, ?) ON CONFLICT DO UPDATE SET runs = runs + excluded.runs", flows
        )
        self._db.executemany(
            "DELETE FROM flows WHERE scope = ? AND name = ? AND runs <= 0",
            [(scope, name) for scope, name, count in flows if count < 0],
        )
        changed = [(*key, count) for key, count in self._tally.items() if count]
        self._db.executemany(
            "INSERT INTO tallies VALUES (?, ?, ?, ?) ON CONFLICT DO UPDATE SET runs = runs + excluded.runs",
            changed,
        )
        for scope, tag, code, count in changed:
            self._queues.add((scope, tag), STATUSES[code], count)
        self._new_runs.clear()
        self._tally.clear()
