"""The commands: what they call, and their options."""

import json
import os
import re
import sys
import unicodedata
from argparse import SUPPRESS, ArgumentParser, Namespace
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pyoco_server.environment import language
from pyoco_server.http_client import PyocoError, PyocoHttpClient, RunError
from pyoco_server.http_client.options import RunOptions, fields_of, options_of
from pyoco_server.http_client.schedules import documents_in

FAILED = 1
ENDED = ("COMPLETED", "FAILED", "CANCELLED")


class InvalidInput(Exception):
    def __init__(self, reason: str, advice: str | None = None) -> None:
        super().__init__(reason)
        self.advice = advice


# Output: the answer on stdout, lines for people on stderr


class RunGoesOn(KeyboardInterrupt):
    """Waiting for a run was interrupted."""

    def __init__(self, run_id: str) -> None:
        super().__init__()
        detail = f"the run continues. To cancel it: pyoco-client cancel {run_id}"
        self.facts = {"detail": detail, "advice": None, "run_id": run_id}


def note(*lines: str) -> None:
    for line in filter(None, lines):
        print(_printable(line), file=sys.stderr, flush=True)


def _printable(text: str) -> str:
    return "".join(c if c.isprintable() else "�" for c in text)


def _json(answer: Any, indent: int | None = None) -> str:
    is_utf8 = (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"
    return json.dumps(answer, indent=indent, ensure_ascii=not is_utf8)


class Columns(NamedTuple):
    """The columns of a table. `ids`: what identifies a row, for --quiet. `items`: the key of the rows."""

    ids: tuple[str, ...] = ()
    shown: tuple[str, ...] = ()
    items: str | None = None


def show(answer: Any, columns: Columns, given: Namespace) -> None:
    is_list = columns.items is not None or isinstance(answer, list)
    rows = answer[columns.items] if columns.items is not None else answer if is_list else [answer]
    if given.quiet:
        for row in rows:
            print(*(row[name] for name in columns.ids if row.get(name) is not None))
    elif given.output == "json":
        print(_json(answer, indent=2))
    elif is_list:
        _print_rows(
            [list(columns.shown), *([_cell(row.get(name)) for name in columns.shown] for row in rows)]
        )
    else:
        _print_rows(
            [[name, _cell(value)] for name, value in answer.items() if value not in (None, "", [], {})]
        )


def _cell(value: Any) -> str:
    if value in (None, "", [], {}):
        return "-"
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return _printable(",".join(value))
    return _printable(value if isinstance(value, str) else _json(value))


def _print_rows(rows: Sequence[Sequence[str]]) -> None:
    widths = [max(map(_width, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (cell + " " * (width - _width(cell)) for cell, width in zip(row, widths, strict=True))
        print("  ".join(cells).rstrip())


def _width(text: str) -> int:
    return sum(2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)


# Input


def _params(given: Namespace) -> dict[str, Any]:
    """From a file, a JSON text and key=value pairs; later ones win."""
    params = {**read_object(given.params_file), **read_object(given.params)}
    return {**params, **read_pairs(given.param)}


def read_object(source: Path | str | None) -> dict[str, Any]:
    try:
        text = source.read_text(encoding="utf-8") if isinstance(source, Path) else source
        found = {} if text is None else json.loads(text)
    except (OSError, ValueError) as error:
        raise InvalidInput(f"{source}: not JSON ({error})") from error
    if not isinstance(found, dict):
        raise InvalidInput(f"{source}: not a JSON object")
    return found


def read_template(given: Namespace) -> dict[str, Any]:
    """The template of a file, with the options that it lacks."""
    template = read_object(given.file)
    if given.when is not None:
        template["when"] = given.when
    if given.no_month:
        template["needs_month"] = False
    return template


def read_pairs(pairs: Sequence[str] | None) -> dict[str, Any]:
    """JSON where possible, else a string: `n=3` is a number, `name=me` a string."""
    found: dict[str, Any] = {}
    for pair in pairs or ():
        name, separator, text = pair.partition("=")
        if not (separator and name):
            raise InvalidInput(f"{pair!r} is not key=value", "Example:  --param rows=3")
        try:
            found[name] = json.loads(text)
        except ValueError:
            found[name] = text
    return found


def read_json(text: str | None) -> Any:
    try:
        return None if text is None else json.loads(text)
    except ValueError as error:
        raise InvalidInput(f"--data: not JSON ({error})") from error


def secret(variable: str) -> str | None:
    """From the environment, or from the file that `<variable>_FILE` names."""
    file = os.environ.get(f"{variable}_FILE")
    if os.environ.get(variable) or not file:
        return os.environ.get(variable)
    try:
        return Path(file).read_text(encoding="utf-8").removesuffix("\n")
    except OSError as error:
        raise InvalidInput(f"{variable}_FILE {file}: {error.strerror}") from error


def read_words(text: str | None) -> list[str] | None:
    return None if text is None else [word.strip() for word in text.split(",") if word.strip()]


def read_time(text: str | None) -> float | str | None:
    """Unix seconds are a number in JSON."""
    return float(text) if text is not None and text.replace(".", "", 1).isdecimal() else text


RUN = Columns(("run_id",))
EXECUTION = Columns(("execution_id",))
GRAPH = Columns(("graph_id",))


# Options and commands


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
    has_place: bool = False
    """Also without its name."""
    is_rest: bool = False
    """All further words."""

    @property
    def dest(self) -> str:
        return self.name.replace("-", "_")

    @property
    def label(self) -> str:
        return self.dest.upper() if self.has_place else f"--{self.name}"

    @property
    def example(self) -> str:
        return self.label if self.has_place else f"{self.label} {self.dest.upper()}"

    def add(self, command: ArgumentParser) -> None:
        if self.is_rest:
            command.add_argument(self.dest, nargs="*", metavar=self.dest.upper(), help=self.help)
            return
        names = [f"--{self.name}", *([self.short] if self.short else [])]
        if self.is_flag:
            command.add_argument(*names, help=self.help, action="store_true")
            return
        if self.has_place:
            place = self.dest.upper()
            command.add_argument(
                self.dest, nargs="?", metavar=place, help=self.help, type=self.type, default=SUPPRESS
            )
        command.add_argument(
            *names,
            dest=self.dest,
            help=SUPPRESS if self.has_place else self.help,
            type=self.type,
            default=self.default,
            choices=self.choices,
            action="append" if self.is_repeated else "store",
        )


class Command(NamedTuple):
    function: Callable[[PyocoHttpClient, Namespace], int | None]
    options: tuple[Option, ...] = ()


OUTPUT = (
    Option("output", "Output format.", default="json", choices=("json", "table")),
    Option("quiet", "Print ids only, and no progress.", is_flag=True, short="-q"),
)


def place(name: str, about: str, kind: Callable[[str], Any] = str, *, is_required: bool = True) -> Option:
    return Option(name, about, kind, is_required=is_required, has_place=True)


def called(
    about: str, columns: Columns, call: Callable[[PyocoHttpClient, Namespace], Any], *options: Option
) -> Command:
    """A command that makes one call and shows the answer."""

    def function(client: PyocoHttpClient, given: Namespace) -> None:
        show(call(client, given), columns, given)

    function.__doc__ = about
    return Command(function, (*options, *OUTPUT))


# Runs


def submit(client: PyocoHttpClient, given: Namespace) -> int:
    """Submit a run and print its id."""
    submitted = client.submit_run(
        given.flow_name,
        _params(given),
        given.tag,
        read_words(given.tags),
        idempotency_key=given.idempotency_key,
        **_timing(given),
    )
    return _submitted(client, submitted, given)


def submit_yaml(client: PyocoHttpClient, given: Namespace) -> int:
    """Submit a flow.yaml and print the run id."""
    submitted = client.submit_run_yaml(given.workflow_file, given.tag, given.flow_name, **_timing(given))
    return _submitted(client, submitted, given)


def _timing(given: Namespace) -> RunOptions:
    try:
        return options_of(
            at=given.at,
            delay=given.delay,
            start_within=given.start_within,
            timeout=given.timeout,
            retries=given.retries,
            priority=given.priority,
        )
    except ValueError as error:
        raise InvalidInput(str(error)) from error


def retry(client: PyocoHttpClient, given: Namespace) -> int:
    """Run an ended run again, as a new run with the same input, and print its id."""
    params = read_pairs(given.param)
    submitted = client.retry_run(given.run_id, from_=getattr(given, "from"), params=params or None)
    return _submitted(client, submitted, given)


def rerun(client: PyocoHttpClient, given: Namespace) -> int:
    """Same as retry, from the start."""
    return _submitted(client, client.retry_run(given.run_id, params=read_pairs(given.param) or None), given)


def _submitted(client: PyocoHttpClient, submitted: Any, given: Namespace) -> int:
    if submitted.get("warning") and given.has_progress:
        note(f"warning: {submitted['warning']}")
    if not given.wait:
        show(submitted, RUN, given)
        return 0
    run_id = submitted["run_id"]
    if given.has_progress:
        note(f"run {run_id}")
    try:
        for event in client.watch_run(run_id, timeout_sec=given.timeout_sec):
            if given.has_progress:
                note(*_status_lines(event))
    except KeyboardInterrupt as interrupt:
        raise RunGoesOn(run_id) from interrupt
    last = client.get_run(run_id)
    show(last, RUN, given)
    if last["status"] != "COMPLETED":
        detail = _outcome(last, given.timeout_sec)
        raise RunError(detail, detail=detail, run_id=run_id, run=last)
    return 0


def _outcome(run: Any, timeout_sec: float | None) -> str:
    if run["status"] in ENDED:
        return str(run["error"] or run["status"])
    after = f"Timed out after {timeout_sec or 0:g} s; the run continues."
    return f"{after} To watch it: pyoco-client watch {run['run_id']}"


def _status_lines(event: Any) -> Iterable[str]:
    if event["event"] == "snapshot":
        run = event["snapshot"]
        yield "  ".join([run["status"], *(f"{task}={state}" for task, state in run["tasks"].items())])
    for line in event.get("lines", []):
        yield f"  {line['task'] or '-'} | {line['text'].rstrip()}"


def logs(client: PyocoHttpClient, given: Namespace) -> None:
    """Print the output of a run."""
    if given.follow:
        for line in client.follow_logs(given.run_id, given.task, tail=given.tail):
            text = _json(line) + "\n" if given.output == "json" else line["text"]
            print(text, end="", flush=True)
        return
    lines = client.get_logs(given.run_id, given.task, given.tail) if given.tail != 0 else []
    text = (
        _json(lines, indent=2) + "\n" if given.output == "json" else "".join(line["text"] for line in lines)
    )
    print(text, end="")


def why(client: PyocoHttpClient, given: Namespace) -> None:
    """Explain why a run waits or failed, and what to do."""
    found = client.get_diagnosis(given.run_id, "en" if given.output == "json" else language())
    if given.quiet:
        print(found["cause"])
    elif given.output == "json":
        print(_json(found, indent=2))
    else:
        lines = f"{found['summary']}\n{found['details']}".strip().splitlines()
        print(*map(_printable, [*lines, *(f"→ {advice}" for advice in found["advice"])]), sep="\n")


def watch(client: PyocoHttpClient, given: Namespace) -> int:
    """Watch a run."""
    count, status = 0, ""
    for event in client.watch_run(
        given.run_id, records=given.records, since=given.since, timeout_sec=given.timeout_sec
    ):
        if event["event"] == "heartbeat":
            continue
        status = event["snapshot"]["status"] if "snapshot" in event else status
        _print_event(event, given)
        count += 1
        if given.max_events is not None and count >= given.max_events:
            break
    return FAILED if given.until_terminal and status not in ENDED else 0


def _print_event(event: Any, given: Namespace) -> None:
    if given.quiet:
        return
    if given.json or given.output == "json":
        print(_json(event), flush=True)
    elif event["event"] == "snapshot":
        print(*map(_printable, _status_lines(event)), sep="\n", flush=True)


# Executions and graphs


def create(client: PyocoHttpClient, given: Namespace) -> int:
    """Start an execution of a graph."""
    wanted = {**read_object(given.input_file), **read_object(given.input), **read_pairs(given.param)}
    execution = client.executions.create(
        given.graph_id,
        wanted or None,
        execution_id=given.execution_id,
        graph_version=given.graph_version,
        start=not given.no_start,
        idempotency_key=given.idempotency_key,
    )
    if given.wait:
        for event in client.executions.watch(execution["execution_id"]):
            if given.has_progress:
                note(_event_line(event))
        execution = client.executions.get(execution["execution_id"])
    show(execution, EXECUTION, given)
    return 0 if not given.wait or execution["status"] == "COMPLETED" else FAILED


def watch_execution(client: PyocoHttpClient, given: Namespace) -> None:
    """Watch an execution until it ends."""
    for event in client.executions.watch(given.execution_id, given.after):
        if not given.quiet:
            print(_json(event) if given.output == "json" else _printable(_event_line(event)), flush=True)


def _event_line(event: Any) -> str:
    payload = event["payload"]
    details = [payload.get(name) for name in ("node_id", "run_id", "reason")]
    return " ".join([f"{event['sequence']:>4}", event["type"], *(str(item) for item in details if item)])


def put_graph(client: PyocoHttpClient, given: Namespace) -> None:
    """Register a graph as its next version; an unchanged graph keeps its version."""
    try:
        text = given.file.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise InvalidInput(f"{given.file}: {error}") from error
    named = re.search(r"""^\s*["']?id["']?\s*:\s*["']?([A-Za-z0-9_-]+)""", text, re.MULTILINE)
    graph_id = given.id or (named[1] if named else given.file.stem)
    show(client.put_graph(graph_id, given.file), GRAPH, given)


def metrics(client: PyocoHttpClient, given: Namespace) -> None:
    """Print the server's metrics in Prometheus format."""
    text = client.get_metrics() if given.worker is None else client.get_worker_metrics(given.worker)
    print(text, end="")


def value(client: PyocoHttpClient, given: Namespace) -> None:
    """Print a large value of a run as JSON."""
    if given.file is None:
        print(_json(client.get_value(given.reference), indent=2))
    else:
        client.download_value(given.reference, given.file)


def artifacts(client: PyocoHttpClient, given: Namespace) -> None:
    """List the artifacts of a run, or save one."""
    if given.name is not None:
        print(client.download_artifact(given.run_id, given.name, given.file or Path(given.name)))
    elif given.file is not None:
        raise InvalidInput("--file: give the name of an artifact")
    else:
        columns = Columns(("name",), ("name", "size", "type", "task"), "items")
        show(client.list_artifacts(given.run_id), columns, given)


# Events


def event_fields(given: Namespace) -> dict[str, Any]:
    has_data = given.data is not None or given.data_file is not None
    names = (
        "template_id",
        "event_name",
        "year",
        "month",
        "source",
        "notes",
        "execution_id",
        "node_id",
        "wait_key",
    )
    return {
        **{name: getattr(given, name) for name in names},
        "token": given.token or secret("AX_WORKFLOW_EVENT_TOKEN"),
        "idempotency_key": given.key,
        "data": {**read_object(given.data_file), **read_object(given.data)} if has_data else None,
    }


def start_fields(given: Namespace) -> dict[str, Any]:
    data = {} if given.data is None else {"data": read_object(given.data)}
    return {"idempotency_key": given.key, "year": given.year, "month": given.month, **data}


def action_fields(given: Namespace) -> dict[str, Any]:
    if (given.flow_name is None) == (given.graph_id is None):
        raise InvalidInput("exactly one of --flow-name and --graph-id is required")
    action = {name: getattr(given, name) for name in ("flow_name", "graph_id", "tag")}
    concurrency = "one" if given.one_at_a_time else "allow"
    fixed = {**action, "params": read_object(given.params), "concurrency": concurrency}
    return fixed | fields_of(_timing(given))


# Schedules


def put_schedule(client: PyocoHttpClient, given: Namespace) -> Any:
    definition = read_object(given.file)
    if "target" not in definition:
        raise InvalidInput(f"{given.file}: no target")
    named = definition.pop("id", None)
    return client.schedules.put(str(given.id or named or given.file.stem), **definition)


def set_flow(client: PyocoHttpClient, given: Namespace) -> Any:
    try:
        timing = options_of(
            start_within=given.start_within,
            timeout=given.timeout,
            retries=given.retries,
            priority=given.priority,
        )
        schema = {} if given.params_schema is None else {"params_schema": read_object(given.params_schema)}
        wanted = {**timing, "description": given.description, "owner": given.owner, **schema}
        replaced = None if given.file is None else read_object(given.file)
        return client.flows.change(given.name, wanted, unset=given.unset or (), replaced=replaced)
    except ValueError as error:
        raise InvalidInput(str(error)) from error


def put_limit(client: PyocoHttpClient, given: Namespace) -> Any:
    definition = read_object(given.file)
    if "match" not in definition:
        raise InvalidInput(f"{given.file}: no match")
    named = definition.pop("name", None)
    return client.limits.put(str(given.name or named or given.file.stem), **definition)


def put_alert(client: PyocoHttpClient, given: Namespace) -> Any:
    return client.alerts.put(**_named(given, "on"))


def put_channel(client: PyocoHttpClient, given: Namespace) -> Any:
    return client.channels.put(**_named(given, "type"))


def _named(given: Namespace, needed: str) -> dict[str, Any]:
    definition = read_object(given.file)
    if needed not in definition:
        raise InvalidInput(f"{given.file}: no {needed}")
    named = definition.pop("name", None)
    return {"name": str(given.name or named or given.file.stem), **definition}


def apply(client: PyocoHttpClient, given: Namespace) -> Any:
    try:
        documents = documents_in(given.directory, (".json",), read_object)
    except ValueError as error:
        raise InvalidInput(str(error)) from error
    found = []
    for document in documents:
        try:
            found.append(client.apply(document, dry_run=given.dry_run))
        except PyocoError as error:
            vars(error)["path"] = str(document.path)
            raise
    return found


def preview_schedule(client: PyocoHttpClient, given: Namespace) -> Any:
    is_unsaved = given.cron is not None or given.every_sec is not None
    if (getattr(given, "schedule_id", None) is None) != is_unsaved:
        raise InvalidInput("either a schedule id, or --cron or --every-sec, is required")
    if not is_unsaved:
        return client.schedules.preview(given.schedule_id, given.count)
    return client.schedules.preview_unsaved(
        cron=given.cron, every_sec=given.every_sec, timezone=given.timezone, n=given.count
    )
