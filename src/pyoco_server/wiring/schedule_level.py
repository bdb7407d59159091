"""The level of schedules, put together."""

import os
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

from pyoco_server.domain.schedules.timing import is_zone
from pyoco_server.errors import ConfigError
from pyoco_server.usecases.coordination import Lease
from pyoco_server.usecases.ports.events import ServerBackend
from pyoco_server.usecases.ports.schedules import ScheduledWork
from pyoco_server.usecases.schedules.attend import AttendSchedule, TickMeter
from pyoco_server.usecases.schedules.fire import FireSchedules, FollowSchedules
from pyoco_server.usecases.schedules.manage import ManageSchedules

CHECK_BEAT_SEC = 5.0
CHECK_SILENT_SEC = 20.0
"""Lease timeout before another gateway looks for schedules that stand still."""


class ScheduleLevel:
    """Schedules. They go by the clock of the store, because it keeps their timers."""

    def __init__(
        self, backend: ServerBackend, work: ScheduledWork, meter: TickMeter, new_id: Callable[[], str]
    ) -> None:
        clock = backend.shared_clock
        self.follow = FollowSchedules(backend.schedule_feed)
        self.attend = AttendSchedule(
            schedules=backend.schedules,
            pages=backend.tick_pages,
            timers=backend.timers,
            work=work,
            clock=clock,
            meter=meter,
            on_written=self.follow.note,
        )
        self.manage = ManageSchedules(
            schedules=backend.schedules,
            pages=backend.tick_pages,
            timers=backend.timers,
            followed=self.follow,
            attend=self.attend,
            work=work,
            clock=clock,
            new_id=new_id,
            require_timers=backend.queue.require_timers,
        )
        lease = Lease(
            backend.leases,
            "schedules",
            new_id(),
            clock,
            lasts_sec=CHECK_SILENT_SEC,
            beat_sec=CHECK_BEAT_SEC,
        )
        self.fire = FireSchedules(
            timers=backend.timers, followed=self.follow, attend=self.attend, lease=lease, clock=clock
        )

    def background(self) -> dict[str, Callable[[], Awaitable[None]]]:
        return {
            "follow-schedules": self.follow.run,
            "fire-schedules": self.fire.run,
            "follow-ends": self.fire.run_ended,
            "check-schedules": self.fire.check,
        }


def default_timezone(name: str, environ: Mapping[str, str] = os.environ) -> str:
    """`name`, or the time zone of this machine; UTC if it has none. Raises ConfigError."""
    if name and not is_zone(name):
        raise ConfigError([f"PYOCO_TIMEZONE={name!r}: is not an IANA time zone, as Europe/Berlin"])
    if name:
        return name
    local = environ.get("TZ", "").removeprefix(":") or str(Path("/etc/localtime").resolve())
    found = local.rpartition("zoneinfo/")[2]
    return found if is_zone(found) else "UTC"
