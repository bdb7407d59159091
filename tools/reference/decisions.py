"""docs/decisions/index.md: the decisions, by number."""

import re
from pathlib import Path

from tools.reference.tables import table

DECISIONS = Path(__file__).parents[2] / "docs" / "decisions"
_HEAD = """# Decisions

What somebody might want to undo, with the facts it was decided on and the alternatives. One page each.

"""


def page(_current: str) -> str:
    return _HEAD + table(("decision", "status"), map(_row, sorted(DECISIONS.glob("0*.md"))))


def _row(path: Path) -> tuple[str, str]:
    text = path.read_text()
    title = re.search(r"^# (.+)$", text, re.MULTILINE)
    status = re.search(r"^\*\*Status:\*\* (.+)$", text, re.MULTILINE)
    assert title is not None, f"{path.name} has no title"
    return f"[{title[1]}]({path.name})", status[1] if status else "accepted"
