"""Tables that fit the terminal: what matters least is left out first, what is long is cut."""

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

GAP = 2
NO_TERMINAL_WIDTH = 10_000
"""Into a file or a pipe everything is written."""
MIN_WIDTH = 8
FLEXIBLE = {
    "flow_name": 8,
    "error": 16,
    "worker_id": 10,
    "tags": 8,
    "task": 12,
    "prompt": 12,
    "graph_id": 10,
    "sha256_hex": 12,
}
"""Columns that may be cut, and to what."""

COLOURS = {
    "RUNNING": "blue",
    "PENDING": "blue",
    "IDLE": "green",
    "COMPLETED": "green",
    "SUCCEEDED": "green",
    "FAILED": "red",
    "DISCONNECTED": "red",
    "CANCELLING": "yellow",
    "CANCELLED": "yellow",
    "CANCELED": "yellow",
    "ACTIVE": "blue",
    "WAITING": "bold magenta",
}


def print_table(
    rows: Iterable[Mapping[str, Any]], columns: Sequence[str], expendable: Sequence[str] = ()
) -> None:
    """`expendable` columns are left out where there is no room, the first one first."""
    console = _console()
    cells = [{column: _cell(column, row.get(column)) for column in columns} for row in rows]
    natural = {column: max(cell_len(column), *(row[column].cell_len for row in cells)) for column in columns}
    widths = fitted(natural, expendable, console.width)
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, GAP, 0, 0))
    for column, width in widths.items():
        is_whole = column in FLEXIBLE or width >= natural[column]
        table.add_column(column, width=width, no_wrap=is_whole, overflow="ellipsis" if is_whole else "fold")
    for row in cells:
        table.add_row(*(row[column] for column in widths))
    console.print(table, width=sum(widths.values()) + GAP * len(widths), crop=False)


def fitted(natural: Mapping[str, int], expendable: Sequence[str], width: int) -> dict[str, int]:
    """The columns that are shown, and how wide each is."""
    shown = dict(natural)
    for column in expendable:
        if _least(shown) <= width:
            break
        shown.pop(column)
    room = width - GAP * (len(shown) - 1)
    for column in sorted(shown, key=lambda name: (name not in FLEXIBLE, -shown[name])):
        excess = sum(shown.values()) - room
        if excess > 0:
            floor = FLEXIBLE.get(column, MIN_WIDTH)
            shown[column] = max(min(shown[column], floor), shown[column] - excess)
    return shown


def _least(shown: Mapping[str, int]) -> int:
    """Of the width that these columns need."""
    columns = [min(width, FLEXIBLE.get(name, width)) for name, width in shown.items()]
    return sum(columns) + GAP * (len(columns) - 1)


def _console() -> Console:
    console = Console(highlight=False)
    has_width = console.is_terminal or "COLUMNS" in os.environ
    return console if has_width else Console(highlight=False, width=NO_TERMINAL_WIDTH)


def _cell(column: str, value: Any) -> Text:
    """Always as text: what runs are called must not become markup."""
    if value is None or value == "":
        return Text("-", "dim")
    if column.endswith("_at") or column in ("modified", "deadline"):
        return Text(shown_time(value))
    if isinstance(value, (list, tuple)):
        return Text(printable(",".join(map(str, value))) or "-")
    return Text(printable(str(value)), COLOURS.get(str(value), ""))


_LINE_ENDS = re.compile(r"\r\n|[\n\r]")


def shown_time(timestamp: float, now: datetime | None = None) -> str:
    """Of today the time, of other days the date."""
    at = datetime.fromtimestamp(timestamp).astimezone()
    today = (now or datetime.now().astimezone()).date()
    return at.strftime("%H:%M:%S") if at.date() == today else at.strftime("%Y-%m-%d")


def printable(text: str) -> str:
    """One line, and nothing in it that a terminal would obey."""
    return "".join(c if c.isprintable() else "�" for c in text.replace("\t", "  ").replace("\n", " "))


def plain(line: str) -> str:
    """Printable, and without the colours of a program that thought it had a terminal."""
    return printable(Text.from_ansi(line).plain)


def plain_lines(text: str) -> str:
    """As it was printed, without what a terminal would obey. A carriage return ends a line."""
    return "\n".join(map(plain, _LINE_ENDS.split(text)))
