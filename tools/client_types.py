"""`python -m tools.client_types`: write the client's types from `pyoco_server.answers`.

The client returns plain dictionaries, so that answers of newer servers lose nothing. Their types are
generated: a type checker knows the keys, and nobody declares them twice.
"""

from collections.abc import Iterable, Iterator
from enum import StrEnum
from inspect import cleandoc
from pathlib import Path
from textwrap import indent
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from msgspec import Struct, UnsetType
from msgspec.structs import fields

from pyoco_server import answers
from pyoco_server.answers import name_of
from pyoco_server.domain.alerts.deliveries import ALERT_DELIVERY_ANSWERS
from pyoco_server.domain.alerts.model import ALERT_ANSWERS
from pyoco_server.domain.audit_trail import AuditPage
from pyoco_server.domain.auth import API_KEY_ANSWERS
from pyoco_server.domain.bulk import BULK_ANSWERS
from pyoco_server.domain.dead_letters import DEAD_LETTER_ANSWERS
from pyoco_server.domain.diagnosis.causes import Diagnosis
from pyoco_server.domain.flows import FLOW_ANSWERS
from pyoco_server.domain.queues import Queue, QueueList
from pyoco_server.domain.secrets.model import SECRET_ANSWERS
from pyoco_server.domain.stats.series import Stats

RETURNED: dict[str, tuple[type[Struct], ...]] = {
    "runs": (
        *(answers.Run, answers.RunSummary, answers.RunPage, answers.Submitted, answers.BatchResult),
        *(answers.RunTasks, answers.RunArtifacts, answers.RunLogs, answers.RunChange, Diagnosis),
        answers.RunDeleted,
    ),
    "definitions": (
        *FLOW_ANSWERS,
        *(answers.GraphRecord, answers.GraphSummary, answers.GraphPage, answers.GraphPreview),
        *(answers.WheelFile, answers.WheelDeleted, answers.WheelEvent),
        *SECRET_ANSWERS,
    ),
    "operations": (
        *(answers.Worker, answers.WorkerPatched, answers.WorkerDeleted, answers.Health, Queue, QueueList),
        *(AuditPage, *API_KEY_ANSWERS, *DEAD_LETTER_ANSWERS, *BULK_ANSWERS, Stats),
        *(*ALERT_ANSWERS, *ALERT_DELIVERY_ANSWERS),
    ),
}
"""What calls return, by the module of its type; those about executions: any dict."""
TARGET = Path(__file__).parents[1] / "src/pyoco_server/http_client/answers"
_PACKAGE = "pyoco_server.http_client.answers"
_GENERATED = "Generated from `pyoco_server.answers` by `make types`; do not edit."
_HEAD = f'''"""Types of the server's answers about {{subject}}. Newer servers may add fields.

{_GENERATED}
"""

from typing import {{typing}}
'''


def modules() -> dict[str, str]:
    """The text of each file in the package."""
    kinds = _in_order(kind for wanted in RETURNED.values() for kind in wanted)
    homes: dict[type[Struct], str] = {}
    for name, wanted in RETURNED.items():
        homes = dict.fromkeys(_in_order(wanted), name) | homes  # where it is used first
    found = {f"{name}.py": _module(name, kinds, homes) for name in RETURNED}
    return found | {"__init__.py": _index(homes)}


def _module(name: str, kinds: list[type[Struct]], homes: dict[type[Struct], str]) -> str:
    own = [kind for kind in kinds if homes[kind] == name]
    body = "".join(f"\n\n{_definition(kind, _parent(kind, kinds))}" for kind in own)
    typing = [word for word in ("Any", "NotRequired", "TypedDict") if word in body]
    head = _HEAD.format(subject=name, typing=", ".join(typing))
    return head + _imports(own, kinds, homes) + body


def _imports(own: list[type[Struct]], kinds: list[type[Struct]], homes: dict[type[Struct], str]) -> str:
    used = {part for kind in own for field in fields(kind) for part in _structs(field.type)}
    used |= {parent for kind in own if (parent := _parent(kind, kinds))}
    texts = [
        f"from {_PACKAGE}.{home} import {', '.join(sorted(name_of(kind) for kind in there))}\n"
        for home in sorted(set(homes.values()) - {homes[own[0]]})
        if (there := [kind for kind in used if homes[kind] == home])
    ]
    return f"\n{''.join(texts)}" if texts else ""


def _index(homes: dict[type[Struct], str]) -> str:
    imports = (
        f"from {_PACKAGE}.{name} import (\n{_lines(name_of(k) for k in homes if homes[k] == name)})\n"
        for name in sorted(RETURNED)
    )
    everything = _lines(f'"{name_of(kind)}"' for kind in homes)
    head = f'"""Types of the server\'s answers.\n\n{_GENERATED}\n"""\n\n'
    return f"{head}{''.join(imports)}\n__all__ = [\n{everything}]\n"


def _lines(names: Iterable[str]) -> str:
    return "".join(f"    {name},\n" for name in sorted(names))


def _in_order(wanted: Iterable[type[Struct]]) -> list[type[Struct]]:
    """Each type after those that it refers to."""
    found: dict[type[Struct], None] = {}

    def visit(kind: type[Struct]) -> None:
        if kind not in found:
            for field in fields(kind):
                for used in _structs(field.type):
                    visit(used)
            found[kind] = None

    for kind in wanted:
        visit(kind)
    return list(found)


def _structs(kind: Any) -> Iterator[type[Struct]]:
    if isinstance(kind, type) and issubclass(kind, Struct):
        yield kind
    for part in get_args(kind):
        yield from _structs(part)


def _parent(kind: type[Struct], kinds: list[type[Struct]]) -> type[Struct] | None:
    """The type before it that it extends. One whose keys it narrows is none: a TypedDict cannot do that."""
    for parent in kind.__bases__:
        if parent in kinds[: kinds.index(kind)] and _keys(parent).items() <= _keys(kind).items():
            return parent
    return None


def _definition(kind: type[Struct], parent: type[Struct] | None) -> str:
    """With its keys in alphabetical order: it is looked up, not read."""
    inherited = _keys(parent) if parent else {}
    doc = f'    """{_documentation(kind)}"""\n\n' if kind.__doc__ else ""
    own = sorted((name, text) for name, text in _keys(kind).items() if name not in inherited)
    lines = "".join(f"    {name}: {text}\n" for name, text in own)
    return f"class {name_of(kind)}({name_of(parent) if parent else 'TypedDict'}):\n{doc}{lines}"


def _documentation(kind: type[Struct]) -> str:
    """As it is in the source. From Python 3.13 on, `__doc__` has no indentation."""
    text = indent(cleandoc(kind.__doc__ or ""), " " * 4).strip()
    return f"{text}\n    " if "\n" in text else text


def _keys(kind: type[Struct]) -> dict[str, str]:
    return {field.name: _annotation(field.type) for field in fields(kind)}


def _annotation(kind: Any) -> str:
    text = _text(kind)
    return f"NotRequired[{text}]" if UnsetType in get_args(kind) else text


def _text(kind: Any) -> str:
    """The type of a value in decoded JSON."""
    origin, parts = get_origin(kind), [part for part in get_args(kind) if part is not UnsetType]
    if origin is Annotated:
        return _text(parts[0])
    if origin in (Union, UnionType):
        return " | ".join(_text(part) for part in parts)
    if origin in (list, tuple):
        return f"list[{_text(parts[0])}]"
    if origin is dict:
        return f"dict[str, {_text(parts[1])}]"
    if origin is Literal or (isinstance(kind, type) and issubclass(kind, StrEnum)):
        return "str"
    return "None" if kind is NoneType else "Any" if kind is Any else name_of(kind)


if __name__ == "__main__":
    for file, text in modules().items():
        (TARGET / file).write_text(text)
