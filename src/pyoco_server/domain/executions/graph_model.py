"""The types of a graph."""

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Annotated, Any

from msgspec import Meta, Struct, field

from pyoco_server.domain.inputs import Priority


class NodeType(StrEnum):
    TASK = "task"
    WAIT = "wait"
    SLEEP = "sleep"
    REPEAT = "repeat"
    EXECUTION = "execution"
    MAP = "map"
    FORK = "fork"
    JOIN = "join"


class JoinPolicy(StrEnum):
    ALL_SUCCESS = "ALL_SUCCESS"
    ANY_SUCCESS = "ANY_SUCCESS"
    ALL_DONE = "ALL_DONE"
    CUSTOM = "CUSTOM"


class EdgeOn(StrEnum):
    SUCCESS = "success"
    FAILURE = "failure"


class Then(StrEnum):
    """The end of an execution with a taken failure edge."""

    CONTINUE = "continue"
    FAIL = "fail"


class OnTimeout(StrEnum):
    FAIL = "fail"
    SUCCEED = "succeed"


class Retry(Struct, frozen=True, kw_only=True):
    max_attempts: Annotated[int, Meta(ge=1, le=100)] = 1
    backoff_sec: Annotated[float, Meta(ge=0, le=86_400)] = 0


MAX_ITEMS = 10_000


class GraphNode(Struct, frozen=True, kw_only=True):
    id: str
    type: NodeType
    flow: str | None = None
    tag: str | None = None
    params: dict[str, Any] = field(default_factory=dict)
    external: bool = False
    retry: Retry = Retry()
    timeout_sec: float | None = None
    delay_sec: float | None = None
    """This and the next three: of the run of every attempt."""
    run_at: float | None = None
    start_within_sec: float | None = None
    priority: Priority | None = None
    prompt: str | None = None
    wait_key: str | None = None
    on_timeout: OnTimeout = OnTimeout.FAIL
    policy: JoinPolicy = JoinPolicy.ALL_SUCCESS
    min_success: int | None = None
    cancel_rest: bool = True
    message: str | None = None
    """The name of the message that a wait is for."""
    when: str | None = None
    """Its condition, in CEL, over `data`."""
    for_sec: float | str | None = None
    """Of a sleep, like `until`: a number, or a template that gives one."""
    until: float | str | None = None
    """Of a repeat: a condition in CEL, over `output`."""
    node: "GraphNode | None" = None
    """The task that a repeat repeats, or a map runs for each item."""
    max: int | None = None
    every_sec: float = 0
    graph: str | None = None
    """The graph that an execution node executes, or a map for each item, with this input."""
    input: Any = None
    over: Any = None
    """Of a map: one reference to a list, or a list."""
    max_parallel: int = 10
    tolerate: int | str = 0
    """Items that may fail: a number, or a percentage such as 10%."""
    batch: int | None = None
    """Elements of the list per item."""
    max_items: int = MAX_ITEMS
    """Elements of the list."""

    undo: str | None = None
    """The node that undoes it, if it succeeded and the execution fails or is cancelled."""

    @property
    def work(self) -> "GraphNode":
        """The task whose runs carry it out."""
        return self.node or self

    @property
    def is_nested(self) -> bool:
        """Whether executions of another graph carry it out."""
        return self.graph is not None

    @property
    def max_attempts(self) -> int:
        """A map is started once; its items have attempts."""
        return 1 if self.type is NodeType.MAP else self.work.retry.max_attempts

    def tolerated(self, items: int) -> int:
        """How many of this many items may fail."""
        if isinstance(self.tolerate, int):
            return self.tolerate
        return int(float(self.tolerate.rstrip("%")) * items / 100)


class Edge(Struct, frozen=True, kw_only=True):
    source: str
    target: str
    on: EdgeOn = EdgeOn.SUCCESS
    then: Then = Then.CONTINUE
    """For a failure edge: whether the failure is handled, or the execution fails in the end."""
    when: str | None = None


class Graph(Struct, frozen=True, kw_only=True):
    id: str
    nodes: Mapping[str, GraphNode]
    """In order of declaration."""
    edges: tuple[Edge, ...]
    entry: str
    incoming: Mapping[str, tuple[Edge, ...]]
    outgoing: Mapping[str, tuple[Edge, ...]]
    order: tuple[str, ...]
    """Topological order, with ties in order of declaration."""
    forks: Mapping[str, str]
    """For each join, the nearest fork above all of its branches."""
    undoes: Mapping[str, str] = field(default_factory=dict)
    """For each undo node, the node that it undoes. Undo nodes have no edges and no place in the order."""

    def descendants(self, node_id: str) -> frozenset[str]:
        """All nodes reachable from this one, without itself."""
        return _reached(node_id, lambda node: (edge.target for edge in self.outgoing[node]))

    def ancestors(self, node_id: str) -> frozenset[str]:
        """All nodes from which this one is reachable, without itself."""
        return _reached(node_id, lambda node: (edge.source for edge in self.incoming[node]))


def _reached(start: str, step: Any) -> frozenset[str]:
    found: set[str] = set()
    waiting = [start]
    while waiting:
        nodes: Iterable[str] = step(waiting.pop())
        new = [node for node in nodes if node not in found]
        found.update(new)
        waiting.extend(new)
    return frozenset(found)
