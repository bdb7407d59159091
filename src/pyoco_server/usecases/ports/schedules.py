"""Ports of schedules, beyond those of the runs."""

from typing import Protocol

from pyoco_server.domain.schedules.model import Active, Due, Schedule, TickPage
from pyoco_server.domain.schedules.ticks import Placed, RunEnd
from pyoco_server.usecases.ports.stores import Feed, Store

ScheduleStore = Store[Schedule]
PageStore = Store[TickPage]


class ScheduleBackend(Protocol):
    """Keys: see `domain/schedules/model.py`."""

    @property
    def schedules(self) -> ScheduleStore: ...
    @property
    def schedule_feed(self) -> Feed[Schedule]: ...
    @property
    def tick_pages(self) -> PageStore: ...


class ScheduledWork(Protocol):
    """What schedules start: runs of flows, executions of graphs, templates."""

    async def check(self, schedule: Schedule) -> None:
        """Raises InvalidRequest if the target does not exist, or cannot be started."""
        ...

    async def place(self, schedule: Schedule, due: Due, at: float) -> Placed:
        """Start the tick `due`. However often it is called, the tick is started once."""
        ...

    async def end_of(self, active: Active) -> RunEnd | None:
        """None: it has not ended."""
        ...

    async def cancel(self, active: Active, schedule: Schedule) -> None:
        """No error if it has ended."""
        ...
