"""Attend to alerts: notice and send, at one gateway at a time, and only where there is something to do."""

import asyncio

from pyoco_server.usecases.alerts.follow import FollowAlerts, FollowDeliveries
from pyoco_server.usecases.alerts.notice import NoticeHappenings
from pyoco_server.usecases.alerts.scan import ScanForLasting
from pyoco_server.usecases.alerts.send import SendDeliveries
from pyoco_server.usecases.concurrency import cancelled, wait_at_most
from pyoco_server.usecases.coordination import Lease

LASTS_SEC = 5.0
"""Lease timeout before another gateway carries on."""
LOOK_SEC = 5.0
"""How often it looks whether the last pending delivery is gone."""


class AttendAlerts:
    """Without an alert and without a pending delivery there is no lease, and nothing is read."""

    def __init__(
        self,
        alerts: FollowAlerts,
        deliveries: FollowDeliveries,
        notice: NoticeHappenings,
        scan: ScanForLasting,
        send: SendDeliveries,
        lease: Lease,
    ) -> None:
        self._alerts = alerts
        self._deliveries = deliveries
        self._notice = notice
        self._scan = scan
        self._send = send
        self._lease = lease
        self._news = asyncio.Event()
        alerts.on_news(self._news.set)
        deliveries.on_news(lambda _: self._news.set())

    @property
    def _is_needed(self) -> bool:
        return bool(self._alerts.kinds()) or self._deliveries.has_pending

    async def run(self) -> None:
        await self._alerts.caught_up()
        while True:
            await self._until(is_needed=True)
            self._deliveries.want()
            working = asyncio.ensure_future(self._lease.run(self._work))
            try:
                waiting = asyncio.ensure_future(self._until(is_needed=False))
                await asyncio.wait({working, waiting}, return_when=asyncio.FIRST_COMPLETED)
                await cancelled(waiting)
                if working.done():
                    working.result()
                if self._lease.is_held:
                    await self._notice.forget_positions()
            finally:
                await cancelled(working)

    async def _until(self, *, is_needed: bool) -> None:
        while self._is_needed is not is_needed:
            self._news.clear()
            if self._alerts.has_channels:  # else there never was a delivery
                self._deliveries.want()
            await wait_at_most(self._news, LOOK_SEC) if not is_needed else await self._news.wait()

    async def _work(self) -> None:
        await asyncio.gather(
            self._notice.run(lambda: asyncio.ensure_future(self._scan.run())), self._send.run()
        )
