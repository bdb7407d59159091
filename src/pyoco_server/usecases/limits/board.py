"""A gateway's picture of limits, in memory: definitions, holders, and the runs they concern.

Three feeds keep it up to date, each in its own order, so any part of it may be old. It decides who is next;
whether there is a place is decided by the compare-and-set of the holders.
"""

import asyncio
from collections import OrderedDict, defaultdict
from collections.abc import Collection, Iterable, Mapping
from heapq import heappop, heappush
from itertools import count

from pyoco_server.domain.limits.holders import (
    HeldPlace,
    Holders,
    KeyId,
    Order,
    Standing,
    is_void,
    living,
    new_holders,
    next_token_at,
    replace,
    room,
    same_place,
    standing_of,
)
from pyoco_server.domain.limits.model import Limit, LimitRecord, limits_anew
from pyoco_server.domain.runs.model import RunSnapshot, RunStatus, replace as replace_run
from pyoco_server.usecases.limits.definitions import LimitDefinitions
from pyoco_server.usecases.limits.lines import Line, Plan, WaitingLines
from pyoco_server.usecases.ports.stores import Change, Versioned

MAX_ENDED = 100_000
"""Ended runs to remember: their places may still be in a record, and they in an answer on its way."""

Timed = str | Line | tuple[str | None, str]
"""A run whose delay is over, a line for which there is a token, a flow whose pause is over."""


class LimitBoard:
    def __init__(self) -> None:
        self.definitions = LimitDefinitions()
        self.changed = asyncio.Event()
        """Somebody may be next."""
        self.in_use = asyncio.Event()
        """There are limits, pauses or runs that they concern."""
        self.sorting = asyncio.Event()
        """Runs have to be sorted."""
        self._records: dict[KeyId, Versioned[Holders]] = {}
        self._holding: dict[str, set[KeyId]] = defaultdict(set)
        self._runs: dict[str, Standing] = {}
        self.lines = WaitingLines()
        self._admitted: dict[KeyId, set[str]] = defaultdict(set)
        self._unsorted: dict[str | None, set[str]] = defaultdict(set)
        self._ended: OrderedDict[str, int] = OrderedDict()
        self._times: list[tuple[float, int, Timed]] = []
        self._numbers = count()
        self._dirty: set[Line] = set()
        self._to_sort: set[str | None] = set()
        self._unconfirmed: set[str] = set()
        """Admitted runs that no worker has started, and whose job may not be queued yet."""

    # Definitions

    def limit(self, of: KeyId) -> Versioned[Limit] | None:
        return self.definitions.limits(of.tenant_id).get(of.limit)

    def note_definition(self, key: str, found: Versioned[LimitRecord]) -> None:
        """`definitions_noted` has to follow."""
        record = found.value
        self.in_use.set()
        if not self.definitions.note(key, found):
            return
        if isinstance(record, Limit):
            self._to_sort.add(record.tenant_id)
        elif record.until is None:
            self._wake_flow(record.tenant_id, record.flow)
        else:
            self._at(record.until, (record.tenant_id, record.flow))

    def forget_definition(self, key: str, revision: int | None = None) -> None:
        """`definitions_noted` has to follow."""
        gone = self.definitions.forget(key, revision)
        if isinstance(gone, Limit):
            self._to_sort.add(gone.tenant_id)
        elif gone is not None:
            self._wake_flow(gone.tenant_id, gone.flow)

    def definitions_noted(self) -> None:
        """Runs whose limits may be others now get into no line until they are sorted."""
        tenants, self._to_sort = self._to_sort, set()
        if tenants:
            self.sorting.set()
        for run in [run for run in self._runs.values() if run.tenant_id in tenants]:
            if (
                run.rules != self.definitions.rules(run.tenant_id)
                or run.run_id in self._unsorted[run.tenant_id]
            ):
                self._leave(run)
                self._enter(run)
        self.wake([line for line in self.lines if line.tenant_id in tenants])

    def have_read(self, tenants: Mapping[str | None, str]) -> None:
        """All active runs, by these rules: see `note_active`."""
        self.definitions.have_read(tenants)
        self.wake([line for line in self.lines if line.tenant_id in tenants])

    def unsorted(self) -> list[str]:
        return [run_id for of_tenant in self._unsorted.values() for run_id in sorted(of_tenant)]

    def sorted_as(self, run_id: str, limits: tuple[KeyId, ...], rules: str) -> None:
        run = self._runs.get(run_id)
        if run is None or run_id not in self._unsorted[run.tenant_id]:
            return
        self._replace(run, replace(run, limits=limits, rules=rules))

    # Holders

    def record(self, of: KeyId) -> Versioned[Holders] | None:
        return self._records.get(of)

    def keys(self, tenant_id: str | None, limit: str) -> set[KeyId]:
        used = (*self._records, *self._admitted, *self.lines.wanted_keys())
        return {of for of in used if (of.tenant_id, of.limit) == (tenant_id, limit)}

    def note_record(self, found: Versioned[Holders]) -> None:
        of = found.value.id
        known = self._records.get(of)
        if known is not None and known.revision >= found.revision:
            return
        self._replace_places(of, () if known is None else known.value.places, found.value.places)
        self._records[of] = found
        self.wake(self.lines.of_key(of))

    def forget_record(self, of: KeyId, revision: int) -> None:
        known = self._records.get(of)
        if known is not None and known.revision < revision:
            self._replace_places(of, known.value.places, ())
            del self._records[of]
            self.wake(self.lines.of_key(of))

    def forget_records(self) -> None:
        self._records.clear()
        self._holding.clear()

    def records(self) -> list[Versioned[Holders]]:
        return list(self._records.values())

    def _replace_places(self, of: KeyId, old: Iterable[HeldPlace], new: Iterable[HeldPlace]) -> None:
        for place in old:
            self._holding[place.run_id].discard(of)
        for place in new:
            self._holding[place.run_id].add(of)
        for place in old:
            if not self._holding[place.run_id]:
                del self._holding[place.run_id]

    def is_void(self, place: HeldPlace, of: KeyId) -> bool:
        run = self._runs.get(place.run_id)
        if run is None:
            return place.run_id in self._ended
        return is_void(place, of, run, is_sorted=run.rules == self.definitions.rules(run.tenant_id))

    def holders(self, of: KeyId) -> dict[str, HeldPlace]:
        """Those that count, by run."""
        known = self._records.get(of)
        record = new_holders(of) if known is None else known.value
        return living(record, lambda place: self.is_void(place, of), self.adopted(of))

    def adopted(self, of: KeyId) -> list[HeldPlace]:
        """Runs that have a place, also if it was given by an earlier definition."""
        return [self._runs[run_id].place for run_id in self._admitted.get(of, ())]

    def unknown_holders(self) -> list[str]:
        """Runs with a place of which nothing is known here."""
        return [run_id for run_id in self._holding if run_id not in self._runs and run_id not in self._ended]

    # Runs

    def run(self, run_id: str) -> Standing | None:
        return self._runs.get(run_id)

    def look(self, changes: Iterable[Change[RunSnapshot]]) -> None:
        """Called for every change of a run."""
        for change in changes:
            run, known = change.value, self._runs.get(change.key)
            if run is None or run.status.is_terminal:
                if known is not None or self.in_use.is_set():  # a read that began before may be answered late
                    self.end(change.key, change.revision)
            elif run.limits is not None:
                self.note(standing_of(run, change.revision))
            elif known is not None and known.revision < change.revision:
                # A worker from another implementation wrote the whole snapshot, without fields unknown to it.
                self.note(replace(known, revision=change.revision, is_waiting=False, is_admitted=True))
            elif known is None and run.status is RunStatus.PENDING:
                self.note_active(run, change.revision)

    def note_active(self, run: RunSnapshot, revision: int) -> None:
        """A run that was accepted before its limits were defined counts until it ends."""
        limits = self.definitions.limits(run.tenant_id)
        if not limits or run.limits is not None or (run.status is RunStatus.PENDING and run.not_before):
            return
        found = limits_anew(run, [limit.value for limit in limits.values()])
        rules = self.definitions.rules(run.tenant_id)
        marked = replace_run(run, limits=found, limit_rules=rules, admitted_try=run.try_number)
        standing = standing_of(marked, revision) if found else None
        if standing is not None:
            self.note(replace(standing, is_queued=False))  # its job was queued long ago

    def note_unmarked(self, run: RunSnapshot, revision: int) -> None:
        """A run that has a place, and lost the mark of it: see `look`."""
        held = sorted(self._holding.get(run.run_id, ()))
        marked = replace_run(run, limits=(), limit_rules=self.definitions.rules(run.tenant_id))
        standing = standing_of(marked, revision)
        if standing is not None and held:
            self.note(replace(standing, limits=tuple(held), is_waiting=False, is_admitted=True, try_number=1))

    def note(self, run: Standing | None) -> None:
        if run is None:
            return
        known = self._runs.get(run.run_id)
        newest = self._ended.get(run.run_id, 0) if known is None else known.revision
        if newest > run.revision:  # read before, and answered late
            return
        if known is not None and run.rules != known.rules == self.definitions.rules(run.tenant_id):
            run = replace(run, limits=known.limits, rules=known.rules)
        self._replace(known, run)

    def end(self, run_id: str, revision: int) -> None:
        """The run has ended or is gone; what it held is free."""
        self._ended[run_id] = revision
        if len(self._ended) > MAX_ENDED:
            self._ended.popitem(last=False)
        self._unconfirmed.discard(run_id)
        known = self._runs.pop(run_id, None)
        freed = set(self._holding.get(run_id, ()))
        if known is not None:
            self._leave(known)
            freed.update(known.limits)
        for of in freed:
            self.wake(self.lines.of_key(of))

    def forget_runs(self) -> None:
        for run in list(self._runs.values()):
            self._leave(run)
        self._runs.clear()
        self._ended.clear()

    def _replace(self, known: Standing | None, run: Standing) -> None:
        self.in_use.set()
        if not run.is_queued:
            self._unconfirmed.discard(run.run_id)
        elif known is None or not known.is_queued:
            self._unconfirmed.add(run.run_id)
            self.changed.set()
        if known is not None and same_place(known, run):
            self._runs[run.run_id] = run
            return
        if known is not None:
            self._leave(known)
        self._runs[run.run_id] = run
        self._enter(run)
        if known is not None and not run.is_admitted:  # the places of its earlier revision are void
            for of in {*(known.limits if known.is_admitted else ()), *self._holding.get(run.run_id, ())}:
                self.wake(self.lines.of_key(of))

    def unconfirmed(self) -> set[str]:
        return set(self._unconfirmed)

    def confirm(self, run_id: str) -> None:
        """The job of an admitted run is queued."""
        self._unconfirmed.discard(run_id)

    def _enter(self, run: Standing) -> None:
        if run.rules != self.definitions.rules(run.tenant_id):
            self._unsorted[run.tenant_id].add(run.run_id)
            self.sorting.set()
            return
        if run.is_admitted:
            for of in run.limits:
                self._admitted[of].add(run.run_id)
        elif run.is_waiting and run.not_before is not None:
            self._at(run.not_before, run.run_id)
        elif run.is_waiting:
            self.wake((self.lines.add(run),))

    def _leave(self, run: Standing) -> None:
        self._leave_unsorted(run)
        for of in run.limits:
            self._admitted[of].discard(run.run_id)
            if not self._admitted[of]:
                del self._admitted[of]
        self.lines.remove(run)

    def _leave_unsorted(self, run: Standing) -> None:
        """Once all runs of the tenant are sorted, its lines move on."""
        unsorted = self._unsorted.get(run.tenant_id)
        if unsorted and run.run_id in unsorted:
            unsorted.discard(run.run_id)
            if not unsorted:
                self.wake(self.lines.of_tenant(run.tenant_id))

    # Who is next

    def wake_all(self) -> None:
        self.wake(self.lines)

    def wake_at(self, line: Line, at: float) -> None:
        self._at(at, line)

    def look_again(self, run_id: str, at: float) -> None:
        """At the line in which the run waits."""
        line = self.lines.of_run(run_id)
        if line is not None:
            self._at(at, line)

    def postpone(self, run_id: str, until: float) -> None:
        """The run cannot be admitted before."""
        run = self._runs.get(run_id)
        if run is not None and self.lines.has(run_id):  # not if its limits have to be determined again
            self._leave(run)
            self._at(until, run_id)

    def next_time(self) -> float | None:
        """When to plan again, if nothing changes."""
        return self._times[0][0] if self._times else None

    def plan(self, now: float, busy: Collection[str], most: int) -> Plan:
        """Whom to admit now, as far as known; at most `most`. `busy`: runs that are being admitted."""
        self._pass_time(now)
        dirty, self._dirty = self._dirty, set()
        chosen: dict[Line, list[Standing]] = {}
        heads: list[tuple[Order, int, Line]] = []
        rooms: dict[KeyId, int] = {}
        unsure: set[str] = set()
        for line in dirty:
            if line in self.lines and not self._is_blocked(line, now):
                self._push_head(heads, line, 0, busy, unsure)
        while heads:
            _, index, line = heappop(heads)
            full = self._full(line, rooms, now)
            if full is not None:
                unsure |= self._unused(full, busy)
                self._come_back(line, full, now)
                continue
            if most <= 0:
                self._dirty.add(line)
                continue
            most -= 1
            for of in line.limits:
                rooms[of] -= 1
            chosen.setdefault(line, []).append(self._runs[self.lines.runs(line)[index][1]])
            self._push_head(heads, line, index + 1, busy, unsure)
        if self._dirty:
            self.changed.set()
        return Plan(list(chosen.items()), sorted(unsure.difference(busy)))

    def _push_head(
        self,
        heads: list[tuple[Order, int, Line]],
        line: Line,
        index: int,
        busy: Collection[str],
        unsure: set[str],
    ) -> None:
        runs = self.lines.runs(line)
        while index < len(runs):
            order, run_id = runs[index]
            if self._has_place(run_id):
                unsure.add(run_id)
            elif run_id not in busy:
                heappush(heads, (order, index, line))
                return
            index += 1

    def _has_place(self, run_id: str) -> bool:
        return any(run_id in self.holders(of) for of in self._holding.get(run_id, ()))

    def _unused(self, of: KeyId, busy: Collection[str]) -> set[str]:
        """Runs that wait although they have a place, which somebody took and did not use."""
        waiting = [run for run_id in self.holders(of) if (run := self._runs.get(run_id)) and run.is_waiting]
        return {run.run_id for run in waiting if run.run_id not in busy}

    def _is_blocked(self, line: Line, now: float) -> bool:
        is_paused = self.definitions.pause(line.tenant_id, line.flow_name, now) is not None
        is_sorted = self.definitions.is_read(line.tenant_id) and not self._unsorted.get(line.tenant_id)
        return is_paused or not is_sorted

    def _full(self, line: Line, rooms: dict[KeyId, int], now: float) -> KeyId | None:
        for of in line.limits:
            if of not in rooms:
                rooms[of] = self.room(of, now)
            if rooms[of] <= 0:
                return of
        return None

    def room(self, of: KeyId, now: float) -> int:
        """How many more runs of the key can be admitted now."""
        limit, known = self.limit(of), self._records.get(of)
        if limit is None:
            return 1 << 30
        full_at = 0.0 if known is None else known.value.full_at
        return room(limit.value.definition, len(self.holders(of)), full_at, now)

    def _come_back(self, line: Line, full: KeyId, now: float) -> None:
        """For a token; a place that becomes free is noticed."""
        limit, known = self.limit(full), self._records.get(full)
        rate = None if limit is None else limit.value.definition.rate
        if rate is not None and known is not None and next_token_at(rate, known.value.full_at) > now:
            self._at(next_token_at(rate, known.value.full_at), line)

    def _pass_time(self, now: float) -> None:
        while self._times and self._times[0][0] <= now:
            _, _, timed = heappop(self._times)
            if isinstance(timed, Line):
                self.wake((timed,))
            elif isinstance(timed, str):
                self._delay_is_over(timed, now)
            else:
                self._wake_flow(*timed)

    def _delay_is_over(self, run_id: str, now: float) -> None:
        run = self._runs.get(run_id)
        if run is None or not run.is_waiting or self.lines.has(run_id):
            return
        if run_id in self._unsorted[run.tenant_id] or (run.not_before or 0.0) > now:
            return
        self.wake((self.lines.add(run),))

    def _wake_flow(self, tenant_id: str | None, flow: str) -> None:
        self.wake(self.lines.of_flow(tenant_id, flow))

    def wake(self, lines: Iterable[Line]) -> None:
        self._dirty.update(lines)
        if self._dirty:
            self.changed.set()

    def _at(self, at: float, timed: Timed) -> None:
        heappush(self._times, (at, next(self._numbers), timed))
        self.changed.set()

    # Questions

    def in_order(self, of: KeyId) -> list[Standing]:
        """The runs that wait for a place of the key."""
        return [self._runs[run_id] for run_id in self.lines.in_order(of)]

    def admitted(self, of: KeyId) -> list[Standing]:
        return [self._runs[run_id] for run_id in self._admitted.get(of, ())]
