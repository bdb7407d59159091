"""What `pyoco-client` prints: JSON for programs, tables for people, advice when something went wrong."""

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Annotated, Any, Literal, NoReturn

import httpx2
from cyclopts import Parameter
from rich.console import Console
from rich.table import Table
from rich.text import Text

from pyoco_server.cli.failures import fail
from pyoco_server.http_client import PyocoHttpClient

Client = Annotated[PyocoHttpClient, Parameter(parse=False)]
Output = Literal["json", "table"]
Flag = Annotated[bool, Parameter(negative="")]

_COLOURS = {
    "RUNNING": "blue",
    "PENDING": "blue",
    "IDLE": "green",
    "COMPLETED": "green",
    "FAILED": "red",
    "DISCONNECTED": "red",
    "CANCELLING": "yellow",
    "CANCELLED": "yellow",
}
_ADVICE = {
    "ERR-PYOCO-0002": "Correct the input and send it again.",
    "ERR-PYOCO-0003": "The server is there, its NATS is not: try again in a moment, or look at its log.",
    "ERR-PYOCO-0005": "Check the id: pyoco-client list shows the runs there are.",
    "ERR-PYOCO-0014": "Give a key: --api-key pyoco_… or PYOCO_API_KEY.",
    "ERR-PYOCO-0015": "Check the key, or have a new one issued: pyoco-server-admin api-key create --tenant …",
    "ERR-PYOCO-0016": "Make the file smaller, or raise PYOCO_WORKFLOW_YAML_MAX_BYTES on the server.",
    "ERR-PYOCO-0017": "Correct the filters; a cursor belongs to the list it came from.",
    "ERR-PYOCO-0020": "Check the id: pyoco-client workers --scope all shows the workers there are.",
    "ERR-PYOCO-0022": "Raise the wheel's version and build it again.",
    "ERR-PYOCO-0041": "Give the token of the server: --token …",
    "ERR-PYOCO-0042": "Check the names: pyoco-client templates list, actions list, events retry-jobs.",
    "ERR-PYOCO-0023": "Check the name: pyoco-client wheels shows the wheels there are.",
}


def print_json(answer: object) -> None:
    print(json.dumps(answer, ensure_ascii=False, indent=2))


def print_table(rows: Iterable[Mapping[str, Any]], columns: Sequence[str]) -> None:
    """As wide as the terminal; colours only on one."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, overflow="ellipsis", no_wrap=column in ("run_id", "status", "state"))
    for row in rows:
        table.add_row(*(_cell(column, row.get(column)) for column in columns))
    Console().print(table)


def _cell(column: str, value: Any) -> Text:
    """Always as text: what runs are called must not become markup."""
    if value is None:
        return Text("-", "dim")
    if column.endswith("_at") or column == "modified":
        return Text(datetime.fromtimestamp(value).astimezone().strftime("%Y-%m-%d %H:%M:%S"))
    if isinstance(value, (list, tuple)):
        return Text(",".join(map(str, value)))
    return Text(_printable(str(value)), _COLOURS.get(str(value), ""))


def _printable(text: str) -> str:
    return "".join(c if c.isprintable() else "�" for c in text)


def fail_http(response: httpx2.Response) -> NoReturn:
    """What the server said, with the id to look for and what to do about it."""
    try:
        body = response.json()
    except ValueError:
        fail(f"HTTP {response.status_code}: {response.text[:500]}")
    detail = body.get("detail", "")
    shown = detail if isinstance(detail, str) else "; ".join(_problem(item) for item in detail)
    err_id = body.get("err_id", "")
    fail(*filter(None, [f"HTTP {response.status_code} {err_id} {shown}".strip(), _ADVICE.get(err_id, "")]))


def _problem(item: Mapping[str, Any]) -> str:
    return f"{'.'.join(map(str, item.get('loc', [])[1:]))}: {item.get('msg', '')}"


def note(line: str) -> None:
    """For a person who watches; stdout belongs to the answer."""
    print(line, file=sys.stderr, flush=True)
