"""Commands for dead letters, bulk operations, deletes and statistics."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import cyclopts
from cyclopts import Parameter

from pyoco_server.cli import client_texts as texts
from pyoco_server.cli.output import (
    AS_JSON,
    Client,
    Columns,
    Cursor,
    Flag,
    Limit,
    Quiet,
    Shown,
    print_json,
    print_json_line,
    printable,
)
from pyoco_server.errors import InvalidCliInput
from pyoco_server.http_client.calls import given

letters_app = cyclopts.App(
    name="dead-letters", help="Inspect jobs that no worker could finish, and run them again."
)
bulk_app = cyclopts.App(name="bulk", help="Cancel, retry, delete or redrive many runs at once.")

_LETTERS = Columns(
    ("id",), ("id", "reason", "flow_name", "tag", "run_id", "redriven_as", "error"), ("tag", "redriven_as")
)
_OPERATIONS = Columns(("id",), ("id", "action", "status", "total", "done", "failed", "left"), ("total",))
_ITEMS = Columns(("item",), ("item", "flow_name", "state"))

LetterId = Annotated[str, Parameter(help="Id of the dead letter.")]
BulkId = Annotated[str, Parameter(help="Id of the operation.")]


@letters_app.command(name="list")
def list_letters(  # noqa: PLR0913 - one per filter
    *,
    reason: Literal["invalid_job", "flow_not_found", "execution_error", "max_deliver"] | None = None,
    tag: str | None = None,
    flow: str | None = None,
    since: str | None = None,
    cursor: Cursor = None,
    limit: Limit = 50,
    shown: Shown = AS_JSON,
    client: Client,
) -> None:
    """List dead letters, newest first.

    Parameters
    ----------
    reason
        Filter by reason.
    tag
        Filter by tag.
    flow
        Filter by flow name.
    since
        Written then or later, e.g. 2026-12-01T00:00+09:00
    """
    page = client.dead_letters.list(
        reason=reason, tag=tag, flow=flow, since=since, cursor=cursor, limit=limit
    )
    shown.page(page, _LETTERS, texts.NO_LETTERS, [dict(letter) for letter in page["items"]])


@letters_app.command(name="show")
def show_letter(letter_id: LetterId, *, shown: Shown = AS_JSON, client: Client) -> None:
    """Print a dead letter."""
    shown.one(client.dead_letters.get(letter_id), "id")


@letters_app.command
def redrive(letter_id: LetterId, *, shown: Shown = AS_JSON, client: Client) -> None:
    """Run the run of a dead letter again. A second time prints the same run."""
    shown.one(client.dead_letters.redrive(letter_id), "run_id")


@letters_app.command
def discard(letter_id: LetterId, *, shown: Shown = AS_JSON, client: Client) -> None:
    """Remove a dead letter. Its run is kept."""
    shown.one(client.dead_letters.discard(letter_id), "id")


# Bulk operations


@bulk_app.command
def start(  # noqa: PLR0913 - one per filter
    action: Literal["cancel", "retry", "delete", "redrive"],
    *ids: str,
    status: str | None = None,
    flow: str | None = None,
    tag: str | None = None,
    updated_after: str | None = None,
    updated_before: str | None = None,
    reason: str | None = None,
    since: str | None = None,
    every: Annotated[Flag, Parameter(name="--all")] = False,
    dry_run: Flag = False,
    max_per_sec: float | None = None,
    wait: Flag = False,
    shown: Shown = AS_JSON,
    client: Client,
) -> int:
    """Start an operation on the runs that match now, or on those with these ids.

    Parameters
    ----------
    action
        What to do. redrive: dead letters instead of runs.
    ids
        Run ids; for redrive, ids of dead letters.
    status
        Runs with this status.
    flow
        Runs or dead letters of this flow.
    tag
        Runs or dead letters with this tag.
    updated_after
        Runs that changed after this time, e.g. 2026-12-01T00:00+09:00
    updated_before
        Runs that changed before this time.
    reason
        Dead letters with this reason.
    since
        Dead letters written then or later.
    every
        All runs or dead letters, if no filter is given.
    dry_run
        Only print how many they are, and the first 20.
    max_per_sec
        Maximum number of items per second.
    wait
        Wait for the end. Exit code 1 if an item failed.
    """
    wanted = given(
        {
            "status": status,
            "flow": flow,
            "tag": tag,
            "updated_after": updated_after,
            "updated_before": updated_before,
            "reason": reason,
            "since": since,
        }
    )
    if bool(ids) + bool(wanted) + bool(every) != 1:
        raise InvalidCliInput(texts.WHICH_ITEMS())
    items: dict[str, Any] = {"ids": ids} if ids else {"filter": wanted, "all": bool(every)}
    if dry_run:
        preview = client.bulk.preview(action, **items)
        shown.list(preview, [_item(one) for one in preview["items"]], _ITEMS, texts.NO_ITEMS)
        return 0
    operation = client.bulk.start(action, max_per_sec=max_per_sec, **items)
    if wait:
        for operation in client.bulk.watch(operation["id"]):  # noqa: B007, B020 - the last one is shown
            pass
    shown.one(operation, "id")
    return int(wait and (operation["failed"] > 0 or operation["status"] != "COMPLETED"))


@bulk_app.command(name="show")
def show_operation(bulk_id: BulkId, *, shown: Shown = AS_JSON, client: Client) -> None:
    """Print an operation: what is done, what failed, what is left."""
    shown.one(client.bulk.get(bulk_id), "id")


@bulk_app.command(name="list")
def list_operations(
    *, cursor: Cursor = None, limit: Limit = 50, shown: Shown = AS_JSON, client: Client
) -> None:
    """List operations, newest first."""
    page = client.bulk.list(cursor, limit)
    shown.page(page, _OPERATIONS, texts.NO_OPERATIONS, [dict(one) for one in page["items"]])


@bulk_app.command(name="cancel")
def cancel_operation(bulk_id: BulkId, *, shown: Shown = AS_JSON, client: Client) -> None:
    """Cancel an operation. What it has done stays done."""
    shown.one(client.bulk.cancel(bulk_id), "id")


@bulk_app.command
def watch(
    bulk_id: BulkId,
    *,
    output: Literal["json", "status"] = "json",
    quiet: Quiet = False,
    client: Client,
) -> None:
    """Watch an operation until it ends.

    Parameters
    ----------
    output
        json: the operation in one line per change; status: one short line per change.
    quiet
        Print nothing.
    """
    for operation in client.bulk.watch(bulk_id):
        if quiet:
            continue
        if output == "json":
            print_json_line(operation)
        else:
            print(printable(_line(operation)), flush=True)


def _item(item: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "item": item["id"] if "id" in item else item["run_id"],
        "flow_name": item["flow_name"],
        "state": item["reason"] if "id" in item else item["status"],
    }


def _line(operation: Mapping[str, Any]) -> str:
    return "{status} {done} done, {failed} failed, {left} left".format_map(operation)


# Deletes


def delete_run(
    run_id: Annotated[str, Parameter(help="Run id.")], *, shown: Shown = AS_JSON, client: Client
) -> None:
    """Delete an ended run and its log."""
    shown.one(client.delete_run(run_id), "run_id")


def delete_worker(
    worker_id: Annotated[str, Parameter(help="Worker id.")], *, shown: Shown = AS_JSON, client: Client
) -> None:
    """Delete the record of a worker that is gone."""
    shown.one(client.delete_worker(worker_id), "worker_id")


def delete_execution(
    execution_id: Annotated[str, Parameter(help="Execution id.")], *, shown: Shown = AS_JSON, client: Client
) -> None:
    """Delete an archived execution. Its id cannot be used again."""
    shown.one(client.executions.delete(execution_id), "execution_id")


# Statistics

_POINTS = Columns(
    ("key",),
    (
        "key",
        "at",
        "count",
        "wait_p50",
        "wait_p95",
        "wait_p99",
        "duration_p50",
        "duration_p95",
        "duration_p99",
    ),
    ("wait_p99", "duration_p99", "wait_p50", "duration_p50"),
)


def stats(  # noqa: PLR0913 - one per filter
    *,
    by: Literal["status", "flow", "tag"] = "status",
    bucket: Literal["minute", "hour"] = "minute",
    since: str | None = None,
    until: str | None = None,
    flow: str | None = None,
    tag: str | None = None,
    status: Literal["COMPLETED", "FAILED", "CANCELLED"] | None = None,
    shown: Shown = AS_JSON,
    client: Client,
) -> None:
    """Count the runs that ended, per minute or hour, with quantiles of their waits and durations.

    Parameters
    ----------
    by
        What the runs are counted by.
    bucket
        minute: of the last day; hour: of the last 90 days.
    since
        Ended then or later, e.g. 2026-12-01T00:00+09:00. Default: the last hour, or day.
    until
        Ended before this time. Default: now.
    flow
        Filter by flow name.
    tag
        Filter by tag.
    status
        Filter by status.
    """
    found = client.stats(by, bucket, since=since, until=until, flow=flow, tag=tag, status=status)
    rows = [_row(one["key"], point) for one in found["series"] for point in one["points"]]
    shown.list(found, rows, _POINTS, texts.NO_ENDED_RUNS)


def _row(key: str, point: Mapping[str, Any]) -> dict[str, Any]:
    times = {f"{of}_{name}": value for of in ("wait", "duration") for name, value in point[of].items()}
    return {"key": key, "at": point["at"], "count": point["count"], **times}


COMMANDS = {"stats": stats, "delete": delete_run, "worker-delete": delete_worker}


# Large values


def value(reference: str, *, file: Path | None = None, client: Client) -> None:
    """Print a large value of a run as JSON.

    Parameters
    ----------
    reference
        The text of its `$ref`: sha256:…
    file
        Save it in this file instead.
    """
    if file is None:
        print_json(client.get_value(reference))
    else:
        client.download_value(reference, file)


_ARTIFACTS = Columns(("name",), ("name", "size", "type", "task"), ("task",))


def artifacts(
    run_id: Annotated[str, Parameter(help="Run id.")],
    name: str | None = None,
    *,
    file: Path | None = None,
    shown: Shown = AS_JSON,
    client: Client,
) -> None:
    """List the artifacts of a run, or save one.

    Parameters
    ----------
    name
        Name of the artifact to save; without, all are listed.
    file
        Save it in this file. Default: its name, here.
    """
    if name is not None:
        print(client.download_artifact(run_id, name, file or Path(name)))
    elif file is not None:
        raise InvalidCliInput(texts.FILE_OF_WHAT())
    else:
        found: Any = client.list_artifacts(run_id)
        shown.list(found, found["items"], _ARTIFACTS, texts.NO_ARTIFACTS)
