"""Executions under faults: a fork, two tasks, a join and a person's word, with cancels at random moments."""

import asyncio
import random
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import httpx2

from audit import cached_executions, execution_logs, patiently, stored_runs
from pyoco_server.domain.executions.model import Execution, ExecutionStatus, NodeStatus
from sites import CLIENT_PATIENCE_SEC, GaveUp, Site
from support.execution_promises import folded, kept_badly

LOOK_SEC = 0.5
NOT_FOUND = 404
GRAPH_ID = "chaos"
GRAPH: dict[str, Any] = {
    "id": GRAPH_ID,
    "nodes": {
        "split": {"type": "fork"},
        "left": {"type": "task", "flow": "tiny", "params": {"pause": "${input.pause}"}},
        "right": {"type": "task", "flow": "tiny"},
        "gather": {"type": "join"},
        "approve": {"type": "wait", "prompt": "Go on?"},
    },
    "edges": [
        {"from": "split", "to": "left"},
        {"from": "split", "to": "right"},
        {"from": "left", "to": "gather"},
        {"from": "right", "to": "gather"},
        {"from": "gather", "to": "approve"},
    ],
}


@dataclass(eq=False)
class Executions:
    """Created, then resumed by their client where they wait for it, or cancelled, or both at once."""

    cancel_share: float = 0.3
    race_share: float = 0.1
    acknowledged: dict[str, int] = field(default_factory=dict)
    """By id, what its person says."""
    cancels: dict[str, set[str]] = field(default_factory=dict)
    """By id, as what each answer to a cancel says that it ends."""
    resumed: set[str] = field(default_factory=set)
    unseen: list[str] = field(default_factory=list)
    """Answers that an execution is not there, though its creation was answered before."""
    acts: int = 0

    async def prepare(self, site: Site, chance: random.Random) -> None:
        answer = await site.ask("PUT", f"/graphs/{GRAPH_ID}", chance, json=GRAPH)
        assert answer.status_code in (200, 201), answer.text

    async def act(self, site: Site, chance: random.Random) -> None:
        self.acts += 1
        number = self.acts
        key = f"{chance.getrandbits(64):x}"
        answer = await site.ask(
            "POST",
            "/executions",
            chance,
            json={"graph_id": GRAPH_ID, "input": {"pause": chance.choice([0.0, 0.05, 0.5])}},
            headers={"Idempotency-Key": key},
        )
        assert answer.status_code == 201, answer.text
        execution_id: str = answer.json()["execution_id"]
        self.acknowledged[execution_id] = number
        fate = chance.random()
        if fate < self.cancel_share:
            await asyncio.sleep(chance.choice([0.0, 0.0, 0.05, 0.3, 1.0, 3.0]))
            await self._cancel(site, chance, execution_id)
        elif await self._waits(site, chance, execution_id):
            work = [self._resume(site, chance, execution_id, number)]
            if fate < self.cancel_share + self.race_share:
                work.append(self._cancel(site, random.Random(chance.random()), execution_id))  # noqa: S311
            await asyncio.gather(*work)

    async def _of(
        self,
        site: Site,
        chance: random.Random,
        method: str,
        execution_id: str,
        path: str = "",
        **options: Any,
    ) -> httpx2.Response:
        """A request about an execution that is there: a client that hears otherwise asks again."""
        while True:
            answer = await site.ask(method, f"/executions/{execution_id}{path}", chance, **options)
            if answer.status_code != NOT_FOUND:
                return answer
            self.unseen.append(f"{execution_id}: acknowledged, and answered 404 to {method} {path}")
            await asyncio.sleep(LOOK_SEC)

    async def _cancel(self, site: Site, chance: random.Random, execution_id: str) -> None:
        answer = await self._of(
            site,
            chance,
            "POST",
            execution_id,
            "/cancel",
            headers={"Idempotency-Key": f"{chance.getrandbits(64):x}"},
        )
        assert answer.status_code == 200, answer.text
        state = answer.json()
        is_accepted = state.get("cancel_requested_at") is not None
        ends = ExecutionStatus.CANCELED.value if is_accepted else state["status"]
        self.cancels.setdefault(execution_id, set()).add(ends)

    async def _waits(self, site: Site, chance: random.Random, execution_id: str) -> bool:
        """Until it waits for its person."""
        deadline = time.monotonic() + CLIENT_PATIENCE_SEC
        while time.monotonic() < deadline:
            answer = await self._of(site, chance, "GET", execution_id)
            assert answer.status_code == 200, answer.text
            state = answer.json()
            if state["status"] != ExecutionStatus.ACTIVE:
                return False
            if state["nodes"]["approve"]["status"] == NodeStatus.WAITING:
                return True
            await asyncio.sleep(LOOK_SEC)
        raise GaveUp(f"{execution_id} does not come to where it waits")

    async def _resume(self, site: Site, chance: random.Random, execution_id: str, number: int) -> None:
        answer = await self._of(
            site,
            chance,
            "POST",
            execution_id,
            "/nodes/approve/resume",
            json={"data": {"number": number}},
            headers={"Idempotency-Key": f"{chance.getrandbits(64):x}"},
        )
        assert answer.status_code in (200, 409), answer.text
        if answer.status_code == 200:
            self.resumed.add(execution_id)

    async def settled(self, site: Site, patience: float) -> float:
        began = time.monotonic()
        while True:
            states = folded(await patiently(execution_logs, site))
            took = time.monotonic() - began
            if all(state.is_terminal for state in states.values()) or took > patience:
                return took
            await asyncio.sleep(LOOK_SEC)

    async def broken(self, site: Site) -> list[str]:
        """Of every execution that there is, those that events started too."""
        logs = await patiently(execution_logs, site)
        states = folded(logs)
        runs = await patiently(stored_runs, site)
        cached = await patiently(cached_executions, site)
        return [
            *(f"{lost}: acknowledged, and lost" for lost in self.acknowledged.keys() - states.keys()),
            *self.unseen,
            *kept_badly(logs, cached, runs),
            *self._wrong_ends(states),
        ]

    def _wrong_ends(self, states: Mapping[str, Execution]) -> Iterator[str]:
        """Cancel wins; without one, the person's word is the result."""
        for execution_id, number in self.acknowledged.items():
            state = states.get(execution_id)
            if state is None:
                continue
            for ends in self.cancels.get(execution_id, ()):
                if state.status != ends:
                    yield f"{execution_id}: its cancel was answered {ends}, and it ended {state.status}"
            if execution_id not in self.cancels and state.result != {"approve": {"number": number}}:
                yield f"{execution_id}: {state.status} {state.result} {state.error}"

    def summary(self) -> str:
        return (
            f"{len(self.acknowledged)} executions, {len(self.cancels)} cancels, {len(self.resumed)} resumes"
        )
