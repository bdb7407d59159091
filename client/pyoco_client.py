"""The `pyoco-client` command of the thin client: JSON and plain lines, without further packages.

With the extra `terminal` it is the command of pyoco-server, with tables, live views, completion, and the
commands for executions, graphs and events. The commands here have the same names, options and exit codes
there.
"""

import json
import os
import sys
from argparse import SUPPRESS, ArgumentParser, Namespace
from collections.abc import Callable, Iterable
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from pyoco_server.http_client import PyocoError, PyocoHttpClient

DEFAULT_SERVER = "http://127.0.0.1:8000"
TERMINAL_PACKAGES = ("cyclopts", "dotenv", "packaging", "rich", "structlog", "yaml")
TERMINAL = (
    "Tables, live views, completion, and commands for executions, graphs and events: "
    "pip install 'pyoco-client[terminal]'"
)
FAILED, INTERRUPTED = 1, 130
ENDED = ("COMPLETED", "FAILED", "CANCELLED")


def main() -> None:
    if all(find_spec(name) for name in TERMINAL_PACKAGES):
        from pyoco_server.cli.client import main as in_a_terminal  # noqa: PLC0415 - needs these packages

        in_a_terminal()
    else:
        sys.exit(run(sys.argv[1:]))


def run(arguments: list[str]) -> int:
    given = parser().parse_args(arguments)
    if COMMANDS[given.command].has_run_id and given.run_id is None:
        return _refused("RUN_ID is missing", f"Usage:    pyoco-client {given.command} --help")
    key = given.api_key or os.environ.get("PYOCO_API_KEY")
    try:
        with PyocoHttpClient(_url(given.server), key, given.api_key_header) as client:
            return COMMANDS[given.command].function(client, given) or 0
    except PyocoError as error:
        status = "" if error.status is None else f"HTTP {error.status} "
        shown = error.detail if isinstance(error.detail, str) else json.dumps(error.detail)
        _note(f"{status}{error.err_id or ''} {shown}".strip(), error.advice or "")
        return FAILED
    except KeyboardInterrupt:
        return INTERRUPTED


def _url(given: str | None) -> str:
    wanted = given or os.environ.get("PYOCO_SERVER_URL") or DEFAULT_SERVER
    return (wanted if "://" in wanted else f"http://{wanted}").rstrip("/")


# Output: JSON on stdout, lines for people on stderr


def _print(answer: Any) -> None:
    print(json.dumps(answer, indent=2, ensure_ascii=not _is_utf8()))


def _print_line(answer: Any) -> None:
    print(json.dumps(answer, ensure_ascii=not _is_utf8()), flush=True)


def _is_utf8() -> bool:
    return (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"


def _note(*lines: str) -> None:
    for line in filter(None, lines):
        print("".join(c if c.isprintable() else "�" for c in line), file=sys.stderr, flush=True)


# Commands


def submit(client: PyocoHttpClient, given: Namespace) -> int:
    """Submit a run and print its id."""
    labels = None if given.tags is None else [tag.strip() for tag in given.tags.split(",") if tag.strip()]
    submitted = client.submit_run(
        given.flow_name, _params(given), given.tag, labels, idempotency_key=given.idempotency_key
    )
    return _submitted(client, submitted, given)


def submit_yaml(client: PyocoHttpClient, given: Namespace) -> int:
    """Submit a flow.yaml and print the run id."""
    return _submitted(client, client.submit_run_yaml(given.workflow_file, given.tag, given.flow_name), given)


def _submitted(client: PyocoHttpClient, submitted: Any, given: Namespace) -> int:
    if submitted.get("warning"):
        _note(f"warning: {submitted['warning']}")
    if not given.wait:
        _print(submitted)
        return 0
    run_id = submitted["run_id"]
    _note(f"run {run_id}")
    for event in client.watch_run(run_id, timeout_sec=given.timeout_sec):
        _note(*_status_lines(event))
    last = client.get_run(run_id)
    _print(last)
    return 0 if last["status"] == "COMPLETED" else FAILED


def _status_lines(event: Any) -> Iterable[str]:
    if event["event"] == "snapshot":
        run = event["snapshot"]
        yield "  ".join([run["status"], *(f"{task}={state}" for task, state in run["tasks"].items())])
    for line in event.get("lines", []):
        yield f"  {line['task'] or '-'} | {line['text'].rstrip()}"


def _params(given: Namespace) -> dict[str, Any]:
    params: dict[str, Any] = {}
    try:
        for text in (_read(given.params_file), given.params):
            params |= {} if text is None else dict(json.loads(text))
    except (OSError, TypeError, ValueError) as error:
        raise SystemExit(_refused(f"params: not a JSON object ({error})")) from error
    for pair in given.param or []:
        name, _, value = pair.partition("=")
        params[name] = _value(value)
    return params


def _read(path: Path | None) -> str | None:
    return None if path is None else path.read_text(encoding="utf-8")


def _value(text: str) -> Any:
    """JSON where possible, else a string: `n=3` is a number, `name=me` a string."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def get(client: PyocoHttpClient, given: Namespace) -> None:
    """Print the current state of a run."""
    _print(client.get_run(given.run_id, include=["records"] if given.records else []))


def tasks(client: PyocoHttpClient, given: Namespace) -> None:
    """Print the tasks of a run and their records."""
    _print(client.get_tasks(given.run_id))


def logs(client: PyocoHttpClient, given: Namespace) -> None:
    """Print the output of a run."""
    if given.follow:
        for line in client.follow_logs(given.run_id, given.task, tail=given.tail):
            if given.output == "json":
                _print_line(line)
            else:
                print(line["text"], end="", flush=True)
        return
    lines = client.get_logs(given.run_id, given.task, given.tail) if given.tail != 0 else []
    if given.output == "json":
        _print(lines)
    else:
        print("".join(line["text"] for line in lines), end="")


def list_(client: PyocoHttpClient, given: Namespace) -> None:
    """List runs, newest first."""
    _print(client.list_runs(given.status, given.flow, given.tag, full=given.full, limit=given.limit))


def watch(client: PyocoHttpClient, given: Namespace) -> int:
    """Watch a run."""
    count, status = 0, ""
    for event in client.watch_run(
        given.run_id, records=given.records, since=given.since, timeout_sec=given.timeout_sec
    ):
        if event["event"] == "heartbeat":
            continue
        status = event["snapshot"]["status"] if "snapshot" in event else status
        _print_line(event)
        count += 1
        if given.max_events is not None and count >= given.max_events:
            break
    return FAILED if given.until_terminal and status not in ENDED else 0


def cancel(client: PyocoHttpClient, given: Namespace) -> None:
    """Cancel a run."""
    _print(client.cancel_run(given.run_id, given.wait, given.timeout_sec, reason=given.reason))


def workers(client: PyocoHttpClient, given: Namespace) -> None:
    """List the workers."""
    hidden = given.include_hidden or None
    _print(client.get_workers(given.scope, given.state, include_hidden=hidden, limit=given.limit))


def metrics(client: PyocoHttpClient, _: Namespace) -> None:
    """Print the metrics in Prometheus text format."""
    print(client.get_metrics(), end="")


def wheels(client: PyocoHttpClient, _: Namespace) -> None:
    """List the registered wheels."""
    _print(client.list_wheels())


def wheel_upload(client: PyocoHttpClient, given: Namespace) -> None:
    """Register a wheel for installation on workers."""
    _print(client.upload_wheel(given.wheel_file, [tag for tag in given.tags.split(",") if tag]))


def wheel_delete(client: PyocoHttpClient, given: Namespace) -> None:
    """Delete a wheel; workers uninstall it at their next sync."""
    _print(client.delete_wheel(given.name))


# Options


class Option(NamedTuple):
    name: str
    help: str
    type: Callable[[str], Any] = str
    default: Any = None
    is_required: bool = False
    is_flag: bool = False
    short: str | None = None
    choices: tuple[str, ...] | None = None
    is_repeated: bool = False

    def add(self, command: ArgumentParser) -> None:
        names = [f"--{self.name}", *([self.short] if self.short else [])]
        if self.is_flag:
            command.add_argument(*names, help=self.help, action="store_true")
            return
        command.add_argument(
            *names,
            help=self.help,
            type=self.type,
            default=self.default,
            required=self.is_required,
            choices=self.choices,
            action="append" if self.is_repeated else "store",
        )


class Command(NamedTuple):
    function: Callable[[PyocoHttpClient, Namespace], int | None]
    options: tuple[Option, ...] = ()
    has_run_id: bool = False
    """As the first argument, or as --run-id."""


TAG = Option("tag", "Tag of the worker to run on.")
RECORDS = Option("records", "Include task_records.", is_flag=True)
OUTPUT = Option("output", "Tables need the extra `terminal`.", default="json", choices=("json",))
TIMEOUT = Option("timeout-sec", "Timeout in seconds.", float)
WAIT = (Option("wait", "Wait until the run ends; exit code 0 if it completed.", is_flag=True), TIMEOUT)

COMMANDS = {
    "submit": Command(
        submit,
        (
            Option("flow-name", "Flow to run.", is_required=True),
            Option("params", """Params as a JSON object, e.g. '{"x": 1}'."""),
            Option("params-file", "File with the params, JSON.", Path),
            Option("param", "One param as key=value; may be repeated.", is_repeated=True),
            TAG,
            Option("tags", "Labels for filtering, e.g. nightly,eu."),
            Option("idempotency-key", "Submitting again with the same key and input returns the same run."),
            *WAIT,
        ),
    ),
    "submit-yaml": Command(
        submit_yaml,
        (
            Option("workflow-file", "Path to the flow.yaml.", Path, is_required=True),
            Option("flow-name", "Flow name shown in lists.", is_required=True),
            TAG,
            *WAIT,
        ),
    ),
    "get": Command(get, (RECORDS, OUTPUT), has_run_id=True),
    "tasks": Command(tasks, (OUTPUT,), has_run_id=True),
    "logs": Command(
        logs,
        (
            Option("task", "Filter by task."),
            Option("tail", "Number of lines from the end. Default: all stored lines.", int),
            Option("follow", "Print new lines until the run ends.", is_flag=True, short="-f"),
            Option(
                "output",
                "text: the raw output; json: with task and time.",
                default="text",
                choices=("text", "json"),
            ),
        ),
        has_run_id=True,
    ),
    "list": Command(
        list_,
        (
            Option("status", "Filter by status."),
            Option("flow", "Filter by flow."),
            Option("tag", "Filter by tag."),
            Option("full", "Include all fields.", is_flag=True),
            Option("limit", "Maximum number of entries (up to 200).", int),
            OUTPUT,
        ),
    ),
    "watch": Command(
        watch,
        (
            RECORDS,
            Option("since", "Only changes after this Unix time.", float),
            TIMEOUT,
            Option("max-events", "Stop after this many events.", int),
            Option("until-terminal", "Exit with code 1 if the run has not ended.", is_flag=True),
            Option("json", "One event per line, which is the default.", is_flag=True),
        ),
        has_run_id=True,
    ),
    "cancel": Command(
        cancel,
        (
            Option("run-id", "Run id.", is_required=True),
            Option("reason", "Reason, stored with the run."),
            Option("wait", "Wait until the run ends.", is_flag=True),
            Option("timeout-sec", "With --wait: timeout in seconds.", float, 60.0),
        ),
    ),
    "workers": Command(
        workers,
        (
            Option("scope", "active: without stopped workers.", choices=("active", "all")),
            Option("state", "Filter by state."),
            Option("include-hidden", "Include hidden workers.", is_flag=True),
            Option("limit", "Maximum number of entries.", int),
            OUTPUT,
        ),
    ),
    "metrics": Command(metrics),
    "wheels": Command(wheels, (OUTPUT,)),
    "wheel-upload": Command(
        wheel_upload,
        (
            Option("wheel-file", "Wheel file.", Path, is_required=True),
            Option("tags", "Target workers by tag, e.g. cpu,linux. Default: all workers.", default=""),
        ),
    ),
    "wheel-delete": Command(wheel_delete, (Option("name", "Wheel file name.", is_required=True),)),
}


class _Parser(ArgumentParser):
    def error(self, message: str) -> NoReturn:
        sys.exit(_refused(message, f"Usage:    {self.prog} --help"))


def _refused(*lines: str) -> int:
    _note(f"ERR-PYOCO-0018 MSG-PYOCO-0018 {lines[0]}", *lines[1:])
    return FAILED


def parser() -> ArgumentParser:
    whole = _Parser(
        prog="pyoco-client", description="Submit and inspect runs on a pyoco-server.", epilog=TERMINAL
    )
    _add_connection(whole, None, "X-API-Key")
    commands = whole.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, command in COMMANDS.items():
        about = command.function.__doc__
        one = commands.add_parser(name, help=about, description=about)
        _add_connection(one, SUPPRESS, SUPPRESS)  # before or after the command
        if command.has_run_id:
            one.add_argument("run_id", metavar="RUN_ID", nargs="?", default=SUPPRESS, help="Run id.")
            one.add_argument("--run-id", help=SUPPRESS)
        for option in command.options:
            option.add(one)
    return whole


def _add_connection(parser: ArgumentParser, default: Any, header: str) -> None:
    parser.add_argument(
        "--server", default=default, help=f"Server URL (also: PYOCO_SERVER_URL). Default: {DEFAULT_SERVER}"
    )
    parser.add_argument(
        "--api-key", default=default, help="API key for a server with authentication (also: PYOCO_API_KEY)."
    )
    parser.add_argument("--api-key-header", default=header, help="HTTP header for the API key.")


if __name__ == "__main__":
    main()
