"""A template of several steps as a graph: one task per step, one after another."""

import hashlib
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from pyoco_server.domain.events.templates import Action, Step, Template, TriggerKind, is_id

WAIT_SUFFIX = "-start"
"""Of the node that waits for a person before a step."""


def needs_execution(template: Template, action: Action) -> bool:
    """Otherwise a run is enough."""
    return len(template.steps) > 1 or action.graph_id is not None


def graph_id_of(template: Template) -> str:
    plain = f"template-{template.id}"
    return plain if is_id(plain) else f"template-{hashlib.sha256(template.id.encode()).hexdigest()[:40]}"


def to_graph(template: Template, actions: Mapping[str, Action], default_tag: str) -> dict[str, Any]:
    """The definition of a graph. Each action of the template must be in `actions`, and be of a flow.

    Tasks read what the event said from the execution's input.
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


def _task(action: Action, default_tag: str) -> dict[str, Any]:
    return {
        "type": "task",
        "flow": action.flow_name,
        "tag": action.tag or default_tag,
        "params": {**action.params, **{name: f"${{input.{name}}}" for name in INPUT}},
    }


INPUT = ("year", "month", "ym", "mfcloud_url", "notes", "event", "trigger")


def execution_input(params: Mapping[str, Any]) -> dict[str, Any]:
    """Every name that tasks read is there, also those of which the event said nothing."""
    return {name: params.get(name) for name in INPUT}


def graph_input(params: Mapping[str, Any]) -> dict[str, Any]:
    """For a registered graph: what a run would get as its params, the action's own among them."""
    return {**dict.fromkeys(INPUT), **params}


def _wait_id(step: Step, taken: set[str]) -> str:
    found = step.id + WAIT_SUFFIX
    while found in taken:
        found += "-"
    taken.add(found)
    return found


def _chain(order: Sequence[str]) -> list[dict[str, str]]:
    return [{"from": one, "to": other} for one, other in pairwise(order)]
