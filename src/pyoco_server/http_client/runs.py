"""A run's log, page by page: the whole of it, or as it grows."""

from collections.abc import Callable, Iterator

from pyoco_server.http_client.answers import LogLine, LogPage

START = "0"
MAX_PAGE = 10_000

ReadPage = Callable[[str], LogPage]


class LogReader:
    """Reads on where it stopped. A line is given once."""

    def __init__(self, read_page: ReadPage, cursor: str = START) -> None:
        self._read_page = read_page
        self._cursor = cursor
        self._shown: set[tuple[int, int]] = set()

    def new_lines(self) -> Iterator[LogLine]:
        """What was stored since the last time."""
        has_more = True
        while has_more:
            page = self._read_page(self._cursor)
            yield from self._unseen(page["lines"])
            self._cursor = page.get("next_cursor", self._cursor)
            has_more = page.get("has_more", False)

    def excerpt(self, lines: list[LogLine]) -> Iterator[LogLine]:
        """Of lines from a watch, those that are stored later or never; the others are read."""
        excerpt = [line for line in lines if line.get("is_excerpt")]
        yield from self._unseen(excerpt)
        self._shown |= {_place(line) for line in excerpt}

    def _unseen(self, lines: list[LogLine]) -> Iterator[LogLine]:
        for line in lines:
            if "cut_bytes" in line or _place(line) not in self._shown:
                yield line


def in_order(lines: list[LogLine]) -> list[LogLine]:
    """As they were printed. A line that was stored twice is there once."""
    by_place = {_place(line): line for line in lines}
    return [by_place[place] for place in sorted(by_place)]


def _place(line: LogLine) -> tuple[int, int]:
    return line["attempt"], line["n"]
