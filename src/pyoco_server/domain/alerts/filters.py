"""Filters of alerts, in CEL: which runs and other happenings an alert is for."""

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from pyoco_server.domain.cel.expressions import (
    ConditionError,
    Expression,
    checked,
    condition,
    new_environment,
    shown,
)
from pyoco_server.domain.cel.values import Values

FILTER_NAMES = ("flow_name", "params", "status", "tag", "tags", "type")
_TYPE = "typ_"
"""What the library knows `type` as, which is a name of CEL itself. As long, so that columns are right."""
_NAMES = (*FILTER_NAMES[:-1], _TYPE)
_ENVIRONMENT = new_environment(_NAMES)
_TOKEN = re.compile(
    r'''(?P<text>[rRbB]{0,2}(?:"""(?s:\\.|.)*?"""|\'\'\'(?s:\\.|.)*?\'\'\'|"(?:\\.|[^"\\])*"|\'(?:\\.|[^\'\\])*\'))'''
    r"|(?P<name>(?<![\w.])type(?!\w)(?!\s*\())|(?P<own>(?<![\w.])typ_(?!\w))"
)


def check_filter(expr: str) -> None:
    """Raises ConditionError for a filter that is invalid for everything that happens."""
    _compiled(expr)


def passes(expr: str, values: Mapping[str, Any]) -> bool:
    """Whether a filter lets something pass; `values` has one for each of FILTER_NAMES.

    Raises ConditionFailed, and ConditionError as `check_filter` does.
    """
    named = {_TYPE if name == "type" else name: value for name, value in values.items()}
    return Values(_ENVIRONMENT, named).truth(expr, _compiled(expr))


@lru_cache(maxsize=2_048)
def _compiled(expr: str) -> Expression:
    try:
        return checked(condition(_renamed(expr), _ENVIRONMENT, _NAMES))
    except ConditionError as error:
        raise ConditionError(str(error).replace(_TYPE, "type")) from error


def _renamed(expr: str) -> str:
    """With another word for the variable `type`: not in texts, in fields, or for the function."""

    def rename(token: re.Match[str]) -> str:
        if token["own"]:
            raise ConditionError(f"{shown(expr)}: undeclared reference to a name of the server's own")
        return _TYPE if token["name"] else token[0]

    return _TOKEN.sub(rename, expr)
