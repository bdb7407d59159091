"""`dead_letters`, `bulk` and `stats` of a client."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any, Literal

from pyoco_server.http_client.answers import (
    BulkOperation,
    BulkPage,
    BulkPreview,
    DeadLetterDiscarded,
    DeadLetterPage,
    DeadLetterView,
    Redriven,
    Stats,
)
from pyoco_server.http_client.calls import Calls, blocking, blocking_iterator, given, segment
from pyoco_server.http_client.schedules import Time, as_time

Action = Literal["cancel", "retry", "delete", "redrive"]
SILENCE_SEC = 10.0
"""The server sends an event at least every 1.5 s."""


class AsyncDeadLetters(Calls):
    """Calls about dead letters."""

    async def list(
        self,
        *,
        reason: str | None = None,
        tag: str | None = None,
        flow: str | None = None,
        since: Time | None = None,
        cursor: str | None = None,
        limit: int | None = None,
    ) -> DeadLetterPage:
        """Newest first: `items` and `next_cursor`. `since`: written then or later."""
        wanted = {"reason": reason, "tag": tag, "flow": flow, "since": as_time(since)}
        page: DeadLetterPage = await self._call(
            "GET", "/dead-letters", params=given({**wanted, "cursor": cursor, "limit": limit})
        )
        return page

    async def get(self, letter_id: str) -> DeadLetterView:
        letter: DeadLetterView = await self._call("GET", _letter(letter_id))
        return letter

    async def redrive(self, letter_id: str) -> Redriven:
        """Run its run again: `run_id` of the new run, the same at every call. Raises `Conflict`."""
        redriven: Redriven = await self._call("POST", _letter(letter_id, "/redrive"))
        return redriven

    async def discard(self, letter_id: str) -> DeadLetterDiscarded:
        """Its run stays."""
        discarded: DeadLetterDiscarded = await self._call(
            "POST", _letter(letter_id, "/discard"), is_safe=False
        )
        return discarded


class DeadLetters:
    """The same calls as `AsyncDeadLetters`, each until it is answered."""

    def __init__(self, calls: AsyncDeadLetters) -> None:
        self._calls = calls

    list = blocking(AsyncDeadLetters.list)
    get = blocking(AsyncDeadLetters.get)
    redrive = blocking(AsyncDeadLetters.redrive)
    discard = blocking(AsyncDeadLetters.discard)


class AsyncBulk(Calls):
    """Calls about bulk operations."""

    async def start(
        self,
        action: Action,
        *,
        filter: dict[str, Any] | None = None,  # noqa: A002 - its name in the API
        ids: Sequence[str] | None = None,
        all: bool = False,  # noqa: A002
        max_per_sec: float | None = None,
    ) -> BulkOperation:
        """Act on the runs (`redrive`: dead letters) that match the filter now, or on those with these ids.

        `filter`: `status`, `flow`, `tag`, `updated_after`, `updated_before`, `workflow_yaml_sha256`; of dead
        letters `reason`, `tag`, `flow`, `since`. `all`: allows an empty filter.
        """
        body = _body(action, filter, ids, is_all=all) | given({"max_per_sec": max_per_sec})
        operation: BulkOperation = await self._call("POST", "/bulk", is_safe=False, json=body)
        return operation

    async def preview(
        self,
        action: Action,
        *,
        filter: dict[str, Any] | None = None,  # noqa: A002
        ids: Sequence[str] | None = None,
        all: bool = False,  # noqa: A002
    ) -> BulkPreview:
        """What `start` would act on: the `count`, and the first 20 `items`."""
        body = _body(action, filter, ids, is_all=all) | {"dry_run": True}
        preview: BulkPreview = await self._call("POST", "/bulk", json=body)
        return preview

    async def get(self, bulk_id: str) -> BulkOperation:
        operation: BulkOperation = await self._call("GET", _bulk(bulk_id))
        return operation

    async def list(self, cursor: str | None = None, limit: int | None = None) -> BulkPage:
        """Newest first: `items` and `next_cursor`."""
        page: BulkPage = await self._call("GET", "/bulk", params=given({"cursor": cursor, "limit": limit}))
        return page

    async def cancel(self, bulk_id: str) -> BulkOperation:
        """What is under way is finished and counted; the rest is left as it is."""
        operation: BulkOperation = await self._call("POST", _bulk(bulk_id, "/cancel"))
        return operation

    async def watch(self, bulk_id: str) -> AsyncGenerator[BulkOperation, None]:
        """The operation after each change, until it has ended. A broken connection is opened again."""

        async def connect() -> AsyncGenerator[BulkOperation, None]:
            async with self._session.receive(_bulk(bulk_id, "/watch"), silence_sec=SILENCE_SEC) as events:
                async for event in events:
                    yield event.json()

        async def has_ended() -> bool:
            return _is_over(await self.get(bulk_id))

        async with aclosing(self._reconnecting(connect, _is_over, has_ended)) as operations:
            async for operation in operations:
                yield operation


class Bulk:
    """The same calls as `AsyncBulk`, each until it is answered."""

    def __init__(self, calls: AsyncBulk) -> None:
        self._calls = calls

    start = blocking(AsyncBulk.start)
    preview = blocking(AsyncBulk.preview)
    get = blocking(AsyncBulk.get)
    list = blocking(AsyncBulk.list)
    cancel = blocking(AsyncBulk.cancel)
    watch = blocking_iterator(AsyncBulk.watch)


class StatsCalls(Calls):
    """The call about ended runs over time."""

    async def stats(
        self,
        by: Literal["status", "flow", "tag"] = "status",
        bucket: Literal["minute", "hour"] = "minute",
        *,
        since: Time | None = None,
        until: Time | None = None,
        flow: str | None = None,
        tag: str | None = None,
        status: str | None = None,
    ) -> Stats:
        """Ended runs per minute (of the last day) or hour (of 90 days): `series` with `key` and `points`.

        Without `since`: of the last hour, or the last day. A point has `at`, `count`, and the quantiles of
        `wait` and `duration` in seconds.
        """
        wanted = {"by": by, "bucket": bucket, "since": as_time(since), "until": as_time(until)}
        stats: Stats = await self._call(
            "GET", "/stats", params=given({**wanted, "flow": flow, "tag": tag, "status": status})
        )
        return stats


def _body(
    action: Action, wanted: dict[str, Any] | None, ids: Sequence[str] | None, *, is_all: bool
) -> dict[str, Any]:
    body = {"action": action, "filter": wanted, "ids": None if ids is None else list(ids)}
    return given({**body, "all": is_all or None})


def _is_over(operation: BulkOperation) -> bool:
    return operation["status"] != "RUNNING"


def _letter(letter_id: str, more: str = "") -> str:
    return f"/dead-letters/{segment(letter_id)}{more}"


def _bulk(bulk_id: str, more: str = "") -> str:
    return f"/bulk/{segment(bulk_id)}{more}"
