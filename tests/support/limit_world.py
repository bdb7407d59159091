"""Worlds of gateways that give places to runs, on ports that lose and delay, with workers made for it.

Lighter than `simulation`, so that hundreds of seeds take seconds: only what limits need is there.
"""

import asyncio
import random
from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from uuid import UUID

from msgspec.structs import replace

from pyoco_server.config import NatsBackendConfig
from pyoco_server.domain import codec
from pyoco_server.domain.limits.holders import Holders, decode_holders
from pyoco_server.domain.limits.model import Definition, LimitRecord, Match, Rate, decode_limit
from pyoco_server.domain.runs.changes import Claim, Conclude, Refusal, next_wait_sec
from pyoco_server.domain.runs.jobs import Submission
from pyoco_server.domain.runs.model import Owner, RunRetry, RunSnapshot, RunStatus
from pyoco_server.errors import NatsUnavailable, PyocoServerError
from pyoco_server.memory.dead_letters import MemoryUndeliverable
from pyoco_server.memory.queue import MemoryQueue, QueueFaults
from pyoco_server.memory.stores import MemoryChangeLog, MemoryStore
from pyoco_server.usecases.audit_trail import AuditTrail
from pyoco_server.usecases.auth import ANONYMOUS
from pyoco_server.usecases.consistency import OwnWrites, change_run, queue_next_try
from pyoco_server.usecases.coordination import Lease
from pyoco_server.usecases.limits.admit import AdmitRuns
from pyoco_server.usecases.limits.board import LimitBoard
from pyoco_server.usecases.limits.follow import FollowLimits
from pyoco_server.usecases.limits.gate import LimitGate
from pyoco_server.usecases.limits.manage import ManageLimits
from pyoco_server.usecases.runs.cancel import CancelRun, ReassertCancels
from pyoco_server.usecases.runs.submit import SubmitRun
from pyoco_server.usecases.services.sweep import QueueNextTries
from support import virtual_time
from support.simulation import EPOCH, LateFeed, Odds, Port, Process, _here

CONFIG = NatsBackendConfig(
    consumer_ack_wait_sec=8.0, ack_progress_interval_sec=3.0, consumer_max_deliver=1_000
)
RETRY = RunRetry(max_attempts=3, backoff_sec=2.0, jitter=0.0)
HEALED_SEC = 200.0
SETTLED_SEC = 40.0
"""After it is healed a world may still have frozen processes and jobs that come back after AckWait."""
CHANGE_SEC = 60.0
"""How long an earlier definition may still count: longer than a process is frozen."""


def now() -> float:
    return EPOCH + asyncio.get_running_loop().time()


class Nothing:
    """No metrics."""

    def admitted(self, waited_sec: float) -> None: ...
    def refused(self) -> None: ...


class Watched(MemoryStore[RunSnapshot]):
    """Every write of a run is looked at."""

    def __init__(self, look: Any) -> None:
        super().__init__(codec.encode, codec.decode_run)
        self._look = look

    def _put(self, key: str, value: RunSnapshot) -> Any:
        found = self._values.get(key)
        before = None if found is None else self._decode(found[0])
        revision = super()._put(key, value)
        self._look(before, value)
        return revision


class WatchedHolders(MemoryStore[Holders]):
    def __init__(self, look: Any) -> None:
        super().__init__(codec.encode, decode_holders)
        self._look = look

    def _put(self, key: str, value: Holders) -> Any:
        self._look(value)
        return super()._put(key, value)


class Gateway:
    def __init__(self, world: "LimitWorld", process: Process) -> None:
        self.process = process
        port = partial(Port, process)
        runs, queue, clock = port(world.runs), port(world.queue), now
        self.board = LimitBoard()
        self._known = asyncio.Event()
        follow = FollowLimits(
            self.board,
            LateFeed(process, world.limits),
            LateFeed(process, world.holders),
            runs,
            self._known.wait,  # type: ignore[arg-type]
            lambda: sorted(self._active),
        )
        self._active: set[str] = set()
        reassert = ReassertCancels(runs, clock, 3.0)
        trail = AuditTrail(MemoryChangeLog(), clock, world.new_id)
        # With ids of its own: the seeds of the worlds stay what they are.
        cancels = AuditTrail(MemoryChangeLog(), clock, lambda: "cancel")
        self.cancel = CancelRun(runs, queue, OwnWrites(self), reassert, clock, cancels)
        self.gate = LimitGate(self.board, follow, self.cancel.of_system, clock, Nothing())
        self.submit = SubmitRun(runs, queue, clock, world.new_id, limits=self.gate)
        self.manage = ManageLimits(port(world.limits), self.board, follow, clock, world.new_id, trail)
        self.next_tries = QueueNextTries(runs, queue, port(MemoryUndeliverable(world.queue)))
        lease = Lease(port(world.leases), "limits", world.new_id(), clock, lasts_sec=1.5, beat_sec=0.5)
        self.admit = AdmitRuns(
            board=self.board,
            runs=runs,
            queue=queue,
            holders=port(world.holders),
            lease=lease,
            clock=clock,
            meter=Nothing(),
            ready=follow.ready,
        )
        self._feed = LateFeed(process, world.runs)
        self._work = [
            self._follow_runs, follow.run_definitions, follow.run_holders, follow.run_sorting,
            self.admit.run, self.next_tries.run, reassert.run,
        ]  # fmt: skip
        self._reassert = reassert

    async def reached(self, _revision: Any, _patience: float) -> None:
        """Lists are not part of it."""

    async def _follow_runs(self) -> None:
        async for batch in self._feed.follow(None):
            for look in (self.board.look, self.next_tries.look, self._reassert.look):
                look(batch.changes)
            for change in batch.changes:
                is_over = change.value is None or change.value.status.is_terminal
                (self._active.discard if is_over else self._active.add)(change.key)
            if batch.is_caught_up:
                self._known.set()

    def start(self) -> list[asyncio.Task[None]]:
        _here.set(self.process)
        self.tasks = [asyncio.ensure_future(work()) for work in self._work]
        return self.tasks


@dataclass
class LimitWorld:
    seed: int
    odds: Odds = field(default_factory=lambda: Odds(lost=0.02, unanswered=0.02, crash=0.003, slow=0.05))
    runs_each: int = 4
    is_changing: bool = False
    """Definitions change while runs wait."""
    flow_sec: tuple[float, ...] = (0.0, 0.3, 2.0)
    prepare: Any = None

    def __post_init__(self) -> None:
        self.chance = random.Random(self.seed)  # noqa: S311
        self.is_hurting = True
        self.hurt: Counter[str] = Counter()
        self.graves: list[asyncio.Future[None]] = []
        self.problems: list[str] = []
        self.definitions: dict[str, list[tuple[float, Definition | None]]] = {}
        self.admissions: dict[tuple[str, str], list[str]] = {}
        self.submitted: list[str] = []
        self.cancelled: set[str] = set()
        self.most: Counter[str] = Counter()
        self.gateways: dict[str, Gateway] = {}

    def hurts(self, probability: float) -> bool:
        return self.is_hurting and self.chance.random() < probability

    def delay(self) -> float:
        slow = self.is_hurting and self.chance.random() < self.odds.slow
        return self.chance.uniform(0.0, 3.0) if slow else self.chance.uniform(0.0, 0.01)

    def count(self, what: str) -> None:
        self.hurt[what] += 1

    def new_id(self) -> str:
        return str(UUID(int=self.chance.getrandbits(128)))

    # What must never be

    def _look_at_run(self, before: RunSnapshot | None, run: RunSnapshot) -> None:
        if before is None or run.limits is None or run.is_held or not before.is_held:
            return
        for one in run.limits:
            self.admissions.setdefault((one.limit, one.key), []).append(run.run_id)
            most = self._most_running(one.limit)
            held = self._holding(one.limit, one.key)
            self.most[one.limit] = max(self.most[one.limit], len(held))
            if len(held) > most:
                self.problems.append(f"{one.limit}/{one.key}: {len(held)} runs have a place, of {most}")

    def _holding(self, limit: str, key: str) -> list[str]:
        found = []
        for data, _ in self.runs._values.values():
            run = codec.decode_run(data)
            if run.limits is not None and not run.is_held and not run.status.is_terminal:
                found += [run.run_id for one in run.limits if (one.limit, one.key) == (limit, key)]
        return found

    def _most_running(self, limit: str) -> int:
        """The highest of the definitions that any gateway may go by."""
        history = self.definitions.get(limit, [])
        recent = [one for at, one in history if at > now() - CHANGE_SEC]
        older = [one for at, one in history if at <= now() - CHANGE_SEC][-1:]
        numbers = [
            1 << 30 if one is None or one.max_running is None else one.max_running for one in recent + older
        ]
        return max(numbers, default=1 << 30)

    def _look_at_holders(self, record: Holders) -> None:
        definition = self.definitions[record.limit][-1][1]
        if self.is_changing or definition is None or definition.rate is None:
            return
        most = definition.rate.size * definition.rate.interval_sec
        if record.full_at - now() > most + 0.001:
            self.problems.append(f"{record.limit}: more tokens were taken than there are")

    # The life of the world

    async def live(self) -> list[str]:
        self.runs = Watched(self._look_at_run)
        faults = QueueFaults(duplicate_window_sec=self.chance.choice([120.0, 20.0, 5.0]))
        self.queue = MemoryQueue(CONFIG, faults, now)
        self.limits: MemoryStore[LimitRecord] = MemoryStore(codec.encode, decode_limit)
        self.holders = WatchedHolders(self._look_at_holders)
        self.leases = MemoryStore(codec.encode, codec.decode_lease)
        keepers = [asyncio.ensure_future(self._keep_gateway(f"g{n}")) for n in range(2)]
        keepers += [asyncio.ensure_future(self._keep_worker(f"w{n}")) for n in range(3)]
        await self._define()
        clients = [self._client(n) for n in range(3)]
        if self.is_changing:
            clients.append(self._change())
        await asyncio.gather(*clients)
        self.is_hurting = False
        await self._settle()
        for keeper in keepers:
            if not keeper.cancel():
                keeper.result()  # a gateway or a worker ended with an error
        return [*self.problems, *self._broken()]

    async def _keep_gateway(self, name: str) -> None:
        while True:
            process = Process(self, name)  # type: ignore[arg-type]
            _here.set(process)
            gateway = Gateway(self, process)
            if self.prepare is not None:
                self.prepare(gateway)
            self.gateways[name] = gateway
            tasks = gateway.start()
            while process.is_alive:
                await asyncio.sleep(0.5)
                for task in tasks:
                    if task.done() and not task.cancelled() and task.exception() is not None:
                        raise task.exception()  # type: ignore[misc]
            await asyncio.sleep(self.chance.uniform(0.1, 3.0))

    async def _anywhere(self, act: Any) -> Any:
        """At any gateway that answers; as a client does, it is tried again."""
        while True:
            alive = [one for one in self.gateways.values() if one.process.is_running]
            if not alive:
                await asyncio.sleep(0.5)
                continue
            gateway = self.chance.choice(alive)
            acting = asyncio.ensure_future(act(gateway))
            done, _ = await asyncio.wait({acting}, timeout=8.0)
            if not done:
                await asyncio.sleep(0.1)  # dead or frozen; what it did is unknown
                continue
            try:
                return acting.result()
            except NatsUnavailable:
                await asyncio.sleep(0.5)

    async def _define(self) -> None:
        choices = [
            {"a": Definition(match=Match(flow="one"), key="params.k", max_running=self.chance.randint(1, 2))},
            {
                "a": Definition(match=Match(), max_running=self.chance.randint(2, 3)),
                "b": Definition(match=Match(flow="one"), key="params.k", max_running=1),
            },
            {
                "a": Definition(
                    match=Match(), rate=Rate(count=2, per_sec=1.0, burst=1), max_running=3, key="params.k"
                )
            },
        ]
        for name, definition in self.chance.choice(choices).items():
            await self._put(name, definition)

    async def _put(self, name: str, definition: Definition) -> None:
        self.definitions.setdefault(name, []).append((now(), definition))
        await self._anywhere(lambda one: one.manage.put(name, definition, ANONYMOUS))
        self.definitions[name].append((now(), definition))

    async def _change(self) -> None:
        for _ in range(2):
            await asyncio.sleep(self.chance.uniform(0.0, 6.0))
            name = self.chance.choice(sorted(self.definitions))
            last = next(one for _, one in reversed(self.definitions[name]) if one is not None)
            wanted = self.chance.choice([1, 2, 3])
            kind = self.chance.choice(["number", "key", "delete"])
            if kind == "delete":
                self.definitions[name].append((now(), None))
                await self._anywhere(lambda one, name=name: self._delete(one, name))
                self.definitions[name].append((now(), None))
            elif kind == "key":
                key = None if last.key is not None else "params.k"
                self.definitions[name].append((now(), replace(last, max_running=1 << 20)))
                await self._put(name, replace(last, key=key))
            else:
                await self._put(name, replace(last, max_running=wanted))

    async def _delete(self, gateway: Gateway, name: str) -> None:
        try:
            await gateway.manage.delete(name, ANONYMOUS)
        except NatsUnavailable:
            raise
        except PyocoServerError:
            return

    async def _client(self, _number: int) -> None:
        for _ in range(self.runs_each):
            await asyncio.sleep(self.chance.choice([0.0, 0.0, 0.1, 2.0]))
            run_id = self.new_id()
            submission = Submission(
                flow_name=self.chance.choice(["one", "one", "two"]),
                tag="t",
                params={"k": self.chance.choice(["x", "y"]), "failures": self.chance.choice([0, 0, 0, 1])},
                retry=RETRY,
                delay_sec=self.chance.choice([None, None, None, 1.5]),
            )
            await self._anywhere(lambda one, s=submission, r=run_id: self._submit(one, s, r))
            self.submitted.append(run_id)
            if self.chance.random() < 0.15:
                await self._anywhere(lambda one, r=run_id: one.cancel(r, ANONYMOUS, "enough"))
                self.cancelled.add(run_id)

    async def _submit(self, gateway: Gateway, submission: Submission, run_id: str) -> None:
        job = await gateway.submit.job_of(submission, run_id, now())
        await gateway.submit.place_derived(job)

    async def _settle(self) -> None:
        loop = asyncio.get_running_loop()
        start, idle_since = loop.time(), None
        while loop.time() < start + HEALED_SEC and not self._is_done():
            await asyncio.sleep(0.5)
            idle = loop.time() > start + SETTLED_SEC and self._is_idle()
            idle_since = (idle_since or loop.time()) if idle else None
            if idle_since is not None and loop.time() - idle_since > 3.0:
                self.problems.append("places are free and runs wait for them")
                return

    def _all(self) -> list[RunSnapshot]:
        return [codec.decode_run(data) for data, _ in self.runs._values.values()]

    def _is_done(self) -> bool:
        return all(run.status.is_terminal for run in self._all())

    def _is_idle(self) -> bool:
        """Whether runs wait, and none of the others has a place."""
        active = [run for run in self._all() if not run.status.is_terminal]
        waiting = [run for run in active if run.is_held and (run.not_before or 0.0) < now()]
        return bool(waiting) and len(waiting) == len(active)

    def _broken(self) -> list[str]:
        runs = {run.run_id: run for run in self._all()}
        broken = [f"{run_id}: is lost" for run_id in self.submitted if run_id not in runs]
        for run in runs.values():
            if not run.status.is_terminal:
                broken.append(
                    f"{run.run_id}: {run.status}, {run.limits}, held {run.is_held}, try {run.try_number}"
                )
            if run.run_id in self.cancelled and run.status not in (RunStatus.CANCELLED, RunStatus.COMPLETED):
                broken.append(f"{run.run_id}: cancelled, and {run.status}")
            if run.status is RunStatus.FAILED:
                broken.append(f"{run.run_id}: failed: {run.error}")
        return broken

    # Workers

    async def _keep_worker(self, name: str) -> None:
        while True:
            process = Process(self, name)  # type: ignore[arg-type]
            _here.set(process)
            asyncio.ensure_future(self._work(process))  # noqa: RUF006 - the dead are not cleaned up
            while process.is_alive:  # noqa: ASYNC110 - in virtual time
                await asyncio.sleep(0.5)
            await asyncio.sleep(self.chance.uniform(0.1, 2.0))

    async def _work(self, process: Process) -> None:
        instance = self.new_id()
        while True:
            taken = self.queue.take([f"{CONFIG.work_subject_prefix}.t"])
            if taken is None:
                await self.queue.change(asyncio.get_running_loop().time() + 1.0)
                continue
            try:
                await self._carry_out(process, Port(process, taken), instance)
            except NatsUnavailable:
                await asyncio.sleep(0.1)

    async def _carry_out(self, process: Process, delivery: Any, instance: str) -> None:
        runs, queue, job = Port(process, self.runs), Port(process, self.queue), delivery.job()
        owner = Owner(process.name, instance, delivery.num_delivered)
        claim = Claim(owner, delivery.sequence, job.try_number)
        claimed = await change_run(runs, job.run_id, claim, now)
        if claimed is None or isinstance(claimed, Refusal) or claimed.value.status.is_terminal:
            if claimed is Refusal.EARLIER_TRY:
                await queue_next_try(runs, queue, job)
            if claimed is not Refusal.FENCED:
                await delivery.ack()
            return
        await asyncio.sleep(self.chance.choice(self.flow_sec))
        failed = job.try_number <= (job.params or {}).get("failures", 0)
        end = Conclude(
            owner=owner,
            status=RunStatus.FAILED if failed else RunStatus.COMPLETED,
            error="planned" if failed else None,
            try_number=job.try_number,
        )
        wait = next_wait_sec(claimed.value, end, 0.0)
        end = replace(end, retry_at=None if wait is None else now() + wait)
        ended = await change_run(runs, job.run_id, end, now)
        if ended is Refusal.FENCED:  # another delivery of the job goes on
            return
        if not isinstance(ended, Refusal) and ended is not None and not ended.value.status.is_terminal:
            await queue_next_try(runs, queue, job)
        await delivery.ack()


def simulate_limits(seed: int, **options: Any) -> tuple[LimitWorld, list[str]]:
    world = LimitWorld(seed, **options)
    return world, virtual_time.run(world.live())
