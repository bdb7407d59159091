"""Commands that are more than one call: bulk operations, statistics, secrets and variables."""

import getpass
import json
import sys
from argparse import Namespace
from pathlib import Path
from typing import Any

from pyoco_client.commands import FAILED, Columns, InvalidInput, show
from pyoco_server.http_client import PyocoHttpClient

OPERATION = Columns(("id",))
ITEMS = Columns(("run_id", "id"), ("run_id", "flow_name", "status", "reason"), "items")
FILTERS = ("status", "flow", "tag", "updated_after", "updated_before", "reason", "since")


def start_bulk(client: PyocoHttpClient, given: Namespace) -> int:
    """Start an operation on the runs that match now, or on those with these ids."""
    items = _items(given)
    if given.dry_run:
        show(client.bulk.preview(given.action, **items), ITEMS, given)
        return 0
    operation: Any = client.bulk.start(given.action, max_per_sec=given.max_per_sec, **items)
    if given.wait:
        *_, operation = client.bulk.watch(operation["id"])
    show(operation, OPERATION, given)
    has_failed = operation["failed"] > 0 or operation["status"] != "COMPLETED"
    return FAILED if given.wait and has_failed else 0


POINTS = Columns(
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
)


def show_stats(client: PyocoHttpClient, given: Namespace) -> None:
    """Count the runs that ended, per minute or hour, with quantiles of their waits and durations."""
    filters = {name: getattr(given, name) for name in ("since", "until", "flow", "tag", "status")}
    found = client.stats(given.by, given.bucket, **filters)
    rows = [_row(one["key"], point) for one in found["series"] for point in one["points"]]
    show(found if given.output == "json" and not given.quiet else rows, POINTS, given)


def _row(key: str, point: Any) -> dict[str, Any]:
    times = {f"{of}_{name}": value for of in ("wait", "duration") for name, value in point[of].items()}
    return {"key": key, "at": point["at"], "count": point["count"], **times}


def _items(given: Namespace) -> dict[str, Any]:
    wanted = {name: getattr(given, name) for name in FILTERS if getattr(given, name) is not None}
    if bool(given.ids) + bool(wanted) + bool(given.all) != 1:
        raise InvalidInput("give ids, a filter, or --all")
    return {"ids": given.ids} if given.ids else {"filter": wanted, "all": given.all}


def watch_bulk(client: PyocoHttpClient, given: Namespace) -> None:
    """Watch an operation until it ends."""
    for operation in client.bulk.watch(given.bulk_id):
        if given.quiet:
            continue
        line = "{status} {done} done, {failed} failed, {left} left".format_map(operation)
        print(json.dumps(operation) if given.output == "json" else line, flush=True)


def read_value(file: Path | None, *, is_secret: bool) -> str:
    """From a file, or the standard input; on a terminal a secret is typed without being shown."""
    try:
        if file is not None:
            text = file.read_text(encoding="utf-8")
        elif sys.stdin.isatty():
            text = getpass.getpass("value: ") if is_secret else input("value: ")
        else:
            text = sys.stdin.read()
    except (OSError, UnicodeDecodeError, EOFError) as error:
        raise InvalidInput(f"the value cannot be read: {type(error).__name__}") from error
    text = text.removesuffix("\n").removesuffix("\r")
    if is_secret and not text:
        raise InvalidInput("the value is empty")
    return text


def put_variable(client: PyocoHttpClient, given: Namespace) -> Any:
    if given.value is not None and given.file is not None:
        raise InvalidInput("--value and --file exclude each other")
    text = read_value(given.file, is_secret=False) if given.value is None else given.value
    try:
        return client.variables.put(given.name, json.loads(text) if given.as_json else text)
    except ValueError as error:
        raise InvalidInput(f"the value is not JSON: {error}") from error
