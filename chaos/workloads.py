"""What clients do meanwhile, and what must be true of it afterwards.

Runs are here; executions and events have files of their own, and `Together` is all of them at once.
"""

import asyncio
import random
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Protocol

from audit import accepted_writes, jobs_left, patiently, stored_runs
from pyoco_server.domain.runs.model import RunSnapshot, RunStatus
from sites import GaveUp, Site

LOOK_SEC = 0.2


class Workload(Protocol):
    async def prepare(self, site: Site, chance: random.Random) -> None:
        """What has to be there before the first act."""
        ...

    async def act(self, site: Site, chance: random.Random) -> None:
        """One thing that a client does, to its end."""
        ...

    async def settled(self, site: Site, patience: float) -> float:
        """Wait until all that was asked for has come to its end; the seconds it took."""
        ...

    async def broken(self, site: Site) -> list[str]:
        """Every promise that was not kept, in words."""
        ...

    def summary(self) -> str: ...


@dataclass(eq=False)
class Runs:
    """Submits and cancels of short flows, by clients that repeat what was not answered."""

    cancel_share: float = 0.3
    pauses: tuple[float, ...] = (0.0, 0.0, 0.05, 0.3)
    acknowledged: dict[str, str] = field(default_factory=dict)
    """Flow by run id, once the gateway said 200."""
    cancel_answers: dict[str, set[str]] = field(default_factory=dict)
    submits: int = 0

    async def prepare(self, site: Site, chance: random.Random) -> None:
        pass

    async def act(self, site: Site, chance: random.Random) -> None:
        self.submits += 1
        key = f"{chance.getrandbits(64):x}-{self.submits}"
        flow = "watchful" if chance.random() < 0.05 else "tiny"
        params = {"pause": chance.choice(self.pauses)} if flow == "tiny" else {"marks": str(site.directory)}
        answer = await site.ask(
            "POST",
            "/runs",
            chance,
            json={"flow_name": flow, "params": params},
            headers={"Idempotency-Key": key},
        )
        assert answer.status_code == 200, answer.text
        run_id: str = answer.json()["run_id"]
        self.acknowledged[run_id] = flow
        if flow == "watchful" or chance.random() < self.cancel_share:
            await asyncio.sleep(chance.choice([0.0, 0.0, 0.01, 0.1, 0.5, 2.0]))
            await self._cancel(site, chance, run_id)

    async def _cancel(self, site: Site, chance: random.Random, run_id: str) -> None:
        answer = await site.ask("POST", f"/runs/{run_id}/cancel", chance)
        assert answer.status_code == 200, answer.text
        self.cancel_answers.setdefault(run_id, set()).add(answer.json()["status"])

    async def settled(self, site: Site, patience: float) -> float:
        began = time.monotonic()
        while True:
            runs = await patiently(stored_runs, site)
            waiting = [run_id for run_id, run in runs.items() if not run.status.is_terminal]
            jobs = await patiently(jobs_left, site) if not waiting else []
            if not waiting and not jobs:
                return time.monotonic() - began
            if time.monotonic() - began > patience:
                return time.monotonic() - began
            await asyncio.sleep(LOOK_SEC)

    async def broken(self, site: Site) -> list[str]:
        stored = await patiently(stored_runs, site)
        history = await patiently(accepted_writes, site)
        return [
            *(f"{run_id}: acknowledged, and lost" for run_id in self.acknowledged if run_id not in stored),
            *(
                f"{run_id}: still {run.status}"
                for run_id, run in stored.items()
                if not run.status.is_terminal
            ),
            *(f"{run_id}: its job is still on the queue" for run_id in await patiently(jobs_left, site)),
            *(problem for run_id, writes in history.items() for problem in _reversals(run_id, writes)),
            *self._cancels_that_lost(stored),
            *self._wrong_ends(stored),
        ]

    def _cancels_that_lost(self, stored: dict[str, RunSnapshot]) -> Iterator[str]:
        """Once it was answered CANCELLING it ends CANCELLED; once answered an end, it stays that."""
        for run_id, answers in self.cancel_answers.items():
            run = stored.get(run_id)
            for answer in answers:
                wanted = "CANCELLED" if answer == "CANCELLING" else answer
                if run is not None and run.status != wanted:
                    yield f"{run_id}: its cancel was answered {answer}, and it ended {run.status}"

    def _wrong_ends(self, stored: dict[str, RunSnapshot]) -> Iterator[str]:
        for run_id, flow in self.acknowledged.items():
            run = stored.get(run_id)
            if run is None or run.status is RunStatus.CANCELLED or not run.status.is_terminal:
                continue
            if flow == "tiny" and (run.status, run.result) != (RunStatus.COMPLETED, {"three": 3}):
                yield f"{run_id}: {run.status} {run.error}"

    def summary(self) -> str:
        return f"{len(self.acknowledged)} runs, {len(self.cancel_answers)} cancels"


def _reversals(run_id: str, writes: list[RunSnapshot]) -> Iterator[str]:
    """Nothing is accepted after an end; after CANCELLING only CANCELLED ends it."""
    for before, after in pairwise(writes):
        if before.status.is_terminal:
            yield f"{run_id}: {after.status} was written after {before.status}"
        elif before.status is RunStatus.CANCELLING and after.status not in (
            RunStatus.CANCELLING,
            RunStatus.CANCELLED,
        ):
            yield f"{run_id}: {after.status} was written after CANCELLING"


class Together:
    """Each workload so many times, in an order from the seed."""

    def __init__(self, parts: Mapping[Workload, int], chance: random.Random) -> None:
        self._parts = [part for part, acts in parts.items() if acts]
        self._deck = [part for part, acts in parts.items() for _ in range(acts)]
        chance.shuffle(self._deck)

    async def prepare(self, site: Site, chance: random.Random) -> None:
        for part in self._parts:
            await part.prepare(site, chance)

    async def act(self, site: Site, chance: random.Random) -> None:
        await self._deck.pop().act(site, chance)

    async def settled(self, site: Site, patience: float) -> float:
        """One after the other, in their order: what is below ends what is above."""
        began = time.monotonic()
        for part in self._parts:
            await part.settled(site, patience)
        return time.monotonic() - began

    async def broken(self, site: Site) -> list[str]:
        return [problem for part in self._parts for problem in await part.broken(site)]

    def summary(self) -> str:
        return "; ".join(part.summary() for part in self._parts)


async def crowd(
    site: Site, workload: Workload, chance: random.Random, clients: int, acts: int, rest: float = 0.0
) -> None:
    """`acts` in all, by `clients` at once; each client has a seed of its own."""
    left = iter(range(acts))

    async def client(own: random.Random) -> None:
        for _ in left:
            try:
                await workload.act(site, own)
            except GaveUp as error:
                site.given_up.append(f"a client gave up: {error}")
            await asyncio.sleep(own.uniform(0, rest))

    await asyncio.gather(*(client(random.Random(chance.random())) for _ in range(clients)))  # noqa: S311
