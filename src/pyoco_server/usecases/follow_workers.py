"""Keep a gateway's picture of the fleet up to date: a handful of records, in memory."""

from pyoco_server.domain.workers import WorkerRecord
from pyoco_server.usecases.ports import Feed


class FollowWorkers:
    def __init__(self, feed: Feed[WorkerRecord]) -> None:
        self._feed = feed
        self.records: dict[str, WorkerRecord] = {}
        self.is_caught_up = False

    async def run(self) -> None:
        async for batch in self._feed.follow(None):
            if batch.is_reset:
                self.records.clear()
            for change in batch.changes:
                if change.value is None:
                    self.records.pop(change.key, None)
                else:
                    self.records[change.key] = change.value
            self.is_caught_up = self.is_caught_up or batch.is_caught_up
