"""Tables in Markdown: made new, or some cells of those that are there."""

import re
from collections.abc import Callable, Iterable, Sequence

Row = list[str]

_ROW = re.compile(r"\|\s*(`[^`]+`|REQ-\d{4}|[DW]\d{2})\s*\|")


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [_line(columns), "|" + "---|" * len(columns), *(_line(row) for row in rows)]
    return "\n".join(lines) + "\n"


def code(text: object) -> str:
    return f"`{text}`"


def key_of(line: str) -> str | None:
    """What a row of a table is about; None where a line is none."""
    found = _ROW.match(line)
    return found[1].strip("`") if found else None


def rows(page: str) -> dict[str, Row]:
    """The rows of a page's tables, by the first cell."""
    return {key: cells(line) for line in page.splitlines() if (key := key_of(line)) is not None}


def cells(line: str) -> Row:
    return [cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip().removeprefix("|").removesuffix("|"))]


def rewritten(page: str, wanted: Sequence[str], row_of: Callable[[str, Row], Row]) -> str:
    """The page with one row for each key of `wanted`, made from the row it had.

    A key that is not wanted goes; a new one comes behind its neighbour in `wanted`, without a meaning.
    """
    kept = [line for line in page.splitlines() if (key := key_of(line)) is None or key in wanted]
    for before, key in zip([None, *wanted], wanted, strict=False):
        if not any(key_of(line) == key for line in kept):
            kept.insert(_behind(kept, before), _line([code(key), ""]))
    return "\n".join(_again(line, row_of) for line in kept) + "\n"


def _behind(lines: list[str], key: str | None) -> int:
    """Where a new row belongs; behind the first rule of a table if it has no neighbour."""
    places = (
        n for n, line in enumerate(lines) if (line.startswith("|---") if key is None else key_of(line) == key)
    )
    return next(places) + 1


def _again(line: str, row_of: Callable[[str, Row], Row]) -> str:
    key = key_of(line)
    return line if key is None else _line(row_of(key, cells(line)))


def _line(row: Iterable[str]) -> str:
    return "| " + " | ".join(row) + " |"
