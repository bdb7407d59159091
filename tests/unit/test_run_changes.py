"""REQ-0008, REQ-0009, REQ-0023, REQ-0024: what may happen to a run, and what never does."""

from typing import Any

import pytest
from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from pyoco_server.domain.artifacts import RunArtifact
from pyoco_server.domain.runs.changes import (
    Admit,
    Beat,
    Claim,
    Conclude,
    ConvergeCancel,
    Expire,
    GiveUp,
    GiveUpPlaces,
    KeepArtifact,
    LinkRetry,
    Refusal,
    Report,
    RequestCancel,
    RunChange,
    decide,
)
from pyoco_server.domain.runs.jobs import pending
from pyoco_server.domain.runs.model import (
    FailureKind,
    Owner,
    RunLimit,
    RunProgress,
    RunSnapshot,
    RunStatus,
    TaskRecord,
    TaskState,
    replace,
)
from support.builders import NOW, OWNER, a_job, a_snapshot
from support.tables import every_row

EARLIER = Owner("worker-b", "instance-9", OWNER.attempt - 1)
ARTIFACT = RunArtifact("a.html", 5, "text/html", "0" * 64, "t", NOW)
SAME_ATTEMPT = Owner("worker-b", "instance-9", OWNER.attempt)
LATER = Owner("worker-b", "instance-9", OWNER.attempt + 1)


def conclude(owner: Owner, status: Any = RunStatus.COMPLETED) -> Conclude:
    return Conclude(owner=owner, status=status, tasks={"t": TaskState.SUCCEEDED}, result={"t": 1})


# `held` is who holds the snapshot (nobody or OWNER); the cells say what becomes of it:
# a status, `same` (nothing to write), `terminal` or `fenced` (the refusals).
TABLE = """
change             held    PENDING    RUNNING    CANCELLING COMPLETED FAILED   CANCELLED
claim              nobody  RUNNING    RUNNING    CANCELLED  terminal  terminal terminal
claim              owner   same       same       same       terminal  terminal terminal
claim_earlier      owner   fenced     fenced     fenced     terminal  terminal terminal
claim_same_attempt owner   fenced     fenced     fenced     terminal  terminal terminal
claim_later        owner   RUNNING    RUNNING    CANCELLED  terminal  terminal terminal
report             nobody  fenced     fenced     fenced     terminal  terminal terminal
report             owner   PENDING    RUNNING    CANCELLING terminal  terminal terminal
report_other       owner   fenced     fenced     fenced     terminal  terminal terminal
beat               nobody  fenced     fenced     fenced     terminal  terminal terminal
beat               owner   PENDING    RUNNING    CANCELLING terminal  terminal terminal
beat_other         owner   fenced     fenced     fenced     terminal  terminal terminal
keep_artifact      nobody  fenced     fenced     fenced     terminal  terminal terminal
keep_artifact      owner   PENDING    RUNNING    CANCELLING terminal  terminal terminal
keep_artifact_other owner  fenced     fenced     fenced     terminal  terminal terminal
completed          nobody  fenced     fenced     fenced     terminal  terminal terminal
completed          owner   COMPLETED  COMPLETED  CANCELLED  terminal  terminal terminal
completed_other    owner   fenced     fenced     fenced     terminal  terminal terminal
failed             nobody  fenced     fenced     fenced     terminal  terminal terminal
failed             owner   FAILED     FAILED     CANCELLED  terminal  terminal terminal
failed_other       owner   fenced     fenced     fenced     terminal  terminal terminal
cancelled          nobody  fenced     fenced     fenced     terminal  terminal terminal
cancelled          owner   CANCELLED  CANCELLED  CANCELLED  terminal  terminal terminal
cancelled_other    owner   fenced     fenced     fenced     terminal  terminal terminal
request_cancel     nobody  CANCELLING CANCELLING same       same      same     same
request_cancel     owner   CANCELLING CANCELLING same       same      same     same
converge_cancel    nobody  same       same       CANCELLED  terminal  terminal terminal
converge_cancel    owner   same       same       same       terminal  terminal terminal
converge_overdue   owner   same       same       CANCELLED  terminal  terminal terminal
converge_overdue   nobody  same       same       CANCELLED  terminal  terminal terminal
give_up            nobody  FAILED     FAILED     CANCELLED  terminal  terminal terminal
give_up            owner   FAILED     FAILED     CANCELLED  terminal  terminal terminal
give_up_earlier    owner   fenced     fenced     fenced     terminal  terminal terminal
expire             nobody  FAILED     same       same       terminal  terminal terminal
expire             owner   same       same       same       terminal  terminal terminal
link_retry         nobody  same       same       same       COMPLETED FAILED   CANCELLED
link_retry         owner   same       same       same       COMPLETED FAILED   CANCELLED
admit              nobody  same       same       same       terminal  terminal terminal
give_up_places     nobody  same       same       same       terminal  terminal terminal
"""

CHANGES: dict[str, RunChange] = {
    "claim": Claim(OWNER),
    "claim_earlier": Claim(EARLIER),
    "claim_same_attempt": Claim(SAME_ATTEMPT),
    "claim_later": Claim(LATER),
    "report": Report(OWNER, {"t": TaskState.RUNNING}, {"t": TaskRecord(state=TaskState.RUNNING)}),
    "report_other": Report(LATER, {}, {}),
    "beat": Beat(OWNER),
    "beat_other": Beat(LATER),
    "keep_artifact": KeepArtifact(OWNER, ARTIFACT),
    "keep_artifact_other": KeepArtifact(LATER, ARTIFACT),
    "completed": conclude(OWNER, RunStatus.COMPLETED),
    "completed_other": conclude(LATER, RunStatus.COMPLETED),
    "failed": conclude(OWNER, RunStatus.FAILED),
    "failed_other": conclude(LATER, RunStatus.FAILED),
    "cancelled": conclude(OWNER, RunStatus.CANCELLED),
    "cancelled_other": conclude(LATER, RunStatus.CANCELLED),
    "request_cancel": RequestCancel(requested_by="anonymous"),
    "converge_cancel": ConvergeCancel(),
    "converge_overdue": ConvergeCancel(is_overdue=True),
    "give_up": GiveUp(error="gone", kind=FailureKind.LOST_JOB, last_attempt=OWNER.attempt),
    "give_up_earlier": GiveUp(error="gone", kind=FailureKind.LOST_JOB, last_attempt=EARLIER.attempt),
    "expire": Expire(),
    "admit": Admit((), ""),
    "give_up_places": GiveUpPlaces(),
    "link_retry": LinkRetry("0190aaaa-bbbb-7ccc-8ddd-eeeeffff0002"),
}


def _cells() -> list[tuple[str, str, RunStatus, str]]:
    header, *rows = [line.split() for line in TABLE.strip().splitlines()]
    statuses = [RunStatus(name) for name in header[2:]]
    return [
        (change, held, status, expected)
        for change, held, *cells in rows
        for status, expected in zip(statuses, cells, strict=True)
    ]


def test_the_table_has_every_change_and_every_status() -> None:
    cells = _cells()
    assert {change for change, *_ in cells} == set(CHANGES)
    assert {status for _, _, status, _ in cells} == set(RunStatus)
    assert {type(change) for change in CHANGES.values()} == set(RunChange.__args__)


@every_row(("change", "held", "status", "expected"), _cells())
def test_what_becomes_of_a_run(change: str, held: str, status: RunStatus, expected: str) -> None:
    snapshot = a_snapshot(status, OWNER if held == "owner" else None)
    decision = decide(snapshot, CHANGES[change], NOW + 1)
    if isinstance(decision, Refusal):
        assert decision == expected
    elif decision is snapshot:
        assert expected == "same"
    else:
        assert decision.status == expected


@pytest.mark.parametrize(
    ("ended_as", "expected"),
    [
        (RunStatus.CANCELLED, ["CANCELLED", "CANCELLED", "SUCCEEDED", "FAILED"]),
        (RunStatus.FAILED, ["PENDING", "FAILED", "SUCCEEDED", "FAILED"]),
    ],
)
def test_no_task_is_left_running_in_a_run_that_has_ended(ended_as: Any, expected: list[str]) -> None:
    states = (TaskState.PENDING, TaskState.RUNNING, TaskState.SUCCEEDED, TaskState.FAILED)
    snapshot = a_snapshot(RunStatus.RUNNING, OWNER, tasks={state.lower(): state for state in states})
    decision = decide(snapshot, Conclude(owner=OWNER, status=ended_as), NOW)
    assert isinstance(decision, RunSnapshot)
    assert list(decision.tasks.values()) == expected


def test_a_takeover_starts_from_nothing() -> None:
    """The new owner runs the flow from its beginning: nothing of the old attempt may be shown as its own."""
    held = a_snapshot(
        RunStatus.RUNNING,
        OWNER,
        tasks={"t": TaskState.RUNNING},
        task_records={"t": TaskRecord(state=TaskState.RUNNING)},
        task_records_truncated=True,
        start_time=NOW,
    )
    taken = decide(held, Claim(LATER), NOW + 5)
    assert isinstance(taken, RunSnapshot)
    assert (taken.owner, taken.tasks, taken.task_records) == (LATER, {}, {})
    assert (taken.task_records_truncated, taken.start_time) == (False, NOW + 5)


def test_progress_is_of_the_current_attempt_and_survives_a_crash_at_the_end() -> None:
    mark = RunProgress(0.4, "loading")
    running = decide(a_snapshot(RunStatus.RUNNING, OWNER), Report(OWNER, {}, {}, progress=mark), NOW)
    assert isinstance(running, RunSnapshot)
    assert running.progress == mark
    crashed = decide(running, conclude(OWNER, RunStatus.FAILED), NOW)
    again = decide(running, Claim(Owner("worker-c", "instance-7", OWNER.attempt + 1)), NOW)
    assert isinstance(crashed, RunSnapshot)
    assert isinstance(again, RunSnapshot)
    assert (crashed.progress, again.progress) == (mark, None)


def test_an_artifact_replaces_that_of_the_same_name_and_survives_a_takeover() -> None:
    def decided(run: RunSnapshot, change: RunChange) -> RunSnapshot:
        after = decide(run, change, NOW)
        assert isinstance(after, RunSnapshot)
        return after

    run = a_snapshot(RunStatus.RUNNING, OWNER)
    other, newer = replace(ARTIFACT, name="b"), replace(ARTIFACT, size=7)
    for artifact in (ARTIFACT, other, newer):
        run = decided(run, KeepArtifact(OWNER, artifact))
    assert run.artifacts == (other, newer)
    assert decide(run, KeepArtifact(OWNER, newer), NOW) is run
    assert decided(run, Claim(LATER)).artifacts == (other, newer)


def test_a_run_of_another_make_without_an_attempt_can_be_taken_over() -> None:
    held = a_snapshot(RunStatus.RUNNING, worker_id="other-make")
    taken = decide(held, Claim(OWNER), NOW)
    assert isinstance(taken, RunSnapshot)
    assert taken.owner == OWNER


@every_row(
    ("change", "refused"),
    [
        (Claim(LATER, job_seq=8), True),
        (Claim(OWNER, job_seq=8), True),
        (Claim(LATER, job_seq=7), False),
        (Claim(LATER), False),
        (GiveUp(error="x", kind=FailureKind.LOST_JOB, last_attempt=OWNER.attempt, job_seq=8), True),
        (GiveUp(error="x", kind=FailureKind.LOST_JOB, last_attempt=OWNER.attempt, job_seq=7), False),
        (GiveUp(error="x", kind=FailureKind.LOST_JOB, last_attempt=OWNER.attempt), False),
    ],
)
@every_row("status", [RunStatus.RUNNING, RunStatus.CANCELLING])
def test_d03_a_second_job_has_no_say_in_a_run(change: RunChange, status: RunStatus, *, refused: bool) -> None:
    """D03: the run is carried out under job 7, whoever delivers job 8, and however often."""
    decision = decide(a_snapshot(status, OWNER, job_seq=7), change, NOW)
    assert (decision is Refusal.OTHER_JOB) is refused


def test_d03_a_run_that_nobody_holds_is_any_jobs() -> None:
    """D03: the job that it was placed with may be gone; and a worker of another make leaves no number."""
    for held in (a_snapshot(), a_snapshot(RunStatus.RUNNING, OWNER)):
        taken = decide(held, Claim(LATER, job_seq=8), NOW)
        assert isinstance(taken, RunSnapshot)
        assert (taken.owner, taken.job_seq) == (LATER, 8)


def test_a_heartbeat_is_no_news() -> None:
    snapshot = a_snapshot(RunStatus.RUNNING, OWNER)
    beaten = decide(snapshot, Beat(OWNER), NOW + 9)
    assert isinstance(beaten, RunSnapshot)
    assert (beaten.heartbeat_at, beaten.updated_at) == (NOW + 9, NOW)


def test_a_cancel_records_who_asked_when_and_why() -> None:
    """REQ-0023"""
    wanted = RequestCancel(requested_by="api_key:k1", reason="too slow")
    asked = decide(a_snapshot(RunStatus.RUNNING, OWNER), wanted, NOW + 3)
    assert isinstance(asked, RunSnapshot)
    assert (asked.cancel_requested_by, asked.cancel_reason) == ("api_key:k1", "too slow")
    assert asked.cancel_requested_at == NOW + 3


def test_the_result_of_a_flow_that_ended_after_the_cancel_is_not_shown() -> None:
    decision = decide(a_snapshot(RunStatus.CANCELLING, OWNER), conclude(OWNER), NOW)
    assert isinstance(decision, RunSnapshot)
    assert (decision.status, decision.result) == (RunStatus.CANCELLED, None)


owners = st.builds(
    Owner,
    worker_id=st.sampled_from(["a", "b"]),
    instance_id=st.sampled_from(["1", "2"]),
    attempt=st.integers(1, 4),
)
task_states = st.dictionaries(st.sampled_from(["t", "u"]), st.sampled_from(TaskState), max_size=2)
endings = st.sampled_from([RunStatus.COMPLETED, RunStatus.FAILED, RunStatus.CANCELLED])


class RunLife(RuleBasedStateMachine):
    """Any sequence of changes, by anybody, with clocks that disagree."""

    @initialize()
    def submitted(self) -> None:
        self.run = pending(a_job(submitted_at=NOW))

    @rule(owner=owners, skew=st.floats(-50, 50))
    def claim(self, owner: Owner, skew: float) -> None:
        self._apply(Claim(owner), skew)

    @rule(owner=owners, tasks=task_states, skew=st.floats(-50, 50))
    def report(self, owner: Owner, tasks: dict[str, TaskState], skew: float) -> None:
        self._apply(Report(owner, tasks, {}), skew)

    @rule(tasks=task_states, skew=st.floats(-50, 50))
    def report_of_the_holder(self, tasks: dict[str, TaskState], skew: float) -> None:
        if self.run.owner is not None:
            self._apply(Report(self.run.owner, tasks, {}), skew)

    @rule(owner=owners, skew=st.floats(-50, 50))
    def beat(self, owner: Owner, skew: float) -> None:
        self._apply(Beat(owner), skew)

    @rule(owner=owners, status=endings, skew=st.floats(-50, 50))
    def conclude(self, owner: Owner, status: Any, skew: float) -> None:
        self._apply(Conclude(owner=owner, status=status), skew)

    @rule(skew=st.floats(-50, 50))
    def request_cancel(self, skew: float) -> None:
        self._apply(RequestCancel(requested_by="somebody"), skew)

    @rule(skew=st.floats(-50, 50))
    def converge_cancel(self, skew: float) -> None:
        self._apply(ConvergeCancel(), skew)

    @rule(last_attempt=st.integers(0, 3), skew=st.floats(-50, 50))
    def give_up(self, last_attempt: int, skew: float) -> None:
        self._apply(GiveUp(error="gone", kind=FailureKind.LOST_JOB, last_attempt=last_attempt), skew)

    def _apply(self, change: RunChange, skew: float) -> None:
        before, now = self.run, NOW + skew
        after = decide(before, change, now)
        if isinstance(after, Refusal):
            return
        _check_step(before, change, after)
        _check_repeat(after, decide(after, change, now + 1))
        self.run = after

    @invariant()
    def can_be_ended(self) -> None:
        if hasattr(self, "run") and not self.run.status.is_terminal:
            ended = decide(
                self.run, GiveUp(error="nobody is left", kind=FailureKind.LOST_JOB, last_attempt=99), NOW
            )
            assert isinstance(ended, RunSnapshot)
            assert ended.status.is_terminal


def _check_step(before: RunSnapshot, change: RunChange, after: RunSnapshot) -> None:
    assert after.updated_at >= before.updated_at
    assert (after.run_id, after.params) == (before.run_id, before.params)
    if before.status.is_terminal:
        assert after is before
    if before.status is RunStatus.CANCELLING:
        assert after.status in (RunStatus.CANCELLING, RunStatus.CANCELLED)
    if after.owner != before.owner:
        assert isinstance(change, Claim)
        assert before.owner is None or change.owner.attempt > before.owner.attempt
    if isinstance(change, Report | Beat | Conclude):
        assert change.owner == before.owner
    if after.status.is_terminal and after.status is not RunStatus.COMPLETED:
        assert TaskState.RUNNING not in after.tasks.values()


def _check_repeat(once: RunSnapshot, again: RunSnapshot | Refusal) -> None:
    """A change that is made twice (its first answer was lost) changes nothing that matters."""
    if isinstance(again, Refusal):
        assert once.status.is_terminal
    else:
        assert (again.status, again.owner, again.tasks) == (once.status, once.owner, once.tasks)


TestRunLife = RunLife.TestCase
TestRunLife.settings = settings(max_examples=100, stateful_step_count=25)


def test_only_a_waiting_run_is_admitted() -> None:
    limits = (RunLimit("two", "a"),)
    waiting = replace(a_snapshot(RunStatus.PENDING, None), limits=limits)
    assert waiting.is_held
    admitted = decide(waiting, Admit(limits, "rules"), NOW + 1)
    assert isinstance(admitted, RunSnapshot)
    assert (admitted.admitted_try, admitted.is_held, admitted.status) == (1, False, RunStatus.PENDING)
    assert decide(admitted, Admit(limits, "rules"), NOW + 2) is admitted
    assert decide(admitted, GiveUpPlaces(), NOW + 2) is admitted
    touched = decide(waiting, GiveUpPlaces(), NOW + 1)
    assert isinstance(touched, RunSnapshot)
    assert touched.is_held
    assert touched.updated_at > waiting.updated_at
