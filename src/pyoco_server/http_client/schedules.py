"""`schedules`, `flows` and `limits` of a client; and `apply`, for definitions in files."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any, Final, NamedTuple

from pyoco_server.http_client.answers import FlowDetails, FlowPage
from pyoco_server.http_client.calls import Answer, Calls, NotFound, blocking, given, segment

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
        return await self._dict("PUT", _path(schedule_id), json=body)

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
        return await self._dict("POST", "/schedules/preview", params={"n": n}, json=body)

    async def check(self, definition: dict[str, Any]) -> None:
        """Raises InvalidRequest for a definition that `put` would refuse whatever exists."""
        await self._dict("POST", "/schedules/preview", params={"n": 1}, json=definition)

    async def preview(self, schedule_id: str, n: int = 10) -> Answer:
        """The next ticks."""
        return await self._dict("GET", _path(schedule_id, "/preview"), params={"n": n})

    async def get(self, schedule_id: str) -> Answer:
        return await self._dict("GET", _path(schedule_id))

    async def list(self, cursor: str | None = None, limit: int | None = None) -> Answer:
        """By id: `items` and `next_cursor`."""
        return await self._dict("GET", "/schedules", params=given({"cursor": cursor, "limit": limit}))

    async def delete(self, schedule_id: str) -> Answer:
        """Its runs stay."""
        return await self._dict("DELETE", _path(schedule_id), is_safe=False)

    async def pause(self, schedule_id: str, reason: str | None = None) -> Answer:
        return await self._dict("POST", _path(schedule_id, "/pause"), json=given({"reason": reason}))

    async def resume(self, schedule_id: str) -> Answer:
        """Nothing is caught up."""
        return await self._dict("POST", _path(schedule_id, "/resume"))

    async def trigger(self, schedule_id: str, *, idempotency_key: str | None = None) -> Answer:
        """Start a tick now: `run_id` or `execution_id`. Calls with the same key start one, for 24 hours."""
        headers = given({"Idempotency-Key": idempotency_key})
        is_safe = idempotency_key is not None
        return await self._dict("POST", _path(schedule_id, "/trigger"), is_safe=is_safe, headers=headers)

    async def ticks(self, schedule_id: str, cursor: str | None = None, limit: int | None = None) -> Answer:
        """The history, newest first: `items` and `next_cursor`."""
        return await self._dict(
            "GET", _path(schedule_id, "/ticks"), params=given({"cursor": cursor, "limit": limit})
        )

    async def backfill(
        self, schedule_id: str, first: Time, last: Time, *, only_missing: bool = True, dry_run: bool = False
    ) -> Answer:
        """Start the ticks from `first` to `last`; with `dry_run`, only show them."""
        body = {
            "from": as_time(first),
            "to": as_time(last),
            "only_missing": only_missing,
            "dry_run": dry_run,
        }
        is_safe = dry_run or only_missing
        return await self._dict("POST", _path(schedule_id, "/backfill"), is_safe=is_safe, json=body)


class Schedules:
    """The same calls as `AsyncSchedules`, each until it is answered."""

    def __init__(self, calls: AsyncSchedules) -> None:
        self._calls = calls

    put = blocking(AsyncSchedules.put)
    preview_unsaved = blocking(AsyncSchedules.preview_unsaved)
    check = blocking(AsyncSchedules.check)
    preview = blocking(AsyncSchedules.preview)
    get = blocking(AsyncSchedules.get)
    list = blocking(AsyncSchedules.list)
    delete = blocking(AsyncSchedules.delete)
    pause = blocking(AsyncSchedules.pause)
    resume = blocking(AsyncSchedules.resume)
    trigger = blocking(AsyncSchedules.trigger)
    ticks = blocking(AsyncSchedules.ticks)
    backfill = blocking(AsyncSchedules.backfill)


SETTINGS: Final = (
    *("retry", "timeout_sec", "start_within_sec", "priority"),
    *("params_schema", "description", "owner"),
)
"""Of a flow, for `flows.put`."""


class AsyncFlows(Calls):
    """Calls about flows."""

    async def list(self, cursor: str | None = None, limit: int | None = None) -> FlowPage:
        """By name, with statistics of their last runs: `items` and `next_cursor`."""
        page: FlowPage = await self._call("GET", "/flows", params=given({"cursor": cursor, "limit": limit}))
        return page

    async def get(self, name: str) -> FlowDetails:
        """A flow and what is set for it."""
        flow: FlowDetails = await self._call("GET", f"/flows/{segment(name)}")
        return flow

    async def put(self, /, name: str, **settings: Any) -> FlowDetails:
        """Replace what is set for a flow; without `settings`, remove it.

        `settings`: `retry`, `timeout_sec`, `start_within_sec` and `priority` for runs without their own,
        `params_schema` (a JSON Schema), `description`, `owner`.
        """
        flow: FlowDetails = await self._call("PUT", f"/flows/{segment(name)}", json=settings)
        return flow

    async def pause(self, name: str, reason: str | None = None, until: Time | None = None) -> Answer:
        """Runs of the flow that are submitted from now on wait until it is resumed, or until `until`."""
        body = given({"reason": reason, "until": as_time(until)})
        return await self._dict("POST", f"/flows/{segment(name)}/pause", json=body)

    async def resume(self, name: str) -> Answer:
        """The runs that waited go on."""
        return await self._dict("POST", f"/flows/{segment(name)}/resume")

    async def change(
        self,
        name: str,
        settings: dict[str, Any],
        *,
        unset: Iterable[str] = (),
        replaced: dict[str, Any] | None = None,
    ) -> FlowDetails:
        """Change some settings of a flow; those with None stay. Not safe from a change at the same time.

        `unset`: settings to remove. `replaced`: begin with these instead of the current ones.
        Raises ValueError for a name in `unset` that is not a setting.
        """
        if unknown := sorted(set(unset) - set(SETTINGS)):
            raise ValueError(f"{unknown[0]}: not a setting of a flow; choose from {', '.join(SETTINGS)}")
        before = await self._current(name) if replaced is None else replaced
        kept = {key: value for key, value in before.items() if key not in {"name", *unset}}
        return await self.put(name, **{**kept, **given(settings)})

    async def _current(self, name: str) -> dict[str, Any]:
        try:
            found: dict[str, Any] = {**await self.get(name)}
        except NotFound:
            return {}
        return given({key: found[key] for key in SETTINGS})


class Flows:
    """The same calls as `AsyncFlows`, each until it is answered."""

    def __init__(self, calls: AsyncFlows) -> None:
        self._calls = calls

    list = blocking(AsyncFlows.list)
    get = blocking(AsyncFlows.get)
    put = blocking(AsyncFlows.put)
    change = blocking(AsyncFlows.change)
    pause = blocking(AsyncFlows.pause)
    resume = blocking(AsyncFlows.resume)


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
        "starts_at": as_time(starts_at),
        "ends_at": as_time(ends_at),
    }
    return given(fields)


def as_time(value: Time | None) -> float | str | None:
    """A `datetime` without a time zone is the server's to refuse."""
    return value.isoformat() if isinstance(value, datetime) else value


# Limits


class AsyncLimits(Calls):
    """Calls about limits."""

    async def put(  # noqa: PLR0913 - the fields of a limit
        self,
        /,
        name: str,
        match: dict[str, Any],
        *,
        key: str | None = None,
        max_running: int | None = None,
        rate: dict[str, Any] | None = None,
        on_full: str | None = None,
        max_waiting: int | None = None,
        description: str | None = None,
    ) -> Answer:
        """Create or change a limit.

        `match`: the runs that it concerns, by `flow`, `tag`, `graph`, `tenant`. `rate`: `count`, `per_sec`,
        `burst`. `on_full`: `queue`, `reject`, `cancel_oldest` or `drop_oldest_waiting`.
        """
        fields = {
            "key": key,
            "max_running": max_running,
            "rate": rate,
            "on_full": on_full,
            "max_waiting": max_waiting,
            "description": description,
        }
        return await self._dict("PUT", _limit(name), json=given(fields) | {"match": match})

    async def get(self, name: str) -> Answer:
        """With `holders`, `waiting` and `admitted`."""
        return await self._dict("GET", _limit(name))

    async def list(self, cursor: str | None = None, limit: int | None = None) -> Answer:
        """By name: `items` and `next_cursor`."""
        return await self._dict("GET", "/limits", params=given({"cursor": cursor, "limit": limit}))

    async def keys(self, name: str, cursor: str | None = None, limit: int | None = None) -> Answer:
        """The keys in use, with `holders` and `waiting`: `items` and `next_cursor`."""
        wanted = given({"cursor": cursor, "limit": limit})
        return await self._dict("GET", _limit(name, "/keys"), params=wanted)

    async def delete(self, name: str) -> Answer:
        """Runs that wait for it go on at once."""
        return await self._dict("DELETE", _limit(name), is_safe=False)


class Limits:
    """The same calls as `AsyncLimits`, each until it is answered."""

    def __init__(self, calls: AsyncLimits) -> None:
        self._calls = calls

    put = blocking(AsyncLimits.put)
    get = blocking(AsyncLimits.get)
    list = blocking(AsyncLimits.list)
    keys = blocking(AsyncLimits.keys)
    delete = blocking(AsyncLimits.delete)


def _limit(name: str, more: str = "") -> str:
    return f"/limits/{segment(name)}{more}"


# Definitions in files


class Document(NamedTuple):
    """What a file defines for a flow, a graph, a limit, an alert, an action, a template or a schedule."""

    kind: str
    id: str
    body: dict[str, Any]
    path: Path


KINDS: Final = ("flows", "graphs", "limits", "alerts", "actions", "templates", "schedules")
"""Folders of a directory, in this order: a file may name what is in those before."""
_DEFAULTS: Final[dict[str, dict[str, Any]]] = {
    "flows": dict.fromkeys(SETTINGS),
    "graphs": {},
    "limits": {
        "key": None,
        "max_running": None,
        "rate": None,
        "on_full": "queue",
        "max_waiting": None,
        "description": None,
    },
    "alerts": {"filter": None, "late_after_sec": None, "cooldown_sec": 0},
    "actions": {"flow_name": None, "tag": None, "params": {}, "graph_id": None, "concurrency": "allow"},
    "templates": {"year": 0, "month": 0, "mfcloud_url": None, "notes": None, "when": None},
    "schedules": {
        "cron": None,
        "every_sec": None,
        "starts_at": None,
        "ends_at": None,
        "overlap": "skip",
        "catch_up": "latest",
        "catch_up_window_sec": 86_400,
        "jitter_sec": 0,
        "pause_after_failures": None,
        "description": None,
    },
}
"""Of fields that a file may leave out. A schedule's time zone is the server's to choose."""
_NAMES: Final = {"actions": "key", "alerts": "name", "flows": "name", "limits": "name"}
"""The field with the id of a definition, if it is not `id`."""
_RETRY: Final = {
    "max_attempts": 1,
    "backoff_sec": 5.0,
    "factor": 2.0,
    "max_backoff_sec": 3600.0,
    "jitter": 0.1,
    "on": ["error", "timeout", "crash"],
}


def documents_in(
    directory: Path, suffixes: tuple[str, ...], read: Callable[[Path], dict[str, Any]]
) -> list[Document]:
    """Files with one of `suffixes` in the folders of `KINDS`, in the order to apply them.

    Raises ValueError, which names the file or folder, if one would be overlooked.
    """
    found = list(_documents(directory, suffixes, read))
    _require_one_each(found)
    for path in sorted(directory.iterdir() if directory.is_dir() else ()):
        is_overlooked = path.suffix in suffixes or any(one.suffix in suffixes for one in path.glob("*"))
        if path.name not in KINDS and not path.name.startswith(".") and is_overlooked:
            raise ValueError(f"{path}: not applied; definitions belong in {', '.join(KINDS)}")
    if not found:
        folders = ", ".join(f"{kind}/*{suffixes[0]}" for kind in KINDS)
        raise ValueError(f"{directory}: nothing to apply; expected {folders}")
    return sorted(found, key=lambda one: (KINDS.index(one.kind), one.id))


def _require_one_each(documents: Iterable[Document]) -> None:
    known: dict[tuple[str, str], Path] = {}
    for one in documents:
        other = known.setdefault((one.kind, one.id), one.path)
        if other != one.path:
            raise ValueError(f"{one.path}: {one.kind[:-1]} {one.id} is defined in {other}, too")


def _documents(
    directory: Path, suffixes: tuple[str, ...], read: Callable[[Path], dict[str, Any]]
) -> Iterator[Document]:
    for kind in KINDS:
        for path in (directory / kind).glob("*"):
            if path.suffix in suffixes:
                body = read(path)
                name = body.pop(_NAMES.get(kind, "id"), None)
                yield Document(kind, str(name or path.stem), body, path)


def difference(wanted: Document, stored: Answer | None) -> dict[str, Answer]:
    """The fields that differ, `from` and `to`. Fields that the server adds are left out."""
    if stored is None:
        return {name: {"from": None, "to": value} for name, value in wanted.body.items()}
    fields = _DEFAULTS[wanted.kind] | wanted.body
    if wanted.kind == "templates" and fields.get("needs_month") is None:
        fields["needs_month"] = bool(wanted.body.keys() & {"year", "month"})
    before = {name: _compared(name, stored.get(name)) for name in fields}
    after = {name: _compared(name, value) for name, value in fields.items()}
    return {name: {"from": before[name], "to": after[name]} for name in fields if before[name] != after[name]}


def _compared(name: str, value: Any) -> Any:
    if name in ("starts_at", "ends_at") and isinstance(value, str):
        with suppress(ValueError):
            return datetime.fromisoformat(value).timestamp()
    if name == "retry" and value:
        value = {**_RETRY, **value}
    if name == "target":
        value = {**value, "retry": value.get("retry") and {**_RETRY, **value["retry"]}}
    if isinstance(value, dict):
        return {key: _compared("", one) for key, one in value.items() if one not in (None, {})}
    return [_compared("", one) for one in value] if isinstance(value, list) else value
