"""The log of a run, read in pages and while it grows."""

from collections.abc import AsyncGenerator, Awaitable, Callable

from pyoco_server.http_client.answers import LogLine, RunChange, RunLogs
from pyoco_server.http_client.calls import PyocoError, is_passing

START = "0"
ReadPage = Callable[[str], Awaitable[RunLogs]]


class LogReader:
    """Continues where it stopped. Each line is returned once."""

    def __init__(self, read_page: ReadPage, cursor: str = START) -> None:
        self._read_page = read_page
        self._cursor = cursor
        self._shown: set[tuple[int, int]] = set()

    async def new_lines(self) -> AsyncGenerator[LogLine, None]:
        """Lines stored since the last call."""
        has_more = True
        while has_more:
            page = await self._read_page(self._cursor)
            for line in self._unseen(page["lines"]):
                yield line
            self._cursor = page.get("next_cursor", self._cursor)  # older servers have neither
            has_more = page.get("has_more", False)

    def excerpt(self, lines: list[LogLine]) -> list[LogLine]:
        """Of lines from a watch, those that are stored later or never; the others are read."""
        excerpt = [line for line in lines if line.get("is_excerpt")]
        unseen = self._unseen(excerpt)
        self._shown |= {_place(line) for line in excerpt}
        return unseen

    async def follow(
        self, events: AsyncGenerator[RunChange, None], task: str | None
    ) -> AsyncGenerator[LogLine, None]:
        """The log as it grows, for as long as there are events."""
        async for line in self.new_lines():
            yield line
        async for event in events:
            for line in self.excerpt(
                [line for line in event.get("lines", []) if task in (None, line["task"])]
            ):
                yield line
            try:
                async for line in self.new_lines():
                    yield line
            except PyocoError as error:
                if not is_passing(error):  # else the watch reconnects; the next event reads these lines
                    raise
        async for line in self.new_lines():
            yield line

    def _unseen(self, lines: list[LogLine]) -> list[LogLine]:
        return [line for line in lines if "cut_bytes" in line or _place(line) not in self._shown]


def in_order(lines: list[LogLine]) -> list[LogLine]:
    """In the order of printing, without duplicates."""
    by_place = {_place(line): line for line in lines}
    return [by_place[place] for place in sorted(by_place)]


def _place(line: LogLine) -> tuple[int, int]:
    return line["attempt"], line["n"]
