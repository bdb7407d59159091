"""Load, decide, write with the expected revision; if somebody was faster, load and decide again."""

from pyoco_server.domain.run_changes import Refusal, RunChange, decide
from pyoco_server.domain.runs import RunSnapshot
from pyoco_server.errors import NatsUnavailable
from pyoco_server.usecases.ports import Clock, RunStore, Versioned, WrongRevision

MAX_TRIES = 100
"""Each lost race means that somebody else's write succeeded; so many in a row is a fault, not a race."""


async def change_run(
    runs: RunStore,
    run_id: str,
    change: RunChange,
    clock: Clock,
    known: Versioned[RunSnapshot] | None = None,
) -> Versioned[RunSnapshot] | Refusal | None:
    """The run after `change`, or why it was refused; None when there is no such run.

    `known` saves the first read: a decision on an old snapshot is refused by the store, not written.
    """
    for _ in range(MAX_TRIES):
        current = known or await runs.get(run_id)
        if current is None:
            return None
        decision = decide(current.value, change, clock())
        if isinstance(decision, Refusal):
            if known is None:
                return decision
            known = None  # refuse only on what is stored now
            continue
        if decision is current.value:
            return current
        try:
            return Versioned(decision, await runs.update(run_id, decision, current.revision))
        except WrongRevision:
            known = None
    raise NatsUnavailable(f"run {run_id} could not be written: {MAX_TRIES} writes in a row were refused")
