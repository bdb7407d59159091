"""Templates of several steps: what is asked of executions, and that a repeat asks for the same one."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
from msgspec.structs import replace

from pyoco_server.domain.events.templates import Action, Step, Template, TriggerKind
from pyoco_server.usecases.auth import ANONYMOUS
from pyoco_server.usecases.ports.gateway import ExecutionOrder
from support.events import ACTION, EventsLab, RecordedExecutions, events_lab, post, prepare


@pytest.fixture
def executions() -> RecordedExecutions:
    return RecordedExecutions()


@pytest.fixture
async def lab(executions: RecordedExecutions) -> AsyncIterator[EventsLab]:
    async with events_lab(executions) as found:
        await prepare(found, concurrency="allow")
        await put_steps(found, (ACTION, "external_event"), ("approve", "manual_start"))
        await found.use_cases.actions.put(
            Action(key="approve", updated_at="", flow_name="approving"), ANONYMOUS
        )
        yield found


async def put_steps(lab: EventsLab, *steps: tuple[str, str]) -> None:
    made = tuple(
        Step(id=f"s{number}", action=action, trigger_kind=TriggerKind(kind))
        for number, (action, kind) in enumerate(steps, 1)
    )
    template = Template(id="close", name="Close", steps=made, updated_at="", year=2026, month=2)
    await lab.use_cases.templates.put(template, None, ANONYMOUS)


async def test_several_steps_become_an_execution(lab: EventsLab, executions: RecordedExecutions) -> None:
    answer = await post(lab, data={"x": 1}, source="erp")
    assert answer.started is not None
    (order,) = executions.orders.values()
    assert answer.started.execution_id == order.execution_id
    assert answer.started.run_id == f"first-run-of-{order.execution_id}"
    assert (order.graph_id, order.tenant_id, order.actor) == ("template-close", None, "event:erp")
    assert order.definition is not None
    assert list(order.definition["nodes"]) == ["s1", "s2-start", "s2"]
    assert order.definition["nodes"]["s2"]["flow"] == "approving"
    assert (order.input["ym"], order.input["event"]) == ("2026-02", {"x": 1})
    assert order.input["trigger"]["idempotency_key"] == "k"
    assert lab.backend.runs._values == {}, "its runs are the execution's business"


async def test_a_repeat_is_told_the_same_execution(lab: EventsLab, executions: RecordedExecutions) -> None:
    first, again = await post(lab), await post(lab)
    assert first.started is not None
    assert again.started is not None
    assert again.started == replace(first.started, is_duplicate=True)
    assert len(executions.orders) == 1


async def test_a_repeat_after_a_failure_asks_for_the_same_execution(
    lab: EventsLab, executions: RecordedExecutions, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    async def lost(self: RecordedExecutions, order: ExecutionOrder) -> str:
        asked.append(order.execution_id)
        raise ZeroDivisionError

    with monkeypatch.context() as patch:
        patch.setattr(RecordedExecutions, "start", lost)
        assert (await post(lab)).job is not None
    answer = await post(lab)
    assert answer.started is not None
    assert [answer.started.execution_id] == asked


async def test_an_action_of_a_graph_starts_that_graph(lab: EventsLab, executions: RecordedExecutions) -> None:
    await put_steps(lab, (ACTION, "external_event"))
    await lab.use_cases.actions.put(Action(key=ACTION, updated_at="", graph_id="monthly-close"), ANONYMOUS)
    assert (await post(lab)).started is not None
    (order,) = executions.orders.values()
    assert (order.graph_id, order.definition) == ("monthly-close", None)


@pytest.mark.parametrize("missing", ["approve", ACTION])
async def test_every_step_needs_an_action_that_is_registered(
    lab: EventsLab, executions: RecordedExecutions, missing: str
) -> None:
    await lab.use_cases.actions.delete(missing, ANONYMOUS)
    answer = await post(lab)
    assert answer.error is not None
    assert answer.error.detail == f"external_event action is not executable in MVP: {missing}"
    assert executions.orders == {}


async def test_a_graph_cannot_be_one_step_among_several(
    lab: EventsLab, executions: RecordedExecutions
) -> None:
    await lab.use_cases.actions.put(Action(key="approve", updated_at="", graph_id="g"), ANONYMOUS)
    answer = await post(lab)
    assert answer.error is not None
    assert answer.error.status == 409
    assert executions.orders == {}


async def test_one_at_a_time_counts_for_executions_too(
    lab: EventsLab, executions: RecordedExecutions
) -> None:
    await lab.use_cases.actions.put(
        Action(key=ACTION, updated_at="", flow_name="f", concurrency="one"), ANONYMOUS
    )
    first = await post(lab, "a")
    assert first.started is not None
    assert (await post(lab, "b")).error is not None
    executions.active.clear()
    second: Any = await post(lab, "c")
    assert second.started is not None
