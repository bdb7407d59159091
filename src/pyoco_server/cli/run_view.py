"""A run in the terminal: its state, its tasks and its last output; live, as lines or as JSON."""

import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import IO, Any, Literal, cast

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.constrain import Constrain
from rich.live import Live
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from pyoco_server.cli import client_texts as texts
from pyoco_server.cli.failures import FAILED, report_failure, wants_json
from pyoco_server.cli.output import COLOURS, Shown, line_text, note, plain, print_json_line, printable
from pyoco_server.cli.terminal import Interrupts
from pyoco_server.http_client import PyocoHttpClient
from pyoco_server.http_client.answers import LogLine, Run, RunTasks
from pyoco_server.http_client.runs import RunEvent, is_terminal

LOG_LINES = 5
MIN_TASKS = 3
ECHO_COLUMNS = 2
"""Left free for the `^C` that a terminal prints after the last line; a full line would wrap."""
OTHER_LINES = 4
"""The headline, the error, and the free line at the bottom."""

_MARKS = {
    "PENDING": Text("·", "dim"),
    "SUCCEEDED": Text("✔", "green"),
    "FAILED": Text("✘", "red"),
    "CANCELLED": Text("■", "yellow"),
}
_ORDER = {"RUNNING": 0, "FAILED": 1, "CANCELLED": 2, "SUCCEEDED": 3, "PENDING": 4}
"""Order of importance when not all tasks fit."""


def warnings_of(run: Run) -> list[str]:
    """The prefixed warnings of a run; older servers send none."""
    return [texts.WARNING(text=warning) for warning in run.get("warnings", [])]


class RunView:
    """Renders the current state on every refresh, because running tasks show their elapsed time."""

    def __init__(self, run: Run, *, fits_height: bool) -> None:
        """`fits_height`: tasks that do not fit the screen are counted instead of shown."""
        self.run = run
        self._fits_height = fits_height
        self._lines: deque[str] = deque(maxlen=LOG_LINES)
        self._seen: set[tuple[int, str | None, int]] = set()
        self._spinner = Spinner("dots", style="cyan")

    def take(self, event: RunEvent) -> None:
        self.run = event.get("snapshot", self.run)
        self.add_lines(event.get("lines", []))

    def add_lines(self, lines: Iterable[LogLine]) -> None:
        """Skip known lines: a watch may repeat lines that were read before."""
        for line in lines:
            key = (line["attempt"], line["task"], line["n"])
            if key not in self._seen:
                self._seen.add(key)
                self._lines += [
                    f"{line['task'] or '-'} │ {plain(part)}" for part in line_text(line).splitlines()
                ]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        room = console.height - OTHER_LINES - len(self._lines) if self._fits_height else sys.maxsize
        parts: list[RenderableType] = [
            _cut(_headline(self.run)),
            *self._tasks(self.run, max(MIN_TASKS, room)),
            *(_cut(Text(f"  {line}", "dim")) for line in self._lines),
        ]
        parts += [Text(printable(warning), "yellow") for warning in warnings_of(self.run)]
        if self.run["error"]:
            parts.append(Text(printable(self.run["error"]), "red"))
        yield Constrain(Group(*parts), max(1, options.max_width - ECHO_COLUMNS))

    def _tasks(self, run: Run, room: int) -> Iterator[RenderableType]:
        records: dict[str, Any] = {**(run.get("task_records") or {})}
        names = sorted(run["tasks"], key=lambda task: _started_at(records, task))
        shown = _most_important(run["tasks"], names, room)
        table = Table(box=None, show_header=False, pad_edge=False)
        table.add_column(width=1)
        table.add_column(no_wrap=True, overflow="ellipsis")
        table.add_column(no_wrap=True)
        table.add_column(no_wrap=True, justify="right")
        for name in shown:
            state = run["tasks"][name]
            table.add_row(
                _MARKS.get(state, self._spinner),
                Text(printable(name), "bold"),
                Text(state.lower(), "dim"),
                _took(records.get(name, {}), state),
            )
        if shown:
            yield table
        rest = Counter(run["tasks"][name].lower() for name in set(names) - set(shown))
        if rest:
            states = ", ".join(f"{count} {state}" for state, count in rest.most_common())
            yield Text(texts.MORE_TASKS(count=rest.total(), states=states), "dim")


def _headline(run: Run) -> Text:
    worker = run["worker_id"]
    parts = [
        texts.ON_WORKER(worker_id=printable(worker)) if worker else texts.WAITING_FOR_A_WORKER(),
        texts.ATTEMPT(attempt=run["attempt"]) if (run["attempt"] or 0) > 1 else "",
        _elapsed(run),
        _advance(run),
    ]
    return Text.assemble(
        (run["status"], f"bold {COLOURS.get(run['status'], '')}"),
        "  ",
        (printable(run["flow_name"]), "bold"),
        *(f"  {part}" for part in parts if part),
    )


def _advance(run: Run) -> str:
    """What a task has reported with the helper `progress`; older servers send none."""
    found = run.get("progress")
    if found is None:
        return ""
    share = "" if found["value"] is None else f"{found['value']:.0%}"
    return " ".join(part for part in (share, printable(found["message"] or "")) if part)


def _elapsed(run: Run) -> str:
    if run["start_time"] is None:
        return ""
    end = run["end_time"] if is_terminal({"snapshot": run}) else time.time()
    return duration((end or time.time()) - run["start_time"])


def _took(record: dict[str, Any], state: str) -> str:
    if record.get("duration_ms") is not None:
        return duration(record["duration_ms"] / 1000)
    if state == "RUNNING" and record.get("started_at"):
        return duration(time.time() - record["started_at"])
    return ""


def duration(seconds: float) -> str:
    """Short: `401 ms`, `12.3 s`, `4 min 05 s`, `2 h 03 min`."""
    seconds = max(0.0, seconds)  # the clocks of two machines may differ
    if seconds < 0.001:  # noqa: PLR2004 - a millisecond
        return "<1 ms"
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 60:  # noqa: PLR2004 - a minute
        return f"{seconds:.1f} s"
    minutes, rest = divmod(int(seconds), 60)
    if minutes < 60:  # noqa: PLR2004 - an hour
        return f"{minutes} min {rest:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"


def _started_at(records: dict[str, dict[str, Any]], task: str) -> float:
    return records.get(task, {}).get("started_at") or float("inf")


def _most_important(tasks: dict[str, str], names: list[str], room: int) -> list[str]:
    """All names in order, or the most important ones if they do not fit."""
    if len(names) <= room:
        return names
    wanted = sorted(names, key=lambda name: _ORDER.get(tasks[name], 0))[: room - 1]
    return [name for name in names if name in set(wanted)]


def _cut(text: Text) -> Text:
    text.no_wrap = True
    text.overflow = "ellipsis"
    return text


# Following a run: a live view in a terminal, one line per change elsewhere.

Style = Literal["live", "status", "json", "quiet"]
REFRESH_PER_SECOND = 8


def follow(
    client: PyocoHttpClient,
    run_id: str,
    events: Iterable[RunEvent],
    style: Style,
    file: IO[str],
    max_events: int | None = None,
) -> Run:
    """Print the events to `file` until they end; return the last state of the run."""
    # Read first, so that a missing run or server is reported immediately.
    view = RunView(client.get_run_with_records(run_id), fits_height=True)
    if style == "live":
        view.add_lines(client.get_logs(run_id, limit=LOG_LINES))
    print_event = _PRINTERS[style]
    count = 0
    try:
        with (
            Interrupts() as interrupts,
            _drawn(view, file) if style == "live" else nullcontext(),
            interrupts.allowed(),
        ):
            for event in events:
                view.take(event)
                count += print_event(event, file)
                if max_events is not None and count >= max_events:
                    break
            if style == "live" and is_terminal({"snapshot": view.run}):
                # The watch ends with the last snapshot; lines of the last task may have come behind it.
                view.add_lines(client.get_logs(run_id, limit=LOG_LINES))
    except KeyboardInterrupt:
        if style == "live":
            note(texts.RUN_GOES_ON(run_id=run_id))
        raise
    return view.run


def style_for(file: IO[str], otherwise: Style) -> Style:
    return "live" if Console(file=file).is_terminal else otherwise


def _drawn(view: RunView, file: IO[str]) -> AbstractContextManager[Live]:
    return Live(view, console=Console(file=file, highlight=False), refresh_per_second=REFRESH_PER_SECOND)


def _print_nothing(event: RunEvent, _: IO[str]) -> int:
    """The live view renders the event itself; with --quiet nobody does."""
    return int(event["event"] != "heartbeat")


def _print_json(event: RunEvent, _: IO[str]) -> int:
    if event["event"] == "heartbeat":
        return 0
    print_json_line(event)
    return 1


def _print_status(event: RunEvent, file: IO[str]) -> int:
    if event["event"] == "heartbeat":
        return 0
    if event["event"] == "snapshot":
        run = event["snapshot"]
        tasks = (f"{task}={state}" for task, state in run["tasks"].items())
        print(printable("  ".join([run["status"], *tasks])), file=file, flush=True)
    elif file is sys.stderr:  # to be read; stdout carries only the lines of the contract
        for line in event.get("lines", []):
            text = plain(line_text(line).rstrip())
            print(f"  {printable(line['task'] or '-')} | {text}", file=file, flush=True)
    return 1


_PRINTERS: dict[Style, Callable[[RunEvent, IO[str]], int]] = {
    "live": _print_nothing,
    "status": _print_status,
    "json": _print_json,
    "quiet": _print_nothing,
}


def follow_to_end(client: PyocoHttpClient, run_id: str, timeout_sec: float | None, shown: Shown) -> int:
    """Show progress on stderr, then print the run to stdout; exit code 0 if it completed."""
    style = style_for(sys.stderr, "status")
    if shown.quiet or (style == "status" and wants_json(sys.argv)):  # then stderr has JSON or nothing
        style = "quiet"
    else:
        note(f"run {run_id}")
    events = client.watch_run(run_id, records=True, timeout_sec=timeout_sec)
    try:
        last = follow(client, run_id, events, style, sys.stderr)
    except KeyboardInterrupt:
        if style == "quiet":  # the others have named the run
            report_failure(texts.RUN_GOES_ON(run_id=run_id), run_id=run_id)
        raise
    if style == "status":  # the live view shows them itself
        for warning in warnings_of(last):
            note(printable(warning))
    if style != "live" or shown.quiet or shown.output == "json" or not sys.stdout.isatty():
        show_run(last if shown.output == "table" else _without_records(last), shown)
    if last["status"] == "COMPLETED":
        return 0
    _report_outcome(last, timeout_sec)
    return FAILED


def _report_outcome(run: Run, timeout_sec: float | None) -> None:
    """People have seen the outcome in the progress; programs get it as JSON."""
    facts = {"run_id": run["run_id"], "run_status": run["status"]}
    if not is_terminal({"snapshot": run}):
        reason = texts.NOT_ENDED_IN_TIME(seconds=f"{timeout_sec or 0:g}", run_id=run["run_id"])
        report_failure(reason, **facts)
    elif wants_json(sys.argv):
        report_failure(run["error"] or run["status"], **facts)


def show_run(run: Run, shown: Shown, lines: Iterable[LogLine] = ()) -> None:
    """`lines`: the end of its output."""
    if shown.quiet or shown.output == "json":
        shown.one(run, "run_id")
        return
    view = RunView(run, fits_height=False)
    view.add_lines(lines)
    Console(highlight=False).print(view)


def _without_records(run: Run) -> Run:
    """The same fields as `get` without --records."""
    return cast("Run", {name: value for name, value in run.items() if name != "task_records"})


# Rows of tables


def task_rows(found: RunTasks) -> list[dict[str, Any]]:
    """One row per task, ordered by start time."""
    records: dict[str, Any] = {**(found["task_records"] or {})}
    rows = []
    for task, state in found["tasks"].items():
        record = records.get(task, {})
        took = record.get("duration_ms")
        shown = None if took is None else duration(took / 1000)
        rows.append({**record, "task": task, "state": state, "duration": shown})
    return sorted(rows, key=lambda row: row.get("started_at") or float("inf"))


def list_row(run: dict[str, Any]) -> dict[str, Any]:
    return {**run, "tasks": _progress(run)}


def _progress(run: dict[str, Any]) -> str:
    """Done and total tasks; a full run has the tasks, a summary only the counts."""
    tasks = run.get("tasks")
    if isinstance(tasks, dict):
        return f"{sum(state not in ('PENDING', 'RUNNING') for state in tasks.values())}/{len(tasks)}"
    return f"{run['tasks_done']}/{run['tasks_total']}"
