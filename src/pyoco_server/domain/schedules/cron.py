"""Cron expressions on local time, without a time zone: which dates and times match.

The rules are those of Vixie cron, with seconds, `L` and `#`. What other crons read differently (`W`, `?`,
`5/15`, `22-2`, years) is refused instead of guessed.
"""

import re
from bisect import bisect_left
from calendar import monthrange
from datetime import date, datetime, time, timedelta
from functools import lru_cache
from typing import Final

from msgspec import Struct

from pyoco_server.domain.inputs import nearest
from pyoco_server.errors import InvalidRequest

MAX_CRON = 200
CYCLE_YEARS: Final = 41
"""The rarest date, 29 February on a given weekday, comes at least every 40 years. What does not match within
them never does."""
DECEMBER = 12
SATURDAY = 6
SUNDAY = 7
MAX_WEEKS = 5

MACROS: Final = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
_NUMBER = re.compile(r"[0-9]{1,4}")
_MONTHS: Final = ("JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC")
_DAYS: Final = ("SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT")


class Field(Struct, frozen=True):
    name: str
    least: int
    most: int
    names: tuple[str, ...] = ()


_SECOND, _MINUTE, _HOUR = Field("second", 0, 59), Field("minute", 0, 59), Field("hour", 0, 23)
_DAY, _MONTH = Field("day of month", 1, 31), Field("month", 1, 12, _MONTHS)
_WEEKDAY = Field("day of week", 0, SUNDAY, _DAYS)


class Days(Struct, frozen=True):
    """The dates that match."""

    months: frozenset[int]
    days: frozenset[int]
    is_last_day: bool
    weekdays: frozenset[int]
    """0 is Sunday."""
    nth_weekdays: frozenset[tuple[int, int]]
    last_weekdays: frozenset[int]
    is_either_enough: bool
    """Both the day of the month and that of the week are restricted, and one of them has to match."""

    def match(self, on: date) -> bool:
        if on.month not in self.months:
            return False
        if self.is_either_enough:
            return self._is_day(on) or self._is_weekday(on)
        return self._is_day(on) and self._is_weekday(on)

    def _is_day(self, on: date) -> bool:
        return on.day in self.days or (self.is_last_day and on.day == _days_in(on))

    def _is_weekday(self, on: date) -> bool:
        weekday = on.isoweekday() % 7
        return (
            weekday in self.weekdays
            or (weekday, (on.day + 6) // 7) in self.nth_weekdays
            or (weekday in self.last_weekdays and on.day + 7 > _days_in(on))
        )

    def after(self, on: date) -> date | None:
        """The first matching date after `on`; None: there is none."""
        last = min(on.year + CYCLE_YEARS, date.max.year - 1)
        found = on + timedelta(days=1)
        while found.year <= last:
            if found.month not in self.months:
                found = _next_month(found)
            elif self.match(found):
                return found
            else:
                found += timedelta(days=1)
        return None


class Cron(Struct, frozen=True):
    text: str
    seconds: tuple[int, ...]
    minutes: tuple[int, ...]
    hours: tuple[int, ...]
    days: Days
    is_fixed: bool
    """Its hours are fixed local times; else the ticks follow real time. Matters when clocks change."""

    @property
    def per_day(self) -> int:
        """Ticks of a matching day of 24 hours."""
        return len(self.hours) * len(self.minutes) * len(self.seconds)

    def after(self, local: datetime) -> datetime | None:
        """The first matching time after `local`; None: there is none."""
        wanted = local.replace(microsecond=0) + timedelta(seconds=1)
        on = wanted.date()
        if self.days.match(on):
            found = self._from(wanted.hour, wanted.minute, wanted.second)
            if found is not None:
                return datetime.combine(on, found)
        later = self.days.after(on)
        return None if later is None else datetime.combine(later, self._first)

    @property
    def _first(self) -> time:
        return time(self.hours[0], self.minutes[0], self.seconds[0])

    def _from(self, hour: int, minute: int, second: int) -> time | None:
        """The first time of a day from the given one on."""
        if hour in self.hours:
            if minute in self.minutes and (same := _at_least(self.seconds, second)) is not None:
                return time(hour, minute, same)
            if (later := _at_least(self.minutes, minute + 1)) is not None:
                return time(hour, later, self.seconds[0])
        if (next_hour := _at_least(self.hours, hour + 1)) is not None:
            return time(next_hour, self.minutes[0], self.seconds[0])
        return None

    def between(self, low: datetime, high: datetime) -> int:
        """How many matching times are in [low, high)."""
        if low >= high:
            return 0
        dates = (low.date() + timedelta(days=n) for n in range((high.date() - low.date()).days))
        full = sum(map(self.days.match, dates)) * self.per_day
        return full - self._before(low) + self._before(high)

    def _before(self, local: datetime) -> int:
        """How many matching times of its day are before it."""
        if not self.days.match(local.date()):
            return 0
        per_minute = len(self.seconds)
        found = bisect_left(self.hours, local.hour) * len(self.minutes) * per_minute
        if local.hour in self.hours:
            found += bisect_left(self.minutes, local.minute) * per_minute
            if local.minute in self.minutes:
                found += bisect_left(self.seconds, local.second)
        return found


@lru_cache(maxsize=16_384)
def parse_cron(text: str) -> Cron:
    """Raises InvalidRequest, which names the field, also for an expression that never matches."""
    if len(text) > MAX_CRON:
        raise InvalidRequest(f"cron: at most {MAX_CRON} characters")
    fields = _macro(text).split()
    if len(fields) == 5:  # noqa: PLR2004 - minute, hour, day of month, month, day of week
        fields = ["0", *fields]
    if len(fields) != 6:  # noqa: PLR2004 - and seconds in front
        raise InvalidRequest(
            f"cron: {text!r} must have 5 fields (minute, hour, day of month, month, day of week) "
            f"or 6 with seconds in front; it has {len(fields)}"
        )
    found = Cron(
        text=text,
        seconds=_times(_SECOND, fields[0]),
        minutes=_times(_MINUTE, fields[1]),
        hours=_times(_HOUR, fields[2]),
        days=_days(fields[3], fields[4], fields[5]),
        is_fixed=not fields[2].startswith("*"),
    )
    if found.after(datetime(2000, 1, 1)) is None:  # noqa: DTZ001 - local times have no zone here
        raise InvalidRequest(f"cron: {text!r} never matches a date")
    return found


def _macro(text: str) -> str:
    if not text.startswith("@"):
        return text
    found = MACROS.get(text.strip().lower())
    if found is None:
        raise InvalidRequest(f"cron: {text!r} is not one of {', '.join(MACROS)}{nearest(text, MACROS)}")
    return found


@lru_cache(maxsize=1_024)
def _times(field: Field, text: str) -> tuple[int, ...]:
    """Kept, because most expressions share their fields."""
    found: set[int] = set()
    for item in text.split(","):
        found |= _values(field, item)
    return tuple(sorted(found))


@lru_cache(maxsize=1_024)
def _days(days: str, months: str, weekdays: str) -> Days:
    plain_days = [item for item in days.split(",") if item.upper() != "L"]
    nth: set[tuple[int, int]] = set()
    last: set[int] = set()
    plain: set[int] = set()
    for item in weekdays.split(","):
        if "#" in item:
            nth.add(_nth(item))
        elif item.upper().endswith("L"):
            last.add(_one(_WEEKDAY, item[:-1], item) % 7)
        else:
            plain |= {value % 7 for value in _values(_WEEKDAY, item)}
    return Days(
        months=frozenset(_times(_MONTH, months)),
        days=frozenset(_times(_DAY, ",".join(plain_days))) if plain_days else frozenset(),
        is_last_day=len(plain_days) <= days.count(","),
        weekdays=frozenset(plain),
        nth_weekdays=frozenset(nth),
        last_weekdays=frozenset(last),
        is_either_enough=not (days.startswith("*") or weekdays.startswith("*")),
    )


def _nth(item: str) -> tuple[int, int]:
    day, _, number = item.partition("#")
    if not _NUMBER.fullmatch(number) or not 1 <= int(number) <= MAX_WEEKS:
        raise _refused(_WEEKDAY, item, "after # there must be a number from 1 to 5")
    return _one(_WEEKDAY, day, item) % 7, int(number)


def _values(field: Field, item: str) -> set[int]:
    """Of `*`, `5`, `1-5`, `*/15` or `10-50/20`."""
    body, has_step, step_text = item.partition("/")
    step = _step(field, step_text, item) if has_step else 1
    if body == "*":
        # Sunday is 0 and 7, but counts once.
        return set(range(field.least, (SATURDAY if field is _WEEKDAY else field.most) + 1, step))
    first_text, is_range, last_text = body.partition("-")
    first = _one(field, first_text, item)
    if not is_range:
        if has_step:
            raise _refused(field, item, f"a step needs a range or *: {first}-{field.most}/{step}")
        return {first}
    last = _one(field, last_text, item)
    if field is _WEEKDAY and last == 0 and first > 0:
        last = SUNDAY  # as in FRI-SUN
    if last < first:
        raise _refused(
            field, item, f"the range ends before it starts; write {first}-{field.most},{field.least}-{last}"
        )
    return set(range(first, last + 1, step))


def _step(field: Field, text: str, item: str) -> int:
    size = field.most - field.least + 1
    if not _NUMBER.fullmatch(text) or not 1 <= int(text) <= size:
        raise _refused(field, item, f"the step must be from 1 to {size}")
    return int(text)


def _one(field: Field, text: str, item: str) -> int:
    if text.upper() in field.names:
        return field.names.index(text.upper()) + field.least
    if not _NUMBER.fullmatch(text):
        raise _refused(field, item, f"{text!r} is not a number{nearest(text.upper(), field.names)}")
    if not field.least <= int(text) <= field.most:
        raise _refused(field, item, f"{text} is not from {field.least} to {field.most}")
    return int(text)


def _refused(field: Field, item: str, problem: str) -> InvalidRequest:
    return InvalidRequest(f"cron: {field.name} {item!r}: {problem}")


def _at_least(values: tuple[int, ...], least: int) -> int | None:
    place = bisect_left(values, least)
    return values[place] if place < len(values) else None


def _days_in(on: date) -> int:
    return monthrange(on.year, on.month)[1]


def _next_month(on: date) -> date:
    if on.month == DECEMBER:
        return date(on.year + 1, 1, 1)
    return date(on.year, on.month + 1, 1)
