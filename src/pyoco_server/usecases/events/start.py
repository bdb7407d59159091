"""Start a template, once per idempotency key: claim, start, receipt."""

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
    Receipt,
    ReceiptState,
    Slot,
    accepted,
    check_content,
    finding_of,
    is_other_content,
    is_settled,
    left_open,
    may_have_expired,
    receipt_key,
)
from pyoco_server.domain.events.requests import EventRequest, content_digest, decide_period, run_params
from pyoco_server.domain.events.templates import Action, Template
from pyoco_server.domain.runs.jobs import Submission
from pyoco_server.domain.secrets.references import References, read as read_references, under
from pyoco_server.errors import (
    LimitReached,
    NatsUnavailable,
    OutcomeUnknown,
    PyocoServerError,
    RequestTooLarge,
    RunConflict,
    StillStarting,
    UnsupportedAction,
)
from pyoco_server.logs import best_effort, get_logger
from pyoco_server.usecases.concurrency import wait_at_most
from pyoco_server.usecases.consistency import change_value, write
from pyoco_server.usecases.events.definitions import ManageActions, tenant_key
from pyoco_server.usecases.ports.gateway import ExecutionOrder, Executions, ListedStore
from pyoco_server.usecases.ports.runs import RunStore
from pyoco_server.usecases.ports.stores import Clock, Store, Versioned, WrongRevision
from pyoco_server.usecases.runs.submit import SubmitRun

log = get_logger(__name__)

PATIENCE_SEC = 3.0
"""How long a repeat waits for the first event to start before it is answered with 409."""
POLL_SEC = 0.05
MAX_PARAMS_BYTES = 256 * 1024
"""The limit of every run."""


class StartOrder(Struct, frozen=True, kw_only=True):
    template: Template
    request: EventRequest
    api_key_id: str | None = None
    schedule_id: str | None = None
    due_at: float | None = None

    @property
    def tenant_id(self) -> str | None:
        return self.template.tenant_id

    @property
    def receipt_key(self) -> str | None:
        """None: the event has no idempotency key."""
        key = self.request.key
        return None if key is None else receipt_key(self.tenant_id, self.template.id, key)


class Started(Struct, frozen=True, kw_only=True):
    run_id: str
    execution_id: str | None = None
    is_duplicate: bool = False
    is_mismatch: bool = False
    """A duplicate whose content differs from the first."""
    was_queued: bool = False
    """An earlier try failed, so there may be a retry job."""


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
        """Raises a PyocoServerError; except for StillStarting, the key may then be used again."""
        action = await self._actions.executable(order.tenant_id, order.template.first.action)
        where = order.receipt_key
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

    async def start_as(self, order: StartOrder, run_id: str, at: float) -> Started:
        """Start it under an id that is chosen already, once however often it is called."""
        action = await self._actions.executable(order.tenant_id, order.template.first.action)
        return await self._start(order, action, run_id, at)

    # The claim

    async def _claim(self, where: str, order: StartOrder, action: Action) -> "_Claimed | Started":
        """The claim, or what was already started under this key."""
        may_expire = not templates.needs_execution(order.template, action)  # executions do not expire
        deadline, content = self._monotonic() + self._patience_sec, content_digest(order.request)
        is_known = await self._is_ours_over(where)
        while True:
            fresh = self._fresh_receipt(order, content)
            found = await self._receipts.get(where) if is_known else None
            if found is not None:
                claimed = await self._claim_again(where, found, fresh, deadline, may_expire=may_expire)
            else:
                claimed = await self._write_claim(where, fresh, None)
                if claimed is None and is_known and self._monotonic() > deadline:  # a lagging replica answers
                    raise NatsUnavailable("the receipt of this idempotency_key cannot be read")
            if claimed is not None:
                return claimed
            is_known = True

    async def _claim_again(
        self, where: str, found: Versioned[Receipt], fresh: Receipt, deadline: float, *, may_expire: bool
    ) -> "_Claimed | Started | None":
        """None: the receipt may have changed; read it again."""
        check_content(found.value.content, fresh.content, is_strict=self._strict_keys)
        match finding_of(found.value, fresh.content, self._clock(), self._ttl_days):
            case AlreadyStarted(receipt):
                return _duplicate(receipt, fresh.content)
            case BeingStarted():
                await self._wait_for(where, deadline)
                return None
            case CarryOn(receipt):
                if may_expire:
                    await self._check_not_expired(found.value)
                return await self._write_claim(where, receipt, found, is_repeat=True)
            case _:
                return await self._write_claim(where, fresh, found)

    async def _write_claim(
        self, where: str, wanted: Receipt, found: Versioned[Receipt] | None, *, is_repeat: bool = False
    ) -> "_Claimed | None":
        """None: another request was faster."""
        try:
            revision = await write(self._receipts, where, wanted, found)
        except WrongRevision:
            return None
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
        """Prevents a second start of a run that was started, ended and expired."""
        if not may_have_expired(receipt, self._clock(), self._runs_retention_sec):
            return
        if await self._runs.get(receipt.run_id) is None:
            raise OutcomeUnknown(
                f"an earlier event with this idempotency_key was interrupted; its run {receipt.run_id}, "
                f"if it was started, has expired (PYOCO_RUNS_RETENTION_SEC={self._runs_retention_sec:g}); "
                "to start another run, use another key"
            )

    async def _is_ours_over(self, where: str) -> bool:
        """Equal events often arrive together: all but the first wait here without asking the store."""
        ours = self._being_started.get(where)
        if ours is not None:
            await wait_at_most(ours, self._patience_sec)
        return ours is not None

    async def _wait_for(self, where: str, deadline: float) -> None:
        """Until the event may have been started. Raises StillStarting after the deadline."""
        left = deadline - self._monotonic()
        if left <= 0:
            raise StillStarting("an event with this idempotency_key is being started")
        ours = self._being_started.get(where)
        if ours is None:  # on another gateway
            await asyncio.sleep(min(POLL_SEC, left))
            return
        await wait_at_most(ours, left)

    @asynccontextmanager
    async def _starting(self, claimed: _Claimed) -> AsyncIterator[None]:
        """On any error inside, the key is released, or left open for the next try."""
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
                # A conflict of an action that runs one at a time comes before the run is submitted.
                opened = left_open(
                    receipt, is_maybe_placed=not isinstance(error, (RunConflict, LimitReached))
                )
                await self._receipts.update(claimed.where, opened, revision)
        except WrongRevision:
            log.debug("claim taken over by a repeat", action="event.taken_over")

    async def _keep_receipt(self, claimed: _Claimed, started: Started) -> None:
        """Best effort: without it a repeat does the same work again, which is harmless."""
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
        own, references = read_references(action.params)
        of_event = run_params({}, order.request, order.template, about)
        params = {**own, **of_event}
        if len(msgspec.json.encode(params)) > MAX_PARAMS_BYTES:
            raise RequestTooLarge(f"params: more than {MAX_PARAMS_BYTES} bytes of JSON")
        if action.concurrency == "one":
            await self._take_slot(order, action, run_id)
        if not templates.needs_execution(order.template, action):
            # What the event contains replaces params of the action, and never names a secret.
            known = None if references is None else under(references, own.keys() - of_event.keys())
            await self._place_run(order, action, run_id, (params, known), at)
            return Started(run_id=run_id)
        first_run = await self._start_execution(order, action, run_id, params)
        return Started(run_id=first_run, execution_id=run_id)

    async def _place_run(
        self,
        order: StartOrder,
        action: Action,
        run_id: str,
        params: tuple[dict[str, object], References | None],
        at: float,
    ) -> None:
        submission = Submission(
            flow_name=action.flow_name or "",
            params=params[0],
            references=params[1],
            tag=action.tag or self._default_tag,
            tenant_id=order.tenant_id,
            api_key_id=order.api_key_id,
            **action.timing(),
            schedule_id=order.schedule_id,
            due_at=order.due_at,
        )
        await self._submit_run.place_claimed(await self._submit_run.job_of(submission, run_id, at))

    async def _start_execution(
        self, order: StartOrder, action: Action, execution_id: str, params: dict[str, object]
    ) -> str:
        """The run id in the claim becomes the execution id; the run ids of its nodes are derived from it."""
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
        """Raises RunConflict while the run that holds the slot is active."""
        key = tenant_key(order.tenant_id, action.key)
        current = await self._slots.get(key)
        if current is not None and current.value.run_id == run_id:
            return
        if current is not None and await self._is_taken(current.value):
            raise RunConflict(f"action {action.key} runs one at a time, and {current.value.run_id} is active")
        try:
            await write(self._slots, key, Slot(run_id, self._clock()), current)
        except WrongRevision:
            raise RunConflict(f"action {action.key} runs one at a time, and another run was faster") from None

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
    """Whether a retry counts as a new event."""
    if not isinstance(error, PyocoServerError):
        return False
    return reason_of(error).retry_advice is not RetryAdvice.RETRY_WITH_BACKOFF


def _or_ours(found: Receipt | None, ours: Receipt) -> Receipt | None:
    """It was evicted, or a repeat took it over and starts the same run."""
    if found is None:
        return ours
    is_behind = found.run_id == ours.run_id and found.state is not ReceiptState.ACCEPTED
    return ours if is_behind else None
