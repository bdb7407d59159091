"""docs/log-actions.md: which actions there are and at which level, the meaning by hand."""

import re

from tools.reference.sources import LogCall, log_calls
from tools.reference.tables import Row, code, rewritten, rows

_ORDER = ("debug", "info", "warning", "error")


def page(current: str) -> str:
    calls = log_calls()
    written = [action for action in rows(current) if any(_is(action, call) for call in calls)]
    fixed = {re.sub(r"\\(.)", r"\1", call.pattern) for call in calls if r"\w+" not in call.pattern}

    def row(action: str, had: Row) -> Row:
        return [code(action), _levels(action, calls) or had[1], had[-1]]

    return rewritten(current, [*written, *sorted(fixed - set(written))], row)


def _is(action: str, call: LogCall) -> bool:
    return re.fullmatch(call.pattern, action) is not None


def _levels(action: str, calls: list[LogCall]) -> str:
    """Empty where the source leaves it open."""
    found = [call for call in calls if _is(action, call)]
    exact = [call for call in found if r"\w+" not in call.pattern]
    levels = {call.level for call in exact or found}
    return "" if None in levels else ", ".join(sorted(map(str, levels), key=_ORDER.index))
