"""Executions without a server: a log, a clock and the runs of one execution, driven step by step."""

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

from pyoco_server.domain.executions import commands as c, events as e
from pyoco_server.domain.executions.commands import Rejected
from pyoco_server.domain.executions.decide import Decision, decide
from pyoco_server.domain.executions.evolve import fold
from pyoco_server.domain.executions.graphs import Graph, parse_graph
from pyoco_server.domain.executions.model import Execution, NodeState, NodeStatus, replace
from pyoco_server.domain.executions.orchestration import Reaction, react
from pyoco_server.domain.executions.orchestration_map import work_in_question
from pyoco_server.domain.executions.records import DispatchRun, RunFact, StartChild
from pyoco_server.domain.executions.stored import Opened
from pyoco_server.domain.runs.model import RunStatus

ANN = e.Actor(e.ActorKind.USER, "ann")
EXECUTION_ID = "e-1"
GRACE_SEC = 10.0
T0 = 1_000.0

FORK: dict[str, Any] = {"type": "fork"}
EXTERNAL: dict[str, Any] = {"type": "task", "external": True}


def task(**more: Any) -> dict[str, Any]:
    return {"type": "task", "flow": "work", **more}


def wait(**more: Any) -> dict[str, Any]:
    return {"type": "wait", **more}


def sleep(**more: Any) -> dict[str, Any]:
    return {"type": "sleep", **more}


def repeat(node: Mapping[str, Any], until: str, **more: Any) -> dict[str, Any]:
    return {"type": "repeat", "node": dict(node), "until": until, "max": 3, **more}


def execution(graph: str = "below", **more: Any) -> dict[str, Any]:
    return {"type": "execution", "graph": graph, **more}


def map_of(node: Mapping[str, Any] | str, over: Any = "${input}", **more: Any) -> dict[str, Any]:
    """`node`: a task, or the id of a graph."""
    work = {"graph": node} if isinstance(node, str) else {"node": dict(node)}
    return {"type": "map", "over": over, **work, **more}


def join(policy: str = "ALL_SUCCESS", **more: Any) -> dict[str, Any]:
    return {"type": "join", "policy": policy, **more}


def graph_of(nodes: Mapping[str, Mapping[str, Any]], *edges: str) -> Graph:
    """Edges are written `a > b`, `a ! b` (on failure), each with ` ? condition` after it if it has one."""
    return parse_graph(
        {
            "id": "g",
            "nodes": {name: dict(node) for name, node in nodes.items()},
            "edges": [*map(_edge, edges)],
        }
    )


def _edge(text: str) -> dict[str, Any]:
    ends, _, when = text.partition(" ? ")
    source, arrow, target = ends.split()
    edge = {"from": source, "to": target}
    if arrow == "!":
        edge["on"] = "failure"
    return {**edge, "when": when} if when else edge


def chain(length: int, **more: Any) -> Graph:
    names = [f"n{index}" for index in range(length)]
    edges = [f"{one} > {other}" for one, other in pairwise(names)]
    return graph_of({name: task(**more) for name in names}, *edges)


def diamond(policy: str = "ALL_SUCCESS", **more: Any) -> Graph:
    """entry → fork → a, b → join → after."""
    return graph_of(
        {"split": FORK, "a": task(), "b": task(), "gather": join(policy, **more), "after": task()},
        "split > a",
        "split > b",
        "a > gather",
        "b > gather",
        "gather > after",
    )


class Life:
    """One execution: what the log has of it, and what its runs do."""

    def __init__(self, graph: Graph, *, input: Any = None, start: bool = True) -> None:  # noqa: A002 - the word of graphs
        self.graph = graph
        self.now = T0
        self.commits: list[e.Commit] = []
        self.known: Execution | None = None
        self.runs: dict[str, RunFact] = {}
        self.dispatched: list[DispatchRun] = []
        self.children: list[StartChild] = []
        self.cancelled: list[str] = []
        self.opened: Opened | None = None
        """Stored values that were read."""
        self.must(c.CreateExecution(actor=ANN, input=input, graph_version=1))
        if start:
            self.must(c.StartExecution(actor=ANN))

    @property
    def state(self) -> Execution:
        assert self.known is not None
        return self.known

    @property
    def status(self) -> str:
        return self.state.status.value

    @property
    def statuses(self) -> dict[str, str]:
        return {node_id: node.status.value for node_id, node in self.state.nodes.items()}

    @property
    def events(self) -> list[e.Event]:
        return [event for commit in self.commits for event in commit.events()]

    @property
    def types(self) -> list[str]:
        return [event.type for event in self.events]

    def types_of(self, node_id: str) -> list[str]:
        return [event.type for event in self.events if getattr(event.payload, "node_id", None) == node_id]

    def node(self, node_id: str) -> NodeState:
        return self.state.nodes[node_id]

    # Commands

    def do(self, command: c.Command) -> Decision:
        decision = decide(self.known, self.graph, command, self.now)
        if not isinstance(decision, Rejected) and decision:
            self.append(tuple(decision), command.actor)
        return decision

    def must(self, command: c.Command) -> list[e.Payload]:
        decision = self.do(command)
        assert not isinstance(decision, Rejected), decision
        return decision

    def cancel(self) -> list[e.Payload]:
        return self.must(c.CancelExecution(actor=ANN))

    def refused(self, command: c.Command) -> str:
        before = self.known
        decision = self.do(command)
        assert isinstance(decision, Rejected), decision
        assert self.known == before
        return decision.code.value

    def append(self, payloads: tuple[e.Payload, ...], actor: e.Actor = e.ORCHESTRATOR) -> e.Commit:
        version = 0 if self.known is None else self.known.version
        at = self.now if self.known is None else max(self.now, self.known.updated_at)
        commit = e.Commit(
            execution_id=EXECUTION_ID,
            command_id=f"c-{len(self.commits)}",
            first_sequence=version + 1,
            at=at,
            actor=actor,
            payloads=payloads,
        )
        self.commits.append(commit)
        self.known = fold(commit.events(), self.known)
        return commit

    # The orchestrator

    def facts(self) -> dict[str, RunFact | None]:
        """What reading every run of this execution that is or should be there gives."""
        wanted: dict[str, RunFact | None] = {
            work.id: None
            for node_id, node in self.state.nodes.items()
            if node.status in (NodeStatus.RUNNING, NodeStatus.WAITING)
            for work in work_in_question(self.state, self.graph, node_id)
        }
        return {**wanted, **self.runs}

    def look(self, facts: Mapping[str, RunFact | None] | None = None) -> Reaction:
        """What the orchestrator would do."""
        known = self.facts() if facts is None else facts
        return react(self.state, self.graph, known, self.now, GRACE_SEC, opened=self.opened)

    def react(self, facts: Mapping[str, RunFact | None] | None = None) -> Reaction:
        """What the orchestrator would do, done."""
        reaction = self.look(facts)
        if reaction.events:
            self.append(reaction.events)
        self.carry_out(reaction)
        return reaction

    def carry_out(self, reaction: Reaction) -> None:
        for wanted in reaction.dispatches:
            if wanted.work_id in self.runs:
                continue  # a repeat is dropped by its id
            if isinstance(wanted, StartChild):
                self.runs[wanted.work_id] = RunFact(RunStatus.RUNNING, is_execution=True)
                self.children.append(wanted)
            else:
                self.runs[wanted.work_id] = RunFact(RunStatus.PENDING)
                self.dispatched.append(wanted)
        for unwanted in reaction.cancels:
            self.cancelled.append(unwanted.run_id)
            run = self.runs.get(unwanted.run_id)
            if run is not None and not run.status.is_terminal:
                assert unwanted.is_execution == run.is_execution
                self.runs[unwanted.run_id] = replace(run, status=RunStatus.CANCELLING)

    # Runs

    def run_of(self, node_id: str) -> RunFact:
        work_id = self.node(node_id).work_id
        assert work_id is not None
        return self.runs[work_id]

    def end_run(
        self, node_id: str, status: RunStatus, *, result: Any = None, error: str | None = None
    ) -> None:
        work_id = self.node(node_id).work_id
        assert work_id is not None
        assert work_id in self.runs, f"no run of {node_id} was dispatched"
        is_execution = self.runs[work_id].is_execution
        self.runs[work_id] = RunFact(status, result, error, is_execution=is_execution)

    def succeed(self, *node_ids: str, result: Any = None) -> None:
        """Their runs complete, and the orchestrator looks."""
        for node_id in node_ids:
            self.end_run(node_id, RunStatus.COMPLETED, result=result)
        self.react()

    def fail(self, *node_ids: str, error: str = "boom") -> None:
        for node_id in node_ids:
            self.end_run(node_id, RunStatus.FAILED, error=error)
        self.react()

    def end_cancelled_runs(self) -> None:
        """The workers have stopped what they were told to stop."""
        for run_id, run in self.runs.items():
            if run.status is RunStatus.CANCELLING:
                self.runs[run_id] = replace(run, status=RunStatus.CANCELLED)
        self.react()


def begun(graph: Graph, **options: Any) -> Life:
    """An execution that was started and looked at once."""
    life = Life(graph, **options)
    life.react()
    return life
