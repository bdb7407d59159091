"""The diagnosis of a run: each situation gets its cause, and words in both languages."""

import re
from typing import Any, NamedTuple

import pytest
from msgspec.structs import replace

from pyoco_server.domain.diagnosis.causes import (
    Cause,
    CompletedRun,
    Facts,
    FlowSeen,
    QueueStanding,
    SameErrors,
    SeenWorker,
    cause_of,
    flow_seen,
    same_errors,
    signature,
)
from pyoco_server.domain.diagnosis.texts import explained
from pyoco_server.domain.fleet import WorkerState
from pyoco_server.domain.languages import duration
from pyoco_server.domain.queues import Paused, WaitingFor
from pyoco_server.domain.runs.model import (
    CodeWheel,
    FailureKind,
    RunFailure,
    RunRetry,
    RunSnapshot,
    RunStatus,
    RunTry,
)
from support.builders import NOW, OWNER, RUN_ID, a_snapshot, a_worker

LIVE = QueueStanding(tag="gpu", position=3, waiting=7, running=2, workers=1, slots=2, throughput_per_min=6)
DESERTED = QueueStanding(
    tag="gpu", position=1, waiting=1, running=0, workers=0, slots=0, throughput_per_min=0
)
SILENT = SeenWorker(worker_id="worker-a", state=WorkerState.DISCONNECTED, silent_sec=42.0)
THERE = SeenWorker(worker_id="worker-a", state=WorkerState.RUNNING, silent_sec=1.0)
LATER = NOW + 90


def waiting(**changes: Any) -> RunSnapshot:
    return a_snapshot(tag="gpu", submitted_at=NOW - 5, **changes)


def running(status: RunStatus = RunStatus.RUNNING, **changes: Any) -> RunSnapshot:
    return a_snapshot(status, OWNER, tag="gpu", start_time=NOW - 60, **changes)


def failed(kind: FailureKind, message: str = "ValueError: no rows", **changes: Any) -> RunSnapshot:
    failure = RunFailure(kind=kind, message=message, task=changes.pop("task", None))
    return a_snapshot(
        RunStatus.FAILED, OWNER, tag="gpu", error=message, failure=failure, end_time=NOW, **changes
    )


A_TRY = RunTry(
    n=1,
    started_at=NOW - 9,
    ended_at=NOW - 1,
    worker_id="worker-a",
    failure=RunFailure(kind=FailureKind.ERROR, message="ValueError: no rows"),
)
PAUSED_TAG = WaitingFor(paused=Paused(tag="gpu", reason="disk full", since=NOW - 60, until=None))
PAUSED_FLOW = WaitingFor(paused=Paused(flow="sample", reason=None, since=NOW - 60, until=LATER))
AT_LIMIT = WaitingFor(limit="per-customer", key="acme", position=4)


class Situation(NamedTuple):
    cause: Cause
    facts: Facts
    summary: str
    """A part of it."""
    advice: str
    """A part of one."""


def facts(run: RunSnapshot, **found: Any) -> Facts:
    return Facts(run=run, now=NOW, **{"queue": LIVE, **found})


SITUATIONS = {
    "no worker has the tag": Situation(
        Cause.NO_WORKER,
        facts(waiting(), queue=DESERTED, gone=(SILENT,)),
        "No live worker has the tag 'gpu'",
        "pyoco-worker --tags gpu",
    ),
    "its workers are busy": Situation(Cause.BUSY, facts(waiting()), "number 3 of 7", "in about 30 s"),
    "it is next": Situation(
        Cause.BUSY, facts(waiting(), queue=replace(LIVE, position=1)), "next in the queue", "add a worker"
    ),
    "it is far behind": Situation(
        Cause.BUSY, facts(waiting(), queue=replace(LIVE, position=None)), "7 runs wait", "add a worker"
    ),
    "its tag is paused": Situation(
        Cause.PAUSED,
        facts(waiting(), waiting_for=PAUSED_TAG),
        "The queue of the tag 'gpu' has been paused for 1 min (disk full).",
        "pyoco-client queues resume gpu",
    ),
    "its flow is paused": Situation(
        Cause.PAUSED,
        facts(waiting(), waiting_for=PAUSED_FLOW),
        "The flow 'sample' has been paused for 1 min.",
        "pyoco-client flows resume sample",
    ),
    "it is not due": Situation(
        Cause.DELAYED,
        facts(waiting(not_before=LATER), waiting_for=PAUSED_TAG),
        "can start in 1 min 30 s",
        f"pyoco-client cancel {RUN_ID}",
    ),
    "it waits for a limit": Situation(
        Cause.LIMIT,
        facts(waiting(), waiting_for=AT_LIMIT),
        "The limit 'per-customer' is reached for the key 'acme': the run is number 4 in line.",
        "pyoco-client limits keys per-customer",
    ),
    "it waits for its next try": Situation(
        Cause.NEXT_TRY,
        facts(waiting(not_before=LATER, tries=(A_TRY,), retry=RunRetry(max_attempts=3))),
        "Try 1 of 3 failed: ValueError: no rows. The next try can start in 1 min 30 s.",
        f"pyoco-client logs {RUN_ID}",
    ),
    "its worker is silent": Situation(
        Cause.WORKER_LOST,
        facts(running(), worker=SILENT, queue=DESERTED),
        "The worker 'worker-a' has not reported for 42 s",
        "pyoco-worker --tags gpu",
    ),
    "its worker was restarted": Situation(
        Cause.WORKER_LOST,
        facts(running(), worker=replace(THERE, is_same_instance=False)),
        "was restarted while it had the run",
        "journalctl -k",
    ),
    "its worker is forgotten": Situation(
        Cause.WORKER_LOST,
        facts(
            running(RunStatus.CANCELLING),
            worker=SeenWorker(worker_id="worker-a", state=None, silent_sec=None),
        ),
        "The worker 'worker-a' is gone",
        "pyoco-client workers --scope all",
    ),
    "it killed every worker": Situation(
        Cause.WORKER_LOST,
        facts(failed(FailureKind.MAX_DELIVER, "max_deliver: the job was delivered 5 times")),
        "every worker that took it was lost",
        f"pyoco-client retry {RUN_ID}",
    ),
    "it runs": Situation(
        Cause.RUNNING,
        facts(running(), worker=THERE),
        "running on the worker 'worker-a' for 1 min",
        f"pyoco-client watch {RUN_ID}",
    ),
    "a task failed": Situation(
        Cause.ERROR,
        facts(
            failed(FailureKind.ERROR, task="load"),
            log=("reading", "0 rows"),
            same_errors=SameErrors(count=5, failed=6, first_at=NOW - 999, is_partial=False),
        ),
        "The run failed in the task 'load': ValueError: no rows.",
        "not a passing one (5 times in 24 hours)",
    ),
    "an older worker stored only the error": Situation(
        Cause.ERROR,
        facts(a_snapshot(RunStatus.FAILED, OWNER, tag="gpu", error="boom")),
        "The run failed: boom.",
        f"pyoco-client retry {RUN_ID}",
    ),
    "its job was invalid": Situation(
        Cause.ERROR, facts(failed(FailureKind.INVALID_JOB, "no params")), "no params", "pyoco-client retry"
    ),
    "its job disappeared": Situation(
        Cause.ERROR, facts(failed(FailureKind.LOST_JOB, "lost")), "lost", "pyoco-client retry"
    ),
    "its flow is unknown": Situation(
        Cause.FLOW_NOT_FOUND,
        facts(
            failed(FailureKind.FLOW_NOT_FOUND, "no flow"),
            flow=FlowSeen(is_known=False, tags=("cpu",), similar_flows=("sampler",)),
        ),
        "The worker 'worker-a', which took the run, does not have the flow 'sample'.",
        "Workers with these tags have the flow: cpu.",
    ),
    "its process died": Situation(
        Cause.CRASH,
        facts(failed(FailureKind.CRASH, "the executor process was killed by SIGKILL")),
        "died: the executor process was killed by SIGKILL.",
        "lack of memory",
    ),
    "it took too long": Situation(
        Cause.TIMEOUT,
        facts(failed(FailureKind.TIMEOUT, "timed out after 5 s")),
        "timed out after 5 s",
        "raise the timeout",
    ),
    "nobody started it": Situation(
        Cause.EXPIRED,
        facts(failed(FailureKind.EXPIRED, "no worker", start_within_sec=600.0), queue=DESERTED),
        "within 10 min",
        "pyoco-worker --tags gpu",
    ),
    "nobody had time for it": Situation(
        Cause.EXPIRED,
        facts(failed(FailureKind.EXPIRED, "no worker", start_within_sec=600.0)),
        "within 10 min",
        "--start-within",
    ),
    "it is being cancelled": Situation(
        Cause.CANCELLED,
        facts(running(RunStatus.CANCELLING, cancel_requested_by="key k1"), worker=THERE),
        "is being cancelled by key k1",
        "grace period",
    ),
    "it was cancelled": Situation(
        Cause.CANCELLED,
        facts(a_snapshot(RunStatus.CANCELLED, tag="gpu", cancel_reason="a typo")),
        "was cancelled: a typo",
        f"pyoco-client rerun {RUN_ID}",
    ),
    "it completed with a warning": Situation(
        Cause.COMPLETED,
        facts(running(RunStatus.COMPLETED, end_time=NOW, warnings=("a set became a list",))),
        "completed in 1 min",
        "a set became a list",
    ),
}


def test_every_cause_has_a_situation() -> None:
    assert {situation.cause for situation in SITUATIONS.values()} == set(Cause)


@pytest.mark.parametrize("name", SITUATIONS)
def test_a_situation_is_named_right_and_explained(name: str) -> None:
    situation = SITUATIONS[name]
    assert cause_of(situation.facts) is situation.cause
    found = explained(situation.facts, "en")
    assert situation.summary in found.summary
    assert any(situation.advice in advice for advice in found.advice), found.advice
    assert (found.run_id, found.evidence.status) == (RUN_ID, situation.facts.run.status)


@pytest.mark.parametrize("name", SITUATIONS)
def test_it_is_explained_in_japanese_with_the_same_commands(name: str) -> None:
    english, japanese = (explained(SITUATIONS[name].facts, language) for language in ("en", "ja"))
    assert (japanese.cause, japanese.evidence) == (english.cause, english.evidence)
    assert len(japanese.advice) == len(english.advice)
    for there, here in zip(
        [english.summary, *english.advice], [japanese.summary, *japanese.advice], strict=True
    ):
        assert re.search("[ぁ-んァ-ヶ一-龠]", here), here
        assert not re.search("[ぁ-んァ-ヶ一-龠]", there), there
        assert re.findall(r"pyoco-\w+ \w+", here) == re.findall(r"pyoco-\w+ \w+", there)
        assert "{" not in there + here
    assert ("{" in english.details + japanese.details, "None" in english.summary + japanese.summary) == (
        False,
        False,
    )


def test_braces_of_others_are_only_text() -> None:
    found = explained(facts(failed(FailureKind.ERROR, "KeyError: '{name}' {0}", task="{x}")), "en")
    assert "task '{x}': KeyError: '{name}' {0}." in found.summary


def test_a_long_error_is_cut_in_the_summary_and_whole_in_the_evidence() -> None:
    found = explained(facts(failed(FailureKind.ERROR, "x" * 5_000)), "en")
    assert len(found.summary) < 400
    assert found.evidence.failure
    assert len(found.evidence.failure.message) == 5_000


@pytest.mark.parametrize("cause", [Cause.PAUSED, Cause.LIMIT, Cause.DELAYED, Cause.NEXT_TRY])
def test_a_run_that_waits_for_something_else_is_also_told_about_missing_workers(cause: Cause) -> None:
    situation = next(one for one in SITUATIONS.values() if one.cause is cause)
    found = explained(replace(situation.facts, queue=DESERTED), "en")
    assert found.cause is cause
    assert "No live worker has the tag 'gpu' either" in found.advice[-1]


def test_a_waiting_run_whose_flow_nobody_has_is_warned() -> None:
    unknown = FlowSeen(is_known=False, similar_flows=("samples",))
    advice = explained(facts(waiting(), flow=unknown), "en").advice
    assert "as it stands, the run will fail" in advice[-2]
    assert "samples" in advice[-1]


def test_details_have_the_code_the_log_and_other_runs() -> None:
    old, new = (CodeWheel("sales", version, None) for version in ("1.0", "1.1"))
    found = explained(
        facts(
            failed(FailureKind.ERROR, wheels=(new,)),
            log=("reading", "0 rows"),
            same_errors=SameErrors(count=2, failed=200, first_at=NOW, is_partial=True),
            last_completed=CompletedRun(run_id="r0", at=NOW - 7200, wheels=(old,)),
        ),
        "en",
    )
    assert found.details.splitlines() == [
        "Worker 'worker-a', delivery 2.",
        "Code: sales 1.1.",
        "In the last 24 hours 200 or more runs of the flow failed, 2 of them with this error.",
        "The last run of the flow that completed ended 2 h ago: r0.",
        "The last lines of the log:",
        "  reading",
        "  0 rows",
    ]
    assert "before sales 1.0, now sales 1.1" in " ".join(found.advice)


def test_unchanged_or_unknown_code_is_not_blamed() -> None:
    wheel = CodeWheel("sales", "1.0", None)
    for now, before in ((wheel,), (wheel,)), ((wheel,), None), (None, (wheel,)):
        last = CompletedRun(run_id="r0", at=NOW, wheels=before)
        found = explained(facts(failed(FailureKind.ERROR, wheels=now), last_completed=last), "en")
        assert "code has changed" not in " ".join(found.advice)


# The same error


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("KeyError: 17", "KeyError: 4"),
        ("at 0x7f00ab", "at 0x12"),
        (f"run {RUN_ID} is gone", "run 0190aaaa-0000-7ccc-8ddd-eeeeffff0009 is gone"),
    ],
)
def test_errors_that_differ_in_numbers_are_the_same(one: str, other: str) -> None:
    assert signature(one) == signature(other)
    assert signature(one) != signature(f"{one}!")


def test_the_same_errors_are_counted() -> None:
    others = [("row 1", NOW), ("row 22", NOW - 5), ("disk full", NOW - 9), (None, NOW)]
    assert same_errors("row 3", others, is_partial=False) == SameErrors(
        count=2, failed=4, first_at=NOW - 5, is_partial=False
    )


# The flow


def test_similar_tags_are_suggested_only_if_nobody_has_the_tag() -> None:
    alive = [a_worker(tags=("linux",)), a_worker(worker_id="b", tags=("gpus",))]
    assert flow_seen(waiting(), "gpu", alive).similar_tags == ("gpus",)
    assert flow_seen(waiting(), "gpus", alive).similar_tags == ()


def test_a_flow_is_unknown_only_if_all_workers_of_the_tag_list_their_flows() -> None:
    listing = a_worker(tags=("gpu",), flows=("simple",), flows_complete=True)
    other = a_worker(worker_id="b", tags=("cpu",), flows=("sample",), flows_complete=True)
    found = flow_seen(waiting(), "gpu", [listing, other])
    assert found == FlowSeen(is_known=False, tags=("cpu",), similar_flows=("simple",))
    silent = a_worker(worker_id="c", tags=("gpu",))
    assert flow_seen(waiting(), "gpu", [listing, silent]).is_known
    assert flow_seen(waiting(workflow_yaml_sha256="f" * 64), "gpu", [listing]).is_known


# Durations


@pytest.mark.parametrize(
    ("seconds", "en", "ja"),
    [
        (0, "0 s", "0秒"),
        (59.6, "1 min", "1分"),
        (3_725, "1 h 2 min", "1時間2分"),
        (3_605, "1 h", "1時間"),
        (200_000, "2 d 7 h", "2日7時間"),
        (-3, "0 s", "0秒"),
    ],
)
def test_durations_have_their_two_largest_units(seconds: float, en: str, ja: str) -> None:
    assert (duration(seconds, "en"), duration(seconds, "ja")) == (en, ja)
