"""What a running gateway holds: its connection to NATS, its picture of the runs, and the use cases on top."""

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from functools import partial
from typing import Annotated, Literal, NamedTuple

from fastapi import Query, Request, Response

from pyoco_server.config import NatsBackendConfig
from pyoco_server.domain.runs.model import RunSnapshot, RunStatus
from pyoco_server.errors import IncompatibleNats, NatsUnavailable
from pyoco_server.http_api.event_use_cases import EventsFront, EventUseCases
from pyoco_server.http_api.execution_level import ExecutionLevel
from pyoco_server.http_api.metrics import Metrics
from pyoco_server.http_api.middleware import AskWho, authentication
from pyoco_server.logs import get_logger
from pyoco_server.usecases.auth import Authenticate, Caller
from pyoco_server.usecases.consistency import OwnWrites
from pyoco_server.usecases.events.executions import StartExecutions
from pyoco_server.usecases.events.transfer import Imported
from pyoco_server.usecases.executions.graphs import ManageGraphs
from pyoco_server.usecases.executions.query import ExecutionHub
from pyoco_server.usecases.fleet import FollowWorkers, HideWorker, ListWorkers
from pyoco_server.usecases.lease import Lease
from pyoco_server.usecases.ports.stores import Change
from pyoco_server.usecases.runs.cancel import CancelRun, ReassertCancels
from pyoco_server.usecases.runs.read import ListRuns, ReadLogs, ReadRun
from pyoco_server.usecases.runs.submit import SubmitBatch, SubmitOnce, SubmitRun
from pyoco_server.usecases.runs.watch import WatchHub, WatchRun, WatchRuns
from pyoco_server.usecases.server_backend import ServerBackend
from pyoco_server.usecases.services.follow_runs import FollowRuns
from pyoco_server.usecases.services.storage_check import CheckStorage
from pyoco_server.usecases.services.sweep import CountDeadLetters, EndMaxDelivered, SweepRuns
from pyoco_server.usecases.wheels import ManageWheels
from pyoco_server.wiring import new_run_id

log = get_logger(__name__)

OpenBackend = Callable[[], AbstractAsyncContextManager[ServerBackend]]

START_PATIENCE_SEC = 5.0
"""How long a start waits for NATS; after that the gateway answers 503 until NATS is there."""
RETRY_SEC = 1.0
MAX_RETRY_SEC = 30.0
STALE_HEADER = "X-Pyoco-Stale-Sec"
Stale = Annotated[
    Literal["ok"] | None,
    Query(description=f"ok: while NATS is away, answer what was known last, with its age in {STALE_HEADER}"),
]
SWEEP_BEAT_SEC = 10.0
SWEEP_SILENT_SEC = 40.0
"""Lease timeout before another gateway sweeps."""


class UseCases:
    """Everything a route can call, made once per connection."""

    def __init__(
        self,
        backend: ServerBackend,
        config: NatsBackendConfig,
        hub: WatchHub,
        execution_hub: ExecutionHub,
        metrics: Metrics,
    ) -> None:
        clock, timeout = time.time, config.worker_disconnect_timeout_sec
        self.index = backend.run_index
        self.count_dead_letters = CountDeadLetters(backend.dead_letters)
        self.check_storage = CheckStorage(backend.storage)
        self.keep_cancels = ReassertCancels(backend.runs, clock, config.cancel_grace_period_sec)
        unfinished = backend.run_index.unfinished()
        self.keep_cancels.began_with(run_id for run_id, _, now in unfinished if now is RunStatus.CANCELLING)
        # When the store forgets is a time of the store, not of this host.
        self.follow_runs = FollowRuns(
            backend.run_feed, backend.run_index, hub, backend.shared_clock, metrics, self._look
        )
        self.follow_workers = FollowWorkers(backend.worker_feed, clock, backend.shared_clock)
        own_writes = OwnWrites(self.follow_runs)
        self.submit_run = SubmitRun(
            backend.runs, backend.queue, clock, new_run_id, own_writes.wrote, config.runs_retention_sec
        )
        self.submit_once = SubmitOnce(backend.claims, self.submit_run, clock, new_run_id)
        self.submit_batch = SubmitBatch(self.submit_run)
        self.read_run = ReadRun(backend.runs, self.follow_workers, timeout)
        self.read_logs = ReadLogs(self.read_run, backend.task_logs)
        self.list_runs = ListRuns(backend.runs, backend.run_index, own_writes)
        self.watch_run = WatchRun(backend.runs, backend.task_logs, hub, clock)
        self.watch_runs = WatchRuns(backend.run_index, hub)
        self.cancel_run = CancelRun(backend.runs, own_writes, self.keep_cancels, clock)
        self.end_undeliverable = EndMaxDelivered(
            backend.undeliverable, backend.runs, backend.dead_letters, clock
        )
        self.sweep_runs = SweepRuns(
            backend.runs, backend.run_index, backend.queue, self.end_undeliverable, clock
        )
        self._sweep_lease = Lease(
            backend.leases, "sweep", new_run_id(), clock, lasts_sec=SWEEP_SILENT_SEC, beat_sec=SWEEP_BEAT_SEC
        )
        self.wheels = ManageWheels(backend.wheels, backend.wheel_history, clock, new_run_id)
        self.list_workers = ListWorkers(self.follow_workers, backend.run_index, timeout)
        self.hide_worker = HideWorker(backend.workers, self.follow_workers, clock)

        self._keep_time = backend.shared_clock.run
        self.graphs = ManageGraphs(backend.graphs, clock)
        self.executions = ExecutionLevel(
            backend=backend,
            config=config,
            graphs=self.graphs,
            submit_run=self.submit_run,
            cancel_run=self.cancel_run,
            clock=backend.shared_clock,
            new_id=new_run_id,
            hub=execution_hub,
            meter=metrics,
        )

    def _look(self, changes: Sequence[Change[RunSnapshot]]) -> None:
        self.keep_cancels.look(changes)
        self.executions.orchestrate.look(changes)

    @property
    def is_caught_up(self) -> bool:
        return (
            self.follow_runs.is_caught_up
            and self.follow_workers.is_caught_up
            and self.executions.is_caught_up
        )

    @property
    def stale_sec(self) -> float:
        """How old what is shown may be; 0: up to date."""
        return max(self.follow_runs.stale_sec, self.follow_workers.stale_sec, self.executions.stale_sec)

    def background(self) -> dict[str, Callable[[], Awaitable[None]]]:
        """What goes on beside the requests, by name."""
        return {
            "follow-runs": self.follow_runs.run,
            "check-storage": self.check_storage.run,
            "keep-cancels": self.keep_cancels.run,
            "expire-runs": self.follow_runs.keep_expiring,
            "sweep-runs": partial(self._sweep_lease.run, self.sweep_runs.run),
            "end-undeliverable": self.end_undeliverable.run,
            "follow-workers": self.follow_workers.run,
            "keep-time": self._keep_time,
            "collect-chunks": self.wheels.keep_collecting,
            **self.executions.background(),
        }


class Reading(NamedTuple):
    """What a list is read from, and how old that may be."""

    use_cases: UseCases
    stale_sec: float

    def marked(self, response: Response) -> Response:
        if self.stale_sec > 0:
            response.headers[STALE_HEADER] = str(math.ceil(self.stale_sec))
        return response


class Gateway:
    def __init__(self, config: NatsBackendConfig, open_backend: OpenBackend, metrics: Metrics) -> None:
        self.config = config
        self.metrics = metrics
        self.hub = WatchHub(config.max_watchers)
        self.events = EventsFront(config, lambda: self.event_level)
        self.execution_hub = ExecutionHub(config.max_watchers)
        self._open_backend = open_backend
        self._backend: ServerBackend | None = None
        self._use_cases: UseCases | None = None
        self._event_level: EventUseCases | None = None
        self._ask_who: AskWho | None = None
        self.imported: list[Imported] = []
        """Files of an earlier workflow server, imported at this start."""
        self._opened = asyncio.Event()
        self._stopping = asyncio.Event()

    @property
    def is_connected(self) -> bool:
        return self._backend is not None and self._backend.is_available

    @property
    def is_storing(self) -> bool:
        """Whether what was written last was stored."""
        return self._use_cases is not None and self._use_cases.check_storage.is_ok is True

    @property
    def is_caught_up(self) -> bool:
        return self._use_cases is not None and self._use_cases.is_caught_up and self.stale_sec == 0

    @property
    def stale_sec(self) -> float:
        """Seconds since the picture of all runs was up to date; 0: it is."""
        return self._use_cases.stale_sec if self._use_cases is not None else 0.0

    @property
    def use_cases(self) -> UseCases:
        if self._use_cases is None:
            raise NatsUnavailable("nats unavailable: not connected yet")
        return self._use_cases

    @property
    def event_level(self) -> EventUseCases:
        if self._event_level is None:
            raise NatsUnavailable("nats unavailable: not connected yet")
        return self._event_level

    @property
    def ask_who(self) -> AskWho:
        """From the text of an API key to who holds it."""
        if self._ask_who is None:
            raise NatsUnavailable("nats unavailable: not connected yet")
        return self._ask_who

    async def is_still_allowed(self, caller: Caller) -> bool:
        """Whether an answer that goes on and on may do so. While nobody can tell, it may."""
        if not isinstance(self._ask_who, Authenticate):
            return True
        try:
            return await self._ask_who.is_still_allowed(caller)
        except NatsUnavailable:
            return True

    @property
    def read_model(self) -> UseCases:
        """The use cases that need the picture of all runs: an honest 503 while it is incomplete or old."""
        return self.reading(None).use_cases

    def reading(self, stale: Stale) -> Reading:
        """The same; with `stale` also when it is old, which the answer then says."""
        if not self.use_cases.is_caught_up:
            raise NatsUnavailable("the gateway is still reading the list of runs; try again in a moment")
        stale_sec = self.stale_sec
        if stale_sec > 0 and stale is None:
            raise NatsUnavailable(
                f"nats unavailable: the list is {math.ceil(stale_sec)} s old; stale=ok answers with it"
            )
        return Reading(self.use_cases, stale_sec)

    async def start(self) -> None:
        """Returns when NATS is there, or when waiting longer would keep a client from hearing 503.

        Raises IncompatibleNats: no waiting helps against that.
        """
        self._holding = asyncio.ensure_future(self._hold_backend())
        opened = asyncio.ensure_future(self._opened.wait())
        await asyncio.wait(
            {self._holding, opened}, timeout=START_PATIENCE_SEC, return_when=asyncio.FIRST_COMPLETED
        )
        opened.cancel()
        if self._holding.done():
            self._holding.result()
        if not self._opened.is_set():
            log.warning(
                "NATS is not reachable; answering 503 until it is",
                action="gateway.waiting_for_nats",
                **NatsUnavailable().ids,
            )

    async def opened(self) -> None:
        """Returns when NATS was reached and requests can be carried out."""
        await self._opened.wait()

    def begin_stop(self) -> None:
        """Send the watchers home, so that their connections do not hold up the stop."""
        self.hub.close()
        self.execution_hub.close()

    async def stop(self) -> None:
        self.begin_stop()
        self._stopping.set()
        if not self._opened.is_set():  # it waits for a NATS that is not there
            self._holding.cancel()
        done, _ = await asyncio.wait({self._holding}, timeout=START_PATIENCE_SEC)
        if not done:
            self._holding.cancel()
            with suppress(asyncio.CancelledError):
                await self._holding
        elif not self._holding.cancelled() and (error := self._holding.exception()) is not None:
            log.error("the gateway's connection ended badly", action="gateway.ended", exc_info=error)

    async def _hold_backend(self) -> None:
        while not self._stopping.is_set():
            try:
                async with (
                    self._open_backend() as backend,
                    authentication(self.config, backend.api_keys) as self._ask_who,
                ):
                    await self._serve(backend)
            except IncompatibleNats:
                raise
            except NatsUnavailable as error:
                log.warning("NATS is not usable yet", action="gateway.nats_failed", exc_info=error)
                await asyncio.sleep(RETRY_SEC)

    async def _serve(self, backend: ServerBackend) -> None:
        self._backend = backend
        use_cases = UseCases(backend, self.config, self.hub, self.execution_hub, self.metrics)
        self._use_cases = use_cases
        event_level = EventUseCases(
            backend=backend,
            config=self.config,
            front=self.events,
            submit_run=use_cases.submit_run,
            executions=StartExecutions(
                use_cases.graphs, use_cases.executions.create, use_cases.executions.read
            ),
            waits=use_cases.executions.waits,
            clock=backend.shared_clock,
        )
        self.imported = await event_level.import_files() or self.imported
        self._event_level = event_level  # no event is received before: its key may be among what is imported
        background = {**use_cases.background(), **event_level.background()}
        work = [asyncio.ensure_future(self._keep(name, start)) for name, start in background.items()]
        self._opened.set()
        try:
            await self._stopping.wait()
        finally:
            for task in work:
                task.cancel()
            await asyncio.wait(work, timeout=START_PATIENCE_SEC)

    async def _keep(self, name: str, start: Callable[[], Awaitable[None]]) -> None:
        """A gateway whose background work has died would lie by omission: say it and start it again.

        Work that fails time and again is started less and less often; once it has lasted, soon again.
        """
        loop = asyncio.get_running_loop()
        pause = RETRY_SEC
        while not self._stopping.is_set():
            began = loop.time()
            try:
                await start()
            except Exception:
                log.exception(
                    "background work failed; starting it again",
                    action="gateway.background",
                    task=name,
                    pause_sec=pause,
                )
            has_lasted = loop.time() - began > MAX_RETRY_SEC
            await asyncio.sleep(pause)
            pause = RETRY_SEC if has_lasted else min(MAX_RETRY_SEC, pause * 2)


def gateway_of(request: Request) -> Gateway:
    gateway: Gateway = request.app.state.gateway
    return gateway
