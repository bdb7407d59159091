"""Every schedule in memory, from the feed: there are few enough."""

import asyncio
from bisect import bisect_right, insort
from collections.abc import Iterable

from pyoco_server.domain.schedules.model import Schedule, schedule_key
from pyoco_server.usecases.ports.stores import Change, Feed, FeedBatch, Revision, Versioned


class FollowSchedules:
    def __init__(self, feed: Feed[Schedule]) -> None:
        self._feed = feed
        self._known: dict[str, Versioned[Schedule]] = {}
        self._keys: list[str] = []
        self._owners: dict[str, str] = {}
        """Keys of schedules by the ids of their active runs."""
        self._caught_up = asyncio.Event()

    @property
    def is_caught_up(self) -> bool:
        return self._caught_up.is_set()

    @property
    def stale_sec(self) -> float:
        return self._feed.stale_sec

    async def run(self) -> None:
        async for batch in self._feed.follow(None):
            self._take(batch)
            await asyncio.sleep(0)

    async def wait(self) -> None:
        """Until all schedules that existed at the start are known."""
        await self._caught_up.wait()

    def known(self, key: str) -> Versioned[Schedule] | None:
        return self._known.get(key)

    def all(self) -> Iterable[tuple[str, Versioned[Schedule]]]:
        return list(self._known.items())

    def owner_of(self, run_id: str) -> str | None:
        """The key of the schedule for which this run or execution is active."""
        return self._owners.get(run_id)

    def after(self, tenant_id: str | None, schedule_id: str, limit: int) -> list[Schedule]:
        """Schedules of a tenant by id."""
        prefix = schedule_key(tenant_id, "")
        start = bisect_right(self._keys, prefix + schedule_id)
        keys = self._keys[start : start + limit]
        return [self._known[key].value for key in keys if key.startswith(prefix)]

    def ids(self, tenant_id: str | None) -> list[str]:
        prefix = schedule_key(tenant_id, "")
        return [key.removeprefix(prefix) for key in self._keys if key.startswith(prefix)]

    def by_flow(self, tenant_id: str | None) -> dict[str, list[str]]:
        """Ids of a tenant's schedules, by the flow that they start."""
        prefix, found = schedule_key(tenant_id, ""), dict[str, list[str]]()
        for key in self._keys:
            if key.startswith(prefix) and (flow := self._known[key].value.definition.target.flow):
                found.setdefault(flow, []).append(key.removeprefix(prefix))
        return found

    def latest(self, key: str, stored: Versioned[Schedule]) -> Versioned[Schedule]:
        """What was read, with what is known beyond it: that this gateway has settled it."""
        known = self._known.get(key)
        return known if known is not None and known.revision == stored.revision else stored

    def note(self, key: str, stored: Versioned[Schedule]) -> None:
        """Something newer, from the feed or from this gateway's own work."""
        known = self._known.get(key)
        if known is not None and (known.revision, known.value.is_settled) >= (
            stored.revision,
            stored.value.is_settled,
        ):
            return
        if known is None:
            insort(self._keys, key)
        self._replace_owner(key, known, stored.value)
        self._known[key] = stored

    def forget(self, key: str) -> None:
        known = self._known.pop(key, None)
        if known is not None:
            del self._keys[bisect_right(self._keys, key) - 1]
            self._replace_owner(key, known, None)

    def _replace_owner(self, key: str, before: Versioned[Schedule] | None, now: Schedule | None) -> None:
        for run in () if before is None else before.value.active:
            self._owners.pop(run.id, None)
        for run in () if now is None else now.active:
            self._owners[run.id] = key

    def _take(self, batch: FeedBatch[Schedule]) -> None:
        if batch.is_reset:
            for key in list(self._known):
                self.forget(key)
            self._caught_up.clear()
        for change in batch.changes:
            self._take_change(change)
        if batch.is_caught_up:
            self._caught_up.set()

    def _take_change(self, change: Change[Schedule]) -> None:
        known = self._known.get(change.key)
        if change.value is not None:
            self.note(change.key, Versioned(change.value, Revision(change.revision)))
        elif known is not None and known.revision < change.revision:
            self.forget(change.key)
