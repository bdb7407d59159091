"""`pyoco-client`: submit, watch and manage runs, executions and workers over HTTP.

The commands for workers, queues, metrics and wheels are here, the others in `client_<noun>.py`.
"""

import re
import sys
from collections.abc import Mapping
from configparser import ConfigParser, Error as ConfigParserError
from pathlib import Path
from typing import Annotated, Any, Literal, NoReturn

import cyclopts
import httpx2
from cyclopts import Parameter

from pyoco_server.cli import (
    client_admin,
    client_alerts,
    client_events,
    client_executions,
    client_flows,
    client_graphs,
    client_operations,
    client_runs,
    client_schedules,
    client_secrets,
    client_texts as texts,
)
from pyoco_server.cli.client_params import FOR_NOW, Pause
from pyoco_server.cli.failures import facts_of, fail, reporting_failures, run_app, with_message
from pyoco_server.cli.output import AS_JSON, Client, Columns, Flag, Shown, fail_http, note, server_url
from pyoco_server.cli.run_view import duration
from pyoco_server.cli.terminal import add_completion
from pyoco_server.domain.wheels import (
    Fit,
    WheelContent,
    WheelName,
    check_wheel,
    fit_of,
    read_content,
    read_tags,
)
from pyoco_server.environment import secret_variable
from pyoco_server.errors import (
    GatewayUnreachable,
    InvalidCliInput,
    InvalidRequest,
    PyocoServerError,
    UntrustedCertificate,
)
from pyoco_server.http_client import PyocoHttpClient
from pyoco_server.http_client.answers import Queue

# Workers, metrics and wheels

_WORKERS = Columns(
    ("worker_id",),
    ("state", "worker_id", "tags", "current_run_id", "last_run_status", "last_seen_at", "hidden"),
    ("hidden", "last_run_status", "last_seen_at", "current_run_id", "tags"),
)
_QUEUES = Columns(
    ("tag",),
    ("tag", "waiting", "running", "paused", "oldest_wait", "workers", "per_min"),
    ("per_min", "oldest_wait", "workers"),
)
Tag = Annotated[str, Parameter(help="Tag of the queue.")]
WorkerId = Annotated[str, Parameter(help="Worker id.")]


def workers(
    *,
    scope: Literal["active", "all"] | None = None,
    state: str | None = None,
    include_hidden: Flag = False,
    limit: int | None = None,
    shown: Shown = AS_JSON,
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
    shown.list(found, found, _WORKERS, texts.NO_WORKERS)


def worker_hide(worker_id: WorkerId, *, shown: Shown = AS_JSON, client: Client) -> None:
    """Hide a worker from lists."""
    shown.one(client.patch_worker_hidden(worker_id, hidden=True), "worker_id")


def worker_show(worker_id: WorkerId, *, shown: Shown = AS_JSON, client: Client) -> None:
    """Unhide a worker."""
    shown.one(client.patch_worker_hidden(worker_id, hidden=False), "worker_id")


def metrics(*, worker: str | None = None, client: Client) -> None:
    """Print the server's metrics in Prometheus format.

    Parameters
    ----------
    worker
        Print those of this worker, as of its last heartbeat.
    """
    print(client.get_metrics() if worker is None else client.get_worker_metrics(worker), end="")


# Wheels

TASKS = "pyoco.tasks"
_ENTRY_POINT = re.compile(r"[A-Za-z_][\w.]*(\s*:\s*[A-Za-z_][\w.]*)?(\s*\[.*\])?")

_WHEELS = Columns(
    ("name",),
    ("name", "size_bytes", "tags", "modified", "sha256_hex"),
    ("sha256_hex", "modified", "size_bytes", "tags"),
)
_HISTORY = Columns(("event_id",), ("occurred_at", "action", "wheel_name", "tags", "by"), ("by", "tags"))


def wheels(*, shown: Shown = AS_JSON, client: Client) -> None:
    """List registered wheels."""
    found: Any = client.list_wheels()
    shown.list(found, found, _WHEELS, texts.NO_WHEELS)


def wheel_history(
    wheel_name: str | None = None,
    *,
    limit: int = 100,
    action: Literal["upload", "delete"] | None = None,
    shown: Shown = AS_JSON,
    client: Client,
) -> None:
    """List wheel uploads and deletions, newest first.

    Parameters
    ----------
    wheel_name
        Filter by wheel.
    limit
        Maximum number of entries (up to 500).
    action
        Filter by action.
    """
    events = client.list_wheel_history(limit, wheel_name, action)
    rows = [
        {**event, "by": event["actor"]["api_key_id"] or event["source"]["remote_addr"]} for event in events
    ]
    shown.list(events, rows, _HISTORY, texts.NO_WHEEL_HISTORY)


def wheel_upload(
    wheel_file: Path,
    *,
    tags: str = "",
    replace: bool = True,
    shown: Shown = AS_JSON,
    client: Client,
) -> None:
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
    shown.one(client.upload_wheel(wheel_file, wanted, replace=replace), "name")


def wheel_delete(name: str, *, shown: Shown = AS_JSON, client: Client) -> None:
    """Delete a wheel; workers uninstall it at their next sync.

    Parameters
    ----------
    name
        Wheel file name, e.g. my_flows-1.0-py3-none-any.whl.
    """
    shown.one(client.delete_wheel(name), "name")


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


# Queues

queues_app = cyclopts.App(name="queues", help="Inspect, pause and resume the queues of tags.")


@queues_app.command(name="list")
def list_queues(*, shown: Shown = AS_JSON, client: Client) -> None:
    """List queues by tag: what waits and runs, pauses, live workers."""
    found = client.list_queues()
    shown.list(found, [*map(_queue_row, found["items"])], _QUEUES, texts.NO_QUEUES)


def _queue_row(queue: Queue) -> dict[str, Any]:
    paused = queue["paused"]
    return {
        **queue,
        "paused": None if paused is None else paused["reason"] or texts.PAUSED(),
        "oldest_wait": duration(queue["oldest_wait_sec"]) if queue["waiting"] else None,
        "per_min": queue["throughput_per_min"],
    }


@queues_app.command
def pause(tag: Tag, *, wanted: Pause = FOR_NOW, shown: Shown = AS_JSON, client: Client) -> None:
    """Pause a queue: workers take no more runs of the tag. Active runs go on."""
    shown.one(client.pause_queue(tag, wanted.reason, wanted.until), "tag")


@queues_app.command
def resume(tag: Tag, *, shown: Shown = AS_JSON, client: Client) -> None:
    """Resume a paused queue."""
    shown.one(client.resume_queue(tag), "tag")


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


# The command itself

app = cyclopts.App(name="pyoco-client", help="Submit and inspect runs on a pyoco-server.")
PARTS: tuple[Mapping[str, Any], ...] = (
    client_runs.COMMANDS,
    COMMANDS,
    client_executions.COMMANDS,
    client_schedules.COMMANDS,
    client_admin.COMMANDS,
    client_operations.COMMANDS,
)
for part in PARTS:
    for name, command in part.items():
        app.command(command, name=name)
app.command(client_graphs.app)
app.command(queues_app)
app.command(client_executions.app)
app.command(client_schedules.app)
app.command(client_flows.app)
app.command(client_flows.limits_app)
app.command(client_admin.app)
app.command(client_operations.letters_app)
app.command(client_operations.bulk_app)
app.command(client_operations.value)
app.command(client_operations.artifacts)
app.command(client_secrets.secrets_app)
app.command(client_secrets.variables_app)
app.command(client_alerts.alerts_app)
app.command(client_alerts.channels_app)
app.command(client_alerts.deliveries_app)
client_executions.app.command(client_operations.delete_execution, name="delete")
for group in client_events.APPS:
    app.command(group)


@app.meta.default
def launch(
    *tokens: Annotated[str, Parameter(show=False, allow_leading_hyphen=True)],
    server: str | None = None,
    api_key: str | None = None,
    api_key_header: str = "X-API-Key",
) -> None:
    """Run a command.

    Parameters
    ----------
    server
        Server URL (also: PYOCO_SERVER_URL). Default: the server started in this directory, else
        http://127.0.0.1:8000
    api_key
        API key for a server with authentication (also: PYOCO_API_KEY, PYOCO_API_KEY_FILE).
    api_key_header
        HTTP header for the API key.
    """
    command, bound, ignored = app.parse_args(tokens, exit_on_error=False, print_error=False)
    with reporting_failures():
        if "client" not in ignored:
            command(*bound.args, **bound.kwargs)
            return
        key = api_key or secret_variable("PYOCO_API_KEY")
        with PyocoHttpClient(server_url(server), key, api_key_header) as client:
            bound.arguments["client"] = client
            try:
                sys.exit(command(*bound.args, **bound.kwargs) or 0)
            except httpx2.HTTPStatusError as error:
                fail_http(error.response)
            except UntrustedCertificate as error:
                _fail(error, texts.CERTIFICATE_ADVICE())
            except GatewayUnreachable as error:
                _fail(error, texts.NO_SERVER_ADVICE())


def _fail(error: PyocoServerError, advice: str) -> NoReturn:
    fail(with_message(error.entry, error.detail), advice, **facts_of(error.entry, error.detail))


add_completion(app)


def main() -> None:
    run_app(app, app.meta)


if __name__ == "__main__":
    main()
