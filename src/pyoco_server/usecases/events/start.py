"""Start what a template says, once for every key: claim, start, receipt."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import msgspec
from msgspec import Struct

from pyoco_server.domain.events import templates
from pyoco_server.domain.events.audit import RetryAdvice, reason_of
from pyoco_server.domain.events.receipts import (
    AlreadyStarted,
    BeingStarted,
    CarryOn,
    ClaimState,
    Receipt,
    Slot,
    accepted,
    is_settled,
    left_open,
    look_at,
    may_have_expired,
    receipt_key,
)
from pyoco_server.domain.events.requests import (
    EventRequest,
    content_digest,
    decide_period,
    is_other_content,
    run_params,
)
from pyoco_server.domain.events.templates import Action, Template
from pyoco_server.domain.executions.commands import Code
from pyoco_server.domain.executions.events import Actor, ActorKind
from pyoco_server.domain.executions.model import Execution
from pyoco_server.domain.executions.records import run_id_of
from pyoco_server.domain.runs.jobs import Submission, accept
from pyoco_server.errors import (
    CommandRejected,
    ExecutionNotFound,
    GraphNotFound,
    InvalidRequest,
    NatsUnavailable,
    OutcomeUnknown,
    PyocoServerError,
    RequestTooLarge,
    RunConflict,
    StillStarting,
    UnsupportedAction,
)
from pyoco_server.logs import best_effort, get_logger
from pyoco_server.usecases.auth import Caller
from pyoco_server.usecases.concurrency import wait_at_most
from pyoco_server.usecases.consistency import change_value, write
from pyoco_server.usecases.events.definitions import ManageActions, place
from pyoco_server.usecases.executions.create import CreateExecutions, NewExecution
from pyoco_server.usecases.executions.graphs import ManageGraphs
from pyoco_server.usecases.executions.query import ReadExecutions
from pyoco_server.usecases.ports.events import ExecutionOrder, Executions, ListedStore
from pyoco_server.usecases.ports.runs import RunStore
from pyoco_server.usecases.ports.stores import Clock, Store, Versioned, WrongRevision
from pyoco_server.usecases.runs.submit import SubmitRun

log = get_logger(__name__)

PATIENCE_SEC = 3.0
"""How long a repeat waits for the first to be started, before it is told to come again."""
LOOK_SEC = 0.05
MAX_PARAMS_BYTES = 256 * 1024
"""As of every run."""


class StartOrder(Struct, frozen=True, kw_only=True):
    template: Template
    request: EventRequest
    api_key_id: str | None = None

    @property
    def tenant_id(self) -> str | None:
        return self.template.tenant_id

    @property
    def place(self) -> str | None:
        """Of its receipt; None when it has no key."""
        key = self.request.key
        return None if key is None else receipt_key(self.tenant_id, self.template.id, key)


class Started(Struct, frozen=True, kw_only=True):
    run_id: str
    execution_id: str | None = None
    is_duplicate: bool = False
    is_mismatch: bool = False
    """A duplicate that says something else than the first."""
    was_queued: bool = False
    """An earlier try had failed."""


class _Claimed(Struct, frozen=True):
    where: str
    stored: Versioned[Receipt]
    is_repeat: bool


class StartTemplate:
    def __init__(  # noqa: PLR0913 - the composition root names each
        self,
        *,
        receipts: ListedStore[Receipt],
        slots: Store[Slot],
        runs: RunStore,
        actions: ManageActions,
        submit_run: SubmitRun,
        executions: Executions,
        clock: Clock,
        new_run_id: Callable[[], str],
        receipt_ttl_days: float,
        runs_retention_sec: float,
        strict_keys: bool,
        default_tag: str,
        patience_sec: float = PATIENCE_SEC,
        monotonic: Clock = time.monotonic,
    ) -> None:
        self._receipts = receipts
        self._slots = slots
        self._runs = runs
        self._actions = actions
        self._submit_run = submit_run
        self._executions = executions
        self._clock = clock
        self._new_run_id = new_run_id
        self._ttl_days = receipt_ttl_days
        self._runs_retention_sec = runs_retention_sec
        self._strict_keys = strict_keys
        self._default_tag = default_tag
        self._patience_sec = patience_sec
        self._monotonic = monotonic
        self._being_started: dict[str, asyncio.Event] = {}

    async def __call__(self, order: StartOrder) -> Started:
        """Raises a PyocoServerError; then its key may be used again, unless it is being started."""
        action = await self._actions.executable(order.tenant_id, order.template.first.action)
        where = order.place
        if where is None:
            return await self._start(order, action, self._new_run_id(), self._clock())
        claimed = await self._claim(where, order, action)
        if isinstance(claimed, Started):
            return claimed
        async with self._starting(claimed):
            receipt = claimed.stored.value
            started = await self._start(order, action, receipt.run_id, receipt.claimed_at)
            await self._keep_receipt(claimed, started)
        return msgspec.structs.replace(started, was_queued=claimed.is_repeat)

    # The claim

    async def _claim(self, where: str, order: StartOrder, action: Action) -> "_Claimed | Started":
        """The right to start, or what was started under this key before."""
        is_run = not templates.needs_execution(order.template, action)
        deadline = self._monotonic() + self._patience_sec
        content = content_digest(order.request)
        is_known = await self._is_ours_over(where)
        while True:
            fresh = self._fresh_receipt(order, content)
            found = await self._receipts.get(where) if is_known else None
            has_looked, is_known = is_known, True
            if found is None:
                try:
                    return _Claimed(where, Versioned(fresh, await self._receipts.create(where, fresh)), False)
                except WrongRevision:
                    if has_looked and self._monotonic() > deadline:  # the server that is asked is behind
                        raise NatsUnavailable("the claim of this idempotency_key cannot be read") from None
                    continue  # somebody else was faster: see what there is
            self._check_content(found.value, content)
            match look_at(found.value, content, self._clock(), self._ttl_days):
                case AlreadyStarted(receipt):
                    return _duplicate(receipt, content)
                case BeingStarted():
                    await self._wait_for(where, deadline)
                    continue
                case CarryOn(receipt):
                    if is_run:  # executions do not expire
                        await self._check_not_expired(found.value)
                    wanted, is_repeat = receipt, True
                case _:
                    wanted, is_repeat = fresh, False
            try:
                revision = await self._receipts.update(where, wanted, found.revision)
            except WrongRevision:
                continue
            return _Claimed(where, Versioned(wanted, revision), is_repeat)

    def _fresh_receipt(self, order: StartOrder, content: str) -> Receipt:
        now = self._clock()
        return Receipt(
            template_id=order.template.id,
            idempotency_key=order.request.key or "",
            run_id=self._new_run_id(),
            content=content,
            claimed_at=now,
            starting_since=now,
            placed_since=now,
            tenant_id=order.tenant_id,
        )

    async def _check_not_expired(self, receipt: Receipt) -> None:
        """Without this, a run that was started, ended and forgotten would be started again."""
        if not may_have_expired(receipt, self._clock(), self._runs_retention_sec):
            return
        if await self._runs.get(receipt.run_id) is None:
            raise OutcomeUnknown(
                f"an earlier event with this idempotency_key was interrupted; its run {receipt.run_id}, "
                f"if it was started, has expired (PYOCO_RUNS_RETENTION_SEC={self._runs_retention_sec:g}); "
                "to start another run, use another key"
            )

    def _check_content(self, found: Receipt, content: str) -> None:
        if self._strict_keys and is_other_content(found.content, content):
            raise InvalidRequest("this idempotency_key was used with another content")

    async def _is_ours_over(self, where: str) -> bool:
        """Equal events often come together: those behind the first need not ask the store who is first."""
        ours = self._being_started.get(where)
        if ours is not None:
            await wait_at_most(ours, self._patience_sec)
        return ours is not None

    async def _wait_for(self, where: str, deadline: float) -> None:
        """Until the one who starts it has done so, as far as this gateway can know. Raises StillStarting."""
        left = deadline - self._monotonic()
        if left <= 0:
            raise StillStarting("an event with this idempotency_key is being started")
        ours = self._being_started.get(where)
        if ours is None:  # another gateway's
            await asyncio.sleep(min(LOOK_SEC, left))
            return
        await wait_at_most(ours, left)

    @asynccontextmanager
    async def _starting(self, claimed: _Claimed) -> AsyncIterator[None]:
        """Whatever goes wrong inside: the key is given back, or left for the next try."""
        is_over = self._being_started.setdefault(claimed.where, asyncio.Event())
        try:
            yield
        except Exception as error:
            with best_effort(log, "event.unclaim", NatsUnavailable):
                await self._unclaim(claimed, error)
            raise
        finally:
            is_over.set()
            self._being_started.pop(claimed.where, None)

    async def _unclaim(self, claimed: _Claimed, error: Exception) -> None:
        receipt, revision = claimed.stored.value, claimed.stored.revision
        try:
            if _is_for_good(error):
                await self._receipts.remove(claimed.where, revision)
            else:
                # An action that runs one at a time refuses before anything is placed.
                opened = left_open(receipt, is_maybe_placed=not isinstance(error, RunConflict))
                await self._receipts.update(claimed.where, opened, revision)
        except WrongRevision:
            log.debug("a repeat has taken the claim over", action="event.taken_over")

    async def _keep_receipt(self, claimed: _Claimed, started: Started) -> None:
        """Without it a repeat only does the same harmless work again."""
        receipt = accepted(claimed.stored.value, started.run_id)
        receipt = msgspec.structs.replace(receipt, execution_id=started.execution_id)
        with best_effort(log, "event.receipt", NatsUnavailable):
            try:
                await self._receipts.update(claimed.where, receipt, claimed.stored.revision)
            except WrongRevision:
                await change_value(self._receipts, claimed.where, lambda found: _or_ours(found, receipt))

    # The start

    async def _start(self, order: StartOrder, action: Action, run_id: str, at: float) -> Started:
        about = decide_period(order.request, order.template)
        params = run_params(action.params, order.request, order.template, about)
        if len(msgspec.json.encode(params)) > MAX_PARAMS_BYTES:
            raise RequestTooLarge(f"params: more than {MAX_PARAMS_BYTES} bytes of JSON")
        if action.concurrency == "one":
            await self._take_slot(order, action, run_id)
        if not templates.needs_execution(order.template, action):
            await self._place_run(order, action, run_id, params, at)
            return Started(run_id=run_id)
        first_run = await self._start_execution(order, action, run_id, params)
        return Started(run_id=first_run, execution_id=run_id)

    async def _place_run(
        self, order: StartOrder, action: Action, run_id: str, params: dict[str, object], at: float
    ) -> None:
        submission = Submission(
            flow_name=action.flow_name or "",
            params=params,
            tag=action.tag or self._default_tag,
            tenant_id=order.tenant_id,
            api_key_id=order.api_key_id,
        )
        await self._submit_run.place_claimed(accept(submission, run_id, at))

    async def _start_execution(
        self, order: StartOrder, action: Action, execution_id: str, params: dict[str, object]
    ) -> str:
        """The claim's id is the execution's: the runs of its nodes are derived from it."""
        template = order.template
        definition = None
        if action.graph_id is None:
            keys = {step.action for step in template.steps}
            found = {key: await self._actions.executable(order.tenant_id, key) for key in keys}
            if any(one.flow_name is None for one in found.values()):
                raise UnsupportedAction(f"{action.key} (a step among several must have a flow)")
            definition = templates.to_graph(template, found, self._default_tag)
        return await self._executions.start(
            ExecutionOrder(
                execution_id=execution_id,
                graph_id=action.graph_id or templates.graph_id_of(template),
                definition=definition,
                input=templates.graph_input(params)
                if definition is None
                else templates.execution_input(params),
                tenant_id=order.tenant_id,
                actor=f"event:{order.request.source or template.id}",
            )
        )

    # One at a time

    async def _take_slot(self, order: StartOrder, action: Action, run_id: str) -> None:
        """Raises RunConflict while the run that has the slot is not over."""
        key = place(order.tenant_id, action.key)
        current = await self._slots.get(key)
        if current is not None and current.value.run_id == run_id:
            return
        if current is not None and await self._is_taken(current.value):
            raise RunConflict(f"action {action.key} runs one at a time, and {current.value.run_id} is active")
        try:
            await write(self._slots, key, Slot(run_id, self._clock()), current)
        except WrongRevision:
            raise RunConflict(f"action {action.key} runs one at a time, and another was faster") from None

    async def _is_taken(self, slot: Slot) -> bool:
        run = await self._runs.get(slot.run_id)
        if run is not None:
            return not run.value.status.is_terminal
        is_active = await self._executions.is_active(slot.run_id)
        return not is_settled(slot, self._clock()) if is_active is None else is_active


def _duplicate(receipt: Receipt, content: str) -> Started:
    return Started(
        run_id=receipt.run_id,
        execution_id=receipt.execution_id,
        is_duplicate=True,
        is_mismatch=is_other_content(receipt.content, content),
    )


def _is_for_good(error: Exception) -> bool:
    """Whether the same event, sent again, is a new one."""
    if not isinstance(error, PyocoServerError):
        return False
    return reason_of(error).retry_advice is not RetryAdvice.RETRY_WITH_BACKOFF


def _or_ours(found: Receipt | None, ours: Receipt) -> Receipt | None:
    """It made room for others, or a repeat took it over and is at the same run."""
    if found is None:
        return ours
    is_behind = found.run_id == ours.run_id and found.state is not ClaimState.ACCEPTED
    return ours if is_behind else None


# Templates of several steps, carried out by executions.

FIRST_ATTEMPT = 1


class StartExecutions:
    def __init__(self, graphs: ManageGraphs, create: CreateExecutions, read: ReadExecutions) -> None:
        self._graphs = graphs
        self._create = create
        self._read = read

    async def start(self, order: ExecutionOrder) -> str:
        """Graphs have versions: a template that has not changed is registered as the version it was."""
        caller = Caller(tenant_id=order.tenant_id)
        version = None
        if order.definition is not None:
            text = msgspec.json.encode(order.definition)
            registered = await self._graphs.register(order.graph_id, text, "application/json", caller)
            version = registered.record.version
        try:
            state = await self._created(order, version, caller)
        except GraphNotFound:
            raise UnsupportedAction(f"graph {order.graph_id} is not registered") from None
        graph = await self._graphs.read(order.tenant_id, order.graph_id, state.graph_version)
        return run_id_of(order.execution_id, graph.graph.entry, FIRST_ATTEMPT)

    async def _created(self, order: ExecutionOrder, version: int | None, caller: Caller) -> Execution:
        wanted = NewExecution(
            graph_id=order.graph_id,
            graph_version=version,
            input=order.input,
            execution_id=order.execution_id,
        )
        try:
            return (await self._create(wanted, caller, Actor(ActorKind.EXTERNAL, order.actor))).state
        except CommandRejected as error:
            if error.code != Code.EXECUTION_EXISTS:
                raise
        # The id was chosen for this event: whoever made it did what is asked for here.
        try:
            return await self._read.state(order.execution_id, caller)
        except ExecutionNotFound:
            # The server that was asked is behind. Answered with 404, the event would give its key back.
            raise NatsUnavailable("the execution is there, but cannot be read yet") from None

    async def is_active(self, execution_id: str) -> bool | None:
        try:
            state = await self._read.state(execution_id, Caller())
        except ExecutionNotFound:
            return None
        return not state.is_terminal
