"""The types of a graph, and its text as an unvalidated definition; graphs.py reads one."""

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Annotated, Any

from msgspec import Meta, Struct, field

from pyoco_server.domain.strict_json import read_json
from pyoco_server.domain.strict_yaml import YamlKind, decode, read_yaml
from pyoco_server.errors import InvalidRequest


class NodeType(StrEnum):
    TASK = "task"
    WAIT = "wait"
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
    """This and the next two: of the run of every attempt."""
    run_at: float | None = None
    start_within_sec: float | None = None
    prompt: str | None = None
    wait_key: str | None = None
    on_timeout: OnTimeout = OnTimeout.FAIL
    policy: JoinPolicy = JoinPolicy.ALL_SUCCESS
    min_success: int | None = None
    cancel_rest: bool = True


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


GRAPH_YAML = YamlKind(name="graph", max_nodes=100_000, text_keys=frozenset({"on"}))


def graph_definition(text: str | bytes, content_type: str | None) -> dict[str, Any]:
    """The definition in a text: JSON by content type, else YAML. Raises InvalidRequest."""
    if isinstance(text, bytes):
        text = decode(text, GRAPH_YAML)
    kind = (content_type or "").partition(";")[0].strip().lower()
    is_json = kind == "application/json" or kind.endswith("+json")
    definition = read_json(text, GRAPH_YAML.name) if is_json else read_yaml(text, GRAPH_YAML).value
    if not isinstance(definition, dict):
        raise InvalidRequest("graph: must be an object with id, nodes and edges")
    return definition
