"""Commands for workers, metrics and wheels."""

import re
from configparser import ConfigParser
from configparser import Error as ConfigParserError
from pathlib import Path
from typing import Any, Literal

from pyoco_server.cli import client_texts as texts
from pyoco_server.cli.output import Client, Flag, Output, note, print_json, print_table
from pyoco_server.domain.wheels import (
    Fit,
    WheelContent,
    WheelName,
    check_wheel,
    fit_of,
    read_content,
    read_tags,
)
from pyoco_server.errors import InvalidCliInput, InvalidRequest

_COLUMNS = ("state", "worker_id", "tags", "current_run_id", "last_run_status", "last_seen_at", "hidden")
_EXPENDABLE = ("hidden", "last_run_status", "last_seen_at", "current_run_id", "tags")


def workers(
    *,
    scope: Literal["active", "all"] | None = None,
    state: str | None = None,
    include_hidden: Flag = False,
    limit: int | None = None,
    output: Output = "json",
    client: Client,
) -> None:
    """List workers.

    Parameters
    ----------
    scope
        active: live workers; all: also stopped and disconnected ones.
    state
        Filter by state: RUNNING, IDLE, STOPPED_GRACEFUL or DISCONNECTED.
    include_hidden
        Include hidden workers.
    limit
        Maximum number of entries (up to 500).
    """
    found: Any = client.get_workers(scope, state, include_hidden=include_hidden or None, limit=limit)
    if output == "json":
        print_json(found)
    elif found:
        print_table(found, _COLUMNS, _EXPENDABLE)
    else:
        note(texts.NO_WORKERS())


def worker_hide(worker_id: str, *, client: Client) -> None:
    """Hide a worker from lists.

    Parameters
    ----------
    worker_id
        Worker id.
    """
    print_json(client.patch_worker_hidden(worker_id, hidden=True))


def worker_show(worker_id: str, *, client: Client) -> None:
    """Unhide a worker.

    Parameters
    ----------
    worker_id
        Worker id.
    """
    print_json(client.patch_worker_hidden(worker_id, hidden=False))


def metrics(*, client: Client) -> None:
    """Print the server's metrics in Prometheus format."""
    print(client.get_metrics(), end="")


# Wheels

TASKS = "pyoco.tasks"
_ENTRY_POINT = re.compile(r"[A-Za-z_][\w.]*(\s*:\s*[A-Za-z_][\w.]*)?(\s*\[.*\])?")

_WHEEL_COLUMNS = ("name", "size_bytes", "tags", "modified", "sha256_hex")
_WHEEL_EXPENDABLE = ("sha256_hex", "modified", "size_bytes", "tags")
_HISTORY_COLUMNS = ("occurred_at", "action", "wheel_name", "tags", "by")
_HISTORY_EXPENDABLE = ("by", "tags")


def wheels(*, output: Output = "json", client: Client) -> None:
    """List registered wheels."""
    found: Any = client.list_wheels()
    if output == "json":
        print_json(found)
    elif found:
        print_table(found, _WHEEL_COLUMNS, _WHEEL_EXPENDABLE)
    else:
        note(texts.NO_WHEELS())


def wheel_history(
    *,
    limit: int = 100,
    wheel_name: str | None = None,
    action: Literal["upload", "delete"] | None = None,
    output: Output = "json",
    client: Client,
) -> None:
    """List wheel uploads and deletions, newest first.

    Parameters
    ----------
    limit
        Maximum number of entries (up to 500).
    wheel_name
        Filter by wheel.
    action
        Filter by action.
    """
    events = client.list_wheel_history(limit, wheel_name, action)
    if output == "json":
        print_json(events)
    elif events:
        rows = [
            {**event, "by": event["actor"]["api_key_id"] or event["source"]["remote_addr"]}
            for event in events
        ]
        print_table(rows, _HISTORY_COLUMNS, _HISTORY_EXPENDABLE)
    else:
        note(texts.NO_WHEEL_HISTORY())


def wheel_upload(*, wheel_file: Path, tags: str = "", replace: bool = True, client: Client) -> None:
    """Check a wheel and register it for installation on workers.

    Parameters
    ----------
    wheel_file
        Wheel file, e.g. dist/my_flows-1.0-py3-none-any.whl.
    tags
        Target workers by tag, e.g. cpu,linux. Default: all workers.
    replace
        No effect; kept for compatibility. A new upload needs a higher version.
    """
    _check(wheel_file)
    try:
        wanted = read_tags(tags)
    except InvalidRequest as error:
        raise InvalidCliInput(f"--tags: {error.detail}") from error
    print_json(client.upload_wheel(wheel_file, wanted, replace=replace))


def wheel_delete(*, name: str, client: Client) -> None:
    """Delete a wheel; workers uninstall it at their next sync.

    Parameters
    ----------
    name
        Wheel file name, e.g. my_flows-1.0-py3-none-any.whl.
    """
    print_json(client.delete_wheel(name))


def _check(path: Path) -> None:
    """Refuse before the upload what the server would refuse or no worker could install."""
    if not path.is_file():
        raise InvalidCliInput(texts.NO_SUCH_WHEEL_FILE(path=path))
    with path.open("rb") as file:
        try:
            name = check_wheel(path.name, file, path.stat().st_size)
            content = read_content(file)
            fit = fit_of(name.tags, content.requires_python)
        except InvalidRequest as error:
            raise InvalidCliInput(texts.BAD_WHEEL(path=path, reason=error.detail)) from error
    _check_fit(path, name, fit, content.requires_python)
    _check_tasks(path, content)


def _check_fit(path: Path, name: WheelName, fit: Fit, requires_python: str) -> None:
    if not fit.minors:
        requires = texts.WHEEL_REQUIRES(wanted=requires_python) if requires_python else ""
        built_for = ", ".join(sorted(map(str, name.tags)))
        raise InvalidCliInput(texts.WHEEL_FITS_NOWHERE(path=path, built_for=built_for, requires=requires))
    if fit.platforms:
        note(texts.WHEEL_FITS_SOME_PLATFORMS(pythons=fit.pythons, platforms=", ".join(fit.platforms)))
    elif not fit.is_everywhere:
        note(texts.WHEEL_FITS_SOME_PYTHONS(pythons=fit.pythons))


def _check_tasks(path: Path, content: WheelContent) -> None:
    tasks = _entry_points(content.entry_points)
    if not tasks:
        note(texts.NO_TASKS_IN_WHEEL())
    for task, value in tasks.items():
        reason = _problem(value, content.members)
        if reason:
            raise InvalidCliInput(texts.BAD_ENTRY_POINT(path=path, name=task, value=value, reason=reason))


class _EntryPoints(ConfigParser):
    def optionxform(self, optionstr: str) -> str:
        return optionstr  # names keep their case


def _entry_points(text: str) -> dict[str, str]:
    parser = _EntryPoints(delimiters=("=",), interpolation=None, strict=False)
    try:
        parser.read_string(text)
    except ConfigParserError as error:
        raise InvalidCliInput(f"entry_points.txt: {error}") from error
    return dict(parser[TASKS]) if parser.has_section(TASKS) else {}


def _problem(value: str, members: frozenset[str]) -> str:
    """The reason why an entry point cannot work, or an empty string."""
    if not _ENTRY_POINT.fullmatch(value.strip()):
        return texts.IS_NOT_MODULE_FUNCTION()
    module = value.partition(":")[0].strip()
    file = module.replace(".", "/")
    exists = any(name.startswith((f"{file}.", f"{file}/")) for name in members)
    return "" if exists else texts.NAMES_NO_MODULE(module=module)


COMMANDS = {
    "workers": workers,
    "worker-hide": worker_hide,
    "worker-show": worker_show,
    "metrics": metrics,
    "wheels": wheels,
    "wheel-history": wheel_history,
    "wheel-upload": wheel_upload,
    "wheel-delete": wheel_delete,
}
