"""The commands about workers and figures."""

import re
from configparser import ConfigParser
from configparser import Error as ConfigParserError
from pathlib import Path
from typing import Any, Literal

from pyoco_server.cli import client_texts as texts
from pyoco_server.cli.output import Client, Flag, Output, note, print_json, print_table
from pyoco_server.domain.wheels import Fit, WheelName, fit_of, read_tags
from pyoco_server.errors import InvalidCliInput, InvalidRequest
from pyoco_server.usecases.wheels import WheelContent, check_wheel, read_content

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
    """Print the workers.

    Parameters
    ----------
    scope
        active: those that are alive; all: those that were, too.
    state
        Only these: RUNNING, IDLE, STOPPED_GRACEFUL or DISCONNECTED.
    include_hidden
        Hidden ones, too.
    limit
        At most so many (up to 500).
    """
    found: Any = client.get_workers(scope, state, include_hidden=include_hidden or None, limit=limit)
    if output == "json":
        print_json(found)
    elif found:
        print_table(found, _COLUMNS, _EXPENDABLE)
    else:
        note(texts.NO_WORKERS())


def worker_hide(worker_id: str, *, client: Client) -> None:
    """Leave a worker out of lists.

    Parameters
    ----------
    worker_id
        The worker.
    """
    print_json(client.patch_worker_hidden(worker_id, hidden=True))


def worker_show(worker_id: str, *, client: Client) -> None:
    """Show a hidden worker again.

    Parameters
    ----------
    worker_id
        The worker.
    """
    print_json(client.patch_worker_hidden(worker_id, hidden=False))


def metrics(*, client: Client) -> None:
    """Print the server's figures, as Prometheus reads them."""
    print(client.get_metrics(), end="")


# The commands about wheels.

TASKS = "pyoco.tasks"
_ENTRY_POINT = re.compile(r"[A-Za-z_][\w.]*(\s*:\s*[A-Za-z_][\w.]*)?(\s*\[.*\])?")

_WHEEL_COLUMNS = ("name", "size_bytes", "tags", "modified", "sha256_hex")
_EXPENDABLE_OF_WHEELS = ("sha256_hex", "modified", "size_bytes", "tags")
_HISTORY_COLUMNS = ("occurred_at", "action", "wheel_name", "tags", "by")
_HISTORY_EXPENDABLE = ("by", "tags")


def wheels(*, output: Output = "json", client: Client) -> None:
    """Print the registered wheels."""
    found: Any = client.list_wheels()
    if output == "json":
        print_json(found)
    elif found:
        print_table(found, _WHEEL_COLUMNS, _EXPENDABLE_OF_WHEELS)
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
    """Print who registered and removed what, newest first.

    Parameters
    ----------
    limit
        At most so many (up to 500).
    wheel_name
        Only of this wheel.
    action
        Only uploads, or only deletions.
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
        note(texts.NOTHING_HAPPENED())


def wheel_upload(*, wheel_file: Path, tags: str = "", replace: bool = True, client: Client) -> None:
    """Check a wheel and register it for workers.

    Parameters
    ----------
    wheel_file
        The file, e.g. dist/my_flows-1.0-py3-none-any.whl.
    tags
        For workers with one of these tags, e.g. cpu,linux; none: for all.
    replace
        Kept for older scripts: the version decides what can be registered.
    """
    _check(wheel_file)
    try:
        wanted = read_tags(tags)
    except InvalidRequest as error:
        raise InvalidCliInput(f"--tags: {error.detail}") from error
    print_json(client.upload_wheel(wheel_file, wanted, replace=replace))


def wheel_delete(*, name: str, client: Client) -> None:
    """Remove a wheel: workers drop it at their next sync.

    Parameters
    ----------
    name
        The wheel, e.g. my_flows-1.0-py3-none-any.whl.
    """
    print_json(client.delete_wheel(name))


def _check(path: Path) -> None:
    """What the server would refuse, or no worker could install, is refused before anything is sent."""
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
    """Why an entry point cannot work; empty when it can."""
    if not _ENTRY_POINT.fullmatch(value.strip()):
        return texts.IS_NOT_MODULE_FUNCTION()
    module = value.partition(":")[0].strip()
    file = module.replace(".", "/")
    is_there = any(name.startswith((f"{file}.", f"{file}/")) for name in members)
    return "" if is_there else texts.NAMES_NO_MODULE(module=module)


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
