"""Retry jobs: the whole ladder, with a clock of the test's own."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from pyoco_server import tracing
from pyoco_server.domain.events.receipts import receipt_key
from pyoco_server.domain.events.retry import JobStatus, RetryJob, delay, due_first, in_turn, job_id
from pyoco_server.domain.events.templates import Step, Template, TriggerKind
from pyoco_server.domain.fleet import LeaseRecord
from pyoco_server.domain.runs.model import RunStatus
from pyoco_server.domain.traces import Trace
from pyoco_server.errors import EventFailed, NatsUnavailable, WorkflowConflict, WorkflowNotFound
from pyoco_server.usecases.auth import ANONYMOUS
from pyoco_server.usecases.events.definitions import tenant_key
from pyoco_server.usecases.events.retry import MAX_LIMIT
from pyoco_server.usecases.events.start import StartTemplate
from support.builders import OWNER, a_snapshot
from support.events import ACTION, EventsLab, events_lab, post, prepare
from support.recorded_traces import Recording
from support.waiting import until

BASE = 30.0


@pytest.fixture
async def lab() -> AsyncIterator[EventsLab]:
    async with events_lab() as found:
        await prepare(found)
        yield found


async def occupy(lab: EventsLab) -> None:
    """A run of the action is active, so that every other is a conflict."""
    first = await post(lab, "first")
    assert first.started is not None
    await set_status(lab, first.started.run_id, RunStatus.RUNNING)


async def set_status(lab: EventsLab, run_id: str, status: RunStatus) -> None:
    stored = await lab.backend.runs.get(run_id)
    assert stored is not None
    await lab.backend.runs.update(run_id, a_snapshot(status, OWNER, run_id=run_id), stored.revision)


async def free(lab: EventsLab) -> None:
    slot = await lab.backend.events.slots.get(f"=.{ACTION}")
    assert slot is not None
    await set_status(lab, slot.value.run_id, RunStatus.COMPLETED)


async def drain(lab: EventsLab, *, force: bool = False, limit: int = 10) -> dict[str, Any]:
    return await lab.use_cases.drain_retry_jobs(limit, ANONYMOUS, force=force)


async def the_job(lab: EventsLab, key: str = "k") -> RetryJob:
    stored = await lab.backend.events.retry_jobs.get("=." + job_id(receipt_key(None, "close", key)))
    assert stored is not None
    return stored.value


async def queued(lab: EventsLab) -> RetryJob:
    await occupy(lab)
    answer = await post(lab)
    assert answer.job is not None
    return await the_job(lab)


async def test_a_conflict_with_an_active_run_is_queued(lab: EventsLab) -> None:
    await occupy(lab)
    answer = await post(lab, source="erp", data={"x": 1})
    assert answer.error is not None
    assert answer.reason is not None
    assert (answer.error.status, answer.reason.reason_class) == (409, "run_conflict")
    assert (answer.reason.reason_code, answer.reason.retry_advice) == ("http_409", "retry_with_backoff")
    job = await the_job(lab)
    assert answer.job == job
    assert (job.template_id, job.action, job.source, job.idempotency_key, job.data) == (
        "close",
        ACTION,
        "erp",
        "k",
        {"x": 1},
    )
    assert (job.status, job.attempts, job.max_attempts) == (JobStatus.PENDING, 0, 3)
    assert job.last_reason_class == "run_conflict"
    assert BASE <= job.next_retry_at - lab.clock.now <= BASE * 1.1


async def test_a_run_that_starts_by_a_retry_is_in_the_trace_of_its_event(
    lab: EventsLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if another gateway retries it: the context is in the job."""
    tracer = Recording()
    monkeypatch.setattr(tracing, "active", tracer)
    job = await queued(lab)
    event = tracer.spans[-1]
    assert (event.name, event.attributes["pyoco.template"]) == ("pyoco.event", "close")
    assert job.trace == Trace(traceparent=f"00-{event.trace_id}-{event.span_id}-01")
    await free(lab)
    await drain(lab, force=True)
    run_id = (await the_job(lab)).last_run_id
    assert run_id is not None
    run = await lab.backend.runs.get(run_id)
    assert run is not None
    assert run.value.trace == job.trace


async def test_an_event_without_a_key_is_never_queued(lab: EventsLab) -> None:
    await occupy(lab)
    answer = await post(lab, None)
    assert (answer.error is not None, answer.job) == (True, None)
    assert await lab.backend.events.retry_jobs.count() == 0


async def test_what_a_fix_is_needed_for_is_never_queued(lab: EventsLab) -> None:
    answer = await post(lab, template_id="nope")
    assert (answer.error is not None, answer.job) == (True, None)
    assert await lab.backend.events.retry_jobs.count() == 0


async def test_without_nats_nothing_is_said_to_be_queued(
    lab: EventsLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def away(*_: Any) -> None:
        raise NatsUnavailable

    monkeypatch.setattr(StartTemplate, "_place_run", away)
    answer = await post(lab)
    assert answer.error is not None
    assert (answer.error.status, answer.job) == (503, None)


async def test_the_ladder_goes_up_to_the_escalation(lab: EventsLab) -> None:
    job = await queued(lab)
    for attempt, factor in ((1, 2), (2, 4)):
        lab.clock.now = job.next_retry_at - 1
        assert (await drain(lab))["processed"] == 0, "not before its time"
        lab.clock.now = job.next_retry_at
        done = await drain(lab)
        assert (done["processed"], done["retrying"], done["remaining_due"]) == (1, 1, 0)
        job = await the_job(lab)
        assert (job.status, job.attempts) == (JobStatus.RETRYING, attempt)
        assert BASE * factor <= job.next_retry_at - lab.clock.now <= BASE * factor * 1.1
    lab.clock.now = job.next_retry_at
    done = await drain(lab)
    assert (done["processed"], done["escalated"]) == (1, 1)
    job = await the_job(lab)
    assert (job.status, job.attempts) == (JobStatus.ESCALATED, 3)
    assert (await drain(lab, force=True))["processed"] == 0, "it is left to a person"


async def test_a_drain_starts_the_event_once_it_can(lab: EventsLab) -> None:
    job = await queued(lab)
    await free(lab)
    lab.clock.now = job.next_retry_at
    done = await drain(lab)
    assert (done["processed"], done["succeeded"]) == (1, 1)
    job = await the_job(lab)
    assert (job.status, job.last_run_id is not None) == (JobStatus.SUCCEEDED, True)
    again = await post(lab)
    assert again.started is not None
    assert (again.started.is_duplicate, again.started.run_id) == (True, job.last_run_id)


async def test_force_takes_jobs_before_their_time(lab: EventsLab) -> None:
    await queued(lab)
    await free(lab)
    assert (await drain(lab))["processed"] == 0
    assert (await drain(lab, force=True))["succeeded"] == 1


async def test_a_drain_takes_those_that_are_due_longest_and_no_more_than_it_may(lab: EventsLab) -> None:
    await occupy(lab)
    for number in range(3):
        await post(lab, f"k{number}")
        lab.clock.advance(10)
    lab.clock.advance(100)
    assert (await drain(lab, limit=2))["processed"] == 2
    assert [(await the_job(lab, f"k{number}")).attempts for number in range(3)] == [1, 1, 0]


def due(name: str, tenant_id: str | None, at: float) -> RetryJob:
    return RetryJob(
        id=name,
        template_id="close",
        template_name="Close",
        action="a",
        idempotency_key=name,
        max_attempts=3,
        next_retry_at=at,
        created_at=at,
        updated_at=at,
        tenant_id=tenant_id,
    )


def test_a_drain_takes_jobs_of_each_tenant_in_turn() -> None:
    """D53, A16: a tenant with many jobs delays no other's."""
    loud = [due(f"l{number}", "loud", number) for number in range(100)]
    jobs = due_first([*loud, due("q0", "quiet", 500), due("q1", "quiet", 501)], 1000, force=False)
    assert [job.id for job in in_turn(jobs)[:6]] == ["l0", "q0", "l1", "q1", "l2", "l3"]
    assert in_turn(loud) == loud


async def test_a_drain_that_cannot_take_all_jobs_takes_some_of_each_tenant(lab: EventsLab) -> None:
    """D53, A16"""
    jobs = lab.backend.events.retry_jobs
    wanted = [due(f"l{number}", "loud", number) for number in range(MAX_LIMIT + 1)] + [due("q", "quiet", 999)]
    for job in wanted:
        await jobs.create(tenant_key(job.tenant_id, job.id), job)
    await lab.use_cases.drain_retry_jobs._drain_all_due()
    left = {job.id for job in await jobs.list_values() if job.status is JobStatus.PENDING}
    assert left == {f"l{MAX_LIMIT - 1}", f"l{MAX_LIMIT}"}


async def test_the_event_sent_again_while_its_job_waits_is_tried_at_once(lab: EventsLab) -> None:
    job = await queued(lab)
    lab.clock.advance(5)
    again = await post(lab)
    assert (again.error is not None, again.job) == (True, job), "it keeps its attempts and its time"
    await free(lab)
    answer = await post(lab)
    assert answer.started is not None
    assert answer.started.is_duplicate is False
    job = await the_job(lab)
    assert (job.status, job.last_run_id) == (JobStatus.SUCCEEDED, answer.started.run_id)


async def test_a_job_whose_event_was_started_otherwise_is_succeeded_by_its_receipt(lab: EventsLab) -> None:
    job = await queued(lab)
    await free(lab)
    answer = await post(lab)
    stored = await lab.backend.events.retry_jobs.get("=." + job.id)
    assert stored is not None
    await lab.backend.events.retry_jobs.update("=." + job.id, job, stored.revision)  # the mark was lost
    assert (await drain(lab, force=True))["succeeded"] == 1
    assert answer.started is not None
    assert (await the_job(lab)).last_run_id == answer.started.run_id


async def test_a_job_whose_template_is_gone_is_discarded(lab: EventsLab) -> None:
    await queued(lab)
    await lab.use_cases.templates.delete("close", None, ANONYMOUS)
    assert (await drain(lab, force=True))["discarded"] == 1
    assert (await the_job(lab)).status is JobStatus.DISCARDED


async def test_a_job_whose_template_starts_something_else_is_discarded(lab: EventsLab) -> None:
    await queued(lab)
    step = Step(id="one", action="another", trigger_kind=TriggerKind.EXTERNAL_EVENT)
    await lab.use_cases.templates.put(
        Template(id="close", name="Close", steps=(step,), updated_at=""), None, ANONYMOUS
    )
    assert (await drain(lab, force=True))["discarded"] == 1


async def test_a_job_that_needs_a_fix_is_discarded(lab: EventsLab) -> None:
    await queued(lab)
    await lab.use_cases.actions.delete(ACTION, ANONYMOUS)
    assert (await drain(lab, force=True))["discarded"] == 1
    assert (await the_job(lab)).last_reason_code == "unsupported_action"


async def test_an_outage_of_nats_costs_no_attempt(lab: EventsLab, monkeypatch: pytest.MonkeyPatch) -> None:
    job = await queued(lab)

    async def away(*_: Any) -> None:
        raise NatsUnavailable

    with monkeypatch.context() as patch:
        patch.setattr(StartTemplate, "_take_slot", away)
        with pytest.raises(NatsUnavailable):
            await drain(lab, force=True)
    assert await the_job(lab) == job
    await free(lab)
    assert (await drain(lab, force=True))["succeeded"] == 1, "and the lease was given back"


async def test_only_one_drains_at_a_time(lab: EventsLab, monkeypatch: pytest.MonkeyPatch) -> None:
    await queued(lab)
    reached, go_on = asyncio.Event(), asyncio.Event()

    async def slowly(*_: Any) -> None:
        reached.set()
        await go_on.wait()
        raise EventFailed

    monkeypatch.setattr(StartTemplate, "_take_slot", slowly)
    first = asyncio.ensure_future(drain(lab, force=True))
    await reached.wait()
    with pytest.raises(WorkflowConflict, match="another drain"):
        await drain(lab, force=True)
    go_on.set()
    assert (await first)["retrying"] == 1


async def test_a_lease_that_was_left_behind_runs_out(lab: EventsLab) -> None:
    await queued(lab)
    await lab.backend.events.leases.create("drain", LeaseRecord("dead", lab.clock.now + 30))
    with pytest.raises(WorkflowConflict):
        await drain(lab, force=True)
    lab.clock.advance(31)
    assert (await drain(lab, force=True))["processed"] == 1


async def test_the_queue_is_shown_with_its_counts_and_its_policy(lab: EventsLab) -> None:
    job = await queued(lab)
    shown = await lab.use_cases.retry_queue.shown(None, 20)
    assert (shown["total"], shown["due"], shown["jobs"]) == (1, 0, [job])
    assert shown["by_status"] == {
        "pending": 1,
        "retrying": 0,
        "succeeded": 0,
        "discarded": 0,
        "escalated": 0,
    }
    lab.clock.now = job.next_retry_at
    assert (await lab.use_cases.retry_queue.shown(None, 20))["due"] == 1
    policy = shown["policy"]
    assert (policy.max_attempts, policy.base_delay_seconds) == (3, 30)
    assert (policy.terminal_ttl_days, policy.max_jobs) == (30, 2000)


async def test_jobs_are_shown_with_the_latest_change_first(lab: EventsLab) -> None:
    await occupy(lab)
    for key in ("a", "b", "c"):
        await post(lab, key)
        lab.clock.advance(1)
    shown = await lab.use_cases.retry_queue.shown(None, 2)
    assert [job.idempotency_key for job in shown["jobs"]] == ["c", "b"]


async def test_jobs_that_have_ended_are_forgotten_after_a_while(lab: EventsLab) -> None:
    job = await queued(lab)
    await lab.use_cases.retry_queue.discard(job.id, ANONYMOUS)
    lab.clock.advance(30 * 86_400 - 1)
    assert (await lab.use_cases.retry_queue.shown(None, 20))["total"] == 1
    lab.clock.advance(2)
    assert (await lab.use_cases.retry_queue.shown(None, 20))["total"] == 0


async def test_a_full_queue_forgets_what_has_ended_and_refuses_when_all_is_active() -> None:
    async with events_lab(workflow_event_retry_max_jobs=2) as lab:
        await prepare(lab)
        await occupy(lab)
        for key in ("a", "b"):
            assert (await post(lab, key)).job is not None
        full = await post(lab, "c")
        assert full.error is not None
        assert full.reason is not None
        assert (full.error.status, full.job, full.reason.reason_code) == (503, None, "http_503")
        await lab.use_cases.retry_queue.discard((await the_job(lab, "a")).id, ANONYMOUS)
        assert (await post(lab, "c")).job is not None
        assert {job.idempotency_key for job in await lab.use_cases.retry_queue.jobs(None)} == {"b", "c"}
        assert (await post(lab, "b")).job is not None, "a job that waits already needs no room"


async def test_a_person_can_give_a_job_its_attempts_again_or_give_it_up(lab: EventsLab) -> None:
    job = await queued(lab)
    for _ in range(3):
        await drain(lab, force=True)
    assert (await the_job(lab)).status is JobStatus.ESCALATED
    again = await lab.use_cases.retry_queue.retry(job.id, ANONYMOUS)
    assert (again.status, again.attempts, again.next_retry_at) == (JobStatus.PENDING, 0, lab.clock.now)
    await free(lab)
    assert (await drain(lab))["succeeded"] == 1
    for change in (lab.use_cases.retry_queue.retry, lab.use_cases.retry_queue.discard):
        with pytest.raises(WorkflowConflict):
            await change(job.id, ANONYMOUS)
        for missing in ("nope", "a.b", "", "*"):
            with pytest.raises(WorkflowNotFound):
                await change(missing, ANONYMOUS)


@pytest.mark.parametrize(
    ("attempt", "expected"),
    [(1, 30.0), (2, 60.0), (3, 120.0), (12, 61_440.0), (13, 86_400.0), (9999, 86_400.0)],
)
def test_delays_double_up_to_a_day(attempt: int, expected: float) -> None:
    assert delay(attempt, 30, 0.0) == expected
    assert expected <= delay(attempt, 30, 1.0) <= min(expected * 1.1, 86_400.0)


async def test_a_drain_leaves_a_record_of_its_own_kind(lab: EventsLab) -> None:
    await queued(lab)
    await drain(lab, force=True)
    await free(lab)
    await drain(lab, force=True)
    retries = [
        e.record for e in lab.backend.events.audit.events if e.record.event_type == "workflow_event_retry"
    ]
    assert [record.status for record in retries] == ["rejected", "success"]
    assert retries[1].run_id is not None


async def test_the_worker_drains_by_itself(lab: EventsLab) -> None:
    async with events_lab(workflow_event_retry_worker_poll_seconds=0.01) as quick:
        await prepare(quick)
        job = await queued(quick)
        await free(quick)
        quick.clock.now = job.next_retry_at
        work = asyncio.ensure_future(quick.use_cases.background()["drain-retry-jobs"]())
        await until(lambda: the_job(quick), lambda found: found.status is JobStatus.SUCCEEDED)
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)


async def test_the_worker_can_be_switched_off() -> None:
    async with events_lab(workflow_event_retry_worker_enabled=False) as lab:
        assert "drain-retry-jobs" not in lab.use_cases.background()
        assert "notify-escalations" in lab.use_cases.background(), "a drain by hand escalates, too"
