"""The orchestrator's mind: what is missing now. Level-triggered and pure.

`react` looks at the state, the graph and what is known of the runs, and says what has to be appended and what
has to be done in the world. Asking twice, late, or on two machines at once changes nothing: the events of the
loser are refused by the log, the runs' ids follow from (execution, node, attempt).
"""

from collections.abc import Callable, Mapping
from typing import Final

from msgspec import Struct

from pyoco_server.domain.execution import events as e
from pyoco_server.domain.execution.conditions import Allowance, TooHeavy
from pyoco_server.domain.execution.graphs import Graph
from pyoco_server.domain.execution.node_runs import CancelRun, DispatchRun, RunFact
from pyoco_server.domain.execution.reacting import execution_ends, joins, node_ends, node_starts, run_orders
from pyoco_server.domain.execution.reacting.draft import Draft
from pyoco_server.domain.execution.state import Execution, Phase

__all__ = ["Allowance", "CancelRun", "DispatchRun", "Reaction", "RunFact", "TooHeavy", "react"]


class Reaction(Struct, frozen=True, kw_only=True):
    events: tuple[e.Payload, ...] = ()
    """One commit; empty when nothing is to be said."""
    state: Execution
    """As it is with these events."""
    dispatches: tuple[DispatchRun, ...] = ()
    cancels: tuple[CancelRun, ...] = ()
    wake_at: float | None = None
    """When time alone would change the answer."""
    has_more: bool = False
    """Not everything is in it; react again."""


def react(
    state: Execution,
    graph: Graph,
    runs: Mapping[str, RunFact | None],
    now: float,
    grace_sec: float,
    allowance: Allowance | None = None,
) -> Reaction:
    """`runs`: what was read of the runs by id, None for one that does not exist. Others are left alone.

    With an `allowance`, TooHeavy is raised once the work exceeds it. The answer never depends on it.
    """
    draft = Draft(state, graph, runs, now, grace_sec, allowance)
    while (step := _STEPS.get(draft.state.phase)) is not None:
        known = len(draft.events)
        draft.timers.clear()
        step(draft)
        if len(draft.events) == known:
            break
    return Reaction(
        events=tuple(draft.events),
        state=draft.state,
        dispatches=tuple(run_orders.dispatches(draft)),
        cancels=tuple(run_orders.cancels(draft)),
        wake_at=min(draft.timers, default=None) if not draft.state.is_terminal else None,
        has_more=draft.has_more,
    )


def _go_on(draft: Draft) -> None:
    known = len(draft.events)
    node_ends.end_nodes(draft)
    joins.stop_unneeded(draft)
    node_ends.end_stopped(draft)
    branches = draft.branches()
    joins.update_gates(draft, branches)
    if execution_ends.fail_if_lost(draft, branches):
        return
    node_starts.make_ready(draft, branches)
    node_starts.carry_on(draft)
    if len(draft.events) == known:
        execution_ends.complete_if_over(draft)


_STEPS: Final[Mapping[Phase, Callable[[Draft], None]]] = {
    Phase.STARTED: _go_on,
    Phase.FAILING: execution_ends.finish_failing,
    Phase.CANCELLING: execution_ends.finish_cancel,
}
"""What is done again and again, until nothing more is to be said."""
