"""The ticks of a schedule as instants: cron in a time zone, or an interval.

When clocks change, the hour field of a cron decides. If it begins with `*`, ticks follow real time: a
skipped hour has none, a repeated hour has them twice. Else each tick is a fixed local time that happens once:
a skipped time at the first instant after the gap, a repeated time at its first occurrence.
"""

from collections.abc import Iterator
from datetime import datetime, timedelta
from functools import cache
from itertools import takewhile
from math import floor
from typing import Protocol
from zoneinfo import ZoneInfo, available_timezones

from msgspec import Struct

from pyoco_server.domain.inputs import nearest
from pyoco_server.domain.schedules.cron import Cron
from pyoco_server.errors import InvalidRequest

DAY_SEC = 86_400
LAST_INSTANT = 253_370_764_799
"""The end of the year 9998: in every time zone there is a next day."""
_SECOND = timedelta(seconds=1)


class Timing(Protocol):
    def after(self, at: float) -> float | None:
        """The first tick after `at`; None: there is none."""
        ...

    def count(self, first: float, last: float) -> int:
        """Number of ticks from `first` to `last`, both included."""
        ...


class Interval(Struct, frozen=True):
    """Ticks at `first` and every `every_sec` seconds after it."""

    first: float
    every_sec: float

    def after(self, at: float) -> float | None:
        if at < self.first:
            return self.first
        number = floor((at - self.first) / self.every_sec)
        found = self._at(number)
        while found <= at:  # rounding may be off by one
            number += 1
            found = self._at(number)
        return found

    def count(self, first: float, last: float) -> int:
        return max(0, self._until(last) - self._until(first) + (self.after(first - 0.001) == first))

    def _at(self, number: int) -> float:
        return round(self.first + number * self.every_sec, 3)

    def _until(self, at: float) -> int:
        """Number of ticks up to `at`."""
        later = self.after(at)
        assert later is not None  # noqa: S101 - an interval has no end
        return round((later - self.first) / self.every_sec)


class ZonedCron(Struct, frozen=True):
    cron: Cron
    zone: ZoneInfo

    def after(self, at: float) -> float | None:
        if at > LAST_INSTANT:
            return None
        whole = floor(at)
        found = self._fixed_after(whole) if self.cron.is_fixed else self._real_after(whole)
        return None if found is None else float(found)

    def _fixed_after(self, at: int) -> int | None:
        local: datetime | None = self._local(at)
        while local is not None and (local := self.cron.after(local)) is not None:
            found = self._instant(local)
            if found > at:  # a repeated time has happened already, if this is its second occurrence
                return found
        return None

    def _real_after(self, at: int) -> int | None:
        """Follows the local time with one offset, and again with the next if the offset changes before."""
        local, since = self._local(at), at
        while (match := self.cron.after(local)) is not None:
            found = at + (match - local) // _SECOND
            change = self._change(since, found)
            if change is None:
                return found
            at, local, since = change - 1, self._local(change) - _SECOND, change
        return None

    def count(self, first: float, last: float) -> int:
        """By arithmetic: a schedule that was paused for months may have millions."""
        start, end = -floor(-first), floor(last) + 1
        if start >= end:
            return 0
        if not self.cron.is_fixed:
            return self._real_count(start, end)
        since = start - DAY_SEC  # what the clock showed before decides which times are over
        return self._fixed_count(since, end) - self._fixed_count(since, start)

    def _real_count(self, start: int, end: int) -> int:
        return sum(self.cron.between(low, high) for low, high in self._stretches(start, end))

    def _fixed_count(self, start: int, end: int) -> int:
        """Skipped times are one tick at the end of the gap; repeated times are over."""
        total, shown = 0, self._local(start)
        for low, high in self._stretches(start, end):
            has_skipped = self.cron.between(shown, low) and not self.cron.between(low, low + _SECOND)
            total += bool(has_skipped) + self.cron.between(max(low, shown), high)
            shown = max(shown, high)
        return total

    def _stretches(self, start: int, end: int) -> Iterator[tuple[datetime, datetime]]:
        """Of [start, end): the local times between two changes of the offset."""
        while start < end:
            stop = self._change(start, end - 1) or end
            low = self._local(start)
            yield low, low + timedelta(seconds=stop - start)
            start = stop

    def _local(self, at: int) -> datetime:
        return datetime.fromtimestamp(at, self.zone).replace(tzinfo=None)

    def _instant(self, local: datetime) -> int:
        """The first occurrence of a local time; of a skipped one, the first instant after the gap."""
        found = int(local.replace(tzinfo=self.zone).timestamp())
        if self._local(found) == local:
            return found
        change = self._change(int(local.replace(tzinfo=self.zone, fold=1).timestamp()), found)
        return found if change is None else change

    def _change(self, since: int, until: int) -> int | None:
        """The first instant in (since, until] with another offset than `since`."""
        offset = self._offset(since)
        while since < until:
            step = min(since + DAY_SEC, until)
            if self._offset(step) != offset:
                return self._first_with_another(offset, since, step)
            since = step
        return None

    def _first_with_another(self, offset: timedelta | None, low: int, high: int) -> int:
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self._offset(middle) == offset else (low, middle)
        return high

    def _offset(self, at: int) -> timedelta | None:
        return datetime.fromtimestamp(at, self.zone).utcoffset()


class Window(Struct, frozen=True):
    """The ticks of a timing in [starts_at, ends_at]."""

    timing: Interval | ZonedCron
    starts_at: float | None = None
    ends_at: float | None = None

    def after(self, at: float) -> float | None:
        if self.starts_at is not None:
            at = max(at, self.starts_at - 0.001)
        found = self.timing.after(at)
        return None if found is None or (self.ends_at is not None and found > self.ends_at) else found

    def count(self, first: float, last: float) -> int:
        first = first if self.starts_at is None else max(first, self.starts_at)
        last = last if self.ends_at is None else min(last, self.ends_at)
        return self.timing.count(first, last) if first <= last else 0


def ticks_after(timing: Timing, at: float) -> Iterator[float]:
    while (found := timing.after(at)) is not None:
        yield found
        at = found


def newest(timing: Timing, first: float, last: float, most: int) -> list[float]:
    """The last `most` ticks from `first` to `last`, in order."""
    width, low, found = float(most), last, list[float]()
    while len(found) < most and low >= first:
        high, low = low, max(last - width, first - 0.001)
        older = takewhile(lambda tick: tick <= high, ticks_after(timing, low))  # noqa: B023 - read at once
        found = [*older, *found]
        width *= 8
        if low < first:
            break
    return found[-most:]


# Time zones


def is_zone(name: str) -> bool:
    return name in _zones()


@cache
def _zones() -> frozenset[str]:
    return frozenset(available_timezones())


def zone_of(name: str) -> ZoneInfo:
    """Raises InvalidRequest."""
    if not is_zone(name):
        raise InvalidRequest(
            f"timezone: {name[:64]!r} is not an IANA time zone, as Europe/Berlin{nearest(name, _zones())}"
        )
    return ZoneInfo(name)
