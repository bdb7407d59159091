"""What `pyoco-client` prints: JSON for programs, tables for people, advice when something went wrong."""

import json
import sys
from collections.abc import Mapping
from typing import Annotated, Any, NoReturn

import httpx2
from cyclopts import Parameter

from pyoco_server.cli import client_texts as texts
from pyoco_server.cli.failures import fail, with_message
from pyoco_server.errors import PyocoServerError
from pyoco_server.http_client import PyocoHttpClient

ENTRIES = {kind.entry.err_id: kind.entry for kind in PyocoServerError.__subclasses__()}
"""The errors that we know; a newer server may have others."""

Client = Annotated[PyocoHttpClient, Parameter(parse=False)]


def print_json(answer: object) -> None:
    print(_json(answer, indent=2))


def print_json_line(answer: object) -> None:
    """For what comes one after the other: a program reads a line, and has all of it."""
    print(_json(answer), flush=True)


def _json(answer: object, indent: int | None = None) -> str:
    """Readable where the output can hold every character; the same values in any case.

    What a terminal would obey (escape sequences, marks of direction) is always escaped.
    """
    is_unicode = (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"
    document = json.dumps(answer, ensure_ascii=not is_unicode, indent=indent)
    return "".join(c if c.isprintable() or c == "\n" else json.dumps(c)[1:-1] for c in document)


def fail_http(response: httpx2.Response) -> NoReturn:
    """What the server said, with the id to look for and what to do about it."""
    try:
        body = response.json()
        detail, err_id, code = body.get("detail", ""), body.get("err_id", ""), body.get("code")
    except (ValueError, AttributeError):
        fail(f"HTTP {response.status_code}: {response.text[:500]}")
    shown = detail if isinstance(detail, str) else "; ".join(_problem(item) for item in detail)
    if code is not None:
        shown = f"{shown} ({code})"
    entry = ENTRIES.get(err_id)
    told = f"{err_id} {shown}".strip() if entry is None else with_message(entry, shown)
    advice = texts.ADVICE[err_id]() if err_id in texts.ADVICE else ""
    fail(*filter(None, [f"HTTP {response.status_code} {told}", advice]))


def _problem(item: Mapping[str, Any]) -> str:
    return f"{'.'.join(map(str, item.get('loc', [])[1:]))}: {item.get('msg', '')}"


def note(line: str) -> None:
    """For a person who watches; stdout belongs to the answer."""
    print(line, file=sys.stderr, flush=True)
