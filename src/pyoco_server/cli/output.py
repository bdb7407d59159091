"""Output of `pyoco-client`: JSON, tables, and advice for failures."""

import json
import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, NoReturn

import httpx2
from cyclopts import Parameter
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from pyoco_server.cli import client_texts as texts
from pyoco_server.cli.failures import fail, with_message
from pyoco_server.errors import PyocoServerError
from pyoco_server.http_client import PyocoHttpClient
from pyoco_server.http_client.answers import LogLine
from pyoco_server.http_client.calls import text_of
from pyoco_server.running_server import DATA_DIRECTORY, running_server

ENTRIES = {kind.entry.err_id: kind.entry for kind in PyocoServerError.__subclasses__()}
"""The known errors; a newer server may have others."""

Client = Annotated[PyocoHttpClient, Parameter(parse=False)]


def print_json(answer: object) -> None:
    print(_json(answer, indent=2))


def print_json_line(answer: object) -> None:
    """One object per line, for output that a program reads as a stream."""
    print(_json(answer), flush=True)


def _json(answer: object, indent: int | None = None) -> str:
    """Unescaped where the output encoding supports it.

    Control characters (escape sequences, direction marks) are always escaped.
    """
    is_unicode = (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"
    document = json.dumps(answer, ensure_ascii=not is_unicode, indent=indent)
    return "".join(c if c.isprintable() or c == "\n" else json.dumps(c)[1:-1] for c in document)


def fail_http(response: httpx2.Response, **about: str) -> NoReturn:
    """Fail with the server's error, its id and advice. `about`: what else goes into JSON."""
    try:
        body = response.json()
        detail, err_id, code = body.get("detail", ""), body.get("err_id", ""), body.get("code")
    except (ValueError, AttributeError):
        text = response.text[:500]
        fail(f"HTTP {response.status_code}: {text}", status=response.status_code, detail=text)
    shown = text_of(detail)
    if code is not None:
        shown = f"{shown} ({code})"
    entry = ENTRIES.get(err_id)
    message = f"{err_id} {shown}".strip() if entry is None else with_message(entry, shown)
    advice = [texts.ADVICE[err_id]()] if err_id in texts.ADVICE else []
    facts = {**body, **about} if entry is None else {**body, **about, "message": entry.en}
    fail(f"HTTP {response.status_code} {message}", *advice, **{**facts, "status": response.status_code})


def note(line: str) -> None:
    """Print a note to stderr; stdout carries data and logs."""
    print(line, file=sys.stderr, flush=True)


# How a command prints its result


class Columns(NamedTuple):
    """The columns of a table. `ids`: what identifies a row, for --quiet."""

    ids: tuple[str, ...]
    shown: Sequence[str]
    expendable: Sequence[str] = ()
    """Dropped in this order when space is short."""


Quiet = Annotated[bool, Parameter(name=("--quiet", "-q"), negative="", show_default=False)]


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Shown:
    """Options of every command that prints a result."""

    output: Literal["json", "table"] = "json"
    """Output format."""

    quiet: Quiet = False
    """Print ids only, and no progress."""

    def list(
        self, answer: object, rows: Sequence[Mapping[str, Any]], columns: Columns, empty: Callable[[], str]
    ) -> None:
        """`answer` is the JSON. `empty`: the text of a table without rows."""
        if self.quiet:
            _print_ids(rows, columns.ids)
        elif self.output == "json":
            print_json(answer)
        elif rows:
            print_table(rows, columns.shown, columns.expendable)
        else:
            note(empty())

    def page(self, page: Any, columns: Columns, empty: Callable[[], str], rows: Any = None) -> None:
        """A list with a cursor."""
        self.list(page, page["items"] if rows is None else rows, columns, empty)
        if self.output == "table" and page["next_cursor"] is not None:
            self.note(texts.MORE(cursor=page["next_cursor"]))

    def one(self, answer: Any, *ids: str) -> None:
        if self.quiet:
            _print_ids([answer], ids)
        elif self.output == "json":
            print_json(answer)
        else:
            print_record(answer)

    def note(self, line: str) -> None:
        if not self.quiet:
            note(line)


AS_JSON = Shown()


def _print_ids(rows: Iterable[Mapping[str, Any]], ids: Sequence[str]) -> None:
    """One row per line; nothing for a row without any of the ids."""
    for row in rows:
        found = [printable(str(row[name])) for name in ids if row.get(name) is not None]
        if found:
            print(*found)


_EMPTY: tuple[object, ...] = (None, "", [], {})


def print_record(answer: Mapping[str, Any]) -> None:
    """One line per field that has a value; objects and arrays as JSON."""
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, GAP, 0, 0))
    table.add_column(no_wrap=True, style="bold")
    table.add_column(overflow="fold")
    for name, value in answer.items():
        if value not in _EMPTY:
            table.add_row(Text(printable(name)), _field(name, value))
    _console().print(table)


def _field(name: str, value: Any) -> Text:
    if _is_time(name, value):
        return Text(datetime.fromtimestamp(value).astimezone().strftime("%Y-%m-%d %H:%M:%S"))
    if isinstance(value, dict | list) and value:
        return Text(printable(json.dumps(value, ensure_ascii=False)))
    return _cell(name, value)


# Tables that fit the terminal: the least important columns are dropped first, long values are cut.

GAP = 2
NO_TERMINAL_WIDTH = 10_000
"""Files and pipes receive full values."""
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
"""Columns that may be cut, and their minimum width."""

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
    """`expendable` columns are dropped in this order when space is short."""
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
    """The visible columns and their widths."""
    shown = dict(natural)
    for column in expendable:
        if _minimum_width(shown) <= width:
            break
        shown.pop(column)
    room = width - GAP * (len(shown) - 1)
    for column in sorted(shown, key=lambda name: (name not in FLEXIBLE, -shown[name])):
        excess = sum(shown.values()) - room
        if excess > 0:
            floor = FLEXIBLE.get(column, MIN_WIDTH)
            shown[column] = max(min(shown[column], floor), shown[column] - excess)
    return shown


def _minimum_width(shown: Mapping[str, int]) -> int:
    columns = [min(width, FLEXIBLE.get(name, width)) for name, width in shown.items()]
    return sum(columns) + GAP * (len(columns) - 1)


def _console() -> Console:
    console = Console(highlight=False)
    has_width = console.is_terminal or "COLUMNS" in os.environ
    return console if has_width else Console(highlight=False, width=NO_TERMINAL_WIDTH)


def _cell(column: str, value: Any) -> Text:
    """Always plain text: names must not become markup."""
    if value in _EMPTY:
        return Text("-", "dim")
    if isinstance(value, bool):
        return Text(str(value).lower())
    if _is_time(column, value):
        return Text(shown_time(value))
    if isinstance(value, (list, tuple)):
        return Text(printable(",".join(map(str, value))) or "-")
    return Text(printable(str(value)), COLOURS.get(str(value), ""))


def _is_time(column: str, value: object) -> bool:
    is_named_so = column.endswith(("_at", "_time")) or column in ("modified", "deadline", "at")
    return is_named_so and isinstance(value, int | float) and not isinstance(value, bool)


_LINE_ENDS = re.compile(r"\r\n|[\n\r]")


def shown_time(timestamp: float, now: datetime | None = None) -> str:
    """The time for today, the date for other days."""
    at = datetime.fromtimestamp(timestamp).astimezone()
    today = (now or datetime.now().astimezone()).date()
    return at.strftime("%H:%M:%S") if at.date() == today else at.strftime("%Y-%m-%d")


def printable(text: str) -> str:
    """One line without control characters."""
    return "".join(c if c.isprintable() else "�" for c in text.replace("\t", "  ").replace("\n", " "))


def plain(line: str) -> str:
    """Printable, without ANSI colours."""
    return printable(Text.from_ansi(line).plain)


def plain_lines(text: str) -> str:
    """Lines without control characters. A carriage return ends a line."""
    return "\n".join(map(plain, _LINE_ENDS.split(text)))


def line_text(line: LogLine) -> str:
    """The text of a log line, followed by its fields."""
    text, values = line["text"], line.get("fields")
    if not values:
        return text
    return (
        " ".join([text.rstrip("\n"), *(f"{name}={json_text(value)}" for name, value in values.items())])
        + "\n"
    )


def json_text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


# Option types shared by several commands

Flag = Annotated[bool, Parameter(negative="", show_default=False)]
Many = Annotated[list[str] | None, Parameter(negative="")]
"""An option that may be repeated."""
Cursor = Annotated[str | None, Parameter(help="next_cursor of the previous page.")]
Limit = Annotated[int | None, Parameter(help="Maximum number of entries (up to 200).")]


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class NatsOptions:
    """Login and TLS of the connection to NATS; each is also a setting."""

    nats_user: str | None = None
    """NATS user (also: PYOCO_NATS_USER)."""

    nats_password: str | None = None
    """Password of that user (also: PYOCO_NATS_PASSWORD). Visible in the process list; prefer a file."""

    nats_password_file: str | None = None
    """File that contains the password (also: PYOCO_NATS_PASSWORD_FILE)."""

    nats_creds_file: str | None = None
    """Credentials file of a NATS user, with JWT and seed (also: PYOCO_NATS_CREDS_FILE)."""

    nats_nkey_seed_file: str | None = None
    """File with the nkey seed of a NATS user (also: PYOCO_NATS_NKEY_SEED_FILE)."""

    nats_tls_ca_file: str | None = None
    """CA certificates to verify NATS with (also: PYOCO_NATS_TLS_CA_FILE). Default: those of the system."""

    nats_tls_cert_file: str | None = None
    """Client certificate for NATS (also: PYOCO_NATS_TLS_CERT_FILE)."""

    nats_tls_key_file: str | None = None
    """Private key of the client certificate (also: PYOCO_NATS_TLS_KEY_FILE)."""

    nats_tls_first: bool | None = None
    """Start TLS before NATS sends anything (also: PYOCO_NATS_TLS_FIRST)."""


NO_NATS_OPTIONS = NatsOptions()

Host = Annotated[str, Parameter(env_var="PYOCO_HTTP_HOST", show_env_var=False)]
Port = Annotated[int, Parameter(env_var="PYOCO_HTTP_PORT", show_env_var=False)]
"""Where a gateway listens; a container sets them in its environment."""


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class BootstrapOptions:
    with_nats_bootstrap: Flag = False
    """Start NATS with nats-bootstrap (installed separately), and stop it on exit."""

    nats_listen_host: str | None = None
    """With --with-nats-bootstrap: NATS listen address. Default: 127.0.0.1"""

    nats_client_port: int | None = None
    """With --with-nats-bootstrap: NATS client port. Default: 4222"""

    nats_http_port: int | None = None
    """With --with-nats-bootstrap: NATS monitoring port. Default: 8222"""

    nats_start_timeout_sec: float | None = None
    """With --with-nats-bootstrap: start timeout in seconds. Default: 20"""


NO_BOOTSTRAP = BootstrapOptions()

DEFAULT_SERVER = "http://127.0.0.1:8000"


def server_url(given: str | None, data_dir: Path = DATA_DIRECTORY) -> str:
    """The given URL, the environment's, that of the server started in this directory, or the default."""
    wanted = given or os.environ.get("PYOCO_SERVER_URL")
    if wanted is None:
        found = running_server(data_dir)
        wanted = DEFAULT_SERVER if found is None else found.http_url
    return (wanted if "://" in wanted else f"http://{wanted}").rstrip("/")
