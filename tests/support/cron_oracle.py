"""The rules of cron and of clock changes once more, as slowly and plainly as they are written in the docs.

It shares nothing with the product: it looks at every minute (or second) of real time in turn, asks what a
clock on the wall shows, and remembers which times of the wall have been.
"""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

MONTHS = ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"]
DAYS = ["sun", "mon", "tue", "wed", "thu", "fri", "sat"]


def ticks(cron: str, zone: str, start: datetime, end: datetime) -> list[datetime]:
    """The ticks in (start, end], in UTC."""
    fields = cron.split()
    has_seconds = len(fields) == 6
    step = timedelta(seconds=1) if has_seconds else timedelta(minutes=1)
    if not has_seconds:
        fields = ["0", *fields]
    find = _real if fields[2].startswith("*") else _fixed
    return list(find(fields, ZoneInfo(zone), start.astimezone(UTC), end.astimezone(UTC), step))


def _real(
    fields: list[str], zone: ZoneInfo, start: datetime, end: datetime, step: timedelta
) -> Iterator[datetime]:
    now = start + step
    while now <= end:
        if matches(fields, now.astimezone(zone).replace(tzinfo=None)):
            yield now
        now += step


def _fixed(
    fields: list[str], zone: ZoneInfo, start: datetime, end: datetime, step: timedelta
) -> Iterator[datetime]:
    """A day before the start is watched, too: what was on the wall then has been."""
    now = start - timedelta(days=1)
    shown = now.astimezone(zone).replace(tzinfo=None)
    latest = shown
    while now < end:
        now += step
        shown = now.astimezone(zone).replace(tzinfo=None)
        is_due, wall = False, latest + step
        while wall <= shown:  # usually one; all that were skipped, when the clock jumps ahead
            is_due = is_due or matches(fields, wall)
            wall += step
        latest = max(latest, shown)
        if is_due and now > start:
            yield now


def matches(fields: list[str], wall: datetime) -> bool:
    second, minute, hour, day, month, weekday = fields
    if not (
        _has(second, wall.second, 0, 59)
        and _has(minute, wall.minute, 0, 59)
        and _has(hour, wall.hour, 0, 23)
        and _has(_named(month, MONTHS, 1), wall.month, 1, 12)
    ):
        return False
    last_of_month = (wall.replace(day=28) + timedelta(days=4)).replace(day=1) - timedelta(days=1)
    is_day = any(
        wall.day == last_of_month.day if item in "lL" else _has(item, wall.day, 1, 31)
        for item in day.split(",")
    )
    is_weekday = any(_is_weekday(item, wall, last_of_month) for item in _named(weekday, DAYS, 0).split(","))
    if day[0] == "*" or weekday[0] == "*":
        return is_day and is_weekday
    return is_day or is_weekday


def _is_weekday(item: str, wall: datetime, last_of_month: datetime) -> bool:
    today = (wall.weekday() + 1) % 7
    if "#" in item:
        wanted, number = map(int, item.split("#"))
        seen = sum((wall - timedelta(days=7 * back)).month == wall.month for back in range(5))
        return today == wanted % 7 and seen == number
    if item[-1] in "lL":
        return today == int(item[:-1]) % 7 and (last_of_month - wall).days < 7
    return _has(item, today, 0, 7) or (today == 0 and _has(item, 7, 0, 7))


def _named(text: str, names: list[str], first: int) -> str:
    text = text.lower()
    for number, name in enumerate(names, first):
        text = text.replace(name, str(number))
    return text


def _has(text: str, value: int, least: int, most: int) -> bool:
    for item in text.split(","):
        body, _, step = item.partition("/")
        low, _, high = (f"{least}-{most}" if body == "*" else body).partition("-")
        if int(low) <= value <= int(high or low) and (value - int(low)) % int(step or 1) == 0:
            return True
    return False
