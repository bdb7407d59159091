"""What a flow.yaml may say: the keys that the installed pyoco knows, with values of the right kind.

The keys come from pyoco's own dataclasses, so `pipes` and `tasks.*.use` are allowed from the version on
that has them.
"""

import re
from collections.abc import Iterable
from dataclasses import MISSING, Field, fields, is_dataclass
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import msgspec
from pyoco.schemas.config import PyocoConfig

from pyoco_server.domain.suggestions import nearest
from pyoco_server.domain.yaml_reading import Path, YamlDocument, shown

FORBIDDEN = {
    "flows": "is not allowed: a file holds one flow; write `flow:` with `graph` and `defaults`, "
    "and give the name as flow_name",
    "discovery": "is not allowed: a file does not choose what a worker imports; name tasks under `tasks:`, "
    "or set PYOCO_DISCOVERY_MODULES on the worker",
}

# pyoco's own reader fills these in as well.
_FILLED_IN = {"version": 1, "tasks": {}}

_CALLABLE = re.compile(r"(?!.*__)[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*")


def check_policy(document: YamlDocument) -> PyocoConfig:
    """The file as pyoco's configuration. Raises InvalidRequest with the place of what is wrong."""
    if not isinstance(document.value, dict):
        document.refuse((), "must be an object with the key `flow`")
    for key, instead in FORBIDDEN.items():
        if key in document.value:
            document.refuse((key,), instead)
    config = _record(document, (), _FILLED_IN | document.value, PyocoConfig)
    if not config.flow.graph.strip():
        document.refuse(("flow", "graph"), "is empty")
    for name, task in config.tasks.items():
        _check_task(document, ("tasks", name), task)
    return config


def _check_task(document: YamlDocument, path: Path, task: Any) -> None:
    if not path[-1]:
        document.refuse(path, "has an empty name")
    use = getattr(task, "use", None)
    if task.callable is not None and use is not None:
        document.refuse(path, "has both `callable` and `use`; keep one")
    if task.callable is not None and not _CALLABLE.fullmatch(task.callable):
        document.refuse((*path, "callable"), f"must be module:function, got {shown(task.callable)}")
    if use is not None and not use.strip():
        document.refuse((*path, "use"), "is empty")


def _record(document: YamlDocument, path: Path, value: Any, record: type) -> Any:
    """An object with the fields of one of pyoco's dataclasses."""
    if not isinstance(value, dict):
        document.refuse(path, f"must be an object, got {_kind(value)}")
    known = {field.name: field for field in fields(record)}
    for key in value:
        if key not in known:
            document.refuse((*path, key), f"is not a key of flow.yaml{nearest(key, known)}; {_listed(known)}")
    for name, field in known.items():
        if name not in value and _is_required(field):
            document.refuse((*path, name), "is missing")
    hints = get_type_hints(record)
    return record(**{key: _typed(document, (*path, key), item, hints[key]) for key, item in value.items()})


def _typed(document: YamlDocument, path: Path, value: Any, hint: Any) -> Any:
    hint = _without_none(hint)
    if is_dataclass(hint):
        return _record(document, path, value, hint)  # type: ignore[arg-type]  # is_dataclass is also true of instances
    if get_origin(hint) is dict and isinstance(value, dict):
        of_items = get_args(hint)[1]
        return {key: _typed(document, (*path, key), item, of_items) for key, item in value.items()}
    try:
        return msgspec.convert(value, hint)
    except msgspec.ValidationError as error:
        document.refuse(path, f"has a wrong type: {error}")


def _without_none(hint: Any) -> Any:
    """`Optional[X]` as `X`: who does not want a key leaves it out."""
    if get_origin(hint) in (Union, UnionType):
        return next(kind for kind in get_args(hint) if kind is not type(None))
    return hint


def _is_required(field: "Field[Any]") -> bool:
    return field.default is MISSING and field.default_factory is MISSING


def _listed(known: Iterable[str]) -> str:
    return "known here: " + ", ".join(known)


def _kind(value: object) -> str:
    names = {type(None): "null", bool: "a boolean", str: "a string", list: "a list"}
    return names.get(type(value), "a number")
