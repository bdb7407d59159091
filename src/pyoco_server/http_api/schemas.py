"""Answers in OpenAPI: their schemas, and how routes refer to them."""

from typing import Any

import msgspec
from msgspec import Struct

from pyoco_server import answers
from pyoco_server.answers import (
    DeletedId,
    DeletedKey,
    EventPinged,
    EventResumed,
    EventStarted,
    EventSummary,
    NotificationSettingsState,
    NotificationTested,
    RetryJobChanged,
    RetryJobs,
    RetryJobsDrained,
    WorkflowAction,
    WorkflowActions,
    WorkflowSource,
    WorkflowSources,
    WorkflowTemplate,
    WorkflowTemplates,
)
from pyoco_server.domain.events.retry import JobStatus
from pyoco_server.domain.executions.events import Actor
from pyoco_server.domain.wheels import Actor as WheelActor

__all__ = [
    "COMPONENTS",
    "RUN_LIST",
    "DeletedId",
    "DeletedKey",
    "EventPinged",
    "EventResumed",
    "EventStarted",
    "EventSummary",
    "NotificationSettingsState",
    "NotificationTested",
    "RetryJobChanged",
    "RetryJobs",
    "RetryJobsDrained",
    "WorkflowAction",
    "WorkflowActions",
    "WorkflowSource",
    "WorkflowSources",
    "WorkflowTemplate",
    "WorkflowTemplates",
    "any_of",
    "list_of",
    "of",
]

_ALIKE = (Actor, WheelActor)
"""Types with the same name: msgspec adds their modules, which are internal."""


def _components() -> dict[str, Any]:
    _, found = msgspec.json.schema_components(
        [*answers.kinds(), JobStatus], ref_template="#/components/schemas/{name}"
    )
    text = msgspec.json.encode(found).decode()
    for kind in _ALIKE:
        text = text.replace(f"{kind.__module__}.{kind.__name__}", answers.name_of(kind))
    components: dict[str, Any] = msgspec.json.decode(text)
    return components


COMPONENTS = _components()


def of(kind: type[Struct]) -> dict[str, Any]:
    return {"$ref": f"#/components/schemas/{kind.__name__}"}


def any_of(*kinds: type[Struct]) -> dict[str, Any]:
    return {"anyOf": [of(kind) for kind in kinds]}


def list_of(kind: type[Struct]) -> dict[str, Any]:
    return {"type": "array", "items": of(kind)}


RUN_LIST = {"anyOf": [list_of(answers.RunSummary), list_of(answers.Run), of(answers.RunPage)]}
"""Summaries, or whole runs with `include=full`; an object with `next_cursor` where there are pages."""
