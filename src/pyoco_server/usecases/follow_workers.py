"""Keep a gateway's picture of the fleet up to date: a handful of records, in memory."""

from pyoco_server.domain.workers import WorkerRecord
from pyoco_server.usecases.ports import Change, Clock, Feed


class FollowWorkers:
    """How long a worker is silent is measured by the store's clock alone: its own may be minutes off."""

    def __init__(self, feed: Feed[WorkerRecord], clock: Clock, store_clock: Clock) -> None:
        self._feed = feed
        self._clock = clock
        self._store_clock = store_clock
        self._heard_at: dict[str, float] = {}
        self.records: dict[str, WorkerRecord] = {}
        self.is_caught_up = False

    @property
    def stale_sec(self) -> float:
        return self._feed.stale_sec

    def silent_for(self, record: WorkerRecord) -> float:
        """Seconds without a sign of life while we could have received one.

        While the store is away from us, or away altogether, nobody's heartbeat arrives: that says nothing of
        the workers.
        """
        heard_at = self._heard_at.get(record.worker_id)
        if heard_at is None:  # a store that does not say when: then the worker's word has to do
            return self._clock() - record.last_seen_at
        return self._listened() - self._feed.stale_sec - heard_at

    def _listened(self) -> float:
        """The store's time, stopped while we were out of contact."""
        return self._store_clock() - self._feed.missed_sec

    async def run(self) -> None:
        async for batch in self._feed.follow(None):
            if batch.is_reset:
                self.records.clear()
                self._heard_at.clear()
            for change in batch.changes:
                self._take(change)
            self.is_caught_up = self.is_caught_up or batch.is_caught_up

    def _take(self, change: Change[WorkerRecord]) -> None:
        if change.value is None:
            self.records.pop(change.key, None)
            self._heard_at.pop(change.key, None)
            return
        known = self.records.get(change.key)
        self.records[change.key] = change.value
        # Others write to the record as well (to hide it): that is no sign of the worker's life.
        is_sign_of_life = known is None or known.last_seen_at != change.value.last_seen_at
        if change.stored_at is not None and is_sign_of_life:
            self._heard_at[change.key] = change.stored_at - self._feed.missed_sec
