"""docs/benchmarks.md: what was measured stands between markers; the text around them is written by hand."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

PAGE = Path(__file__).parents[1] / "docs" / "benchmarks.md"
SECTION = re.compile(r"<!-- measured: (?P<name>[a-z-]+) -->\n.*?<!-- /measured -->\n", re.DOTALL)
NOT_MEASURED = ["Not measured in the last run."]


@dataclass(frozen=True)
class Goal:
    what: str
    wanted: str
    found: str
    reached: bool


@dataclass(frozen=True)
class Figures:
    """What a measurement found, ready to be printed: every script returns one."""

    lines: list[str]
    goals: list[Goal]


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Markdown, aligned so that it can be read in a terminal, too."""
    cells = [list(head), *map(list, rows)]
    widths = [max(3, *(len(row[column]) for row in cells)) for column in range(len(head))]
    lines = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |"
        for row in cells
    ]
    return [lines[0], "|" + "|".join("-" * (width + 2) for width in widths) + "|", *lines[1:]]


def goals_table(goals: Iterable[Goal]) -> list[str]:
    rows = [(goal.what, goal.wanted, goal.found, "reached" if goal.reached else "MISSED") for goal in goals]
    return table(("goal", "wanted", "measured", ""), rows)


def show(figures: Figures) -> None:
    print("\n".join(figures.lines))
    if figures.goals:
        print("\n" + "\n".join(goals_table(figures.goals)))
    print(flush=True)


def write(sections: Mapping[str, Sequence[str]], page: Path = PAGE) -> None:
    """A section that was not measured says so: no figure of another run stays among the new ones."""

    def filled(found: re.Match[str]) -> str:
        body = "\n".join(sections.get(found["name"]) or NOT_MEASURED)
        return f"<!-- measured: {found['name']} -->\n{body}\n<!-- /measured -->\n"

    text = page.read_text()
    missing = set(sections) - {found["name"] for found in SECTION.finditer(text)}
    assert not missing, f"{page} has no place for {', '.join(sorted(missing))}"
    page.write_text(SECTION.sub(filled, text))
