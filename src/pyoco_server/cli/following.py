"""Following a run: a picture that is drawn anew in a terminal, a line for each change anywhere else."""

import sys
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import IO, Literal

from rich.console import Console
from rich.live import Live

from pyoco_server.cli import client_texts as texts
from pyoco_server.cli.client_output import note, print_json_line
from pyoco_server.cli.interrupts import Interrupts
from pyoco_server.cli.run_view import LOG_LINES, RunView
from pyoco_server.cli.tables import plain, printable
from pyoco_server.http_client import PyocoHttpClient
from pyoco_server.http_client.answers import Run, RunEvent

Style = Literal["live", "status", "json"]
REFRESH_PER_SECOND = 8


def follow(
    client: PyocoHttpClient,
    run_id: str,
    events: Iterable[RunEvent],
    style: Style,
    file: IO[str],
    max_events: int | None = None,
) -> Run:
    """Tell the events in `file`, to their end; the run as it was then."""
    # Asked for first: a run or a server that is not there is told at once, and not waited for.
    view = RunView(client.get_run_with_records(run_id), fits_height=True)
    if style == "live":
        view.add_lines(client.get_logs(run_id, limit=LOG_LINES))
    teller = _TELLERS[style]
    told = 0
    try:
        with (
            Interrupts() as interrupts,
            _drawn(view, file) if style == "live" else nullcontext(),
            interrupts.allowed(),
        ):
            for event in events:
                view.take(event)
                told += teller(event, file)
                if max_events is not None and told >= max_events:
                    break
    except KeyboardInterrupt:
        if style == "live":
            note(texts.RUN_GOES_ON(run_id=run_id))
        raise
    return view.run


def style_for(file: IO[str], otherwise: Style) -> Style:
    return "live" if Console(file=file).is_terminal else otherwise


def _drawn(view: RunView, file: IO[str]) -> AbstractContextManager[Live]:
    return Live(view, console=Console(file=file, highlight=False), refresh_per_second=REFRESH_PER_SECOND)


def _tell_nothing(event: RunEvent, _: IO[str]) -> int:
    """The picture has it."""
    return int(event["event"] != "heartbeat")


def _tell_json(event: RunEvent, _: IO[str]) -> int:
    if event["event"] == "heartbeat":
        return 0
    print_json_line(event)
    return 1


def _tell_status(event: RunEvent, file: IO[str]) -> int:
    if event["event"] == "heartbeat":
        return 0
    if event["event"] == "snapshot":
        run = event["snapshot"]
        tasks = (f"{task}={state}" for task, state in run["tasks"].items())
        print(printable("  ".join([run["status"], *tasks])), file=file, flush=True)
    elif file is sys.stderr:  # for a person; stdout has the lines of the contract and no others
        for line in event.get("lines", []):
            text = plain(line["text"].rstrip())
            print(f"  {printable(line['task'] or '-')} | {text}", file=file, flush=True)
    return 1


_TELLERS: dict[Style, Callable[[RunEvent, IO[str]], int]] = {
    "live": _tell_nothing,
    "status": _tell_status,
    "json": _tell_json,
}
