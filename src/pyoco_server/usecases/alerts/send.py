"""Send deliveries: those of a subject one after the other, the others beside each other.

Whether a message was delivered is stored after it was sent. A gateway that dies in between leaves it to the
next, which sends it again with the same id.
"""

import asyncio
import random
from bisect import insort
from collections import Counter, deque
from collections.abc import Callable
from heapq import heappop, heappush
from typing import Protocol

from pyoco_server.domain.alerts.channels import Channel
from pyoco_server.domain.alerts.deliveries import Delivery, DeliveryStatus, delivered, failed, given_up
from pyoco_server.domain.events.retry import RetryPolicy
from pyoco_server.errors import DeliveryFailed, InvalidRequest, NatsUnavailable, TargetRefused, Unresolvable
from pyoco_server.logs import get_logger
from pyoco_server.usecases.alerts.channels import ReadyChannels
from pyoco_server.usecases.alerts.follow import FollowAlerts, FollowDeliveries
from pyoco_server.usecases.concurrency import wait_at_most
from pyoco_server.usecases.ports.alerts import Outbound
from pyoco_server.usecases.ports.stores import Clock, Store, Versioned, WrongRevision

log = get_logger(__name__)

AT_ONCE = 8
"""Messages on their way over one channel: a slow receiver holds up no other."""
AGAIN_SEC = 1.0
"""After a failure of the store."""
MAX_WAIT_SEC = 5.0
"""By the clock of the store, which may be measured again."""

Lane = tuple[str | None, str, str]
Line = tuple[int, float, str]


class DeliveryMeter(Protocol):
    def delivery(self, status: str) -> None: ...


class DueLanes:
    """Which delivery is next. Of each lane only the first is considered."""

    def __init__(self) -> None:
        self._lines: dict[Lane, list[Line]] = {}
        self._due_at: dict[str, float] = {}
        self._heap: list[tuple[float, int, Lane]] = []
        self._busy: set[Lane] = set()
        self._under_way: Counter[tuple[str | None, str]] = Counter()
        self._blocked: dict[tuple[str | None, str], deque[Lane]] = {}

    def note(self, delivery: Delivery) -> None:
        entry = (delivery.number, delivery.created_at, delivery.id)
        line = self._lines.setdefault(delivery.lane, [])
        if not delivery.is_pending:
            self._due_at.pop(delivery.id, None)
            if entry in line:
                line.remove(entry)
            if not line:
                del self._lines[delivery.lane]
        else:
            self._due_at[delivery.id] = delivery.next_at
            if entry not in line:
                insort(line, entry)
        self._offer(delivery.lane)

    def forget(self, delivery_id: str) -> None:
        """It has expired."""
        self._due_at.pop(delivery_id, None)
        for lane, line in list(self._lines.items()):
            self._lines[lane] = [entry for entry in line if entry[2] != delivery_id]
            if not self._lines[lane]:
                del self._lines[lane]

    def _offer(self, lane: Lane) -> None:
        line = self._lines.get(lane)
        if line and lane not in self._busy:
            heappush(self._heap, (self._due_at[line[0][2]], line[0][0], lane))

    def take(self, now: float) -> tuple[Lane, str] | None:
        """A lane and the id of its first delivery, if that is due; it is busy until `done`."""
        for channel, blocked in list(self._blocked.items()):
            while blocked and self._under_way[channel] < AT_ONCE:
                self._offer(blocked.popleft())
                if (found := self._take_offered(now)) is not None:
                    return found
            if not blocked:
                del self._blocked[channel]
        return self._take_offered(now)

    def _take_offered(self, now: float) -> tuple[Lane, str] | None:
        while self._heap and self._heap[0][0] <= now:
            _, _, lane = heappop(self._heap)
            line, channel = self._lines.get(lane), lane[:2]
            if not line or lane in self._busy or self._due_at[line[0][2]] > now:
                continue  # it was offered again when it changed
            if self._under_way[channel] >= AT_ONCE:
                self._blocked.setdefault(channel, deque()).append(lane)
                continue
            self._busy.add(lane)
            self._under_way[channel] += 1
            return lane, line[0][2]
        return None

    def done(self, lane: Lane, again_at: float | None = None) -> None:
        """`again_at`: nothing has changed, try again then."""
        self._busy.discard(lane)
        self._under_way[lane[:2]] -= 1
        line = self._lines.get(lane)
        if line and again_at is not None:
            self._due_at[line[0][2]] = again_at
        self._offer(lane)

    @property
    def next_at(self) -> float | None:
        return self._heap[0][0] if self._heap else None


class SendDeliveries:
    def __init__(  # noqa: PLR0913 - the composition root names each
        self,
        *,
        deliveries: Store[Delivery],
        followed: FollowDeliveries,
        alerts: FollowAlerts,
        ready: ReadyChannels,
        outbound: Outbound,
        policy: RetryPolicy,
        clock: Clock,
        meter: DeliveryMeter,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self._deliveries = deliveries
        self._followed = followed
        self._alerts = alerts
        self._ready = ready
        self._outbound = outbound
        self._policy = policy
        self._clock = clock
        self._meter = meter
        self._jitter = jitter
        self._lanes = DueLanes()
        self._wake = asyncio.Event()
        followed.on_news(self._note)

    def _note(self, delivery: Delivery) -> None:
        self._lanes.note(delivery)
        self._wake.set()

    async def run(self) -> None:
        """While this gateway holds the lease."""
        await self._followed.caught_up()
        self._lanes = DueLanes()
        for delivery in self._followed.pending():
            self._lanes.note(delivery)
        tasks: set[asyncio.Task[None]] = set()
        try:
            while True:
                self._wake.clear()
                while (found := self._lanes.take(self._clock())) is not None:
                    tasks.add(asyncio.create_task(self._attend(*found)))
                next_at = self._lanes.next_at
                pause = MAX_WAIT_SEC if next_at is None else max(0.0, next_at - self._clock())
                await wait_at_most(self._wake, min(pause, MAX_WAIT_SEC))
                for task in [task for task in tasks if task.done()]:
                    tasks.discard(task)
                    task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _attend(self, lane: Lane, delivery_id: str) -> None:
        again_at = None
        try:
            await self._send(delivery_id)
        except NatsUnavailable as error:
            again_at = self._clock() + AGAIN_SEC
            log.warning(
                "the state of a delivery is not stored yet",
                action="delivery.not_stored",
                delivery_id=delivery_id,
                exc_info=error,
                **error.ids,
            )
        finally:
            self._lanes.done(lane, again_at)
            self._wake.set()

    async def _send(self, delivery_id: str) -> None:
        stored = await self._deliveries.get(delivery_id)
        if stored is None or not stored.value.is_pending or stored.value.next_at > self._clock():
            self._settle(delivery_id, stored)
            return
        delivery = stored.value
        after = await self._attempt(delivery)
        try:
            revision = await self._deliveries.update(delivery_id, after, stored.revision)
        except WrongRevision:  # somebody replays it, or another gateway sent it, too
            self._settle(delivery_id, await self._deliveries.get(delivery_id))
            return
        self._followed.note(Versioned(after, revision))
        self._report(after)

    def _settle(self, delivery_id: str, stored: Versioned[Delivery] | None) -> None:
        """What this gateway believed is not what is stored."""
        if stored is not None:
            self._followed.note(stored)
            self._lanes.note(stored.value)
        else:
            self._followed.forget(delivery_id)
            self._lanes.forget(delivery_id)

    async def _attempt(self, delivery: Delivery) -> Delivery:
        channel = self._alerts.channel(delivery.tenant_id, delivery.channel)
        if channel is None:
            return given_up(delivery, f"channel {delivery.channel} was deleted", self._clock())
        problem = await self._problem(channel, delivery)
        if problem is None:
            return delivered(delivery, self._clock())
        return failed(delivery, problem, self._policy, self._clock(), self._jitter())

    async def _problem(self, channel: Channel, delivery: Delivery) -> str | None:
        """Values of secrets exist in here only."""
        try:
            # What is private is decided by the addresses of the host, in a moment.
            ready, masks = await self._ready(channel, allow_private=True)
        except (Unresolvable, InvalidRequest, TargetRefused) as error:
            return error.detail
        problem = await self._outbound.send(ready, delivery)
        return None if problem is None else masks.text(problem)

    def _report(self, delivery: Delivery) -> None:
        self._meter.delivery("RETRIED" if delivery.is_pending else delivery.status)
        fields = {
            "delivery_id": delivery.id,
            "alert": delivery.alert,
            "channel": delivery.channel,
            "attempts": delivery.attempts,
        }
        if delivery.status == DeliveryStatus.DELIVERED:
            log.info("message delivered", action="delivery.delivered", **fields)
        elif delivery.is_pending:
            log.warning(
                "message not delivered; trying again later",
                action="delivery.retried",
                error=delivery.last_error,
                **fields,
            )
        else:
            log.error(
                "message not delivered; giving up",
                action="delivery.failed",
                error=delivery.last_error,
                **fields,
                **DeliveryFailed().ids,
            )
