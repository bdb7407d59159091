"""The reference pages, written from the code they describe.

Some pages come from the code alone (HTTP, commands, metrics, errors). In others the code knows some cells
of a table and a person wrote the rest (settings, log actions, requirements): the known cells are written
anew, and what a person wrote is kept.
"""

from collections.abc import Callable
from pathlib import Path

from tools.reference import commands, decisions, errors, http, log_actions, metrics, requirements, settings

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"

PAGES: dict[str, Callable[[str], str]] = {
    "settings.md": settings.page,
    "log-actions.md": log_actions.page,
    "requirements.md": requirements.page,
    "decisions/index.md": decisions.page,
    "reference/http.md": http.page,
    "reference/commands.md": commands.page,
    "reference/metrics.md": metrics.page,
    "reference/errors.md": errors.page,
}
"""How each page is made of what it is now."""


def current(name: str) -> str:
    path = DOCS / name
    return path.read_text() if path.exists() else ""


def written(name: str) -> str:
    """The page as the code wants it."""
    return PAGES[name](current(name))
