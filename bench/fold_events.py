"""What the pure core costs: folding 10,000 events, a look at a chain per step, a record as bytes and back.

CPU time of this process alone, best of a few: nothing here waits for anything.
"""

import argparse
import time
from collections.abc import Callable
from functools import partial
from itertools import cycle, islice, pairwise

from gateways import verdict
from pyoco_server.domain.executions import commands as c, events as e
from pyoco_server.domain.executions.codec import decode_record, encode_record
from pyoco_server.domain.executions.commands import Rejected
from pyoco_server.domain.executions.decide import decide
from pyoco_server.domain.executions.evolve import fold
from pyoco_server.domain.executions.graphs import Graph, parse_graph
from pyoco_server.domain.executions.model import Execution
from pyoco_server.domain.executions.orchestration import RunFact, react
from pyoco_server.domain.executions.records import ExecutionRecord
from pyoco_server.domain.runs.model import RunStatus

GOAL_SEC = 0.5
USER = e.Actor(e.ActorKind.USER, "bench")
DONE = RunFact(RunStatus.COMPLETED, {"rows": 1})


def chain(nodes: int) -> Graph:
    names = [f"n{index}" for index in range(nodes)]
    return parse_graph(
        {
            "id": "chain",
            "nodes": {name: {"type": "task", "flow": "f", "params": {"n": "${input.n}"}} for name in names},
            "edges": [{"from": one, "to": other} for one, other in pairwise(names)],
        }
    )


def appended(log: list[e.Event], state: Execution | None, payloads: tuple[e.Payload, ...]) -> Execution:
    commit = e.Commit(
        execution_id="e",
        command_id="c",
        first_sequence=len(log) + 1,
        at=float(len(log)),
        actor=USER,
        payloads=payloads,
    )
    events = list(commit.events())
    log += events
    after = fold(events, state)
    assert after is not None
    return after


def started(graph: Graph, log: list[e.Event]) -> Execution:
    state: Execution | None = None
    for command in (
        c.CreateExecution(actor=USER, graph_version=1, input={"n": 1}),
        c.StartExecution(actor=USER),
    ):
        decision = decide(state, graph, command, 0.0)
        assert not isinstance(decision, Rejected)
        state = appended(log, state, tuple(decision))
    assert state is not None
    return state


def log_of(nodes: int, count: int) -> list[e.Event]:
    """The nodes are all begun, and then report progress in turns."""
    log: list[e.Event] = []
    graph = chain(nodes)
    state = started(graph, log)
    for node_id in graph.nodes:
        state = appended(
            log, state, (e.NodeReady(node_id=node_id), e.NodeStarted(node_id=node_id, attempt=1))
        )
    for node_id in islice(cycle(graph.nodes), max(0, count - len(log))):
        state = appended(log, state, (e.NodeProgressReported(node_id=node_id, progress=50.0),))
    return log[:count]


def steps_of(nodes: int) -> list[float]:
    """The CPU seconds of each look on the way from the first node's start to the end of the last."""
    log: list[e.Event] = []
    graph = chain(nodes)
    state, taken = started(graph, log), []
    facts: dict[str, RunFact | None] = {}
    while not state.is_terminal:
        began = time.process_time()
        reaction = react(state, graph, facts, float(len(log)), 10.0)
        taken.append(time.process_time() - began)
        facts = {run.work_id: DONE for run in reaction.dispatches}
        state = appended(log, state, reaction.events)
    return taken


def best(call: Callable[[], object], times: int) -> float:
    taken = []
    for _ in range(times):
        began = time.process_time()
        call()
        taken.append(time.process_time() - began)
    return min(taken)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=int, default=5)
    times = parser.parse_args().times
    for nodes in (10, 200, 1_000):
        log = log_of(nodes, 10_000)
        seconds = best(partial(fold, log), times)
        holds = verdict(holds=seconds < GOAL_SEC)
        print(f"fold of {len(log):,} events, {nodes:5,} nodes: {seconds * 1000:7.1f} ms ({holds})")
    for nodes in (10, 200, 1_000):
        taken = sorted(steps_of(nodes))
        print(f"look at a chain of {nodes:5,} nodes: {taken[len(taken) // 2] * 1e6:7.0f} µs per step")
    state = fold(log_of(200, 10_000))
    assert state is not None
    record = ExecutionRecord(state=state, log_revision=1)
    data = encode_record(record)
    encoding, decoding = best(lambda: encode_record(record), 50), best(lambda: decode_record(data), 50)
    print(f"record of 200 nodes ({len(data):,} bytes): {encoding * 1e6:.0f} µs to write")
    print(f"record of 200 nodes ({len(data):,} bytes): {decoding * 1e6:.0f} µs to read")


if __name__ == "__main__":
    main()
