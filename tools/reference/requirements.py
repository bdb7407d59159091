"""docs/requirements.md: which tests prove what, from their docstrings."""

from pathlib import PurePosixPath

from tools.reference.sources import proofs
from tools.reference.tables import Row, code, rewritten, rows


def page(current: str) -> str:
    tested = proofs()

    def row(requirement: str, had: Row) -> Row:
        return [*had[:-1], ", ".join(map(_name, tested.get(requirement, []))) or "none yet"]

    return rewritten(current, list(rows(current)), row)


def _name(path: str) -> str:
    return code(PurePosixPath(path).relative_to("tests"))
