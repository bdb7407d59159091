"""What must be true of events once all is over: one start for every key."""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pyoco_server.domain.events.receipts import Receipt, ReceiptState
from pyoco_server.domain.executions.events import ExecutionCreated
from pyoco_server.domain.runs.model import RunSnapshot
from support.execution_promises import Logs


@dataclass
class Heard:
    """What the posts of one key were answered with."""

    template_id: str
    run_ids: set[str] = field(default_factory=set)
    execution_ids: set[str] = field(default_factory=set)

    @property
    def started(self) -> set[str]:
        return self.execution_ids or self.run_ids


def started_by_key(logs: Logs, runs: Mapping[str, RunSnapshot]) -> dict[str, set[str]]:
    """Everything that was started under a key, however it was answered."""
    started: dict[str, set[str]] = defaultdict(set)
    for run_id, run in runs.items():
        if run.execution_id is None and (key := _key_in(run.params)) is not None:
            started[key].add(run_id)
    for execution_id, events in logs.items():
        created = events[0].payload
        if isinstance(created, ExecutionCreated) and (key := _key_in(created.input)) is not None:
            started[key].add(execution_id)
    return started


def agrees(receipt: Receipt | None, heard: Heard) -> bool:
    """A receipt whose last word was lost still names what it was claimed for."""
    if receipt is None:
        return False
    return {receipt.run_id} == (heard.run_ids if receipt.state is ReceiptState.ACCEPTED else heard.started)


def _key_in(params: Any) -> str | None:
    trigger = params.get("trigger") if isinstance(params, dict) else None
    return trigger.get("idempotency_key") if isinstance(trigger, dict) else None
