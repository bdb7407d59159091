"""What is kept of executions: commits and records as JSON, keys, summaries, and what a re-run takes over."""

import json
from random import Random
from typing import Any, get_type_hints

import msgspec
import pytest
from hypothesis import given, strategies as st

from pyoco_server.domain.codec import Unreadable
from pyoco_server.domain.executions import commands as c, events as e
from pyoco_server.domain.executions.codec import decode_commit, decode_record, encode_commit, encode_record
from pyoco_server.domain.executions.commands import command_digest, keyed_command_id
from pyoco_server.domain.executions.events import PAYLOADS
from pyoco_server.domain.executions.evolve import fold
from pyoco_server.domain.executions.graphs import Graph
from pyoco_server.domain.executions.model import Execution, carry_over, outputs_for_rerun
from pyoco_server.domain.executions.records import (
    MAX_KEYS,
    ExecutionRecord,
    KeyedCommand,
    LoggedCommit,
    advance,
    summarise,
)
from pyoco_server.domain.large_values import Place
from pyoco_server.domain.traces import Trace
from pyoco_server.errors import InvalidRequest
from pyoco_server.http_api.views import event_view
from support.executions import (
    ANN,
    EXECUTION_ID,
    EXTERNAL,
    FORK,
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
from support.random_executions import Checked, Storm, storm
from support.tables import every_row

TEXT = st.text(max_size=20)
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)
ACTORS = st.builds(e.Actor, st.sampled_from(e.ActorKind), st.none() | TEXT)
FAILURES = st.builds(e.Failure, message=TEXT, code=TEXT, details=JSON)
ITEM_ENDS = st.builds(
    e.ItemEnd, index=st.integers(0, 9), attempt=st.integers(1, 9), output=JSON, error=st.none() | FAILURES
)
FINITE = st.floats(allow_nan=False, allow_infinity=False)


def values_of(hint: Any) -> st.SearchStrategy[Any]:
    known = {
        Any: JSON,
        str: TEXT,
        int | None: st.none() | st.integers(1, 9),
        int: st.integers(0, 2**53),
        float: FINITE,
        bool: st.booleans(),
        e.Failure: FAILURES,
        tuple[e.ItemEnd, ...]: st.lists(ITEM_ENDS, max_size=3).map(tuple),
        tuple[str, ...]: st.lists(TEXT, max_size=3).map(tuple),
        tuple[Place, ...]: st.lists(st.lists(TEXT, min_size=1, max_size=3).map(tuple), max_size=2).map(tuple),
        str | None: st.none() | TEXT,
        float | None: st.none() | FINITE,
        Trace | None: st.none() | st.builds(Trace, traceparent=TEXT, tracestate=st.none() | TEXT),
        dict[str, int]: st.dictionaries(TEXT, st.integers(1, 9), max_size=3),
        dict[str, Any] | None: st.none() | st.dictionaries(TEXT, JSON, max_size=3),
    }
    return known[hint]


def payloads_of(payload: type[e.Payload]) -> st.SearchStrategy[e.Payload]:
    hints = get_type_hints(payload)
    fields = {name: values_of(hints[name]) for name in payload.__struct_fields__}
    return st.builds(payload, **fields)


EVERY_PAYLOAD = st.one_of([payloads_of(payload) for payload in PAYLOADS.values()])
COMMITS = st.builds(
    e.Commit,
    execution_id=TEXT,
    command_id=TEXT,
    first_sequence=st.integers(1, 10**6),
    at=FINITE,
    actor=ACTORS,
    payloads=st.lists(EVERY_PAYLOAD, min_size=1, max_size=4).map(tuple),
    correlation_id=st.none() | TEXT,
    request_digest=st.none() | TEXT,
)


def a_state(**more: Any) -> Execution:
    return Execution(
        execution_id="e", graph_id="g", graph_version=1, created_at=T0, updated_at=T0, version=1, **more
    )


def written(commit: e.Commit) -> bytes:
    return encode_commit(LoggedCommit(commit, summarise(a_state())))


# Commits as JSON


@every_row("name", PAYLOADS)
def test_an_event_of_each_type_reads_as_it_was_written(name: str) -> None:
    @given(payloads_of(PAYLOADS[name]))
    def check(payload: e.Payload) -> None:
        commit = e.Commit(
            execution_id="e", command_id="c", first_sequence=3, at=T0, actor=ANN, payloads=(payload,)
        )
        data = written(commit)
        assert decode_commit(data).commit == commit
        assert json.loads(data)["events"][0]["type"] == name

    check()


@given(COMMITS)
def test_a_commit_reads_as_it_was_written(commit: e.Commit) -> None:
    logged = LoggedCommit(commit, summarise(a_state(input={"x": 1})))
    assert decode_commit(encode_commit(logged)) == logged


def stored(**changes: Any) -> bytes:
    commit = e.Commit(
        execution_id="e",
        command_id="c",
        first_sequence=1,
        at=T0,
        actor=ANN,
        payloads=(e.NodeReady(node_id="n"),),
    )
    return json.dumps({**json.loads(written(commit)), **changes}).encode()


def test_an_event_of_a_newer_version_is_kept_and_has_no_effect() -> None:
    data = stored(events=[{"type": "NODE_TELEPORTED", "payload": {"node_id": "n", "to": [1, 2]}}])
    logged = decode_commit(data)
    assert logged.commit.payloads == (
        e.Unknown(type="NODE_TELEPORTED", fields={"node_id": "n", "to": [1, 2]}),
    )
    assert decode_commit(encode_commit(logged)) == logged
    assert json.loads(encode_commit(logged))["events"] == json.loads(data)["events"]


def test_a_known_type_in_a_newer_schema_is_kept_and_has_no_effect() -> None:
    data = stored(schema_version=3, events=[{"type": "NODE_READY", "payload": {"node": 7}}])
    logged = decode_commit(data)
    (event,) = logged.commit.events()
    assert (event.type, event.schema_version) == ("NODE_READY", 3)
    before = a_state()
    assert fold([event], before) == msgspec.structs.replace(before, version=1)
    assert decode_commit(encode_commit(logged)) == logged


def test_fields_that_are_not_known_yet_are_ignored() -> None:
    logged = decode_commit(
        stored(colour="red", events=[{"type": "NODE_READY", "payload": {"node_id": "n", "x": 1}}])
    )
    assert logged.commit.payloads == (e.NodeReady(node_id="n"),)


@every_row(
    "data",
    [
        b"",
        b"{",
        b"[]",
        b"\xff",
        stored(events=[{"type": "NODE_READY", "payload": {}}]),
        stored(events=[{"type": "NODE_READY", "payload": {"node_id": 5}}]),
        stored(actor={"kind": "nobody"}),
        stored(first_sequence="1"),
        b'{"a":' + b"[" * 100_000,
    ],
)
def test_what_is_not_a_commit_is_told_so(data: bytes) -> None:
    with pytest.raises(Unreadable, match="execution commit"):
        decode_commit(data)


def test_clients_see_one_envelope_per_event() -> None:
    life = begun(chain(1))
    views = [msgspec.to_builtins(event_view(event, event.execution_id)) for event in life.events]
    assert [view["sequence"] for view in views] == list(range(1, len(views) + 1))
    assert len({view["event_id"] for view in views}) == len(views)
    assert list(views[0]) == [
        "event_id",
        "execution_id",
        "sequence",
        "type",
        "occurred_at",
        "actor",
        "correlation_id",
        "causation_id",
        "schema_version",
        "payload",
    ]
    assert views[0]["type"] == "EXECUTION_CREATED"
    assert views[0]["causation_id"] == life.commits[0].command_id


# Records


def test_a_record_is_the_fold_of_its_commits() -> None:
    life = a_life_of_every_kind()
    record: ExecutionRecord | None = None
    for revision, commit in enumerate(life.commits, start=10):
        record = advance(record, commit, revision)
        assert record is not None
        assert record.log_revision == revision
        assert record.state.version == commit.last_sequence
    assert record is not None
    assert record.state == life.state


def a_life_of_every_kind() -> Life:
    graph = graph_of(
        {"split": FORK, "a": task(), "x": EXTERNAL, "gather": join("ANY_SUCCESS"), "w": wait(prompt="ok?")},
        "split > a",
        "split > x",
        "a > gather",
        "x > gather",
        "gather > w",
    )
    life = begun(graph, input={"ym": "202401"})
    life.must(c.StartNode(actor=ANN, node_id="x", worker_id="w-1"))
    life.must(c.ReportNodeProgress(actor=ANN, node_id="x", progress=50, metrics={"rows": 1}))
    life.succeed("a", result={"n": 1})
    life.must(c.RequestResumeNode(actor=ANN, node_id="w", data={"why": "late"}))
    return life


def test_a_record_of_any_life_reads_as_it_was_written() -> None:
    for seed in range(100):
        state = storm(seed).state
        record = ExecutionRecord(state=state, log_revision=7, keys={"k": KeyedCommand("digest", 3)})
        assert decode_record(encode_record(record)) == record, seed


def test_there_is_no_record_before_there_is_an_execution() -> None:
    commit = e.Commit(
        execution_id="e",
        command_id="c",
        first_sequence=1,
        at=T0,
        actor=ANN,
        payloads=(e.Unknown(type="EXECUTION_DREAMT", fields={}),),
    )
    assert advance(None, commit, 1) is None


def keyed(record: ExecutionRecord | None, key: str) -> ExecutionRecord:
    version = 0 if record is None else record.state.version
    payload = e.ExecutionCreated(graph_id="g", graph_version=1) if record is None else e.ExecutionStarted()
    commit = e.Commit(
        execution_id="e",
        command_id=key,
        first_sequence=version + 1,
        at=T0,
        actor=ANN,
        payloads=(payload,),
        request_digest=f"digest of {key}",
    )
    found = advance(record, commit, version + 1)
    assert found is not None
    return found


def test_a_keyed_command_is_remembered_with_what_it_asked_and_led_to() -> None:
    record = keyed(keyed(None, "one"), "two")
    assert record.keys == {"one": KeyedCommand("digest of one", 1), "two": KeyedCommand("digest of two", 2)}
    plain = e.Commit(
        execution_id="e", command_id="x", first_sequence=3, at=T0, actor=ANN, payloads=(e.ExecutionStarted(),)
    )
    after = advance(record, plain, 3)
    assert after is not None
    assert after.keys == record.keys


def test_the_oldest_keys_are_forgotten_first() -> None:
    record = None
    for number in range(MAX_KEYS + 5):
        record = keyed(record, f"k{number}")
    assert record is not None
    assert list(record.keys) == [f"k{number}" for number in range(5, MAX_KEYS + 5)]


# Summaries


def test_a_summary_tells_where_an_execution_stands() -> None:
    life = a_life_of_every_kind()
    summary = summarise(life.state)
    assert (summary.execution_id, summary.graph_id, summary.version) == (
        EXECUTION_ID,
        "g",
        life.state.version,
    )
    assert summary.node_counts == {"SUCCEEDED": 3, "RUNNING": 1, "WAITING": 1}
    (waiting,) = summary.waits
    assert (waiting.node_id, waiting.prompt, waiting.waiting_at) == ("w", "ok?", T0)
    assert (waiting.resume_requested_by, waiting.resume_data) == ("ann", {"why": "late"})


@pytest.mark.parametrize("end", ["COMPLETED", "FAILED", "CANCELED"])
def test_a_summary_tells_how_an_execution_ended(end: str) -> None:
    life = begun(chain(1))
    life.now += 5
    if end == "COMPLETED":
        life.succeed("n0")
    elif end == "FAILED":
        life.fail("n0", error="disk full")
    else:
        life.cancel()
        life.react()
        life.end_cancelled_runs()
    summary = summarise(life.state)
    assert (summary.status, summary.ended_at) == (end, T0 + 5)
    assert (summary.failed_node_id, summary.error) == (
        ("n0", "disk full") if end == "FAILED" else (None, None)
    )
    assert (summary.cancel_requested_at is None) is (end != "CANCELED")


# Keys and digests


def test_the_id_of_a_keyed_command_is_of_its_tenant_its_scope_and_its_key() -> None:
    same = keyed_command_id("t", "e-1", "key")
    assert same == keyed_command_id("t", "e-1", "key")
    others = {
        keyed_command_id("u", "e-1", "key"),
        keyed_command_id(None, "e-1", "key"),
        keyed_command_id("t", "e-2", "key"),
        keyed_command_id("t", "e-1", "other"),
    }
    assert len(others | {same}) == 5
    with pytest.raises(InvalidRequest):
        keyed_command_id("t", "e-1", "")


BOB = e.Actor(e.ActorKind.EXTERNAL, "bob")


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"nodeId": "n", "output": {"a": 1, "b": 2}}, {"node_id": "n", "output": {"b": 2, "a": 1}}),
        ({"node_id": "n", "correlation_id": "x"}, {"node_id": "n", "correlationId": "y"}),
        ({"node_id": "n"}, {"node_id": "n", "output": None, "worker_id": None}),
    ],
)
def test_equal_commands_have_equal_digests_however_they_were_written(
    one: dict[str, Any], other: dict[str, Any]
) -> None:
    first, second = c.read_command("SucceedNode", one, ANN), c.read_command("SucceedNode", other, BOB)
    assert command_digest(first) == command_digest(second)


def test_commands_that_ask_for_something_else_have_other_digests() -> None:
    commands: list[c.Command] = [
        c.SucceedNode(actor=ANN, node_id="n"),
        c.SucceedNode(actor=ANN, node_id="m"),
        c.SucceedNode(actor=ANN, node_id="n", output=1),
        c.SucceedNode(actor=ANN, node_id="n", output=True),
        c.SucceedNode(actor=ANN, node_id="n", output="1"),
        c.SucceedNode(actor=ANN, node_id="n", output=[1, 2]),
        c.SucceedNode(actor=ANN, node_id="n", output=[2, 1]),
        c.SucceedNode(actor=ANN, node_id="n", attempt=1),
        c.FailNode(actor=ANN, node_id="n"),
        c.MarkNodeReady(actor=ANN, node_id="n"),
        c.CancelExecution(actor=ANN),
        c.CancelExecution(actor=ANN, reason="x"),
        c.StartExecution(actor=ANN),
    ]
    assert len({command_digest(command) for command in commands}) == len(commands)


# What a re-run takes over


def rerun(old: Life) -> Life:
    """A new execution of the same graph that begins with what the old one had done for good."""
    life = Life(old.graph, input=old.state.input)
    carried = carry_over(old.graph, old.state)
    if carried:
        life.append(tuple(carried), ANN)
    life.react()
    return life


def test_a_rerun_takes_over_what_had_succeeded_and_does_the_rest() -> None:
    old = begun(chain(3))
    old.succeed("n0", result="kept")
    old.fail("n1")
    assert outputs_for_rerun(old.state, old.graph) == {"n0": "kept"}
    life = rerun(old)
    assert (life.node("n0").output, life.statuses["n1"]) == ("kept", "RUNNING")
    assert [run.node_id for run in life.dispatched] == ["n1"]
    life.succeed("n1")
    life.succeed("n2", result=1)
    assert (life.status, life.state.result) == ("COMPLETED", {"n2": 1})


def test_a_rerun_of_what_did_nothing_does_everything() -> None:
    old = Life(chain(2), start=False)
    old.cancel()
    life = rerun(old)
    assert life.statuses == {"n0": "RUNNING", "n1": "IDLE"}


def test_a_rerun_does_again_what_came_after_a_failure_that_a_join_let_pass() -> None:
    old = begun(diamond("ALL_DONE"))
    old.succeed("a", result=1)
    old.fail("b")
    old.succeed("after", result="with half of it")
    assert old.status == "COMPLETED"
    assert outputs_for_rerun(old.state, old.graph) == {"split": None, "a": 1}
    life = rerun(old)
    assert life.statuses == {
        "split": "SUCCEEDED",
        "a": "SUCCEEDED",
        "b": "RUNNING",
        "gather": "IDLE",
        "after": "IDLE",
    }


def any_of_two() -> Graph:
    return graph_of(
        {
            "split": FORK,
            "a": task(),
            "b": task(),
            "gather": join("ANY_SUCCESS"),
            "mid": task(),
            "last": task(),
        },
        "split > a",
        "split > b",
        "a > gather",
        "b > gather",
        "gather > mid",
        "mid > last",
    )


def test_a_rerun_does_not_do_again_what_came_after_a_branch_that_was_not_needed() -> None:
    old = begun(any_of_two())
    old.succeed("a", result=1)
    old.end_cancelled_runs()
    old.succeed("mid", result="done")
    old.fail("last")
    assert (old.status, old.statuses["b"]) == ("FAILED", "CANCELED")
    life = rerun(old)
    assert life.statuses["mid"] == "SUCCEEDED"
    assert life.statuses["b"] == "CANCELED"
    assert [run.node_id for run in life.dispatched] == ["last"]


def test_a_way_that_was_not_taken_is_not_taken_again() -> None:
    graph = graph_of({"a": task(), "no": task(), "yes": task()}, "a > no ? nodes.a.output.n > 5", "a > yes")
    old = begun(graph)
    old.succeed("a", result={"n": 1})
    old.fail("yes")
    life = rerun(old)
    assert life.statuses == {"a": "SUCCEEDED", "no": "IDLE", "yes": "RUNNING"}


def test_forks_waits_and_joins_are_taken_over_as_what_they_were() -> None:
    graph = graph_of(
        {"w": wait(), "split": FORK, "a": task(), "b": task(), "gather": join(), "last": task()},
        "w > split",
        "split > a",
        "split > b",
        "a > gather",
        "b > gather",
        "gather > last",
    )
    old = begun(graph)
    old.must(c.ResumeNode(actor=ANN, node_id="w", data={"ok": True}))
    old.react()
    old.succeed("a", "b")
    old.fail("last")
    life = rerun(old)
    assert life.node("w").output == {"ok": True}
    for carried in ("w", "split", "a", "b", "gather"):
        assert life.types_of(carried)[1:] == ["NODE_SUCCEEDED"], "it was not started here"
        node = life.node(carried)
        assert (node.carried_from, node.attempt, node.started_at) == (EXECUTION_ID, 0, None)
    assert life.statuses["last"] == "RUNNING"
    assert life.node("last").carried_from is None


def test_a_log_of_an_older_version_has_carried_nodes_that_started() -> None:
    graph = diamond()
    life = Life(graph)
    life.append(
        (
            e.NodeReady(node_id="split"),
            e.NodeStarted(node_id="split", attempt=1),
            e.ForkOpened(node_id="split", branch_ids=("a", "b")),
            e.NodeSucceeded(node_id="split"),
        ),
        ANN,
    )
    life.react()
    assert life.statuses["split"] == "SUCCEEDED"
    assert [run.node_id for run in life.dispatched] == ["a", "b"]


def test_what_is_taken_over_of_any_life_can_have_happened() -> None:
    """Each of its events has an effect, and the re-run comes to an end of its own."""
    for seed in range(200):
        old = storm(seed)
        outputs = outputs_for_rerun(old.state, old.graph)
        life = Checked(old.graph, input=old.state.input)
        if events := carry_over(old.graph, old.state):
            life.append(tuple(events), ANN)
        succeeded = {name for name, status in life.statuses.items() if status == "SUCCEEDED"}
        assert succeeded == set(outputs), seed
        assert {name: life.node(name).output for name in outputs} == outputs, seed
        Storm(life, Random(seed)).bring_to_an_end()  # noqa: S311 - it is to be repeatable


@pytest.mark.parametrize("size", [1, 100_000])
def test_a_stored_state_is_read_as_it_was_written(size: int) -> None:
    """A large one is decoded part by part."""
    life = begun(graph_of({"n": EXTERNAL}), input={"a": ["é"] * size})
    life.must(c.StartNode(actor=ANN, node_id="n"))
    life.must(c.SucceedNode(actor=ANN, node_id="n", output={"v": [None, 1.5, {}]}))
    life.react()
    assert life.status == "COMPLETED"
    keys = {"k": KeyedCommand("digest", 3)}
    record = ExecutionRecord(state=life.state, log_revision=7, keys=keys)
    assert decode_record(encode_record(record)) == record
