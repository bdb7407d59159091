"""Commands for schedules, and `apply` for all definitions in a directory."""

import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import cyclopts
from cyclopts import Parameter

from pyoco_server.cli import client_texts as texts
from pyoco_server.cli.client_graphs import read_graph
from pyoco_server.cli.client_params import put_definition, read_document
from pyoco_server.cli.failures import wants_json
from pyoco_server.cli.output import (
    AS_JSON,
    Client,
    Columns,
    Cursor,
    Flag,
    Limit,
    Shown,
    fail_http,
    note,
)
from pyoco_server.errors import InvalidCliInput
from pyoco_server.http_client.calls import RequestRefused
from pyoco_server.http_client.schedules import documents_in

app = cyclopts.App(name="schedules", help="Start flows, graphs and templates at their times.")

_SCHEDULES = Columns(
    ("id",), ("id", "when", "timezone", "next_due", "last", "state"), ("last", "timezone", "when")
)
_TICKS = Columns(
    ("started",), ("due", "status", "late_sec", "count", "started", "reason"), ("count", "late_sec")
)
_PREVIEW = Columns(("due",), ("due",))
_STARTED = ("run_id", "execution_id")
AS_TABLE = Shown(output="table")
ScheduleId = Annotated[str, Parameter(help="Schedule id.")]


@app.command
def put(
    file: Path,
    *,
    schedule_id: Annotated[str | None, Parameter(name="--id")] = None,
    shown: Shown = AS_JSON,
    client: Client,
) -> None:
    """Create or change a schedule from a file.

    Parameters
    ----------
    file
        Schedule definition, YAML or JSON.
    schedule_id
        Schedule id. Default: the id in the file, else the file name without extension.
    """
    put = client.schedules.put
    shown.one(put_definition(put, file, "target", texts.NO_TARGET, schedule_id, "id"), "id")


@app.command(name="list")
def list_schedules(
    *, cursor: Cursor = None, limit: Limit = 50, shown: Shown = AS_JSON, client: Client
) -> None:
    """List schedules by id, with their next and last tick."""
    page = client.schedules.list(cursor, limit)
    shown.page(page, _SCHEDULES, texts.NO_SCHEDULES, [_row(item) for item in page["items"]])


@app.command
def show(schedule_id: ScheduleId, *, shown: Shown = AS_JSON, client: Client) -> None:
    """Print a schedule."""
    shown.one(client.schedules.get(schedule_id), "id")


@app.command
def preview(
    schedule_id: str | None = None,
    *,
    cron: str | None = None,
    every_sec: float | None = None,
    timezone: str | None = None,
    count: Annotated[int, Parameter(name=["--count", "-n"])] = 10,
    shown: Shown = AS_TABLE,
    client: Client,
) -> None:
    """Print the next ticks of a schedule, or of a cron expression before you use it.

    Parameters
    ----------
    schedule_id
        Schedule id.
    cron
        Cron expression to try instead.
    every_sec
        Interval in seconds to try instead.
    timezone
        IANA time zone of the expression. Default: that of the server.
    count
        Number of ticks.
    """
    if (schedule_id is None) == (cron is None and every_sec is None):
        raise InvalidCliInput(texts.PREVIEW_OF_WHAT())
    if schedule_id is not None:
        found = client.schedules.preview(schedule_id, count)
    else:
        found = client.schedules.preview_unsaved(cron=cron, every_sec=every_sec, timezone=timezone, n=count)
    rows = [{"due": _local(item["due_at"], found["timezone"])} for item in found["items"]]
    shown.list(found, rows, _PREVIEW, texts.NO_TICKS)


@app.command
def ticks(
    schedule_id: ScheduleId,
    *,
    cursor: Cursor = None,
    limit: Limit = 50,
    shown: Shown = AS_JSON,
    client: Client,
) -> None:
    """List what became of the ticks of a schedule, newest first."""
    page = client.schedules.ticks(schedule_id, cursor, limit)
    zone = _zone_of(schedule_id, shown, client)
    shown.page(page, _TICKS, texts.NO_TICKS, [_tick_row(tick, zone) for tick in page["items"]])


@app.command
def pause(
    schedule_id: ScheduleId, *, reason: str | None = None, shown: Shown = AS_JSON, client: Client
) -> None:
    """Pause a schedule: its ticks are skipped.

    Parameters
    ----------
    reason
        Reason, shown with the schedule.
    """
    shown.one(client.schedules.pause(schedule_id, reason), "id")


@app.command
def resume(schedule_id: ScheduleId, *, shown: Shown = AS_JSON, client: Client) -> None:
    """Resume a paused schedule. Skipped ticks are not caught up."""
    shown.one(client.schedules.resume(schedule_id), "id")


@app.command
def trigger(
    schedule_id: ScheduleId,
    *,
    idempotency_key: str | None = None,
    shown: Shown = AS_JSON,
    client: Client,
) -> None:
    """Start a tick now.

    Parameters
    ----------
    idempotency_key
        Idempotency key; repeated calls with the same key take effect once.
    """
    shown.one(client.schedules.trigger(schedule_id, idempotency_key=idempotency_key), *_STARTED)


@app.command
def backfill(
    schedule_id: ScheduleId,
    first: Annotated[str, Parameter(name="--from")],
    last: Annotated[str, Parameter(name="--to")],
    *,
    again: Flag = False,
    dry_run: Flag = False,
    shown: Shown = AS_JSON,
    client: Client,
) -> None:
    """Start the ticks of a past period that were not started.

    Parameters
    ----------
    first
        Start of the period, e.g. 2026-12-01T00:00+09:00
    last
        End of the period.
    again
        Start also ticks that were started already.
    dry_run
        Only print the ticks.
    """
    found = client.schedules.backfill(schedule_id, first, last, only_missing=not again, dry_run=dry_run)
    zone = _zone_of(schedule_id, shown, client)
    rows = [{"due": _local(tick["due_at"], zone)} for tick in found["items"]]
    shown.list(found, rows, _PREVIEW, texts.NO_TICKS)


@app.command
def delete(schedule_id: ScheduleId, *, shown: Shown = AS_JSON, client: Client) -> None:
    """Delete a schedule. Its runs are kept."""
    shown.one(client.schedules.delete(schedule_id), "id")


# Definitions in a directory

_SUFFIXES = (".yaml", ".yml", ".json")
_CHANGES = Columns(("id",), ("change", "kind", "id", "fields"))


def apply(directory: Path, *, dry_run: Flag = False, shown: Shown = AS_TABLE, client: Client) -> None:
    """Create or change what a directory defines, from flows to schedules.

    Parameters
    ----------
    directory
        Directory with the folders flows, graphs, limits, alerts, actions, templates and schedules; one YAML
        or JSON file each.
    dry_run
        Only print the differences.
    """
    try:
        documents = documents_in(directory, _SUFFIXES, _read_definition)
    except ValueError as error:
        raise InvalidCliInput(str(error)) from error
    found = []
    for document in documents:
        try:
            found.append(client.apply(document, dry_run=dry_run))
        except RequestRefused as error:
            if not wants_json(sys.argv):
                note(texts.NOT_APPLIED(path=document.path))
            fail_http(error.response, path=str(document.path))
    rows = [{**one, "fields": ", ".join(one["fields"])} for one in found]
    shown.list(found, rows, _CHANGES, texts.NOTHING)


def _read_definition(path: Path) -> dict[str, Any]:
    return read_graph(path) if path.parent.name == "graphs" else read_document(path, str(path))


COMMANDS = {"apply": apply}


def _row(schedule: Mapping[str, Any]) -> dict[str, Any]:
    last, zone = schedule["last_tick"], schedule["timezone"]
    every = schedule["every_sec"]
    return {
        "id": schedule["id"],
        "when": schedule["cron"] or f"every {every:g} s",
        "timezone": zone,
        "next_due": None if schedule["next_due_at"] is None else _local(schedule["next_due_at"], zone),
        "last": None if last is None else f"{last['status']} {_local(last['due_at'], zone)}",
        "state": "paused" if schedule["paused"] else "active",
    }


def _tick_row(tick: Mapping[str, Any], zone: str) -> dict[str, Any]:
    return {
        **tick,
        "due": _local(tick["due_at"], zone),
        "started": tick.get("run_id") or tick.get("execution_id"),
    }


def _zone_of(schedule_id: str, shown: Shown, client: Client) -> str:
    """For tables; JSON has timestamps."""
    return "UTC" if shown.output == "json" else client.schedules.get(schedule_id)["timezone"]


def _local(timestamp: float, zone: str) -> str:
    """In the schedule's time zone; in UTC where this machine has no time zones."""
    try:
        at = datetime.fromtimestamp(timestamp, ZoneInfo(zone))
    except ZoneInfoNotFoundError:
        at = datetime.fromtimestamp(timestamp, UTC)
    return at.isoformat(sep=" ", timespec="seconds")
