"""Any graph, any order of events: random lives of an execution, each repeatable from its seed.

A storm mixes commands, looks of two orchestrators (with facts that are complete, partial, stale or missing),
crashes between an append and its dispatches, ends of runs and jumps of the clock. Every step checks what must
always hold; at the end everything that is waited for comes, and then the execution must end.
"""

from collections.abc import Callable, Mapping
from copy import copy
from random import Random
from typing import Any, Self

from pyoco_server.domain.executions import commands as c, events as e
from pyoco_server.domain.executions.commands import Rejected
from pyoco_server.domain.executions.evolve import fold
from pyoco_server.domain.executions.graphs import Graph, parse_graph
from pyoco_server.domain.executions.model import (
    Execution,
    ExecutionStatus,
    NodeState,
    NodeStatus,
    held_by,
    json_size,
    replace,
)
from pyoco_server.domain.executions.orchestration import Reaction, react
from pyoco_server.domain.executions.records import RunFact, run_id_of, work_of
from pyoco_server.domain.runs.model import RunStatus
from support.executions import ANN, EXECUTION_ID, GRACE_SEC, T0, Life

MAX_STEPS = 20
MAX_ROUNDS = 200
JUMPS = (0.0, 0.5, 2.0, GRACE_SEC, 60.0, -5.0)
OUTPUTS = (None, 0, 1, {"n": 1}, {"n": 5})
INPUT = {"go": True, "n": 3, "items": [1, 2, 3]}
CONDITIONS = ("true", "false", "input.go", "input.n > 5", "nodes.{0}.output == 1", "nodes.{0}.output.n > 2")
SLEEPS: tuple[dict[str, Any], ...] = (
    {"type": "sleep", "for_sec": 3},
    {"type": "sleep", "for_sec": "${input.n}"},
    {"type": "sleep", "until": T0 + 5},
    {"type": "sleep", "until": "${input.missing}"},
)
WORK = (
    *("flow", "flow", "flow", "external", "external", "wait", "wait"),
    *("sleep", "repeat", "execution", "map"),
)
UNDONE = ("task", "wait", "repeat", "execution", "map")
WORKERS = (None, "w1", "w2")


# Graphs


class GraphMaker:
    """Rows of nodes and of forks with their joins, some edges with conditions, some nodes with a way out."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._nodes: dict[str, dict[str, Any]] = {}
        self._edges: list[dict[str, Any]] = []

    def make(self) -> Graph:
        self._row(2)
        return parse_graph({"id": "g", "nodes": self._nodes, "edges": self._edges})

    def _node(self, node: dict[str, Any]) -> str:
        name = f"n{len(self._nodes)}"
        self._nodes[name] = node
        return name

    def _edge(self, source: str, target: str, on: str = "success") -> None:
        edge = {"from": source, "to": target, "on": on}
        if self._random.random() < 0.2:
            edge["when"] = self._random.choice(CONDITIONS).format(source)
        self._edges.append(edge)

    def _row(self, depth: int) -> tuple[str, str]:
        first, last = self._block(depth)
        for _ in range(self._random.choice((0, 0, 1, 1, 2))):
            following, end = self._block(depth)
            self._edge(last, following)
            if self._nodes[last]["type"] != "fork" and self._random.random() < 0.1:
                self._maybe_fail_over(last, following)
            last = end
        return first, last

    def _block(self, depth: int) -> tuple[str, str]:
        if depth and len(self._nodes) < 7 and self._random.random() < 0.45:
            return self._fork(depth - 1)
        name = self._node(self._work())
        if self._nodes[name]["type"] in UNDONE and self._random.random() < 0.15:
            self._undoes(name)
        if self._random.random() < 0.15:
            self._edge(name, self._node(self._work()), "failure")
        return name, name

    def _work(self) -> dict[str, Any]:
        kind = self._random.choice(WORK)
        makers = {"map": self._map, "execution": self._execution, "repeat": self._repeat}
        if kind in makers:
            return makers[kind]()
        if kind == "sleep":
            return self._random.choice(SLEEPS)
        if kind == "wait":
            if self._random.random() < 0.4:
                return self._some({"type": "wait", "message": "m"}, when="data.n > 1", timeout_sec=30)
            return self._some({"type": "wait"}, wait_key="k", timeout_sec=30, on_timeout="succeed")
        node: dict[str, Any] = {"type": "task", "external": True} if kind == "external" else self._flow()
        retry = {"max_attempts": self._random.choice((2, 3)), "backoff_sec": self._random.choice((0, 1))}
        return self._some(node, timeout_sec=20, retry=retry)

    def _undoes(self, name: str) -> None:
        undo = f"u{len(self._nodes)}"
        external = self._random.random() < 0.4
        retry = {"max_attempts": 2, "backoff_sec": 1}
        work = {"type": "task", "external": True} if external else self._flow()
        self._nodes[undo] = self._some(work, retry=retry, timeout_sec=20)
        self._nodes[name]["undo"] = undo

    def _repeat(self) -> dict[str, Any]:
        retry = {"max_attempts": 2, "backoff_sec": self._random.choice((0, 1))}
        task = self._some({**self._flow(), "type": "task"}, timeout_sec=20, retry=retry)
        if self._random.random() < 0.5:
            task["params"] = {"turn": "${iteration}"}
        until = self._random.choice(("output.n > 2", "output == 1", "true"))
        most = self._random.choice((1, 2, 4))
        return self._some({"type": "repeat", "node": task, "until": until, "max": most}, every_sec=2)

    def _execution(self) -> dict[str, Any]:
        given = {"x": "${input.missing}" if self._random.random() < 0.05 else "${input.n}"}
        retry = {"max_attempts": 2, "backoff_sec": self._random.choice((0, 1))}
        node = {"type": "execution", "graph": "below"}
        return self._some(node, input=given, timeout_sec=20, retry=retry)

    def _map(self) -> dict[str, Any]:
        pick = self._random.choice
        node: dict[str, Any] = {"type": "map", "over": pick(("${input.items}", [], [5, 6], "${input.n}"))}
        retry = {"max_attempts": 2, "backoff_sec": pick((0, 1))}
        if self._random.random() < 0.3:
            node = self._some({**node, "graph": "below"}, input="${item}", retry=retry)
        else:
            node["node"] = self._some(self._flow(), retry=retry)
        more = {"max_parallel": pick((1, 2)), "tolerate": pick((1, "50%")), "max_items": 2}
        return self._some(node, **more)

    def _flow(self) -> dict[str, Any]:
        missing = self._random.random() < 0.05
        return {"type": "task", "flow": "f", "params": {"x": "${input.missing}" if missing else "${input.n}"}}

    def _some(self, node: dict[str, Any], **more: Any) -> dict[str, Any]:
        return node | {key: value for key, value in more.items() if self._random.random() < 0.3}

    def _fork(self, depth: int) -> tuple[str, str]:
        fork = self._node({"type": "fork"})
        branches = [self._row(depth) for _ in range(self._random.choice((2, 2, 3)))]
        policy = self._random.choice(("ALL_SUCCESS", "ANY_SUCCESS", "ALL_DONE", "CUSTOM"))
        join: dict[str, Any] = {"type": "join", "policy": policy}
        if policy == "CUSTOM":
            join["min_success"] = self._random.randint(1, len(branches))
        if policy in ("ANY_SUCCESS", "CUSTOM") and self._random.random() < 0.3:
            join["cancel_rest"] = False
        end = self._node(join)
        for first, last in branches:
            self._edge(fork, first)
            self._edge(last, end)
            if self._random.random() < 0.1:
                self._maybe_fail_over(last, end)
        return fork, end

    def _maybe_fail_over(self, source: str, target: str) -> None:
        if self._nodes[source]["type"] in ("task", "wait"):
            self._edge(source, target, "failure")


# Lives


class Checked(Life):
    """A life in which whatever must always hold is looked at after every append."""

    def append(self, payloads: tuple[e.Payload, ...], actor: e.Actor = e.ORCHESTRATOR) -> e.Commit:
        before = self.known
        commit = super().append(payloads, actor)
        check_step(before, self.state, commit, self.graph)
        return commit

    def copy(self) -> Self:
        """One life, two ways on."""
        other = copy(self)
        other.commits, other.runs = [*self.commits], {**self.runs}
        other.dispatched, other.cancelled = [*self.dispatched], [*self.cancelled]
        other.children = [*self.children]
        return other

    def carry_out(self, reaction: Reaction) -> None:
        for wanted in reaction.dispatches:
            assert wanted.work_id in self._ids_of(wanted.node_id), "work without its NODE_STARTED"
        super().carry_out(reaction)

    def _ids_of(self, node_id: str) -> list[str]:
        node, spec = self.node(node_id), self.graph.nodes[node_id]
        if node.map is not None:
            parts = [(attempt, index) for index in range(len(node.map.statuses)) for attempt in (1, 2)]
            items = [work_of(EXECUTION_ID, spec, attempt, index) for attempt, index in parts]
            return [work.id for work in items if work is not None]
        attempts = range(1, node.attempt + 1)
        works = [work_of(EXECUTION_ID, spec, one, node.iteration) for one in attempts]
        return [work.id for work in works if work is not None]


def check_step(before: Execution | None, after: Execution, commit: e.Commit, graph: Graph) -> None:
    assert commit.first_sequence == (1 if before is None else before.version + 1)
    assert after.version == commit.last_sequence
    check_ends(after)
    check_undos(before, after, graph)
    assert after.held_bytes == held_bytes_of(after)
    for node_id, node in after.nodes.items():
        assert node.attempt <= graph.nodes[node_id].max_attempts, (node_id, node)
        assert (node.iteration or 0) <= (graph.nodes[node_id].max or 1), (node_id, node)
        known = None if before is None else before.nodes.get(node_id)
        assert known is None or not known.status.is_terminal or known == node, (node_id, known, node)
    if before is not None and before.is_terminal:
        assert [type(payload) for payload in commit.payloads] == [e.ExecutionArchived]
        assert before.archived_at is None
    if before is not None and before.cancel_requested_at is not None:
        assert after.cancel_requested_at == before.cancel_requested_at


def check_undos(before: Execution | None, after: Execution, graph: Graph) -> None:
    """One after the other, the last success first, after all others have ended, and all before the end."""
    for undo_id, node_id in graph.undoes.items():
        undo, node = after.nodes.get(undo_id), after.nodes.get(node_id)
        if undo is None or node is None:
            continue
        if undo.undoes is not None:
            assert after.cancel_requested_at is not None or after.fail_requested_at is not None
            assert (undo.undoes, node.status) == (node_id, NodeStatus.SUCCEEDED)
        has_begun = undo.undoes is not None
        if has_begun and (before is None or before.nodes[undo_id].undoes is None):
            others = [found for name, found in after.nodes.items() if name not in graph.undoes]
            assert not any(found.status.is_live for found in others)
            later = [
                other_undo
                for other_undo, other in graph.undoes.items()
                if after.nodes[other].status is NodeStatus.SUCCEEDED
                and (after.nodes[other].ended_at or 0) > (node.ended_at or 0)
            ]
            assert all(after.nodes[name].status.is_terminal for name in later), (undo_id, later)
        if after.status in (ExecutionStatus.FAILED, ExecutionStatus.CANCELED):
            assert (node.status is NodeStatus.SUCCEEDED) == has_begun, (undo_id, node)


def held_bytes_of(state: Execution) -> int:
    values = (state.input, state.result, *(message.data for message in state.messages))
    return sum(map(json_size, values)) + sum(map(held_by, state.nodes.values()))


def check_ends(state: Execution) -> None:
    if state.cancel_requested_at is not None:
        assert state.status in (ExecutionStatus.ACTIVE, ExecutionStatus.CANCELED)
    if state.is_terminal:
        assert not any(node.status.is_live for node in state.nodes.values())
    if state.status is ExecutionStatus.CANCELED:
        assert all(node.status.is_terminal for node in state.nodes.values())
    if state.status is ExecutionStatus.FAILED:
        assert state.failed_node_id is not None
        assert state.nodes[state.failed_node_id].status is NodeStatus.FAILED


class Storm:
    def __init__(self, life: Checked, random: Random) -> None:
        self.random = random
        self.life = life
        self.names = list(life.graph.nodes)
        self.remembered: list[tuple[Execution, dict[str, RunFact | None]]] = []
        self._steps: tuple[tuple[Callable[[], None], int], ...] = (
            (self.command, 8),
            (self.look, 5),
            (self.look_with_partial_facts, 2),
            (self.crash_after_append, 1),
            (self.look_with_old_facts, 1),
            (self.second_orchestrator, 2),
            (self.remember, 1),
            (self.end_a_run, 5),
            (self.jump, 2),
        )

    def run(self) -> Checked:
        steps, weights = zip(*self._steps, strict=True)
        for step in self.random.choices(steps, weights, k=self.random.randint(1, MAX_STEPS)):
            step()
        self.check_folds()
        self.bring_to_an_end()
        self.check_folds()
        return self.life

    # What may happen

    def command(self) -> None:
        self.life.do(self._any_command())

    def _any_command(self) -> c.Command:
        pick = self.random.choice
        nodes = self.life.state.nodes
        live = [name for name, known in nodes.items() if known.status.is_live]
        node_id = pick(live if live and self.random.random() < 0.8 else self.names)
        worker, attempt = (
            pick((nodes[node_id].worker_id, nodes[node_id].worker_id, *WORKERS)),
            pick((None, None, None, None, 1, 2)),
        )
        node: dict[str, Any] = {"actor": ANN, "node_id": node_id}
        held = {**node, "worker_id": worker, "attempt": attempt}
        key = pick((nodes[node_id].wait_key, "k"))
        run_id = pick((None, None, run_id_of(EXECUTION_ID, node_id, 1)))
        makers: tuple[Callable[[], c.Command], ...] = (
            lambda: c.CreateExecution(actor=ANN, graph_version=1),
            lambda: c.StartExecution(actor=ANN),
            lambda: c.CancelExecution(actor=ANN),
            lambda: c.ArchiveExecution(actor=ANN),
            lambda: c.MarkNodeReady(**node),
            lambda: c.StartNode(**held, run_id=run_id),
            lambda: c.ReportNodeProgress(**held, progress=50.0),
            lambda: c.PutNodeWaiting(**held, deadline=pick((None, self.life.now + 3))),
            lambda: c.RequestResumeNode(**node, resume_key=key),
            lambda: c.ResumeNode(**node, resume_key=key, data=pick(OUTPUTS)),
            lambda: c.SucceedNode(**held, output=pick(OUTPUTS)),
            lambda: c.FailNode(**held),
            lambda: c.SendMessage(actor=ANN, name="m", data=pick(OUTPUTS)),
        )
        weights = (1, 2, 3, 2, 5, 8, 5, 6, 5, 5, 7, 7, 5)
        return self.random.choices(makers, weights)[0]()

    def look(self) -> None:
        self._look(self.life.facts())

    def look_with_partial_facts(self) -> None:
        known = self.life.facts()
        self._look({run_id: fact for run_id, fact in known.items() if self.random.random() < 0.5})

    def look_with_old_facts(self) -> None:
        if self.remembered:
            self._look(self.random.choice(self.remembered)[1])

    def _look(self, facts: Mapping[str, RunFact | None]) -> None:
        reaction = self.life.react(facts)
        again = react(reaction.state, self.life.graph, facts, self.life.now, GRACE_SEC)
        assert again.events == (), "asked again, it had more to say"

    def crash_after_append(self) -> None:
        reaction = self.life.look()
        if reaction.events:
            self.life.append(reaction.events)

    def remember(self) -> None:
        self.remembered.append((self.life.state, self.life.facts()))

    def second_orchestrator(self) -> None:
        """It decided on what it knew. If the log has moved on, its append is refused and it looks again."""
        if not self.remembered:
            self.remember()
            return
        state, facts = self.random.choice(self.remembered)
        reaction = react(state, self.life.graph, facts, self.life.now, GRACE_SEC)
        if not reaction.events:
            self.life.carry_out(reaction)
        elif state.version == self.life.state.version:
            self.life.append(reaction.events)
            self.life.carry_out(reaction)
        else:
            self.life.react(facts)

    def end_a_run(self) -> None:
        open_runs = [run_id for run_id, run in self.life.runs.items() if not run.status.is_terminal]
        if open_runs:
            self._move_run(self.random.choice(open_runs))

    def _move_run(self, run_id: str) -> None:
        run = self.life.runs[run_id]
        if run.status is RunStatus.CANCELLING:
            self.life.runs[run_id] = replace(run, status=RunStatus.CANCELLED)
            return
        ends = (RunStatus.RUNNING, RunStatus.COMPLETED, RunStatus.FAILED, RunStatus.CANCELLED)
        status = self.random.choices(ends, (1, 5, 3, 1))[0]
        self.life.runs[run_id] = replace(run, status=status, result=self.random.choice(OUTPUTS))

    def jump(self) -> None:
        self.life.now += self.random.choice(JUMPS)

    # What must hold

    def check_folds(self) -> None:
        events = self.life.events
        assert [event.sequence for event in events] == list(range(1, len(events) + 1))
        assert fold(events) == self.life.state
        middle = self.random.randint(0, len(events))
        assert fold(events[middle:], fold(events[:middle])) == self.life.state

    def bring_to_an_end(self) -> None:
        """Runs end, outside workers do their work, waits are resumed, time passes: then it has to end."""
        life = self.life
        life.do(c.StartExecution(actor=ANN))
        for _ in range(MAX_ROUNDS):
            reaction = life.react()
            if life.state.is_terminal:
                break
            if not self._help() and not reaction.events:
                life.now = max(life.now, self._next_moment(reaction))
        assert life.state.is_terminal, f"it goes on for ever: {life.statuses}"
        life.react()
        left = [run for run in life.runs.values() if run.status in (RunStatus.PENDING, RunStatus.RUNNING)]
        assert left == [], "runs that nobody waits for go on"

    def _next_moment(self, reaction: Reaction) -> float:
        """When the orchestrator looks again, or an outside worker may begin its next attempt."""
        retries = [node.retry_at for node in self.life.state.nodes.values() if node.retry_at is not None]
        moments = retries if reaction.wake_at is None else [*retries, reaction.wake_at]
        assert moments, f"nothing will ever happen: {self.life.statuses}"
        return min(moments)

    def _help(self) -> bool:
        """Whether anything moved."""
        life, moved = self.life, False
        for run_id, run in life.runs.items():
            if not run.status.is_terminal:
                self._move_run(run_id)
                moved = True
        for node_id, node in life.state.nodes.items():
            word = self._word_for(node_id, node)
            if word is not None:
                decision = life.do(word)
                moved = moved or (not isinstance(decision, Rejected) and bool(decision))
        return moved

    def _word_for(self, node_id: str, node: NodeState) -> c.Command | None:
        if node.status is NodeStatus.WAITING and node.wake_at is None:
            if node.message is not None and self.random.random() < 0.5:
                return c.SendMessage(actor=ANN, name=node.message, data={"n": 5})
            return c.ResumeNode(actor=ANN, node_id=node_id, resume_key=node.wait_key)
        if node.status is NodeStatus.RUNNING and not self._is_carried_out(node_id, node):
            failed = self.random.random() < 0.3
            end: type[c.SucceedNode | c.FailNode] = c.FailNode if failed else c.SucceedNode
            return end(actor=ANN, node_id=node_id)
        if node.status is NodeStatus.READY and self.life.graph.nodes[node_id].external:
            return c.StartNode(actor=ANN, node_id=node_id)
        return None

    def _is_carried_out(self, node_id: str, node: NodeState) -> bool:
        """By a run of the orchestrator. What an outside worker says of its run is only a remark."""
        if node.map is not None:
            return True
        own = work_of(EXECUTION_ID, self.life.graph.nodes[node_id], node.attempt, node.iteration)
        return own is not None and node.work_id == own.id and own.id in self.life.runs


def storm(seed: int) -> Checked:
    """One life from a seed. What goes wrong names the seed and tells the log."""
    random = Random(seed)  # noqa: S311 - it is to be repeatable
    graph = GraphMaker(random).make()
    weather = Storm(Checked(graph, input=INPUT, start=random.random() < 0.9), random)
    try:
        return weather.run()
    except Exception as error:
        told = "\n".join(
            f"  {event.sequence:3} {event.occurred_at - T0:6.1f} {event.actor.name:12} {event.payload}"
            for event in weather.life.events
        )
        raise AssertionError(f"seed {seed}: {error!r}\n{weather.life.graph.edges}\n{told}") from error
