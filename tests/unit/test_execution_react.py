"""What the orchestrator does: the life of every kind of node, joins, failures, cancels, and the runs."""

from itertools import product
from typing import Any

import pytest

from pyoco_server.domain.executions import commands as c, events as e
from pyoco_server.domain.executions.events import Failure
from pyoco_server.domain.executions.graphs import Graph, parse_graph
from pyoco_server.domain.executions.model import (
    MAX_HELD_BYTES,
    MAX_TOTAL_BYTES,
    NodeStatus,
    outputs_for_rerun,
    replace,
)
from pyoco_server.domain.executions.records import CancelRun, RunFact, run_id_of, summarise
from pyoco_server.domain.runs.model import RunStatus
from support.executions import (
    ANN,
    EXECUTION_ID,
    EXTERNAL,
    FORK,
    GRACE_SEC,
    T0,
    Life,
    begun,
    chain,
    diamond,
    graph_of,
    join,
    task,
    wait,
)
from support.tables import every_row

POLICIES = ("ALL_SUCCESS", "ANY_SUCCESS", "ALL_DONE", "CUSTOM")


def start(life: Life, node_id: str) -> None:
    life.must(c.StartNode(actor=ANN, node_id=node_id, worker_id="w"))


def is_quiet(life: Life) -> bool:
    """Nothing more is to be said about what is known."""
    return life.look().events == ()


# The life of a node, as events


def test_a_task_with_a_flow() -> None:
    life = begun(
        graph_of({"a": task(tag="gpu", params={"part": "${input.part}", "n": 1})}), input={"part": [7]}
    )
    run_id = run_id_of(EXECUTION_ID, "a", 1)
    (dispatched,) = life.dispatched
    assert (dispatched.run_id, dispatched.node_id, dispatched.flow) == (run_id, "a", "work")
    assert (dispatched.tag, dispatched.params) == ("gpu", {"part": [7], "n": 1})
    assert (life.node("a").run_id, life.node("a").status) == (run_id, "RUNNING")
    life.succeed("a", result={"v": 1})
    assert life.types_of("a") == ["NODE_CREATED", "NODE_READY", "NODE_STARTED", "NODE_SUCCEEDED"]
    assert life.status == "COMPLETED"


def test_an_external_task_is_what_the_outside_worker_says() -> None:
    life = begun(graph_of({"a": EXTERNAL}))
    assert life.statuses == {"a": "READY"}
    assert is_quiet(life)
    start(life, "a")
    assert is_quiet(life)
    life.must(c.SucceedNode(actor=ANN, node_id="a", output="x"))
    life.react()
    assert (life.status, life.state.result) == ("COMPLETED", {"a": "x"})
    assert life.dispatched == []


def test_a_wait_holds_no_worker() -> None:
    life = begun(
        graph_of({"w": wait(prompt="Close ${input.ym}?", wait_key="${input.ym}")}), input={"ym": "202401"}
    )
    node = life.node("w")
    assert (node.status, node.prompt, node.wait_key) == ("WAITING", "Close 202401?", "202401")
    assert life.dispatched == []
    life.must(c.ResumeNode(actor=ANN, node_id="w", resume_key="202401", data=5))
    life.react()
    assert life.types_of("w") == [
        "NODE_CREATED",
        "NODE_READY",
        "NODE_STARTED",
        "NODE_WAITING",
        "NODE_RESUMED",
        "NODE_SUCCEEDED",
    ]
    assert life.state.result == {"w": 5}


def test_a_fork_and_a_join() -> None:
    life = begun(diamond())
    assert life.types_of("split")[1:] == ["NODE_READY", "NODE_STARTED", "FORK_OPENED", "NODE_SUCCEEDED"]
    assert life.node("split").branch_ids == ("a", "b")
    life.succeed("a")
    assert life.types_of("gather")[1:] == ["JOIN_GATE_UPDATED"]
    life.succeed("b")
    assert life.types_of("gather")[1:] == [
        "JOIN_GATE_UPDATED",
        "JOIN_GATE_UPDATED",
        "NODE_READY",
        "NODE_STARTED",
        "JOIN_PASSED",
        "NODE_SUCCEEDED",
    ]
    gate = life.node("gather").gate
    assert gate is not None
    assert (gate.expected_branches, gate.completed_branches, gate.is_passable) == (
        ("a", "b"),
        ("a", "b"),
        True,
    )
    life.succeed("after", result=1)
    assert (life.status, life.state.result) == ("COMPLETED", {"after": 1})


def test_the_result_is_the_outputs_of_the_leaves_that_succeeded() -> None:
    graph = graph_of(
        {"a": task(), "left": task(), "right": task(), "not": task()},
        "a > left",
        "a > right",
        "a > not ? false",
    )
    life = begun(graph)
    life.succeed("a", result="inner")
    life.succeed("left", result=[1])
    life.succeed("right")
    assert life.state.result == {"left": [1], "right": None}
    assert life.statuses["not"] == "IDLE"


def test_nothing_happens_before_the_start() -> None:
    life = Life(chain(1), start=False)
    reaction = life.react()
    assert (reaction.events, reaction.dispatches, reaction.wake_at) == ((), (), None)


def test_a_large_output_passes_through() -> None:
    graph = graph_of(
        {"a": task(), "b": task(params={"all": "${nodes.a.output}"})},
        "a > b ? size(nodes.a.output.rows) == 20000",
    )
    life = begun(graph)
    rows = [{"n": n, "text": "x" * 20} for n in range(20_000)]
    life.succeed("a", result={"rows": rows})
    assert life.dispatched[-1].params == {"all": {"rows": rows}}


# Retries and timeouts


def test_a_run_that_failed_is_tried_again_after_its_backoff() -> None:
    life = begun(chain(1, retry={"max_attempts": 3, "backoff_sec": 5}))
    for attempt, backoff in ((1, 5), (2, 10)):
        life.fail("n0", error="boom")
        node = life.node("n0")
        assert (node.status, node.attempt, node.retry_at) == ("READY", attempt, life.now + backoff)
        assert node.error == Failure("boom", "RUN_FAILED")
        assert life.look().wake_at == life.now + backoff
        life.now += backoff - 0.001
        assert is_quiet(life)
        life.now = node.retry_at or 0
        life.react()
        assert life.node("n0").attempt == attempt + 1
    life.fail("n0")
    assert life.status == "FAILED"
    assert [run.run_id for run in life.dispatched] == [run_id_of(EXECUTION_ID, "n0", n) for n in (1, 2, 3)]


def test_a_backoff_grows_to_an_hour_at_most() -> None:
    life = begun(chain(1, retry={"max_attempts": 30, "backoff_sec": 60}))
    backoffs = []
    for _ in range(9):
        life.fail("n0")
        retry_at = life.node("n0").retry_at
        assert retry_at is not None
        backoffs.append(retry_at - life.now)
        life.now = retry_at
        life.react()
    assert backoffs == [60, 120, 240, 480, 960, 1_920, 3_600, 3_600, 3_600]


def test_without_a_backoff_the_next_attempt_begins_in_the_same_commit() -> None:
    life = begun(chain(1, retry={"max_attempts": 2}))
    life.fail("n0")
    assert (life.node("n0").status, life.node("n0").attempt) == ("RUNNING", 2)
    assert len(life.dispatched) == 2
    life.succeed("n0", result=1)
    assert life.status == "COMPLETED"


def test_a_run_that_others_cancelled_fails_its_attempt() -> None:
    life = begun(chain(1))
    life.end_run("n0", RunStatus.CANCELLED)
    life.react()
    assert life.state.error == Failure("its run was cancelled", "RUN_CANCELLED")
    assert life.status == "FAILED"


def test_a_task_that_takes_too_long_loses_its_run_and_its_attempt() -> None:
    life = begun(chain(1, timeout_sec=60, retry={"max_attempts": 2, "backoff_sec": 1}))
    assert life.look().wake_at == T0 + 60
    life.now = T0 + 60
    reaction = life.react()
    first = run_id_of(EXECUTION_ID, "n0", 1)
    assert [cancel.run_id for cancel in reaction.cancels] == [first]
    node = life.node("n0")
    assert node.error is not None
    assert (node.status, node.error.code) == ("READY", "TIMEOUT")
    life.now += 1
    life.react()
    life.end_cancelled_runs()  # the end of the first attempt's run is not the second's
    assert (life.node("n0").status, life.node("n0").attempt) == ("RUNNING", 2)
    life.now += 60
    life.react()
    assert life.status == "FAILED"
    assert life.state.error is not None
    assert life.state.error.code == "TIMEOUT"


def test_a_timeout_counts_from_the_start_of_the_attempt_also_while_it_waits() -> None:
    life = begun(graph_of({"a": {**EXTERNAL, "timeout_sec": 60}}))
    life.now += 1_000  # READY is not counted
    assert is_quiet(life)
    start(life, "a")
    life.now += 30
    life.must(c.PutNodeWaiting(actor=ANN, node_id="a"))
    life.now += 29
    assert is_quiet(life)
    life.now += 1
    life.react()
    assert life.status == "FAILED"


def test_a_wait_that_nobody_resumes_fails_at_its_deadline() -> None:
    life = begun(graph_of({"w": wait(timeout_sec=60)}))
    assert (life.node("w").deadline, life.look().wake_at) == (T0 + 60, T0 + 60)
    life.now += 59
    assert is_quiet(life)
    life.now += 1
    life.react()
    assert life.types_of("w")[-2:] == ["NODE_FAIL_REPORTED", "NODE_FAILED"]
    assert life.status == "FAILED"
    assert life.state.error is not None
    assert life.state.error.code == "TIMEOUT"


def test_a_wait_may_succeed_at_its_deadline() -> None:
    life = begun(graph_of({"w": wait(timeout_sec=60, on_timeout="succeed")}))
    life.now += 60
    life.react()
    assert (life.status, life.state.result) == ("COMPLETED", {"w": None})


def test_an_external_task_that_waits_past_its_deadline_is_tried_again() -> None:
    life = begun(graph_of({"a": {**EXTERNAL, "retry": {"max_attempts": 2}}}))
    start(life, "a")
    life.must(c.PutNodeWaiting(actor=ANN, node_id="a", deadline=life.now + 5))
    life.now += 5
    life.react()
    assert (life.node("a").status, life.node("a").attempt) == ("READY", 1)


def test_a_task_that_waits_keeps_its_deadline_after_its_run_has_completed() -> None:
    life = begun(chain(1))
    life.must(c.PutNodeWaiting(actor=ANN, node_id="n0", deadline=life.now + 5))
    life.end_run("n0", RunStatus.COMPLETED, result=1)
    assert life.react().wake_at == life.now + 5
    assert life.statuses == {"n0": "WAITING"}
    life.now += 5
    life.react()
    assert life.status == "FAILED"


def test_a_task_that_was_put_to_wait_ends_by_its_run_once_it_is_resumed() -> None:
    life = begun(chain(1))
    life.must(c.PutNodeWaiting(actor=ANN, node_id="n0"))
    life.succeed("n0", result=1)
    life.must(c.ResumeNode(actor=ANN, node_id="n0"))
    life.react()
    assert (life.status, life.state.result) == ("COMPLETED", {"n0": 1})


def test_a_task_that_waited_in_vain_leaves_no_run_behind() -> None:
    life = begun(chain(1))
    life.must(c.PutNodeWaiting(actor=ANN, node_id="n0", deadline=life.now + 5))
    life.now += 5
    reaction = life.react({})
    assert [cancel.run_id for cancel in reaction.cancels] == [run_id_of(EXECUTION_ID, "n0", 1)]


# Edges


def test_a_failure_edge_leads_on_and_the_success_edge_is_not_taken() -> None:
    graph = graph_of({"a": task(), "next": task(), "help": task()}, "a > next", "a ! help")
    life = begun(graph)
    life.fail("a")
    assert life.statuses == {"a": "FAILED", "next": "IDLE", "help": "RUNNING"}
    life.succeed("help", result="saved")
    assert (life.status, life.state.result) == ("COMPLETED", {"help": "saved"})


@pytest.mark.parametrize(("error", "status"), [("disk full", "ACTIVE"), ("other", "FAILED")])
def test_a_failure_edge_with_a_condition(error: str, status: str) -> None:
    when = "nodes.a.error.message == 'disk full'"
    life = begun(graph_of({"a": task(), "help": task()}, f"a ! help ? {when}"))
    life.fail("a", error=error)
    assert life.status == status
    assert life.statuses["help"] == ("RUNNING" if status == "ACTIVE" else "IDLE")


def test_a_failure_whose_edge_was_not_taken_is_not_forgotten_at_the_join() -> None:
    """The branch failed; it did not just lead elsewhere."""
    graph = graph_of(
        {"split": FORK, "a": task(), "help": task(), "b": task(), "gather": join()},
        "split > a",
        "split > b",
        "a ! help ? false",
        "help > gather",
        "b > gather",
    )
    life = begun(graph)
    life.fail("a")
    life.end_cancelled_runs()
    assert (life.status, life.state.failed_node_id) == ("FAILED", "a")


def test_a_node_with_several_edges_is_ready_once_by_the_first() -> None:
    graph = graph_of(
        {"a": task(), "b": task(), "c": task(), "merge": task()}, "a > b", "a > c", "b > merge", "c > merge"
    )
    life = begun(graph)
    life.succeed("a")
    life.succeed("c")
    assert life.statuses["merge"] == "RUNNING"
    life.succeed("merge", result=1)
    life.succeed("b")
    assert life.types_of("merge").count("NODE_READY") == 1
    assert (life.status, life.state.result) == ("COMPLETED", {"merge": 1})


def test_conditions_choose_the_way() -> None:
    graph = graph_of(
        {"a": task(), "big": task(), "small": task()},
        "a > big ? nodes.a.output.n >= 10",
        "a > small ? nodes.a.output.n < 10",
    )
    life = begun(graph)
    life.succeed("a", result={"n": 3})
    assert life.statuses == {"a": "SUCCEEDED", "big": "IDLE", "small": "RUNNING"}
    life.succeed("small")
    assert life.status == "COMPLETED"


def test_a_condition_that_cannot_be_judged_fails_the_node_it_leads_to() -> None:
    life = begun(
        graph_of({"a": task(), "b": task(retry={"max_attempts": 3})}, "a > b ? nodes.a.output.n > 1")
    )
    life.succeed("a", result={})
    assert life.types_of("b")[1:] == ["NODE_READY", "NODE_STARTED", "NODE_FAIL_REPORTED", "NODE_FAILED"]
    assert life.status == "FAILED"
    assert life.state.error is not None
    assert life.state.error.code == "CONDITION_FAILED"
    assert "a -> b" in life.state.error.message


@pytest.mark.parametrize(
    ("policy", "status"), [("ALL_SUCCESS", "FAILED"), ("ANY_SUCCESS", "COMPLETED"), ("ALL_DONE", "COMPLETED")]
)
def test_a_condition_that_cannot_be_judged_before_a_join(policy: str, status: str) -> None:
    """It counts as a failed branch; a join that cannot do without it fails, and says why."""
    graph = graph_of(
        {"split": FORK, "a": task(), "b": task(), "gather": join(policy)},
        "split > a",
        "split > b",
        "a > gather ? nodes.a.output.n > 1",
        "b > gather",
    )
    life = begun(graph)
    life.succeed("a", result={})
    if status == "FAILED":
        life.end_cancelled_runs()
    else:
        life.succeed("b")
    assert life.status == status
    if status == "FAILED":
        assert (life.state.failed_node_id, life.node("gather").status) == ("gather", "FAILED")
        assert life.state.error is not None
        assert life.state.error.code == "CONDITION_FAILED"


def test_a_failure_edge_that_cannot_be_judged_does_not_hide_the_failure() -> None:
    graph = graph_of(
        {"split": FORK, "a": task(), "b": task(), "gather": join()},
        "split > a",
        "split > b",
        "a ! gather ? nodes.a.output.n > 1",
        "b > gather",
    )
    life = begun(graph)
    life.fail("a")
    life.end_cancelled_runs()
    assert life.status == "FAILED"


@pytest.mark.parametrize("node", [task(params={"x": "${input.missing}"}), wait(prompt="${input.missing}")])
def test_a_value_that_is_not_there_fails_the_node_for_good(node: dict[str, Any]) -> None:
    life = begun(graph_of({"a": node}), input={"there": 1})
    assert life.status == "FAILED"
    assert life.state.error is not None
    assert life.state.error.code == "TEMPLATE_FAILED"
    assert "missing" in life.state.error.message
    assert life.dispatched == []


def test_a_missing_value_is_not_tried_again_and_can_be_handled() -> None:
    bad = task(params={"x": "${input.missing}"}, retry={"max_attempts": 5})
    life = begun(graph_of({"a": bad, "help": task()}, "a ! help"))
    assert (life.node("a").status, life.node("a").attempt) == ("FAILED", 1)
    assert life.statuses["help"] == "RUNNING"


@pytest.mark.parametrize("key", ["", "k" * 257])
def test_a_wait_key_that_no_resume_could_name_fails_the_node(key: str) -> None:
    life = begun(graph_of({"w": wait(wait_key="${input.key}")}), input={"key": key})
    assert life.status == "FAILED"
    assert life.state.error is not None
    assert "wait_key" in life.state.error.message


def test_params_that_were_there_at_the_start_and_are_gone_at_the_dispatch_fail_the_node() -> None:
    """A crash came between the two, and meanwhile another node went on."""
    graph = graph_of(
        {
            "a": task(),
            "b": task(retry={"max_attempts": 2}),
            "merge": task(params={"why": "${nodes.b.error.message}"}),
        },
        "a > merge",
        "a > b",
        "b > merge",
    )
    life = begun(graph)
    life.succeed("a")  # merge begins while b has no error yet
    assert life.node("merge").status == "FAILED"
    other = Life(graph)
    other.react()
    other.append(
        (e.NodeSucceeded(node_id="a"), e.NodeReady(node_id="b"), e.NodeStarted(node_id="b", attempt=1))
    )
    run_id = run_id_of(EXECUTION_ID, "merge", 1)
    other.append((e.NodeReady(node_id="merge"), e.NodeStarted(node_id="merge", attempt=1, run_id=run_id)))
    other.react({run_id: None})
    assert other.node("merge").error is not None
    assert other.node("merge").status == "FAILED"


# Joins


def branches(policy: str, count: int, **more: Any) -> Graph:
    names = [f"b{index}" for index in range(count)]
    return graph_of(
        {"split": FORK, **{name: task() for name in names}, "gather": join(policy, **more)},
        *(f"split > {name}" for name in names),
        *(f"{name} > gather" for name in names),
    )


OUTCOMES = ("succeeds", "fails", "not taken")


def passes(policy: str, ends: tuple[str, ...], min_success: int) -> bool:
    """What the policies mean, by what became of each branch."""
    expected = [end for end in ends if end != "not taken"]
    succeeded = expected.count("succeeds")
    return (
        bool(expected)
        and {
            "ALL_SUCCESS": succeeded == len(expected),
            "ANY_SUCCESS": succeeded >= 1,
            "ALL_DONE": True,
            "CUSTOM": succeeded >= min_success,
        }[policy]
    )


@pytest.mark.parametrize("policy", POLICIES)
def test_every_policy_with_every_outcome_of_three_branches(policy: str) -> None:
    for ends in product(OUTCOMES, repeat=3):
        check_policy(policy, ends)


def check_policy(policy: str, ends: tuple[str, ...]) -> None:
    more = {"min_success": 2} if policy == "CUSTOM" else {}
    names = [f"b{index}" for index in range(len(ends))]
    graph = graph_of(
        {"split": FORK, **{name: task() for name in names}, "gather": join(policy, **more)},
        *(
            f"split > {name}" + (" ? false" if end == "not taken" else "")
            for name, end in zip(names, ends, strict=True)
        ),
        *(f"{name} > gather" for name in names),
    )
    life = begun(graph)
    for name, end in zip(names, ends, strict=True):
        if end != "not taken":
            life.end_run(name, RunStatus.COMPLETED if end == "succeeds" else RunStatus.FAILED)
    life.react()
    expected = passes(policy, ends, 2)
    assert life.statuses["gather"] == ("SUCCEEDED" if expected else "IDLE"), ends
    is_lost = "fails" in ends and not expected
    assert life.status == ("FAILED" if is_lost else "COMPLETED"), ends


@pytest.mark.parametrize("policy", POLICIES)
def test_an_empty_expected_set_never_passes(policy: str) -> None:
    more = {"min_success": 1} if policy == "CUSTOM" else {}
    graph = graph_of(
        {"split": FORK, "a": task(), "b": task(), "gather": join(policy, **more), "after": task()},
        "split > a ? false",
        "split > b ? false",
        "a > gather",
        "b > gather",
        "gather > after",
    )
    life = begun(graph)
    assert life.status == "COMPLETED"
    assert life.statuses == {
        "split": "SUCCEEDED",
        "a": "IDLE",
        "b": "IDLE",
        "gather": "IDLE",
        "after": "IDLE",
    }
    assert life.state.result == {}


def test_a_cancelled_branch_counts_as_that() -> None:
    """`b` was cancelled by the smaller join; the larger one still expects it."""
    graph = graph_of(
        {
            "split": FORK,
            "a": task(),
            "b": task(),
            "one": join("ANY_SUCCESS"),
            "both": join("ALL_SUCCESS"),
            "done": join("ALL_DONE"),
        },
        "split > a",
        "split > b",
        "a > one",
        "b > one",
        "a > both",
        "b > both",
        "a > done",
        "b > done",
    )
    life = begun(graph)
    life.succeed("a")
    life.end_cancelled_runs()
    assert life.statuses["b"] == "CANCELED"
    assert (life.statuses["both"], life.statuses["done"]) == ("IDLE", "SUCCEEDED")
    gate = life.node("both").gate
    assert gate is not None
    assert (gate.canceled_branches, gate.expected_branches) == (("b",), ("a", "b"))
    assert life.status == "COMPLETED"


def test_a_failure_edge_that_led_elsewhere_takes_its_branch_out_of_the_expected_set() -> None:
    graph = graph_of(
        {"split": FORK, "a": task(), "b": task(), "help": task(), "gather": join()},
        "split > a",
        "split > b",
        "a > gather",
        "b > gather",
        "a ! help",
    )
    life = begun(graph)
    life.fail("a")
    life.succeed("b")
    assert life.statuses["gather"] == "SUCCEEDED"
    gate = life.node("gather").gate
    assert gate is not None
    assert gate.expected_branches == ("b",)
    life.succeed("help")
    assert life.status == "COMPLETED"


@pytest.mark.parametrize("policy", ["ANY_SUCCESS", "CUSTOM"])
def test_after_enough_branches_the_rest_is_cancelled(policy: str) -> None:
    more = {"min_success": 1} if policy == "CUSTOM" else {}
    life = begun(branches(policy, 3, **more))
    life.succeed("b1")
    assert life.statuses["gather"] == "SUCCEEDED"
    for name in ("b0", "b2"):
        assert life.types_of(name)[-2:] == ["NODE_CANCEL_REQUESTED", "NODE_INTERRUPT_REQUESTED"]
        assert life.run_of(name).status is RunStatus.CANCELLING
    assert life.refused(c.SucceedNode(actor=ANN, node_id="b0")) == "NODE_CANCEL_REQUESTED"
    life.end_cancelled_runs()
    assert (life.statuses["b0"], life.statuses["b2"]) == ("CANCELED", "CANCELED")
    assert not life.node("b0").canceled_by_execution
    assert life.status == "COMPLETED"


def test_a_join_that_can_not_have_enough_branches_any_more_does_not_wait_for_the_rest() -> None:
    life = begun(branches("CUSTOM", 3, min_success=2))
    life.fail("b0")
    assert life.state.phase == "STARTED"
    life.fail("b1")
    assert life.state.phase == "FAILING"
    assert life.run_of("b2").status is RunStatus.CANCELLING


def test_cancel_rest_false_lets_the_rest_go_on() -> None:
    life = begun(branches("ANY_SUCCESS", 2, cancel_rest=False))
    life.succeed("b0")
    assert life.statuses == {"split": "SUCCEEDED", "b0": "SUCCEEDED", "b1": "RUNNING", "gather": "SUCCEEDED"}
    assert life.cancelled == []
    life.fail("b1")  # the join has passed without it
    assert life.status == "COMPLETED"


def test_a_branch_that_is_not_needed_any_more_is_never_dispatched() -> None:
    """Its node came to be ready in the very commit in which the join passed."""
    graph = graph_of(
        {
            "split": FORK,
            "a": task(),
            "more": task(),
            "b": task(),
            "gather": join("ANY_SUCCESS"),
            "after": task(),
        },
        "split > a",
        "split > b",
        "a > more",
        "more > gather",
        "b > gather",
        "gather > after",
    )
    life = begun(graph)
    life.succeed("a", "b")
    assert life.statuses["more"] == "CANCELED"
    assert [run.node_id for run in life.dispatched] == ["a", "b", "after"]
    life.succeed("after")
    assert life.status == "COMPLETED"


def test_waits_and_ready_nodes_of_branches_that_are_not_needed_end_at_once() -> None:
    graph = graph_of(
        {"split": FORK, "a": task(), "w": wait(), "x": EXTERNAL, "gather": join("ANY_SUCCESS")},
        "split > a",
        "split > w",
        "split > x",
        "a > gather",
        "w > gather",
        "x > gather",
    )
    life = begun(graph)
    life.succeed("a")
    assert (life.statuses["w"], life.statuses["x"]) == ("CANCELED", "CANCELED")
    assert life.status == "COMPLETED"


@pytest.mark.parametrize("why", ["not needed", "a sibling failed"])
def test_the_run_of_a_task_that_waits_is_cancelled_with_it(why: str) -> None:
    """Also by a look that knows nothing of that run."""
    life = begun(diamond("ANY_SUCCESS" if why == "not needed" else "ALL_SUCCESS"))
    life.must(c.PutNodeWaiting(actor=ANN, node_id="b"))
    status = RunStatus.COMPLETED if why == "not needed" else RunStatus.FAILED
    reaction = life.react({run_id_of(EXECUTION_ID, "a", 1): RunFact(status)})
    assert life.statuses["b"] == "CANCELED"
    assert [cancel.run_id for cancel in reaction.cancels] == [run_id_of(EXECUTION_ID, "b", 1)]


def test_an_external_node_that_is_not_needed_has_the_grace_period() -> None:
    graph = graph_of(
        {"split": FORK, "a": task(), "x": EXTERNAL, "gather": join("ANY_SUCCESS")},
        "split > a",
        "split > x",
        "a > gather",
        "x > gather",
    )
    life = begun(graph)
    start(life, "x")
    life.succeed("a")
    assert life.refused(c.ReportNodeProgress(actor=ANN, node_id="x", progress=1)) == "NODE_CANCEL_REQUESTED"
    assert life.look().wake_at == life.now + GRACE_SEC
    life.now += GRACE_SEC
    life.react()
    assert (life.statuses["x"], life.status) == ("CANCELED", "COMPLETED")


def nested(inner: str, outer: str) -> Graph:
    return graph_of(
        {
            "split": FORK,
            "a": task(),
            "inner_split": FORK,
            "x": task(),
            "y": task(),
            "inner": join(inner),
            "outer": join(outer),
        },
        "split > a",
        "split > inner_split",
        "inner_split > x",
        "inner_split > y",
        "x > inner",
        "y > inner",
        "inner > outer",
        "a > outer",
    )


def test_a_join_inside_a_branch_decides_first() -> None:
    life = begun(nested("ANY_SUCCESS", "ALL_SUCCESS"))
    life.fail("x")
    assert life.status == "ACTIVE"
    life.succeed("y")
    assert life.statuses["inner"] == "SUCCEEDED"
    life.succeed("a")
    assert (life.statuses["outer"], life.status) == ("SUCCEEDED", "COMPLETED")


def test_the_outer_join_saves_what_the_inner_one_could_not() -> None:
    life = begun(nested("ALL_SUCCESS", "ANY_SUCCESS"))
    life.fail("x")
    assert life.status == "ACTIVE"
    life.succeed("a")
    life.end_cancelled_runs()
    assert life.statuses["outer"] == "SUCCEEDED"
    assert (life.statuses["inner"], life.statuses["y"], life.status) == ("IDLE", "CANCELED", "COMPLETED")


def test_where_no_join_is_left_to_save_it_the_execution_fails() -> None:
    life = begun(nested("ALL_SUCCESS", "ANY_SUCCESS"))
    life.fail("x")
    life.now += 1
    life.fail("a")
    life.end_cancelled_runs()
    assert (life.status, life.state.failed_node_id) == ("FAILED", "x")


def test_a_branch_that_is_not_needed_is_cancelled_with_all_that_is_inside_it() -> None:
    life = begun(nested("ALL_SUCCESS", "ANY_SUCCESS"))
    life.succeed("a")
    life.end_cancelled_runs()
    assert (life.statuses["x"], life.statuses["y"]) == ("CANCELED", "CANCELED")
    assert life.status == "COMPLETED"


# Failing


def test_a_failure_stops_the_siblings_and_then_the_execution_fails() -> None:
    graph = graph_of(
        {"split": FORK, "a": task(), "b": task(), "w": wait(), "x": EXTERNAL, "later": task()},
        "split > a",
        "split > b",
        "split > w",
        "split > x",
        "a > later",
    )
    life = begun(graph)
    life.fail("a", error="disk full")
    assert life.state.phase == "FAILING"
    assert life.refused(c.StartNode(actor=ANN, node_id="x")) == "EXECUTION_FAIL_REQUESTED"
    assert life.statuses == {
        "split": "SUCCEEDED",
        "a": "FAILED",
        "b": "RUNNING",
        "w": "CANCELED",
        "x": "CANCELED",
        "later": "IDLE",
    }
    assert life.run_of("b").status is RunStatus.CANCELLING
    life.end_cancelled_runs()
    assert (life.status, life.state.failed_node_id, life.statuses["b"]) == ("FAILED", "a", "CANCELED")
    assert life.state.error == Failure("disk full", "RUN_FAILED")
    assert life.types[-2:] == ["NODE_CANCELED", "EXECUTION_FAILED"]


def test_nothing_is_begun_by_the_look_that_finds_the_failure() -> None:
    graph = graph_of(
        {"split": FORK, "a": task(), "b": task(), "next": task()}, "split > a", "split > b", "b > next"
    )
    life = begun(graph)
    for name, status in (("a", RunStatus.FAILED), ("b", RunStatus.COMPLETED)):
        life.end_run(name, status)
    life.react()
    assert life.statuses["next"] == "IDLE"
    assert life.status == "FAILED"


def test_what_began_in_the_commit_that_failed_is_never_dispatched_and_waits_for_nobody() -> None:
    graph = graph_of(
        {"split": FORK, "ok": task(), "bad": task(params={"x": "${input.missing}"})},
        "split > ok",
        "split > bad",
    )
    life = begun(graph, input={})
    assert life.status == "FAILED"
    assert life.statuses == {"split": "SUCCEEDED", "ok": "CANCELED", "bad": "FAILED"}
    assert life.dispatched == []


def test_what_a_sibling_finishes_while_failing_is_kept_for_a_re_run() -> None:
    """D39: finished work was thrown away."""
    graph = graph_of(
        {"split": FORK, "a": task(), "b": task(), "x": EXTERNAL}, *(f"split > {n}" for n in "abx")
    )
    life = begun(graph)
    life.must(c.StartNode(actor=ANN, node_id="x"))
    life.fail("a")
    assert life.state.phase == "FAILING"
    life.must(c.SucceedNode(actor=ANN, node_id="x", output=7))
    life.succeed("b", result={"rows": 3})
    assert life.status == "FAILED"
    assert life.statuses == {"split": "SUCCEEDED", "a": "FAILED", "b": "SUCCEEDED", "x": "SUCCEEDED"}
    assert outputs_for_rerun(life.state, graph) == {"split": None, "b": {"rows": 3}, "x": 7}


def test_nothing_becomes_ready_by_what_succeeds_while_failing() -> None:
    """D39."""
    graph = graph_of(
        {"split": FORK, "a": task(), "b": task(), "next": task()}, "split > a", "split > b", "b > next"
    )
    life = begun(graph)
    life.fail("a")
    life.succeed("b")
    assert (life.status, life.statuses["b"], life.statuses["next"]) == ("FAILED", "SUCCEEDED", "IDLE")


HANDLED: dict[str, Any] = {"work": task(), "alert": task(), "after": task()}


def handling(then: str | None) -> Graph:
    edge = {"from": "work", "to": "alert", "on": "failure"}
    return parse_graph(
        {
            "id": "g",
            "nodes": HANDLED,
            "edges": [edge if then is None else {**edge, "then": then}, {"from": "work", "to": "after"}],
        }
    )


@pytest.mark.parametrize("then", [None, "continue"])
def test_a_failure_that_is_handled_is_named_in_the_end(then: str | None) -> None:
    """D25: a failure edge hid the failure."""
    life = begun(handling(then))
    life.fail("work")
    life.succeed("alert", result="sent")
    assert (life.status, life.state.result) == ("COMPLETED", {"alert": "sent"})
    assert life.state.handled_failures == ("work",)
    assert summarise(life.state).handled_failures == ("work",)


def test_an_edge_that_fails_runs_its_target_first() -> None:
    """D25: an alert, a clean-up."""
    life = begun(handling("fail"))
    life.fail("work", error="disk full")
    assert (life.status, life.statuses["alert"]) == ("ACTIVE", "RUNNING")
    life.succeed("alert")
    assert (life.status, life.state.failed_node_id) == ("FAILED", "work")
    assert life.state.error == Failure("disk full", "RUN_FAILED")
    assert life.state.handled_failures == ()


def test_an_edge_that_fails_has_no_effect_where_nothing_failed() -> None:
    """D25."""
    life = begun(handling("fail"))
    life.succeed("work")
    life.succeed("after", result=1)
    assert (life.status, life.state.result, life.state.handled_failures) == ("COMPLETED", {"after": 1}, ())


def test_the_result_is_that_of_the_last_nodes_that_ran() -> None:
    """D25: the way of a failure may end before the end of the graph."""
    graph = graph_of(
        {"work": task(), "mend": task(), "more": task()},
        "work ! mend",
        "mend > more ? nodes.mend.output.more == true",
    )
    life = begun(graph)
    life.fail("work")
    life.succeed("mend", result={"more": False})
    assert (life.status, life.state.result) == ("COMPLETED", {"mend": {"more": False}})


def test_a_sibling_that_does_not_stop_has_the_grace_period() -> None:
    life = begun(graph_of({"split": FORK, "a": task(), "b": task()}, "split > a", "split > b"))
    life.fail("a")
    assert life.look().wake_at == life.now + GRACE_SEC
    life.now += GRACE_SEC - 0.001
    assert is_quiet(life)
    life.now += 0.001
    life.react()
    assert life.status == "FAILED"


# Cancelling: it converges from everywhere, and leaves nothing unfinished


def assert_canceled(life: Life) -> None:
    assert life.status == "CANCELED"
    assert {node.status for node in life.state.nodes.values()} <= {"SUCCEEDED", "FAILED", "CANCELED"}
    assert life.look().events == ()
    assert life.look().dispatches == ()


def test_a_cancel_with_a_node_running_converges_when_its_run_ends() -> None:
    life = begun(chain(2))
    life.cancel()
    assert life.state.phase == "CANCELLING"
    life.react()
    assert life.run_of("n0").status is RunStatus.CANCELLING
    life.end_cancelled_runs()
    assert_canceled(life)
    assert life.node("n0").canceled_by_execution


def test_a_cancel_with_a_node_running_converges_after_the_grace_period() -> None:
    life = begun(chain(2))
    life.cancel()
    assert life.react().wake_at == life.now + GRACE_SEC
    life.now += GRACE_SEC - 0.001
    assert is_quiet(life)
    life.now += 0.001
    life.react()
    assert_canceled(life)


def test_a_cancel_with_a_node_waiting_converges_at_once() -> None:
    """Known fault elsewhere: a cancel that never converges when a node waits."""
    life = begun(graph_of({"w": wait(), "after": task()}, "w > after"))
    life.cancel()
    assert_canceled(life)
    assert life.refused(c.ResumeNode(actor=ANN, node_id="w")) == "EXECUTION_TERMINAL"


def test_a_cancel_with_a_waiting_task_ends_its_run_too() -> None:
    life = begun(chain(1))
    life.must(c.PutNodeWaiting(actor=ANN, node_id="n0"))
    life.cancel()
    assert_canceled(life)
    life.react()
    assert life.run_of("n0").status is RunStatus.CANCELLING


def test_a_cancel_with_a_node_ready_converges_at_once() -> None:
    life = begun(graph_of({"a": EXTERNAL}))
    life.cancel()
    assert_canceled(life)


def test_a_cancel_with_a_node_retrying_converges_at_once() -> None:
    life = begun(chain(1, retry={"max_attempts": 2, "backoff_sec": 60}))
    life.fail("n0")
    life.cancel()
    assert_canceled(life)
    life.now += 60
    life.react()
    assert len(life.dispatched) == 1


@pytest.mark.parametrize("ended", [(), ("a",)])
def test_a_cancel_inside_a_fork_converges(ended: tuple[str, ...]) -> None:
    life = begun(diamond())
    life.succeed(*ended)
    life.cancel()
    life.react()
    life.end_cancelled_runs()
    assert_canceled(life)
    assert life.statuses["a"] == ("SUCCEEDED" if ended else "CANCELED")


def test_a_cancel_while_failing_wins() -> None:
    life = begun(graph_of({"split": FORK, "a": task(), "b": task()}, "split > a", "split > b"))
    life.fail("a")
    assert life.state.phase == "FAILING"
    life.cancel()
    assert life.state.phase == "CANCELLING"
    life.react()
    life.end_cancelled_runs()
    assert_canceled(life)
    assert life.statuses == {"split": "SUCCEEDED", "a": "FAILED", "b": "CANCELED"}


def test_a_cancel_while_a_branch_is_being_stopped_converges() -> None:
    life = begun(diamond("ANY_SUCCESS"))
    life.succeed("a")
    life.cancel()
    life.react()
    life.end_cancelled_runs()
    assert_canceled(life)


def test_a_cancel_before_the_first_look_converges_at_once() -> None:
    life = Life(diamond())
    life.cancel()
    assert_canceled(life)
    assert life.react().events == ()


def test_a_cancel_between_the_start_of_a_node_and_its_dispatch_starts_nothing() -> None:
    life = Life(chain(1))
    lost = life.look()
    life.append(lost.events)  # and then it crashed
    life.cancel()
    life.react()
    assert_canceled(life)
    assert life.dispatched == []


def test_a_run_that_was_dispatched_after_the_cancel_is_cancelled() -> None:
    life = Life(chain(1))
    late = life.look()
    life.append(late.events)
    life.cancel()
    life.react()
    life.carry_out(late)
    life.react()
    assert life.run_of("n0").status is RunStatus.CANCELLING
    assert_canceled(life)


def test_an_external_node_has_the_grace_period_after_a_cancel() -> None:
    life = begun(graph_of({"a": EXTERNAL}))
    start(life, "a")
    life.cancel()
    assert life.refused(c.ReportNodeProgress(actor=ANN, node_id="a")) == "EXECUTION_CANCEL_REQUESTED"
    life.react()
    assert life.state.phase == "CANCELLING"
    life.now += GRACE_SEC
    life.react()
    assert_canceled(life)


@pytest.mark.parametrize("status", [RunStatus.COMPLETED, RunStatus.FAILED, RunStatus.CANCELLED])
def test_the_late_end_of_a_run_after_a_cancel_ends_the_cancel_and_nothing_else(status: RunStatus) -> None:
    life = begun(chain(2, retry={"max_attempts": 3}))
    life.cancel()
    life.end_run("n0", status, result="late")
    life.react()
    assert_canceled(life)
    assert (life.statuses["n0"], life.node("n0").output) == ("CANCELED", None)


@pytest.mark.parametrize("asked", ["READY", "RUNNING"])
def test_a_cancel_that_was_only_asked_for_is_carried_out(asked: str) -> None:
    """Whoever wrote the request alone: nothing may hang by it."""
    life = begun(graph_of({"a": EXTERNAL, "b": task()}, "a > b"))
    if asked == "RUNNING":
        start(life, "a")
    life.append((e.ExecutionCancelRequested(requested_by="an older version"),))
    life.react()
    if asked == "RUNNING":
        assert life.types_of("a")[-1] == "NODE_INTERRUPT_REQUESTED"
        life.now += GRACE_SEC
        life.react()
    assert_canceled(life)


# Runs


def test_a_run_is_dispatched_exactly_when_it_is_missing() -> None:
    life = Life(chain(1))
    first = life.look()
    assert len(first.dispatches) == 1
    life.append(first.events)
    run_id = first.dispatches[0].work_id
    assert life.look({}).dispatches == ()  # nothing is known of it
    assert life.look({run_id: None}).dispatches == first.dispatches  # the crash came before the dispatch
    for status in RunStatus:
        assert life.look({run_id: RunFact(status)}).dispatches == ()


@pytest.mark.parametrize("status", RunStatus)
def test_a_run_whose_node_does_not_wait_for_it_any_more_is_cancelled(status: RunStatus) -> None:
    life = begun(chain(2))
    life.must(c.SucceedNode(actor=ANN, node_id="n0"))
    stray = run_id_of(EXECUTION_ID, "n0", 1)
    cancel = CancelRun(run_id=stray, reason="no longer needed by its execution")
    wanted = () if status.is_terminal else (cancel,)
    assert life.look({stray: RunFact(status)}).cancels == wanted


def test_a_run_of_an_earlier_attempt_is_cancelled_and_its_end_is_not_heard() -> None:
    life = begun(chain(1, retry={"max_attempts": 2}))
    life.must(c.FailNode(actor=ANN, node_id="n0"))
    life.react()
    first, second = (run_id_of(EXECUTION_ID, "n0", attempt) for attempt in (1, 2))
    assert life.cancelled == [first]
    life.runs[first] = RunFact(RunStatus.COMPLETED, "stale")
    life.react()
    assert (life.node("n0").status, life.node("n0").run_id) == ("RUNNING", second)


def test_a_run_that_is_needed_is_left_alone() -> None:
    life = begun(chain(1))
    for status in (RunStatus.PENDING, RunStatus.RUNNING):
        assert life.look({run_id_of(EXECUTION_ID, "n0", 1): RunFact(status)}).cancels == ()


def test_a_run_that_somebody_is_cancelling_is_waited_for() -> None:
    life = begun(chain(1))
    run_id = run_id_of(EXECUTION_ID, "n0", 1)
    assert life.look({run_id: RunFact(RunStatus.CANCELLING)}).events == ()


@pytest.mark.parametrize("node", [EXTERNAL, wait()])
def test_a_run_id_of_an_outside_worker_is_never_taken_for_one_of_ours(node: dict[str, Any]) -> None:
    """Even if it is the very id that a flow of this node would have had."""
    life = Life(graph_of({"a": node}))
    life.must(c.MarkNodeReady(actor=ANN, node_id="a"))
    life.must(c.StartNode(actor=ANN, node_id="a", run_id=run_id_of(EXECUTION_ID, "a", 1)))
    reaction = life.react()
    assert (reaction.dispatches, reaction.cancels) == ((), ())


def test_an_outside_start_with_the_id_of_the_run_gets_that_run() -> None:
    life = Life(chain(1))
    life.must(c.MarkNodeReady(actor=ANN, node_id="n0"))
    life.must(c.StartNode(actor=ANN, node_id="n0", run_id=run_id_of(EXECUTION_ID, "n0", 1)))
    life.react()
    life.succeed("n0")
    assert life.status == "COMPLETED"


def test_an_outside_start_with_the_id_of_the_run_and_bad_params_fails_the_node() -> None:
    life = Life(graph_of({"a": task(params={"x": "${input.missing}"})}), input={})
    life.must(c.MarkNodeReady(actor=ANN, node_id="a"))
    life.must(c.StartNode(actor=ANN, node_id="a", run_id=run_id_of(EXECUTION_ID, "a", 1)))
    life.react()
    assert life.status == "FAILED"


def test_what_a_worker_outside_began_is_its_to_end() -> None:
    """A flow node that somebody took by hand has no run."""
    life = Life(chain(1))
    life.must(c.MarkNodeReady(actor=ANN, node_id="n0"))
    start(life, "n0")
    life.react()
    assert life.dispatched == []
    life.must(c.SucceedNode(actor=ANN, node_id="n0", output="by hand"))
    life.react()
    assert life.state.result == {"n0": "by hand"}


# An operator steps in


def test_an_operator_makes_a_node_ready_before_its_time() -> None:
    life = begun(chain(3))
    life.must(c.MarkNodeReady(actor=ANN, node_id="n2"))
    assert life.events[-1].actor == ANN
    life.react()
    assert life.statuses == {"n0": "RUNNING", "n1": "IDLE", "n2": "RUNNING"}
    life.succeed("n2", result="early")
    life.succeed("n0")
    life.succeed("n1")
    assert life.types_of("n2").count("NODE_READY") == 1
    assert (life.status, life.state.result) == ("COMPLETED", {"n2": "early"})


def test_an_operator_opens_a_join() -> None:
    life = begun(diamond("ANY_SUCCESS"))
    life.must(c.MarkNodeReady(actor=ANN, node_id="gather"))
    life.react()
    assert (life.statuses["gather"], life.statuses["after"]) == ("SUCCEEDED", "RUNNING")
    life.end_cancelled_runs()
    life.succeed("after")
    assert life.status == "COMPLETED"


def test_an_operator_takes_a_way_that_was_not_taken() -> None:
    life = begun(graph_of({"a": task(), "no": task(), "yes": task()}, "a > no ? false", "a > yes"))
    life.succeed("a")
    life.must(c.MarkNodeReady(actor=ANN, node_id="no"))
    life.react()
    life.succeed("yes")
    assert life.status == "ACTIVE"
    life.succeed("no", result=1)
    assert life.state.result == {"no": 1, "yes": None}


@every_row("node_id", ["split", "gather", "ask"])
@every_row("then", ["nothing", "progress", "wait", "fail", "succeed"])
def test_a_control_node_that_somebody_outside_began_is_never_stuck(node_id: str, then: str) -> None:
    graph = graph_of(
        {"split": FORK, "a": task(), "gather": join(), "ask": wait(), "end": task()},
        "split > a",
        "a > gather",
        "gather > ask",
        "ask > end",
    )
    life = Life(graph)
    life.must(c.MarkNodeReady(actor=ANN, node_id=node_id))
    start(life, node_id)
    words: dict[str, c.Command] = {
        "progress": c.ReportNodeProgress(actor=ANN, node_id=node_id, progress=5),
        "wait": c.PutNodeWaiting(actor=ANN, node_id=node_id),
        "fail": c.FailNode(actor=ANN, node_id=node_id),
        "succeed": c.SucceedNode(actor=ANN, node_id=node_id),
    }
    if then in words:
        life.must(words[then])
    drive(life)
    assert life.status == ("FAILED" if then == "fail" else "COMPLETED")


def drive(life: Life) -> None:
    """Every run completes, every wait is resumed, until nothing changes any more."""
    for _ in range(50):
        life.react()
        for node_id, node in life.state.nodes.items():
            if life.state.is_terminal:
                return
            if node.status is NodeStatus.WAITING:
                life.do(c.ResumeNode(actor=ANN, node_id=node_id))
            elif node.run_id in life.runs:
                life.runs[node.run_id] = RunFact(RunStatus.COMPLETED)
    raise AssertionError(life.statuses)


# Asked twice


def test_asking_again_changes_nothing() -> None:
    life = Life(diamond())
    reaction = life.react()
    assert reaction.events
    assert life.look().events == ()
    assert life.look({}).events == ()
    assert reaction.state.version == life.state.version
    assert reaction.state == life.state


def test_two_orchestrators_say_the_same() -> None:
    life = Life(diamond())
    one, other = life.look(), life.look()
    assert one == other
    assert one.dispatches == other.dispatches


# Size


@pytest.mark.slow
def test_a_chain_of_1_000_nodes_comes_to_its_end() -> None:
    life = begun(chain(1_000))
    for index in range(1_000):
        life.end_run(f"n{index}", RunStatus.COMPLETED)
        life.react({life.node(f"n{index}").run_id or "": RunFact(RunStatus.COMPLETED)})
    assert life.status == "COMPLETED"
    assert len(life.dispatched) == 1_000


def test_a_fork_of_500_branches_comes_to_its_end() -> None:
    life = begun(branches("ALL_SUCCESS", 500))
    assert len(life.dispatched) == 500
    for index in range(0, 500, 50):
        life.succeed(*(f"b{index + offset}" for offset in range(50)))
    assert life.status == "COMPLETED"


def test_a_cancel_of_500_running_branches_converges() -> None:
    life = begun(branches("ALL_SUCCESS", 500))
    life.cancel()
    life.react()
    life.end_cancelled_runs()
    assert_canceled(life)


def test_a_row_of_forks_whose_joins_pass_early_comes_to_its_end() -> None:
    rows = range(40)
    nodes = {
        f"{kind}{row}": node
        for row in rows
        for kind, node in (("s", FORK), ("a", task()), ("b", task()), ("j", join("ANY_SUCCESS")))
    }
    inner = [f"s{row} > {end}{row}" for row in rows for end in "ab"]
    inner += [f"{end}{row} > j{row}" for row in rows for end in "ab"]
    life = begun(graph_of(nodes, *inner, *(f"j{row} > s{row + 1}" for row in rows[:-1])))
    for row in rows:
        life.succeed(f"a{row}")
        life.end_cancelled_runs()
    assert life.status == "COMPLETED"


def test_what_is_not_needed_is_stopped_in_the_order_of_the_graph() -> None:
    """Whoever looks, on whichever machine, says the same in the same order."""
    life = begun(branches("ANY_SUCCESS", 8))
    life.succeed("b3")
    told = [event.payload for event in life.events]
    stopped = [payload.node_id for payload in told if isinstance(payload, e.NodeCancelRequested)]
    assert stopped == ["b0", "b1", "b2", "b4", "b5", "b6", "b7"]


def test_an_output_that_the_execution_has_no_room_for_fails_its_node() -> None:
    """Without another attempt, which would return the same."""
    life = begun(chain(2, retry={"max_attempts": 3}))
    life.known = replace(life.state, held_bytes=MAX_HELD_BYTES - 3)
    life.succeed("n0", result="x")
    assert life.statuses == {"n0": "SUCCEEDED", "n1": "RUNNING"}
    life.succeed("n1", result="x")
    assert (life.status, life.statuses["n1"]) == ("FAILED", "FAILED")
    error = life.node("n1").error
    assert error is not None
    assert error.code == "EXECUTION_TOO_LARGE"
    assert error.message.startswith("the execution would hold more than 1,536,000 bytes of JSON")


def test_an_output_without_room_does_not_save_a_failing_execution() -> None:
    life = begun(graph_of({"split": FORK, "a": task(), "b": task()}, "split > a", "split > b"))
    life.known = replace(life.state, held_bytes=MAX_HELD_BYTES)
    life.fail("a")
    life.end_run("b", RunStatus.COMPLETED, result="x")
    life.react()
    assert life.statuses == {"split": "SUCCEEDED", "a": "FAILED", "b": "FAILED"}


def test_an_execution_that_has_no_room_for_its_result_fails() -> None:
    life = begun(chain(2))
    life.succeed("n0")
    life.known = replace(life.state, held_bytes=MAX_HELD_BYTES - 1_000)
    life.succeed("n1", result="x" * 900)
    assert life.status == "COMPLETED"

    life = begun(chain(1))
    life.known = replace(life.state, held_bytes=MAX_TOTAL_BYTES - 1_000)
    life.append((e.NodeSucceeded(node_id="n0", output="x" * 900),))
    life.react()
    error = life.state.error
    assert (life.status, life.state.failed_node_id) == ("FAILED", "n0")
    assert error is not None
    assert error.code == "RESULT_TOO_LARGE"
