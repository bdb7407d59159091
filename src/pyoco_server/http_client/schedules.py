"""`schedules` of a client: runs, executions and templates that start at their times."""

from datetime import datetime
from typing import Any

from pyoco_server.http_client.calls import Calls, blocking, given, segment

Answer = dict[str, Any]
Time = datetime | float | str
"""A `datetime` with a time zone, Unix seconds, or RFC 3339."""


class AsyncSchedules(Calls):
    """Calls about schedules. Answers are dictionaries, times in them are Unix seconds."""

    async def put(
        self,
        /,
        schedule_id: str,
        target: dict[str, Any],
        *,
        cron: str | None = None,
        every_sec: float | None = None,
        timezone: str | None = None,
        starts_at: Time | None = None,
        ends_at: Time | None = None,
        **options: Any,
    ) -> Answer:
        """Create or change a schedule.

        `target`: `{"flow": ..., "params": ...}`, `{"graph": ..., "input": ...}` or `{"template": ...}`.
        `options`: `overlap`, `catch_up`, `catch_up_window_sec`, `jitter_sec`, `pause_after_failures`,
        `description`.
        """
        body = _timing(cron, every_sec, timezone, starts_at, ends_at) | {"target": target, **options}
        answer: Answer = await self._call("PUT", _path(schedule_id), json=body)
        return answer

    async def preview_unsaved(
        self,
        *,
        cron: str | None = None,
        every_sec: float | None = None,
        timezone: str | None = None,
        starts_at: Time | None = None,
        ends_at: Time | None = None,
        n: int = 10,
    ) -> Answer:
        """The next ticks of a schedule that is not stored: `timezone` and `items` with `due_at`."""
        body = _timing(cron, every_sec, timezone, starts_at, ends_at) | {"target": {"flow": "preview"}}
        answer: Answer = await self._call("POST", "/schedules/preview", params={"n": n}, json=body)
        return answer

    async def preview(self, schedule_id: str, n: int = 10) -> Answer:
        """The next ticks."""
        answer: Answer = await self._call("GET", _path(schedule_id, "/preview"), params={"n": n})
        return answer

    async def get(self, schedule_id: str) -> Answer:
        answer: Answer = await self._call("GET", _path(schedule_id))
        return answer

    async def list(self, cursor: str | None = None, limit: int | None = None) -> Answer:
        """By id: `items` and `next_cursor`."""
        answer: Answer = await self._call(
            "GET", "/schedules", params=given({"cursor": cursor, "limit": limit})
        )
        return answer

    async def delete(self, schedule_id: str) -> Answer:
        """Its runs stay."""
        answer: Answer = await self._call("DELETE", _path(schedule_id), is_safe=False)
        return answer

    async def pause(self, schedule_id: str, reason: str | None = None) -> Answer:
        answer: Answer = await self._call(
            "POST", _path(schedule_id, "/pause"), json=given({"reason": reason})
        )
        return answer

    async def resume(self, schedule_id: str) -> Answer:
        """Nothing is caught up."""
        answer: Answer = await self._call("POST", _path(schedule_id, "/resume"))
        return answer

    async def trigger(self, schedule_id: str) -> Answer:
        """Start a tick now: `run_id` or `execution_id`."""
        answer: Answer = await self._call("POST", _path(schedule_id, "/trigger"), is_safe=False)
        return answer

    async def ticks(self, schedule_id: str, cursor: str | None = None, limit: int | None = None) -> Answer:
        """The history, newest first: `items` and `next_cursor`."""
        answer: Answer = await self._call(
            "GET", _path(schedule_id, "/ticks"), params=given({"cursor": cursor, "limit": limit})
        )
        return answer

    async def backfill(
        self, schedule_id: str, first: Time, last: Time, *, only_missing: bool = True, dry_run: bool = False
    ) -> Answer:
        """Start the ticks from `first` to `last`; with `dry_run`, only show them."""
        body = {
            "from": _time(first),
            "to": _time(last),
            "only_missing": only_missing,
            "dry_run": dry_run,
        }
        is_safe = dry_run or only_missing
        answer: Answer = await self._call("POST", _path(schedule_id, "/backfill"), is_safe=is_safe, json=body)
        return answer


class Schedules:
    """The same calls as `AsyncSchedules`, each until it is answered."""

    def __init__(self, calls: AsyncSchedules) -> None:
        self._calls = calls

    put = blocking(AsyncSchedules.put)
    preview_unsaved = blocking(AsyncSchedules.preview_unsaved)
    preview = blocking(AsyncSchedules.preview)
    get = blocking(AsyncSchedules.get)
    list = blocking(AsyncSchedules.list)
    delete = blocking(AsyncSchedules.delete)
    pause = blocking(AsyncSchedules.pause)
    resume = blocking(AsyncSchedules.resume)
    trigger = blocking(AsyncSchedules.trigger)
    ticks = blocking(AsyncSchedules.ticks)
    backfill = blocking(AsyncSchedules.backfill)


def _path(schedule_id: str, more: str = "") -> str:
    return f"/schedules/{segment(schedule_id)}{more}"


def _timing(
    cron: str | None,
    every_sec: float | None,
    timezone: str | None,
    starts_at: Time | None,
    ends_at: Time | None,
) -> dict[str, Any]:
    fields = {
        "cron": cron,
        "every_sec": every_sec,
        "timezone": timezone,
        "starts_at": _time(starts_at),
        "ends_at": _time(ends_at),
    }
    return given(fields)


def _time(value: Time | None) -> float | str | None:
    """A `datetime` without a time zone is the server's to refuse."""
    return value.isoformat() if isinstance(value, datetime) else value
