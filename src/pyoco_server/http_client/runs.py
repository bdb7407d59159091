"""Runs: watching one, and reading its log."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol
from urllib.parse import quote

import httpx2

from pyoco_server.errors import GatewayUnreachable
from pyoco_server.http_client.answers import LogLine, Run, RunChange, RunLogs
from pyoco_server.http_client.transport import raise_refused

START = "0"
MAX_PAGE = 10_000
RECONNECT_PAUSE_SEC = 0.5
MAX_WATCH_SEC = 600.0
_TERMINAL = frozenset({"COMPLETED", "FAILED", "CANCELLED"})

ReadPage = Callable[[str], RunLogs]
OpenStream = Callable[..., AbstractContextManager[httpx2.Response]]


class RunEvent(RunChange):
    """`event` is `snapshot`, `log` or `heartbeat`."""

    event: str
    id: str


class Call(Protocol):
    """Of a `PyocoHttpClient`: method, path, and the options of `httpx2`."""

    def __call__(self, method: str, path: str, *, is_safe: bool = True, **options: Any) -> Any: ...


def run_path(run_id: str, rest: str = "") -> str:
    """Any id stays one segment of the path."""
    return f"/runs/{quote(run_id, safe='')}{rest}"


def given(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def is_terminal(event: Mapping[str, Any]) -> bool:
    return event.get("snapshot", {}).get("status") in _TERMINAL


def pause() -> None:
    """Before a broken connection is opened again."""
    time.sleep(RECONNECT_PAUSE_SEC)


class RunWatch:
    """Changes of one run. A broken connection is reopened after the last event received."""

    def __init__(self, run_id: str, call: Call, stream: OpenStream) -> None:
        self._run_id = run_id
        self._call = call
        self._stream = stream
        self._last_event_id = ""
        self._has_begun = False

    def events(self, wanted: dict[str, Any], timeout_sec: float | None) -> Iterator[RunEvent]:
        """Until the run has ended or `timeout_sec` has passed."""
        deadline = None if timeout_sec is None else time.monotonic() + timeout_sec
        while deadline is None or time.monotonic() < deadline:
            try:
                for event in self._once(wanted, deadline):
                    yield event
                    if is_terminal(event):
                        return
                if self._has_ended():
                    return
            except (httpx2.TransportError, GatewayUnreachable):
                pause()
            except httpx2.HTTPStatusError as error:
                if not self._has_begun or not error.response.is_server_error:  # else briefly unavailable
                    raise
                pause()

    def _once(self, wanted: dict[str, Any], deadline: float | None) -> Iterator[RunEvent]:
        left = None if deadline is None else max(1.0, min(MAX_WATCH_SEC, deadline - time.monotonic()))
        with self._stream(
            run_path(self._run_id, "/watch"),
            params=given({**wanted, "timeout_sec": left}),
            headers=given({"Last-Event-ID": self._last_event_id or None}),
        ) as response:
            for received in server_sent_events(response):
                self._has_begun = True
                self._last_event_id = received.id or self._last_event_id
                data: Any = received.json()
                event: Any = {"event": received.event, "id": received.id, **data}
                yield event

    def _has_ended(self) -> bool:
        run: Run = self._call("GET", run_path(self._run_id))
        return is_terminal({"snapshot": run})


def server_sent_events(response: httpx2.Response) -> Iterator[Any]:
    if response.is_error:
        response.read()
        raise_refused(response)
    yield from httpx2.EventSource(response)


class LogReader:
    """Continues where it stopped. Each line is returned once."""

    def __init__(self, read_page: ReadPage, cursor: str = START) -> None:
        self._read_page = read_page
        self._cursor = cursor
        self._shown: set[tuple[int, int]] = set()

    def new_lines(self) -> Iterator[LogLine]:
        """Lines stored since the last call."""
        has_more = True
        while has_more:
            page = self._read_page(self._cursor)
            yield from self._unseen(page["lines"])
            self._cursor = page.get("next_cursor", self._cursor)  # older servers have neither
            has_more = page.get("has_more", False)

    def excerpt(self, lines: list[LogLine]) -> Iterator[LogLine]:
        """Of lines from a watch, those that are stored later or never; the others are read."""
        excerpt = [line for line in lines if line.get("is_excerpt")]
        yield from self._unseen(excerpt)
        self._shown |= {_place(line) for line in excerpt}

    def follow(self, events: Iterator[RunEvent], task: str | None) -> Iterator[LogLine]:
        """The log as it grows, for as long as there are events."""
        yield from self.new_lines()
        for event in events:
            yield from self.excerpt([line for line in event.get("lines", []) if task in (None, line["task"])])
            with _tolerated():  # the watch reconnects; the next event reads these lines
                yield from self.new_lines()
        yield from self.new_lines()

    def _unseen(self, lines: list[LogLine]) -> Iterator[LogLine]:
        for line in lines:
            if "cut_bytes" in line or _place(line) not in self._shown:
                yield line


def in_order(lines: list[LogLine]) -> list[LogLine]:
    """In the order of printing, without duplicates."""
    by_place = {_place(line): line for line in lines}
    return [by_place[place] for place in sorted(by_place)]


def _place(line: LogLine) -> tuple[int, int]:
    return line["attempt"], line["n"]


@contextmanager
def _tolerated() -> Iterator[None]:
    """Ignores a server that is briefly unavailable."""
    try:
        yield
    except (httpx2.TransportError, GatewayUnreachable):
        pass
    except httpx2.HTTPStatusError as error:
        if not error.response.is_server_error:
            raise
