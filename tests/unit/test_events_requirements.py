"""Every row of docs/events-requirements.md names tests that exist, in the file that it names."""

import ast
import re
from pathlib import Path

from support.tables import every_row

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "events-requirements.md"
CHAPTERS = [str(number) for number in range(2, 13)]
ROW = re.compile(r"\| (\d+) \| (.+?) \| (.+) \|")
TEST = re.compile(r"`([\w/.]+)::(test_\w+)`")


def rows() -> list[tuple[str, str, list[tuple[str, str]]]]:
    found = [ROW.fullmatch(line) for line in PAGE.read_text().splitlines()]
    return [(match[1], match[2], TEST.findall(match[3])) for match in found if match]


def names_in(path: Path) -> set[str]:
    tree = ast.parse(path.read_text())
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


def test_every_chapter_is_there() -> None:
    assert sorted({chapter for chapter, _, _ in rows()}, key=int) == CHAPTERS


@every_row(("chapter", "required", "tests"), rows())
def test_what_is_required_has_tests_that_exist(
    chapter: str, required: str, tests: list[tuple[str, str]]
) -> None:
    assert tests, f"{chapter}: {required}"
    missing = [f"{file}::{name}" for file, name in tests if name not in names_in(ROOT / "tests" / file)]
    assert missing == []
