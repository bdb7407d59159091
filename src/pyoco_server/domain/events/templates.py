"""Templates and actions: what an event starts, and the graph of a template of several steps."""

import hashlib
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from itertools import pairwise
from typing import Any, Literal

from msgspec import Struct, field

from pyoco_server.domain.inputs import MAX_FLOW_NAME, is_tag
from pyoco_server.domain.runs.model import Priority, RunRetry
from pyoco_server.domain.secrets.references import read as read_references
from pyoco_server.errors import InvalidRequest, WorkflowConflict, WorkflowNotFound

_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")
_ACTION_KEY = re.compile(r"[A-Za-z0-9_-]+(?:\.[A-Za-z0-9_-]+)*")
MAX_ACTION_KEY = 128
MAX_NAME = 80
MAX_STEPS = 30
MAX_TEXT = 2000
MIN_YEAR = 2000
MAX_YEAR = 9999
MAX_NODE_BACKOFF_SEC = 86_400


class TriggerKind(StrEnum):
    MANUAL_START = "manual_start"
    SCHEDULED = "scheduled"
    EXTERNAL_EVENT = "external_event"
    AFTER_PREVIOUS = "after_previous"


FIRST = frozenset({TriggerKind.MANUAL_START, TriggerKind.SCHEDULED, TriggerKind.EXTERNAL_EVENT})
LATER = frozenset({TriggerKind.AFTER_PREVIOUS, TriggerKind.MANUAL_START})


class Step(Struct, frozen=True, kw_only=True):
    id: str
    action: str
    trigger_kind: TriggerKind
    title: str | None = None


class Template(Struct, frozen=True, kw_only=True):
    id: str
    name: str
    steps: tuple[Step, ...]
    updated_at: str
    year: int = 0
    """0: unset."""
    month: int = 0
    mfcloud_url: str | None = None
    notes: str | None = None
    tenant_id: str | None = None
    needs_month: bool | None = None
    """Whether events need a year and month; None: if the template has them."""
    when: str | None = None
    """Filter of events, in CEL; None: all events pass."""

    @property
    def is_month_needed(self) -> bool:
        return self.year != 0 if self.needs_month is None else self.needs_month

    @property
    def first(self) -> Step:
        return self.steps[0]

    @property
    def is_started_by_events(self) -> bool:
        return self.first.trigger_kind is TriggerKind.EXTERNAL_EVENT


class Action(Struct, frozen=True, kw_only=True):
    """What a step runs: a flow or a registered graph."""

    key: str
    updated_at: str
    flow_name: str | None = None
    tag: str | None = None
    params: dict[str, Any] = field(default_factory=dict)
    graph_id: str | None = None
    concurrency: Literal["allow", "one"] = "allow"
    tenant_id: str | None = None
    run_at: float | None = None
    delay_sec: float | None = None
    start_within_sec: float | None = None
    timeout_sec: float | None = None
    retry: RunRetry | None = None
    priority: Priority | None = None

    def timing(self) -> dict[str, Any]:
        """The fields of its runs."""
        return {name: value for name in RUN_FIELDS if (value := getattr(self, name)) is not None}


RUN_FIELDS = ("run_at", "delay_sec", "start_within_sec", "timeout_sec", "retry", "priority")


class Period(Struct, frozen=True):
    """Year and month of a run."""

    year: int
    month: int

    @property
    def ym(self) -> str:
        return f"{self.year:04d}-{self.month:02d}"


def is_id(text: str) -> bool:
    return _ID.fullmatch(text) is not None


def is_action_key(text: str) -> bool:
    return len(text) <= MAX_ACTION_KEY and _ACTION_KEY.fullmatch(text) is not None


def period(year: int | None, month: int | None) -> Period | None:
    """None: not a valid year and month."""
    if year is None or month is None or not MIN_YEAR <= year <= MAX_YEAR or not 1 <= month <= 12:  # noqa: PLR2004
        return None
    return Period(year, month)


def later_than(previous: str | None, now: float) -> str:
    """`now` as text, at least a microsecond after `previous`."""
    at = datetime.fromtimestamp(now, UTC)
    if previous is not None:
        at = max(at, datetime.fromisoformat(previous) + timedelta(microseconds=1))
    return at.isoformat(timespec="microseconds").replace("+00:00", "Z")


def check_template(template: Template) -> Template:
    """Raises InvalidRequest, which names the invalid step."""
    _require(is_id(template.id), "id: must match [A-Za-z0-9_-]{1,64}")
    _require(1 <= len(template.name) <= MAX_NAME, f"name: must have 1 to {MAX_NAME} characters")
    is_period = template.year == template.month == 0 or period(template.year, template.month) is not None
    _require(is_period, "year, month: both 0, or a year from 2000 on and a month from 1 to 12")
    for name in ("mfcloud_url", "notes"):
        text = getattr(template, name) or ""
        _require(len(text) <= MAX_TEXT, f"{name}: at most {MAX_TEXT} characters")
    _require(1 <= len(template.steps) <= MAX_STEPS, f"steps: must be 1 to {MAX_STEPS}")
    for number, step in enumerate(template.steps, 1):
        _check_step(number, step)
    ids = [step.id for step in template.steps]
    _require(len(set(ids)) == len(ids), "steps: two steps have the same id")
    return template


def _check_step(number: int, step: Step) -> None:
    place = f"step {number} ({step.id!r})"
    _require(is_id(step.id), f"{place}: id must match [A-Za-z0-9_-]{{1,64}}")
    _require(len(step.title or "") <= MAX_NAME, f"{place}: title: at most {MAX_NAME} characters")
    _require(is_action_key(step.action), f"{place}: action {step.action!r} is not a valid action key")
    allowed = FIRST if number == 1 else LATER
    _require(
        step.trigger_kind in allowed,
        f"{place}: trigger_kind {step.trigger_kind} is not one of {', '.join(sorted(allowed))}",
    )


def check_action(action: Action) -> Action:
    """Raises InvalidRequest."""
    _require(
        is_action_key(action.key),
        f"key: {action.key!r} must consist of letters, digits, _ and -, separated by dots",
    )
    _require(
        (action.flow_name is None) != (action.graph_id is None),
        "flow_name, graph_id: give exactly one",
    )
    if action.flow_name is not None:
        _require(
            1 <= len(action.flow_name) <= MAX_FLOW_NAME,
            f"flow_name: must have 1 to {MAX_FLOW_NAME} characters",
        )
    _, references = read_references(action.params)
    _require(
        references is None or action.graph_id is None,
        "params: secrets and variables are not resolved with graph_id; name them in the graph's nodes",
    )
    _require(action.graph_id is None or is_id(action.graph_id), "graph_id: must match [A-Za-z0-9_-]{1,64}")
    _require(action.tag is None or is_tag(action.tag), "tag: must match [A-Za-z0-9_-]{1,64}")
    _require(
        action.tag is None or action.graph_id is None,
        "tag: not allowed with graph_id; the nodes of the graph have their own tags",
    )
    for name in action.timing():
        _require(
            action.graph_id is None,
            f"action {action.key!r}: {name}: not allowed with graph_id; the graph's nodes have their own",
        )
    return action


def _require(is_valid: bool, problem: str) -> None:  # noqa: FBT001
    if not is_valid:
        raise InvalidRequest(problem)


def require_started_by_events(template: Template) -> Template:
    if not template.is_started_by_events:
        raise WorkflowConflict("Template step 1 must use trigger_kind=external_event.")
    return template


def started_by(event_name: str | None, templates: Sequence[Template]) -> list[Template]:
    """The templates of a tenant for an event without a template_id. Raises WorkflowNotFound."""
    found = [template for template in templates if template.is_started_by_events]
    if event_name is not None:
        found = [template for template in found if template.first.action == event_name]
    if not found:
        raise WorkflowNotFound(
            "No external_event workflow template was found."
            if event_name is None
            else "No external_event workflow template matched event_name."
        )
    return found


def the_only(event_name: str | None, templates: Sequence[Template]) -> Template:
    """Raises WorkflowConflict if there are several."""
    if len(templates) > 1:
        raise WorkflowConflict(
            "Multiple external_event templates found. Specify template_id."
            if event_name is None
            else "Multiple templates matched event_name. Specify template_id."
        )
    return templates[0]


# The graph of a template: a chain with one task per step

WAIT_SUFFIX = "-start"
"""Of the wait node before a step that is started by hand."""


def needs_execution(template: Template, action: Action) -> bool:
    """Otherwise a single run."""
    return len(template.steps) > 1 or action.graph_id is not None


def graph_id_of(template: Template) -> str:
    plain = f"template-{template.id}"
    return plain if is_id(plain) else f"template-{hashlib.sha256(template.id.encode()).hexdigest()[:40]}"


def to_graph(template: Template, actions: Mapping[str, Action], default_tag: str) -> dict[str, Any]:
    """The graph definition. `actions` has each action of the template, with a flow.

    Tasks read the event from the input of the execution.
    """
    nodes: dict[str, Any] = {}
    order: list[str] = []
    ids = {step.id for step in template.steps}
    for number, step in enumerate(template.steps):
        if number and step.trigger_kind is TriggerKind.MANUAL_START:
            order.append(_wait_id(step, ids))
            nodes[order[-1]] = {"type": "wait", "prompt": f"Start {step.title or step.id}?"}
        order.append(step.id)
        nodes[step.id] = _task(actions[step.action], default_tag)
    return {"id": graph_id_of(template), "nodes": nodes, "edges": _chain(order)}


def as_node_fields(action: Action) -> dict[str, Any]:
    """The run fields of an action as those of a node, whose retries are new runs. Raises WorkflowConflict."""
    fields = action.timing()
    retry: RunRetry | None = fields.pop("retry", None)
    if retry is None:
        return fields
    plain = RunRetry(max_attempts=retry.max_attempts, backoff_sec=retry.backoff_sec)
    if retry != plain or retry.backoff_sec > MAX_NODE_BACKOFF_SEC:
        raise WorkflowConflict(
            f"action {action.key!r}: retry: a step among several may have max_attempts and backoff_sec only, "
            f"up to {MAX_NODE_BACKOFF_SEC:,} s"
        )
    return {**fields, "retry": {"max_attempts": retry.max_attempts, "backoff_sec": retry.backoff_sec}}


def _task(action: Action, default_tag: str) -> dict[str, Any]:
    return {
        **as_node_fields(action),
        "type": "task",
        "flow": action.flow_name,
        "tag": action.tag or default_tag,
        "params": {**action.params, **{name: f"${{input.{name}}}" for name in INPUT}},
    }


INPUT = ("year", "month", "ym", "mfcloud_url", "notes", "event", "trigger")


def execution_input(params: Mapping[str, Any]) -> dict[str, Any]:
    """Includes all names that tasks read, with None for those absent from the event."""
    return {name: params.get(name) for name in INPUT}


def graph_input(params: Mapping[str, Any]) -> dict[str, Any]:
    """For a registered graph: the params of a run, including those of the action."""
    return {**dict.fromkeys(INPUT), **params}


def _wait_id(step: Step, taken: set[str]) -> str:
    found = step.id + WAIT_SUFFIX
    while found in taken:
        found += "-"
    taken.add(found)
    return found


def _chain(order: Sequence[str]) -> list[dict[str, str]]:
    return [{"from": one, "to": other} for one, other in pairwise(order)]
