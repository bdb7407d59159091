"""Notice what alerts are about, once each, and make deliveries of it.

One gateway does it, under a lease, in turns: it reads a part of a feed (or searches for what lasts too long),
stores a delivery for each alert that is concerned, then the state: how far it has read, and the cooldowns.
The id of a delivery follows from what happened. So a gateway that dies between any two steps, or a second one
that believes it has the lease, repeats a turn to the same effect: what is stored already is recognised, and
only one of them can store the state.
"""

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from typing import Any

from msgspec.structs import replace

from pyoco_server.domain.alerts.deliveries import (
    LEFT_OUT,
    Cooldown,
    Delivery,
    event_id_of,
    is_cooling,
    is_needed,
    left_out,
    new_delivery,
    sent,
)
from pyoco_server.domain.alerts.happenings import Happening, of_execution, of_letter, of_run, of_tick
from pyoco_server.domain.alerts.model import Alert, AlertKind
from pyoco_server.domain.dead_letters import StoredLetter
from pyoco_server.domain.executions.records import LoggedCommit
from pyoco_server.domain.runs.model import RunSnapshot
from pyoco_server.domain.schedules.model import Schedule, Tick, TickPage
from pyoco_server.errors import NatsUnavailable
from pyoco_server.logs import best_effort, get_logger
from pyoco_server.usecases.alerts.follow import FollowAlerts, FollowDeliveries
from pyoco_server.usecases.concurrency import cancelled
from pyoco_server.usecases.consistency import change_value
from pyoco_server.usecases.ports.alerts import AlertsBackend, NoticedState
from pyoco_server.usecases.ports.stores import (
    Change,
    Clock,
    FeedPosition,
    Revision,
    Store,
    Versioned,
    WrongRevision,
)

log = get_logger(__name__)

KEEP_SEC = 30 * 86_400.0
"""How long deliveries are kept, and with them what was noticed."""
NEWS_SEC = KEEP_SEC - 2 * 86_400.0
"""What is older may have been noticed and forgotten."""
SAVE_SEC = 5.0
"""How often the position is stored while nothing happens that an alert is about."""
RETRY_SEC = 0.5
AT_ONCE = 64
REMEMBERED = 20_000
MAX_PAGES = 64

RUNS, EXECUTIONS, SCHEDULES, LETTERS = "runs", "executions", "schedules", "letters"
SOURCES = {
    AlertKind.RUN_FAILED: RUNS,
    AlertKind.EXECUTION_FAILED: EXECUTIONS,
    AlertKind.WAIT_OPENED: EXECUTIONS,
    AlertKind.SCHEDULE_SKIPPED: SCHEDULES,
    AlertKind.SCHEDULE_MISSED: SCHEDULES,
    AlertKind.DEAD_LETTER: LETTERS,
}
"""The feeds in which kinds are found; the others are searched for."""
STATE = "alerts-noticed"
Noticed = tuple[Alert, Happening]


def sources_of(kinds: Iterable[AlertKind]) -> set[str]:
    return {SOURCES[kind] for kind in kinds if kind in SOURCES}


class StartNoticing:
    """Before an alert is stored: its feeds are read from here on, whoever reads them and whenever."""

    def __init__(self, backend: AlertsBackend) -> None:
        self._backend = backend

    async def __call__(self, kinds: Iterable[AlertKind]) -> None:
        found = await self._backend.state.get(STATE)
        known = {} if found is None else found.value.positions
        missing = sources_of(kinds) - set(known)
        if not missing:
            return
        ends = {source: await getattr(self._backend, source).end() for source in sorted(missing)}

        def decide(state: NoticedState | None) -> NoticedState:
            before = state or NoticedState()
            return replace(before, positions={**ends, **before.positions})

        await change_value(self._backend.state, STATE, decide)


class _Superseded(Exception):
    """Another gateway notices."""


class NoticeHappenings:
    def __init__(
        self,
        *,
        backend: AlertsBackend,
        tick_pages: Store[TickPage],
        alerts: FollowAlerts,
        deliveries: FollowDeliveries,
        clock: Clock,
        tenant_of: Callable[[StoredLetter], Awaitable[str | None]],
    ) -> None:
        """`tenant_of`: of a dead letter, which may name none."""
        self._backend = backend
        self._ticks = _Ticks(tick_pages)
        self._alerts = alerts
        self._deliveries = deliveries
        self._clock = clock
        self._tenant_of = tenant_of
        self._news = asyncio.Event()
        alerts.on_news(self._news.set)
        self._turn = asyncio.Lock()
        self._state = Versioned(NoticedState(), Revision(0))
        self._moved: dict[str, FeedPosition] = {}
        self._saved_at = 0.0
        self._recent: OrderedDict[str, None] = OrderedDict()

    async def run(self, scan: Callable[[], "asyncio.Future[None]"]) -> None:
        """While this gateway holds the lease. `scan`: starts to search for what lasts too long."""
        while True:
            with best_effort(log, "alert.notice", NatsUnavailable):
                await self._load()
                try:
                    await self._keep_reading(scan)
                except _Superseded:
                    log.warning("another gateway notices what alerts are about", action="alert.superseded")
            await asyncio.sleep(RETRY_SEC)

    async def _load(self) -> None:
        found = await self._backend.state.get(STATE)
        self._state = Versioned(NoticedState(), Revision(0)) if found is None else found
        self._moved.clear()
        self._recent.clear()
        self._ticks.forget()

    async def _keep_reading(self, scan: Callable[[], "asyncio.Future[None]"]) -> None:
        """A task for each feed that an alert needs."""
        tasks: dict[str, asyncio.Future[None]] = {"scan": scan()}
        try:
            while True:
                self._news.clear()
                wanted = sources_of(self._alerts.kinds())
                for source in set(tasks) - wanted - {"scan"}:
                    await cancelled(tasks.pop(source))
                await self._drop_positions(wanted)
                for source in wanted - set(tasks):
                    tasks[source] = asyncio.ensure_future(self._read(source))
                await self._news_or_end(list(tasks.values()))
        finally:
            for task in tasks.values():
                await cancelled(task)

    async def _news_or_end(self, tasks: "list[asyncio.Future[None]]") -> None:
        """Raises what ended a task."""
        waiting: asyncio.Future[Any] = asyncio.ensure_future(self._news.wait())
        await asyncio.wait({waiting, *tasks}, return_when=asyncio.FIRST_COMPLETED)
        await cancelled(waiting)
        for task in tasks:
            if task.done():
                task.result()

    async def _drop_positions(self, wanted: set[str]) -> None:
        """A position of long ago would only make the next alert read more than it needs."""
        async with self._turn:
            unneeded = set(self._state.value.positions) - wanted
            if unneeded:
                for source in unneeded:
                    self._moved.pop(source, None)
                await self._save(self._state.value, dropped=unneeded)

    async def forget_positions(self) -> None:
        """After the last alert was deleted."""
        with best_effort(log, "alert.forget", NatsUnavailable):
            await change_value(
                self._backend.state,
                STATE,
                lambda state: replace(state, positions={}) if state and state.positions else state,
            )

    # Reading

    async def _read(self, source: str) -> None:
        stored = await self._backend.state.get(STATE)
        position = None if stored is None else stored.value.positions.get(source)
        feed = getattr(self._backend, source)
        async for batch in feed.follow(position):
            found = [one for change in batch.changes async for one in self._happenings(source, change)]
            await self._until_stored(self.concerned(found), {source: batch.position})

    async def _happenings(
        self, source: str, change: "Change[RunSnapshot | LoggedCommit | Schedule | StoredLetter]"
    ) -> AsyncIterator[Happening]:
        match change.value:
            case RunSnapshot():
                for happening in of_run(change.value, change.stored_at):
                    yield happening
            case LoggedCommit():
                for happening in of_execution(change.value.summary):
                    yield happening
            case StoredLetter():
                happening = of_letter(change.value, change.stored_at)
                yield replace(happening, tenant_id=await self._tenant_of(change.value))
            case Schedule():
                async for tick in self._ticks.new(change.value, self._oldest(source)):
                    ticked = of_tick(change.value, tick)
                    if ticked is not None:
                        yield ticked

    def _oldest(self, source: str) -> float:
        """Since when alerts want what this feed has."""
        kinds = [kind for kind, of in SOURCES.items() if of == source]
        return min((alert.since[kind] for kind in kinds for alert in self._alerts.of_kind(kind)), default=0.0)

    def concerned(self, happenings: Iterable[Happening]) -> list[Noticed]:
        oldest = self._clock() - NEWS_SEC
        return [
            (alert, one) for one in happenings if one.at > oldest for alert in self._alerts.concerned(one)
        ]

    async def _until_stored(self, noticed: Sequence[Noticed], positions: dict[str, FeedPosition]) -> None:
        while True:
            try:
                return await self.take(noticed, positions)
            except NatsUnavailable as error:
                log.warning(
                    "what happened is not stored yet; trying again",
                    action="alert.not_stored",
                    exc_info=error,
                    **error.ids,
                )
            await asyncio.sleep(RETRY_SEC)

    # A turn

    async def take(
        self, noticed: Sequence[Noticed], positions: dict[str, FeedPosition] | None = None
    ) -> None:
        """Raises NatsUnavailable; then it can be called again."""
        async with self._turn:
            self._moved.update(positions or {})
            fresh = [one for one in noticed if event_id_of(*one) not in self._recent]
            if not fresh and self._clock() < self._saved_at + SAVE_SEC:
                return
            draft = _Draft(self._state.value, self._clock())
            if fresh:
                await self._make(fresh, draft)
            await self._save(draft.state)
            for one in fresh:
                self._remember(event_id_of(*one))

    def _remember(self, event_id: str) -> None:
        self._recent[event_id] = None
        if len(self._recent) > REMEMBERED:
            self._recent.popitem(last=False)

    async def _make(self, noticed: Sequence[Noticed], draft: "_Draft") -> None:
        """In order where one depends on the other: those of a cooldown."""
        lines: dict[str, list[Noticed]] = {}
        free: list[Noticed] = []
        for alert, happening in noticed:
            if alert.definition.cooldown_sec:
                lines.setdefault(cooldown_key(alert, happening), []).append((alert, happening))
            else:
                free.append((alert, happening))
        planned = [draft.plan(alert, happening, suppressed=0) for alert, happening in free]
        for start in range(0, len(planned), AT_ONCE):
            await asyncio.gather(*(self._create(one) for one in planned[start : start + AT_ONCE]))
        await asyncio.gather(*(self._make_line(key, line, draft) for key, line in lines.items()))

    async def _make_line(self, key: str, line: list[Noticed], draft: "_Draft") -> None:
        for alert, happening in line:
            known = draft.cooldowns.get(key)
            is_left_out = is_cooling(known, alert.definition.cooldown_sec, happening.at)
            suppressed = None if is_left_out else 0 if known is None else known.left_out
            stored = await self._create(draft.plan(alert, happening, suppressed=suppressed))
            if stored.turn <= draft.state.turn:  # of a turn that was stored: it is counted
                continue
            if stored.status == LEFT_OUT:
                draft.cooldowns[key] = left_out(known or Cooldown(happening.at))
            else:
                draft.cooldowns[key] = sent(happening.at)
            draft.lasting[key] = alert.definition.cooldown_sec

    async def _create(self, wanted: Delivery) -> Delivery:
        """What is stored: `wanted`, or what was stored before under its id."""
        try:
            revision = await self._backend.deliveries.create(wanted.id, wanted)
        except WrongRevision:
            found = await self._backend.deliveries.get(wanted.id)
            return wanted if found is None else found.value
        self._deliveries.note(Versioned(wanted, revision))
        return wanted

    async def _save(self, state: NoticedState, dropped: Iterable[str] = ()) -> None:
        while True:
            positions = {**self._state.value.positions, **self._moved}
            kept = {source: at for source, at in positions.items() if source not in set(dropped)}
            after = replace(state, turn=state.turn + 1, positions=kept)
            try:
                revision = await self._write(after)
            except WrongRevision:
                found = await self._backend.state.get(STATE)
                if found is not None and found.value.turn != self._state.value.turn:
                    raise _Superseded from None
                # An alert was defined, and its feeds have a beginning now.
                self._state = found or Versioned(NoticedState(turn=state.turn), Revision(0))
                continue
            self._state = Versioned(after, revision)
            self._saved_at = self._clock()
            return

    async def _write(self, after: NoticedState) -> Revision:
        if not self._state.revision:
            return await self._backend.state.create(STATE, after)
        return await self._backend.state.update(STATE, after, self._state.revision)


def cooldown_key(alert: Alert, happening: Happening) -> str:
    return f"{alert.store_key}:{alert.incarnation}:{happening.flow}"


class _Draft:
    """The state of the turn that is under way."""

    def __init__(self, state: NoticedState, now: float) -> None:
        self._state = state
        self._now = now
        self._number = state.number
        self.cooldowns = dict(state.cooldowns)
        self.lasting: dict[str, float] = {}

    def plan(self, alert: Alert, happening: Happening, *, suppressed: int | None) -> Delivery:
        self._number += 1
        return new_delivery(
            alert,
            happening,
            suppressed=suppressed,
            number=self._number,
            turn=self._state.turn + 1,
            now=self._now,
        )

    @property
    def state(self) -> NoticedState:
        kept = {key: one for key, one in self.cooldowns.items() if self._is_needed(key, one)}
        return replace(self._state, number=self._number, cooldowns=kept)

    def _is_needed(self, key: str, known: Cooldown) -> bool:
        """For a month, as everything that was noticed."""
        return key in self.lasting or is_needed(known, KEEP_SEC, self._now)


class _Ticks:
    """The ticks of schedules that were not seen yet. A schedule holds its newest; pages hold those before."""

    def __init__(self, pages: Store[TickPage]) -> None:
        self._pages = pages
        self._seen: dict[str, tuple[str, float]] = {}
        """Incarnation and newest tick, by schedule."""

    def forget(self) -> None:
        self._seen.clear()

    async def new(self, schedule: Schedule, oldest: float) -> AsyncIterator[Tick]:
        """Also some that were seen: a tick may turn out to be skipped later."""
        incarnation, newest = self._seen.get(schedule.key, (schedule.incarnation, oldest))
        since = newest if incarnation == schedule.incarnation else oldest
        for tick in [*await self._filed(schedule, since), *schedule.ticks]:
            yield tick
        at = max((tick.fired_at for tick in schedule.ticks), default=since)
        self._seen[schedule.key] = (schedule.incarnation, at)

    async def _filed(self, schedule: Schedule, since: float) -> list[Tick]:
        found: list[Tick] = []
        first = min((tick.fired_at for tick in schedule.ticks), default=float("inf"))
        for number in range(schedule.pages - 1, max(-1, schedule.pages - 1 - MAX_PAGES), -1):
            if first <= since:
                break
            page = await self._pages.get(schedule.page_key(number))
            if page is None:
                break
            found[:0] = page.value.ticks
            first = min(tick.fired_at for tick in page.value.ticks)
        return found
