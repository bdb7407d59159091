"""One at a time, among all gateways. It saves work; nothing is wrong when two hold it for a moment."""

from msgspec import Struct

from pyoco_server.domain.events.leases import LEASE_SEC, Lease, is_free
from pyoco_server.errors import NatsUnavailable
from pyoco_server.logs import best_effort, get_logger
from pyoco_server.usecases.events.change_value import change_value
from pyoco_server.usecases.ports import Clock, Store

log = get_logger(__name__)


class HeldLease(Struct, frozen=True):
    leases: Store[Lease]
    name: str
    holder: str
    clock: Clock

    async def take(self) -> bool:
        """Take it, or keep it for longer. False: somebody else has it."""

        def decide(current: Lease | None) -> Lease | None:
            now = self.clock()
            return Lease(self.holder, now + LEASE_SEC) if is_free(current, self.holder, now) else None

        return await change_value(self.leases, self.name, decide) is not None

    async def give_back(self) -> None:
        """If that fails it runs out by itself."""
        with best_effort(log, "lease.give_back", NatsUnavailable, lease=self.name):
            await change_value(
                self.leases,
                self.name,
                lambda found: Lease(self.holder, 0.0) if found and found.holder == self.holder else None,
            )
