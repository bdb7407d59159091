"""Clients of executions and events in a simulated world: what they do, what they hear, what must hold."""

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import msgspec

from pyoco_server.domain.events.audit import StoredEvent
from pyoco_server.domain.events.receipts import Receipt, receipt_key
from pyoco_server.domain.events.templates import Action, Step, Template, TriggerKind
from pyoco_server.domain.executions import commands as c
from pyoco_server.domain.executions.events import (
    Actor,
    ActorKind,
    Event,
    ExecutionCanceled,
    ExecutionCancelRequested,
    NodeFailReported,
    NodeStarted,
    NodeWaiting,
)
from pyoco_server.domain.executions.model import Execution, ExecutionStatus, NodeStatus
from pyoco_server.domain.runs.model import RunSnapshot
from pyoco_server.domain.schedules.model import (
    CatchUp,
    Definition,
    Overlap,
    Schedule,
    Target,
    Tick,
    TickPage,
    jitter_of,
    schedule_key,
    timing,
)
from pyoco_server.errors import CommandRejected, NatsUnavailable, PyocoServerError
from pyoco_server.usecases.auth import ANONYMOUS
from pyoco_server.usecases.events.attempts import Answer
from pyoco_server.usecases.executions.create import NewExecution
from pyoco_server.wiring.gateway import Levels
from support.event_promises import Heard, agrees, started_by_key
from support.events import send
from support.execution_promises import Logs, folded

ACTOR = Actor(ActorKind.USER, "ann")
TASK_SEC = 25.0
MAX_LOOKS = 300
"""A quarter of an hour for what takes minutes. Then a client gives up, and its execution counts as stuck."""
WAIT_SEC = 30.0
BACKOFF_SEC = 5.0
GRAPH_ID = "simulated"
GRAPH: dict[str, Any] = {
    "id": GRAPH_ID,
    "nodes": {
        "split": {"type": "fork"},
        "left": {
            "type": "task",
            "flow": "f",
            "timeout_sec": TASK_SEC,
            "retry": {"max_attempts": 3, "backoff_sec": BACKOFF_SEC},
        },
        "right": {"type": "task", "flow": "f"},
        "gather": {"type": "join"},
        "approve": {"type": "wait", "timeout_sec": WAIT_SEC},
        "finish": {"type": "task", "flow": "f"},
    },
    "edges": [
        {"from": "split", "to": "left"},
        {"from": "split", "to": "right"},
        {"from": "left", "to": "gather"},
        {"from": "right", "to": "gather"},
        {"from": "gather", "to": "approve"},
        {"from": "approve", "to": "finish"},
    ],
}
ACTION = Action(key="act", updated_at="", flow_name="f")
EARLY_SEC = 2.0
"""Measuring another host's clock takes a round trip, and a round trip may be slow."""
ON_ITS_WAY_SEC = 60.0
"""Between a decision and its commit in the log: with slow calls, and frozen in between, perhaps twice."""
LATE_SEC = 30.0
"""Once nothing is hurt any more: a lease that has to run out, a sweep, an AckWait."""
TICK_LATE_SEC = 1.0
"""Of a tick in a healthy world."""


def template(template_id: str, steps: int) -> Template:
    kinds = [TriggerKind.EXTERNAL_EVENT, *[TriggerKind.AFTER_PREVIOUS] * (steps - 1)]
    return Template(
        id=template_id,
        name=template_id,
        steps=tuple(Step(id=f"s{n}", action="act", trigger_kind=kind) for n, kind in enumerate(kinds)),
        updated_at="",
        year=2026,
        month=2,
    )


TEMPLATES = (template("one", 1), template("two", 2))


class AskedGateway(Protocol):
    @property
    def levels(self) -> Levels: ...
    @property
    def is_alive(self) -> bool: ...


Question = Callable[[AskedGateway], Awaitable[Any]]


class Ask(Protocol):
    async def __call__(
        self, own: random.Random, question: Question, *refusals: type[PyocoServerError]
    ) -> Any:
        """As a client that repeats what was not answered. `refusals` are for the client to bear."""
        ...


@dataclass
class ExecutionClients:
    acknowledged: dict[str, str] = field(default_factory=dict)
    """What its client said at the end, by execution; empty: nothing."""
    cancels: dict[str, set[str]] = field(default_factory=dict)
    """As what each answer to a cancel says that it ends."""
    stuck: list[str] = field(default_factory=list)
    """Executions that came neither to their wait nor to their end."""

    async def act(self, ask: Ask, own: random.Random, key: str) -> None:
        wanted = NewExecution(graph_id=GRAPH_ID, input={"key": key})
        created = await ask(
            own, lambda gateway: gateway.levels.executions.create(wanted, ANONYMOUS, ACTOR, key)
        )
        execution_id: str = created.state.execution_id
        self.acknowledged[execution_id] = ""
        fate = own.random()
        if fate < 0.4:
            await asyncio.sleep(own.choice([0.0, 0.05, 1.0, 5.0, 20.0]))
            await self._cancel(ask, own, execution_id)
        elif fate < 0.85 and await self._waits(ask, own, execution_id):
            await self._resume(ask, own, execution_id)
            if fate > 0.75:
                await self._cancel(ask, own, execution_id)

    async def _cancel(self, ask: Ask, own: random.Random, execution_id: str) -> None:
        command = c.CancelExecution(actor=ACTOR)
        answer = await ask(
            own, lambda gateway: gateway.levels.executions.command(execution_id, command, ANONYMOUS, "c")
        )
        is_accepted = answer.state.cancel_requested_at is not None
        ends = ExecutionStatus.CANCELED if is_accepted else answer.state.status
        self.cancels.setdefault(execution_id, set()).add(ends.value)

    async def _waits(self, ask: Ask, own: random.Random, execution_id: str) -> bool:
        for _ in range(MAX_LOOKS):
            state: Execution = await ask(
                own, lambda gateway: gateway.levels.executions.read.state(execution_id, ANONYMOUS)
            )
            if state.is_terminal or state.nodes["approve"].status is NodeStatus.WAITING:
                return not state.is_terminal
            await asyncio.sleep(3.0)
        self.stuck.append(execution_id)
        return False

    async def _resume(self, ask: Ask, own: random.Random, execution_id: str) -> None:
        command = c.ResumeNode(actor=ACTOR, node_id="approve", data="yes")
        try:
            await ask(
                own,
                lambda gateway: gateway.levels.executions.command(execution_id, command, ANONYMOUS, "r"),
                CommandRejected,
            )
        except CommandRejected:
            return  # its time was up
        self.acknowledged[execution_id] = "yes"

    def broken(self, logs: Logs) -> Iterator[str]:
        states = folded(logs)
        yield from (f"{execution_id}: stuck before its wait" for execution_id in self.stuck)
        for execution_id, word in self.acknowledged.items():
            state = states.get(execution_id)
            if state is None:
                yield f"{execution_id}: acknowledged, and lost"
                continue
            wanted = self.cancels.get(execution_id) or ({"COMPLETED"} if word else {"FAILED"})
            if wanted != {state.status.value} and not _ran_out_of_time(state):
                yield f"{execution_id}: it ended {state.status}, and its client heard {wanted}"
            if state.status is ExecutionStatus.FAILED and not _ran_out_of_time(state):
                yield f"{execution_id}: failed for no reason of its own: {state.error}"


def _ran_out_of_time(state: Execution) -> bool:
    return state.error is not None and state.error.code == "TIMEOUT"


Timed = Mapping[str, list[tuple[Event, float]]]
"""By execution, its events and when they were stored: by no host's clock, but by the world's."""


def untimely(timed: Timed, grace_sec: float, healed_at: float, epoch: float) -> Iterator[str]:
    """What was decided by the clock was decided when its time had come, whoever's clock it was."""
    for execution_id, events in timed.items():
        for problem in _Timeline(grace_sec, healed_at, epoch).problems(events):
            yield f"{execution_id}: {problem}"


class _Timeline:
    """When what happened to the nodes of one execution."""

    def __init__(self, grace_sec: float, healed_at: float, epoch: float) -> None:
        self._grace_sec = grace_sec
        self._healed_at = healed_at
        self._epoch = epoch
        self._begun: dict[str, float] = {}
        self._failed: dict[str, float] = {}
        self._cancelled_at = 0.0

    def problems(self, events: list[tuple[Event, float]]) -> Iterator[str]:
        for event, stored_at in events:
            yield from self._look_at(event, event.occurred_at - self._epoch, stored_at)

    def _look_at(self, event: Event, at: float, stored_at: float) -> Iterator[str]:
        if not stored_at - ON_ITS_WAY_SEC <= at <= stored_at + EARLY_SEC:
            yield f"{event.type} is dated {stored_at - at:.1f} s before it was stored"
        match event.payload:
            case NodeStarted(node_id=node_id):
                if node_id in self._failed:
                    yield from self._off(f"{node_id}: its retry", self._failed[node_id] + BACKOFF_SEC, at)
                self._begun[node_id] = at
            case NodeWaiting(node_id=node_id):
                self._begun[node_id] = at
            case NodeFailReported(node_id=node_id, error=error):
                self._failed[node_id] = at
                if error.code == "TIMEOUT":
                    limit = WAIT_SEC if node_id == "approve" else TASK_SEC
                    yield from self._off(f"{node_id}: its timeout", self._begun[node_id] + limit, at)
            case ExecutionCancelRequested():
                self._cancelled_at = at
            case ExecutionCanceled():
                yield from self._off("its cancel", self._cancelled_at + self._grace_sec, at, early=False)
            case _:
                pass

    def _off(self, what: str, due: float, at: float, *, early: bool = True) -> Iterator[str]:
        if early and due - at > EARLY_SEC:
            yield f"{what} came {due - at:.1f} s too early"
        if at - max(due, self._healed_at) > LATE_SEC:
            yield f"{what} came {at - due:.1f} s too late"


@dataclass
class EventClients:
    keys: dict[str, Heard] = field(default_factory=dict)
    answers: dict[str, AskedGateway] = field(default_factory=dict)
    """Who gave which answer, by the id of the event."""

    async def act(self, ask: Ask, own: random.Random, key: str) -> None:
        heard = self.keys[key] = Heard(own.choice(TEMPLATES).id)
        posts = own.choice([1, 2, 3])
        clients = [random.Random(own.random()) for _ in range(posts)]  # noqa: S311
        await asyncio.gather(*(self._post(ask, client, key, heard) for client in clients))

    async def _post(self, ask: Ask, own: random.Random, key: str, heard: Heard) -> None:
        body = {"template_id": heard.template_id, "idempotency_key": key}

        async def post(gateway: AskedGateway) -> tuple[AskedGateway, Answer]:
            return gateway, await send(gateway.levels.events.receive, body)

        while True:
            gateway, answer = await ask(own, post)
            self.answers[answer.event_id] = gateway
            if answer.started is not None:
                heard.run_ids.add(answer.started.run_id)
                heard.execution_ids |= {answer.started.execution_id} - {None}
                return
            if not isinstance(answer.error, NatsUnavailable) and int(answer.error.status) != 409:
                raise AssertionError(answer.error)
            await asyncio.sleep(own.uniform(0.5, 2.0))

    def broken(
        self,
        logs: Logs,
        runs: Mapping[str, RunSnapshot],
        receipts: Mapping[str, Receipt],
        records: list[StoredEvent],
    ) -> Iterator[str]:
        started = started_by_key(logs, runs)
        for key, heard in self.keys.items():
            if len(heard.started) != 1 or len(heard.run_ids) != 1 or heard.started != started[key]:
                yield f"event {key}: answered {heard}, started {started[key]}"
            if not agrees(receipts.get(receipt_key(None, heard.template_id, key)), heard):
                yield f"event {key}: answered {heard}, its receipt says something else"
        yield from (f"event {event_id}: answered, and not recorded" for event_id in self.unrecorded(records))

    def unrecorded(self, records: list[StoredEvent]) -> list[str]:
        """A gateway that died has taken the records along that waited for NATS."""
        recorded = {event.record.event_id for event in records}
        return [
            event_id
            for event_id, gateway in self.answers.items()
            if event_id not in recorded and gateway.is_alive
        ]


GRAPH_TEXT = msgspec.json.encode(GRAPH)


# Schedules


class ScheduleClients:
    """Each has a schedule that ticks every few seconds, and pauses, resumes, triggers and changes it."""

    def __init__(self) -> None:
        self.kept: set[str] = set()
        self.healthy_ticks = 0

    async def act(self, ask: Ask, own: random.Random, name: str) -> None:
        await self._put(ask, own, name, "")
        self.kept.add(schedule_key(None, name))
        for number in range(own.randint(1, 4)):
            await asyncio.sleep(own.choice([1.0, 5.0, 20.0, 40.0]))
            await self._meddle(ask, own, name, number)
        await asyncio.sleep(own.choice([0.0, 30.0]))

    async def end(self, ask: Ask, own: random.Random, name: str) -> None:
        await ask(own, lambda gateway: gateway.levels.schedules.manage.pause(name, "the end", ANONYMOUS))

    async def _meddle(self, ask: Ask, own: random.Random, name: str, number: int) -> None:
        match own.choice(["pause", "resume", "resume", "trigger", "put", "wait"]):
            case "pause":
                await ask(own, lambda gateway: gateway.levels.schedules.manage.pause(name, None, ANONYMOUS))
            case "resume":
                await ask(own, lambda gateway: gateway.levels.schedules.manage.resume(name, ANONYMOUS))
            case "trigger":
                await ask(own, lambda gateway: gateway.levels.schedules.manage.trigger(name, ANONYMOUS))
            case "put":
                await self._put(ask, own, name, str(number))

    async def _put(self, ask: Ask, own: random.Random, name: str, description: str) -> None:
        wanted = Definition(
            target=Target(flow="f"),
            timezone="UTC",
            every_sec=float(3 + len(name) % 3),
            overlap=own.choice(list(Overlap)),
            catch_up=own.choice(list(CatchUp)),
            catch_up_window_sec=own.choice([20.0, 86_400.0]),
            jitter_sec=own.choice([0.0, 2.0]),
            description=description,
        )
        await ask(own, lambda gateway: gateway.levels.schedules.manage.put(name, wanted, ANONYMOUS))

    def broken(
        self,
        schedules: Mapping[str, Schedule],
        pages: Mapping[str, TickPage],
        runs: Mapping[str, RunSnapshot],
        healthy_since: float,
    ) -> Iterator[str]:
        yield from (f"{key}: acknowledged, and lost" for key in self.kept - schedules.keys())
        started: set[str] = set()
        for key, schedule in schedules.items():
            if not schedule.is_settled or schedule.to_place or schedule.waiting:
                yield f"{key}: is not settled"
            ticks = [t for n in range(schedule.pages) for t in pages[schedule.page_key(n)].ticks]
            ticks += schedule.ticks
            yield from _badly_recorded(schedule, ticks)
            yield from self._late(schedule, [tick for tick in ticks if tick.due_at > healthy_since])
            started |= {tick.run_id for tick in ticks if tick.run_id is not None}
        placed = {run.run_id for run in runs.values() if run.schedule_id is not None}
        yield from (f"{run_id}: its tick says that it was started" for run_id in started - placed)
        yield from (f"{run_id}: was started, and has no tick" for run_id in placed - started)

    def _late(self, schedule: Schedule, ticks: list[Tick]) -> Iterator[str]:
        """Ticks that wait for no run, and were not folded into one record."""
        if schedule.definition.overlap not in (Overlap.ALLOW, Overlap.SKIP):
            return
        for tick in ticks:
            if tick.count == 1 and not tick.manual:
                self.healthy_ticks += 1
                late = tick.fired_at - tick.due_at - jitter_of(schedule, tick.due_at)
                if late > TICK_LATE_SEC:
                    yield f"{schedule.key}: a tick was {late:.1f} s late in a healthy world"


def _badly_recorded(schedule: Schedule, ticks: list[Tick]) -> Iterator[str]:
    planned = [tick for tick in ticks if not tick.manual]
    if schedule.next_due_at is None:
        yield f"{schedule.key}: has stopped"
        return
    expected = timing(schedule).count(schedule.first_at, schedule.next_due_at - 0.001)
    recorded = sum(tick.count for tick in planned)
    if recorded != expected:
        yield f"{schedule.key}: {expected} ticks were due, and {recorded} are recorded"
    due = [tick.due_at for tick in planned]
    if len(set(due)) < len(due):
        yield f"{schedule.key}: a tick is recorded twice"
    runs = [tick.run_id for tick in ticks if tick.run_id is not None]
    if len(set(runs)) < len(runs):
        yield f"{schedule.key}: a run has two ticks"
