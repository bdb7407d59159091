"""Filters of templates: `when`, in CEL, decides which events a template is for.

It is bounded in time and memory as the conditions of graphs are: docs/decisions/0009-conditions.md.
"""

from collections.abc import Sequence
from functools import lru_cache

from msgspec import Struct

from pyoco_server.domain.cel.expressions import (
    ConditionError,
    Expression,
    checked,
    condition,
    new_environment,
)
from pyoco_server.domain.cel.values import Allowance, ConditionFailed, Values
from pyoco_server.domain.events.requests import EventRequest
from pyoco_server.domain.events.templates import Template
from pyoco_server.errors import InvalidRequest

NAMES = ("event", "event_name", "source")
_ENVIRONMENT = new_environment(NAMES)


class Choice(Struct, frozen=True):
    """The templates that an event may start, and why the others are not for it."""

    passing: tuple[Template, ...]
    problems: tuple[str, ...]


def check_when(expr: str | None) -> None:
    """Raises InvalidRequest with the position of the problem."""
    if expr is None:
        return
    try:
        _compiled(expr)
    except ConditionError as error:
        raise InvalidRequest(f"when: {error}") from error


def choose(
    templates: Sequence[Template], request: EventRequest, allowance: Allowance | None = None
) -> Choice:
    """Evaluate each filter; all of them share one budget. Raises TooHeavy."""
    values = Values(
        _ENVIRONMENT,
        {"event": request.data, "event_name": request.event_name, "source": request.source},
        allowance,
    )
    found = [(template, _problem(template.when, values)) for template in templates]
    return Choice(
        passing=tuple(template for template, problem in found if problem is None),
        problems=tuple(problem for _, problem in found if problem is not None),
    )


def _problem(expr: str | None, values: Values) -> str | None:
    """None: the event passes. An expression without a result does not let it pass."""
    if expr is None:
        return None
    try:
        is_passing = values.truth(expr, _compiled(expr))
    except (ConditionError, ConditionFailed) as error:
        return f"when: {error}"
    return None if is_passing else f"when: {expr} is false"


@lru_cache(maxsize=2_048)
def _compiled(expr: str) -> Expression:
    return checked(condition(expr, _ENVIRONMENT, NAMES))
