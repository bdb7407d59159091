"""`pyoco-server doctor --live`: problems as they appear and disappear."""

import threading
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from typing import Literal, NamedTuple

from rich.console import Console
from rich.text import Text

from pyoco_server.cli import server_texts as texts
from pyoco_server.cli.doctor import COLOURS, Finding
from pyoco_server.cli.output import note, print_json_line

Event = Literal["appeared", "changed", "disappeared"]


class Noticed(NamedTuple):
    event: Event
    finding: Finding


class Problems:
    """The problems of the last check."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], Finding] = {}

    def noticed(self, findings: Iterable[Finding]) -> Iterator[Noticed]:
        """What differs from the check before. A number that changes in its text makes no other problem."""
        found = {finding.key: finding for finding in findings if finding.level != "OK"}
        for key, finding in found.items():
            before = self._known.get(key)
            if before is None:
                yield Noticed("appeared", finding)
            elif before.level != finding.level:
                yield Noticed("changed", finding)
        for key, finding in self._known.items():
            if key not in found:
                yield Noticed("disappeared", finding)
        self._known = found

    @property
    def count(self) -> int:
        return len(self._known)


def watch(
    examine: Callable[[], list[Finding]],
    interval_sec: float,
    *,
    as_json: bool,
    is_quiet: bool,
    stopping: threading.Event | None = None,
) -> None:
    """Until `stopping`, or an interrupt."""
    problems, stopping = Problems(), stopping or threading.Event()
    report = _print_json if as_json else _print
    is_first = True
    while not stopping.is_set():
        for noticed in problems.noticed(examine()):
            report(noticed)
        if is_first and not is_quiet:
            note(texts.WATCHING(problems=problems.count, seconds=f"{interval_sec:g}"))
        is_first = False
        stopping.wait(interval_sec)


def _print_json(noticed: Noticed) -> None:
    """One object per line, in English."""
    now = datetime.now().astimezone().isoformat(timespec="seconds")
    print_json_line({"at": now, "event": noticed.event, **noticed.finding.as_json()})


def _print(noticed: Noticed) -> None:
    finding, is_over = noticed.finding, noticed.event == "disappeared"
    level, colour = ("OK", COLOURS["OK"]) if is_over else (finding.level, COLOURS[finding.level])
    fact = texts.NO_LONGER(fact=finding.fact) if is_over else finding.fact
    line = Text.assemble(
        (f"{datetime.now().astimezone():%H:%M:%S}  ", "dim"),
        (f"{level:<4}", colour),
        f"  {finding.check}  ",
        fact,
    )
    console = Console(highlight=False)
    console.print(line, soft_wrap=True)
    if finding.advice and not is_over:
        console.print(Text(f"          → {finding.advice}", "bold"), soft_wrap=True)
