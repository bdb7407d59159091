"""D50: whatever is sent within the limits of a request, a gateway answers others at once and does not grow.

Each input is as large, as wide or as deep as the limits allow, with sizes drawn from a seed. The gateway is a
real one; another connection asks for /health all the time.
"""

import random
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus
from typing import Any

import httpx2
import msgspec
import pytest

from pyoco_server.config import NatsBackendConfig
from support.gateway_process import GatewayProcess, gateway_process
from support.loop_lag import unhurt
from support.programs import Programs
from support.waiting import PATIENCE_SEC, until_now
from support.wheels import a_wheel, wheel_name

pytestmark = pytest.mark.fresh_start  # memory is measured

LAG_SEC = 0.2
GROWTH_MB = 100.0
KIB = 1024
JSON = {"Content-Type": "application/json"}
YAML = {"Content-Type": "application/yaml"}
ENDED = {"COMPLETED", "FAILED", "CANCELED"}

Body = dict[str, Any]


@pytest.fixture
def gateway(programs: Programs, config: NatsBackendConfig) -> Iterator[GatewayProcess]:
    with gateway_process(programs, config) as process:
        yield process


@pytest.fixture
def client(gateway: GatewayProcess) -> Iterator[httpx2.Client]:
    with httpx2.Client(base_url=gateway.url, timeout=PATIENCE_SEC) as found:
        yield found


@pytest.fixture(params=[1, pytest.param(2, marks=pytest.mark.long)])
def dice(request: pytest.FixtureRequest) -> random.Random:
    return random.Random(request.param)  # noqa: S311 - sizes, not secrets


def values(dice: random.Random, size: int) -> list[tuple[str, Any]]:
    """Values of about `size` bytes of JSON: long, wide and deep ones, in an order of their own."""
    digits = [dice.randrange(10) for _ in range(size // 2)]
    depth = dice.randrange(20, 45)
    deep: Any = "x" * (size // 2)
    for _ in range(depth):
        deep = [deep]
    shapes = [
        ("numbers", digits),
        ("text", "é" * (size // 2)),
        ("texts", ["x"] * (size // 5)),
        ("objects", [{} for _ in range(size // 4)]),
        ("keys", {f"k{n}": n for n in range(size // 16)}),
        ("deep", deep),
        ("lists", [[[]] for _ in range(size // 7)]),
    ]
    dice.shuffle(shapes)
    return shapes


def sent(answer: httpx2.Response, *statuses: int) -> Any:
    assert answer.status_code in statuses, answer.text[:500]
    return answer.json()


def asked(send: Callable[[], httpx2.Response]) -> httpx2.Response:
    """Again while NATS does not reply in time, as on a busy machine. Any other 503 is a failure."""

    def is_answered(answer: httpx2.Response) -> bool:
        is_late = answer.status_code == HTTPStatus.SERVICE_UNAVAILABLE and "timed out" in answer.text
        return not is_late

    return until_now(send, is_answered)


def test_runs(gateway: GatewayProcess, client: httpx2.Client, dice: random.Random) -> None:
    with unhurt(gateway, lag_sec=LAG_SEC, growth_mb=GROWTH_MB):
        for _, value in values(dice, 250 * KIB):
            body = {"flow_name": "f", "params": {"v": value}, "tags": ["t" * 60] * 10}
            sent(client.post("/runs", json=body), 200, 413, 422)
            sent(client.post("/runs", json={"flow_name": "f", "params": value}), 200, 413, 422)
            sent(client.post("/runs", json={**body, "tags": value}), 413, 422)
        for query in ("status=PENDING&tag=default&flow=f&full=1&limit=200", "flow=f&limit=200", "limit=200"):
            sent(client.get(f"/runs?{query}"), 200, 422)


BATCHES: dict[str, Callable[[], list[Any]]] = {
    "many": lambda: [{"flow_name": "f", "params": {"n": n}} for n in range(1_000)],
    "numbers": lambda: [{"flow_name": "f", "params": {"v": [7] * 60_000}}] * 70,
    "lists": lambda: [{"flow_name": "f", "params": {"v": [[[]]] * 25_000}}] * 70,
    "text": lambda: [{"flow_name": "f", "params": {"v": "x" * 200_000}}] * 70,
    "too many": lambda: [{"flow_name": 1, "x": []}] * 200_000,
}


@pytest.mark.slow
def test_batches(gateway: GatewayProcess, client: httpx2.Client) -> None:
    with unhurt(gateway, lag_sec=LAG_SEC, growth_mb=GROWTH_MB) as lag:
        for lag.doing, runs in BATCHES.items():
            body = msgspec.json.encode({"runs": runs()})
            sent(client.post("/runs/batch", content=body, headers=JSON), 200, 413, 422)


def yaml_texts(size: int) -> dict[str, str]:
    return {
        "wide": "version: 1\nflow: {graph: a}\ntasks:\n"
        + "".join(f"  t{n}: {{}}\n" for n in range(size // 10)),
        "long": f"version: 1\nx: '{'é' * (size // 2 - 50)}'\n",
        "deep": "[" * (size // 2) + "]" * (size // 2),
        "flat": "- 1\n" * (size // 4),
        "aliases": "a: &a [x]\nb: [" + "*a, " * (size // 4 - 10) + "*a]\n",
        "tags": "- !!str x\n" * (size // 10),
        "escapes": '"' + "\\x41" * (size // 4 - 2) + '"',
        "comments": "# x\n" * (size // 4),
        "folds": ">\n" + " a\n" * (size // 3 - 2),
        "anchors": "".join(f"- &a{n} x\n" for n in range(size // 12)),
        "graph": "version: 1\nflow: {graph: '"
        + "a >> " * (size // 5 - 20)
        + "a'}\ntasks: {a: {callable: m.f}}\n",
        "braces": "{" * 40 + "a: 1" + "}" * 40 + "\n" + "#" * (size - 200),
    }


def test_flows_as_yaml(gateway: GatewayProcess, client: httpx2.Client) -> None:
    texts = [*yaml_texts(60 * KIB).items(), *yaml_texts(250 * KIB).items()]
    with unhurt(gateway, lag_sec=LAG_SEC, growth_mb=GROWTH_MB) as lag:
        for lag.doing, text in texts:
            files = {"workflow": ("flow.yaml", text.encode())}
            sent(client.post("/runs/yaml", files=files, data={"flow_name": "main"}), 200, 400, 413, 422)


def long_conditions(count: int) -> Iterator[str]:
    terms = [
        "input.a > {n}",
        "nodes.f.status == 'x{n}'",
        "input.l.size() > {n}",
        "input.s.matches('^[a-z]{{3}}{n}$')",
    ]
    for n in range(count):
        text = " && ".join(terms[(n + k) % len(terms)].format(n=n * 100 + k) for k in range(30))
        yield text[: text.rindex(" && ", 0, 500)]


def fan(count: int, **edge: Any) -> Body:
    nodes: Body = {"f": {"type": "fork"}, **{f"n{n}": {"type": "task", "flow": "x"} for n in range(count)}}
    return {"nodes": nodes, "edges": [{"from": "f", "to": f"n{n}", **edge} for n in range(count)]}


def with_conditions(conditions: list[str]) -> Body:
    graph = fan(len(conditions))
    for edge, when in zip(graph["edges"], conditions, strict=True):
        edge["when"] = when
    return graph


def graphs() -> dict[str, Body | bytes]:
    names = [f"n{n}" for n in range(150)]
    chain = {"nodes": {f"n{n}": {"type": "fork"} for n in range(1_000)}}
    text = "${input.a}" * 500
    return {
        "conditions": with_conditions(list(long_conditions(900))),
        "dense": {
            "nodes": {name: {"type": "fork"} for name in names},
            "edges": [{"from": a, "to": b} for k, a in enumerate(names) for b in names[k + 1 :]],
        },
        "chain": {**chain, "edges": [{"from": f"n{n}", "to": f"n{n + 1}"} for n in range(999)]},
        "unknown keys": {**fan(1), **{f"key{n}": n for n in range(50_000)}},
        "unknown nodes": {**fan(999), "edges": [{"from": "f", "to": f"m{n}"} for n in range(12_000)]},
        "wrong conditions": with_conditions([f"inptu.a == {n} && " + "(" * 30 for n in range(999)]),
        "templates": {
            "nodes": {f"n{n}": {"type": "task", "flow": "x", "params": {"a": text}} for n in range(90)}
        },
        "dollars": {"nodes": {"n": {"type": "task", "flow": "x", "params": {"a": "$${" * 150_000}}}},
        "braces": {"nodes": {"n": {"type": "task", "flow": "x", "params": {"a": "${'" * 150_000}}}},
        "yaml": b"nodes:\n" + b"".join(b"  n%d: {type: task, flow: x}\n" % n for n in range(25_000)),
        "list": b"nodes: [" + b"1, " * 300_000 + b"1]",
    }


@pytest.mark.slow
def test_graphs(gateway: GatewayProcess, client: httpx2.Client) -> None:
    for name, graph in graphs().items():
        is_text = isinstance(graph, bytes)
        body = graph if isinstance(graph, bytes) else msgspec.json.encode(graph)
        with unhurt(gateway, lag_sec=LAG_SEC, growth_mb=GROWTH_MB) as lag:
            lag.doing = name
            answer = client.put("/graphs/g", content=body, headers=YAML if is_text else JSON)
            sent(answer, 200, 201, 413, 422)
            sent(client.get("/graphs/g"), 200)


@pytest.mark.slow
def test_lists_of_graphs(gateway: GatewayProcess, client: httpx2.Client) -> None:
    body = msgspec.json.encode(
        {"nodes": {"n": {"type": "task", "flow": "x", "params": {"a": ["x"] * 120_000}}}}
    )
    for n in range(30):
        sent(client.put(f"/graphs/g{n}", content=body, headers=JSON), 201)
    with unhurt(gateway, lag_sec=LAG_SEC, growth_mb=GROWTH_MB):
        assert len(sent(client.get("/graphs?limit=200"), 200)["items"]) == 30


EVERY_DAY = {"conditions over numbers", "missing keys"}
HEAVY: dict[str, Callable[[], tuple[Body, Any]]] = {
    "conditions over numbers": lambda: (
        with_conditions([f"input[{n}] > 9 || input.size() == 100000 + {n}" for n in range(900)]),
        [7] * 100_000,
    ),
    "conditions that compare": lambda: (
        with_conditions([f"input.a{n} == input.b && {n} > 0" for n in range(900)]),
        {**{f"a{n}": n for n in range(900)}, "b": [1] * 100_000},
    ),
    "conditions that compare lists": lambda: (
        with_conditions([f"[{n}] + input == input" for n in range(900)]),
        [1] * 100_000,
    ),
    "loops": lambda: (
        with_conditions([f"input.exists(x, x == {n} && input == input)" for n in range(900)]),
        [1] * 9_000,
    ),
    "patterns": lambda: (
        with_conditions([f"input.s.matches('(.*x){{{n % 900 + 1}}}')" for n in range(900)]),
        {"s": "xy" * 60_000},
    ),
    "interpolations": lambda: (
        {"nodes": {"n": {"type": "task", "flow": "x", "params": {"a": "${input.s}" * 2_000}}}},
        {"s": "x" * 250_000},
    ),
    "interpolations in many nodes": lambda: (
        {
            "nodes": {
                name: {**node, **({"params": {"a": "${input.s}" * 4}} if name != "f" else {})}
                for name, node in fan(300)["nodes"].items()
            },
            "edges": fan(300)["edges"],
        },
        {"s": "x" * 200_000},
    ),
    "a chain of forks": lambda: (graphs()["chain"], None),  # type: ignore[dict-item, return-value]
    "a dense graph": lambda: (graphs()["dense"], None),  # type: ignore[dict-item, return-value]
    "missing keys": lambda: (
        {
            "nodes": {
                name: {**node, **({"params": {"a": "${input.kx}"}} if name != "f" else {})}
                for name, node in fan(900)["nodes"].items()
            },
            "edges": fan(900)["edges"],
        },
        {f"k{n}": n for n in range(16_000)},
    ),
}


def register(client: httpx2.Client, name: str) -> None:
    graph, _ = HEAVY[name]()
    body = msgspec.json.encode(graph)
    sent(asked(lambda: client.put("/graphs/g", content=body, headers=JSON)), 200, 201)


def create(client: httpx2.Client, name: str, execution_id: str) -> None:
    _, value = HEAVY[name]()
    body = {"graph_id": "g", "execution_id": execution_id, "input": value}
    key = {"Idempotency-Key": execution_id}
    sent(asked(lambda: client.post("/executions", json=body, headers=key)), 201)


def wait_for(client: httpx2.Client, execution_id: str) -> None:
    """Until it has ended, or its runs have begun."""

    def is_attended() -> bool:
        state = sent(asked(lambda: client.get(f"/executions/{execution_id}")), 200)
        return state["status"] in ENDED or any(node["run_id"] for node in state["nodes"].values())

    until_now(is_attended)
    for path in ("?include=edges", "/events"):
        sent(asked(lambda path=path: client.get(f"/executions/{execution_id}{path}")), 200)  # type: ignore[misc]


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name not in EVERY_DAY)) for name in HEAVY]
)
def test_executions(gateway: GatewayProcess, client: httpx2.Client, name: str) -> None:
    with unhurt(gateway, lag_sec=LAG_SEC, growth_mb=GROWTH_MB):
        register(client, name)
        create(client, name, "e")
        wait_for(client, "e")
        sent(client.get("/executions?limit=200&include=counts"), 200)


@pytest.mark.parametrize(
    "count", [pytest.param(8, marks=pytest.mark.slow), pytest.param(20, marks=pytest.mark.long)]
)
def test_many_heavy_executions_at_once_and_after_a_restart(
    programs: Programs, config: NatsBackendConfig, count: int
) -> None:
    """D50: the gateway that took over froze, too. It reads them all before it is ready, and then goes on."""
    ids = [f"e{n}" for n in range(count)]
    with (
        gateway_process(programs, config) as process,
        httpx2.Client(base_url=process.url, timeout=PATIENCE_SEC) as client,
        unhurt(process, lag_sec=LAG_SEC, growth_mb=GROWTH_MB),
    ):
        register(client, "conditions over numbers")
        for execution_id in ids:
            create(client, "conditions over numbers", execution_id)
    with (
        gateway_process(programs, config) as process,
        httpx2.Client(base_url=process.url, timeout=PATIENCE_SEC) as client,
        unhurt(process, lag_sec=LAG_SEC, growth_mb=GROWTH_MB),
    ):
        until_now(lambda: client.get("/ready").status_code == HTTPStatus.OK)
        for execution_id in ids:
            wait_for(client, execution_id)


def at_once(count: int, send: Callable[[int], httpx2.Response]) -> list[int]:
    with ThreadPoolExecutor(count) as senders:
        return [answer.status_code for answer in senders.map(send, range(count))]


def listen_for_events(client: httpx2.Client, **action: Any) -> None:
    """A template of two steps, which events start: what they say goes into both."""
    sent(client.put("/api/workflow-actions/a", json=action or {"flow_name": "f"}), 200)
    steps = [
        {"id": "s1", "action": "a", "trigger_kind": "external_event"},
        {"id": "s2", "action": "a", "trigger_kind": "after_previous"},
    ]
    sent(client.put("/api/workflow-templates/t", json={"name": "t", "steps": steps}), 200)


def test_events_that_fill_a_graph(gateway: GatewayProcess, client: httpx2.Client) -> None:
    """What the event says is interpolated 400 times."""
    node = {"type": "task", "flow": "x", "params": {"a": "${input.event.s}" * 4}}
    graph = fan(100)
    graph["nodes"] = {name: graph["nodes"]["f"] if name == "f" else node for name in graph["nodes"]}
    sent(client.put("/graphs/g", content=msgspec.json.encode(graph), headers=JSON), 201)
    listen_for_events(client, graph_id="g")
    steps = [{"id": "s1", "action": "a", "trigger_kind": "external_event"}]
    sent(client.put("/api/workflow-templates/t", json={"name": "t", "steps": steps}), 200)
    with unhurt(gateway, lag_sec=LAG_SEC, growth_mb=GROWTH_MB):
        body = {"template_id": "t", "data": {"s": "x" * 200_000}}
        begun = sent(client.post("/api/workflow-events", json=body), 200)
        wait_for(client, begun["execution_id"])


@pytest.mark.parametrize("text", ["plain", "$${vars.escaped}"])
def test_runs_with_a_key_at_once(gateway: GatewayProcess, client: httpx2.Client, text: str) -> None:
    """Each is sent three times. One text that looks like a reference has all the others read, too."""
    body = msgspec.json.encode({"flow_name": "f", "params": {"v": [*[[[]]] * 25_000, text]}})
    with unhurt(gateway, lag_sec=LAG_SEC, growth_mb=GROWTH_MB):
        answers = at_once(
            30,
            lambda n: client.post("/runs", content=body, headers={**JSON, "Idempotency-Key": f"k{n % 10}"}),
        )
    assert set(answers) == {200}


@pytest.mark.slow
def test_wheels(gateway: GatewayProcess, client: httpx2.Client) -> None:
    """One with a large directory, one with large metadata, and many small ones whose senders say much."""
    wide = a_wheel(files={f"my_flows/{'n' * 100}{n}.py": "" for n in range(19_000)})
    said = "".join(f"Classifier: {n}\n" for n in range(40_000))
    long = a_wheel("long", metadata=f"Metadata-Version: 2.1\nName: long\nVersion: 0.1.0\n{said}")
    talkative = {"User-Agent": "x" * 30_000, "X-Forwarded-For": "y" * 20_000}
    with unhurt(gateway, lag_sec=LAG_SEC, growth_mb=GROWTH_MB):
        for name, content in ((wheel_name(), wide), (wheel_name("long"), long)):
            sent(client.post("/wheels", files={"wheel": (name, content)}), 200, 413, 422)
        for n in range(100):
            files = {"wheel": (wheel_name(f"p{n}"), a_wheel(f"p{n}"))}
            sent(client.post("/wheels", files=files, headers=talkative), 200)
        assert len(sent(client.get("/wheels"), 200)) >= 100
        sent(client.get("/wheels/history?limit=500"), 200)


def test_batches_with_something_beside_their_runs(gateway: GatewayProcess, client: httpx2.Client) -> None:
    lists = b"[" + b"[[]]," * 2_500_000 + b"0]"
    bodies = [
        b'{"x": ' + lists + b', "runs": [{"flow_name": "f"}]}',
        b'{"runs": ' + lists + b', "runs": [{"flow_name": "f"}]}',
        b'{ "runs": [{"flow_name": "f", "params": {"v": ' + lists + b"}}]  }",
        b'{"runs": [' + b"0," * 7_000_000 + b"0]}",
        b'{"runs": [{"flow_name": "f"}]' + b"".join(b',"k%d":1' % n for n in range(900_000)) + b"}",
    ]
    with unhurt(gateway, lag_sec=LAG_SEC, growth_mb=GROWTH_MB):
        for body in bodies:
            sent(client.post("/runs/batch", content=body, headers=JSON), 200, 422)


EVENT_BYTES = 1020 * KIB
EVENT_STATUSES = (200, 413, 422)


def odd_values(size: int) -> list[tuple[str, Any]]:
    """That a strict reader reads twice: colons in texts, and numbers of many digits."""
    return [("colons", [":"] * (size // 4)), ("digits", [10**18] * (size // 20))]


def test_events(gateway: GatewayProcess, client: httpx2.Client, dice: random.Random) -> None:
    listen_for_events(client)
    sizes = (250 * KIB, EVENT_BYTES)
    inputs = [(size, *one) for size in sizes for one in [*values(dice, size), *odd_values(size)]]
    with unhurt(gateway, lag_sec=LAG_SEC, growth_mb=GROWTH_MB) as lag:
        for size, lag.doing, value in inputs:
            key = f"{lag.doing}-{size}"
            body = msgspec.json.encode({"template_id": "t", "idempotency_key": key, "data": {"v": value}})
            for _ in range(2):  # the second is a repeat
                answer = client.post("/api/workflow-events", content=body, headers=JSON)
                sent(answer, *EVENT_STATUSES)


@pytest.mark.slow
def test_events_at_once(gateway: GatewayProcess, client: httpx2.Client) -> None:
    listen_for_events(client)
    data: Body = {"v": [[[]]] * (EVENT_BYTES // 7)}
    body = msgspec.json.encode({"template_id": "t", "data": data})
    with unhurt(gateway, lag_sec=LAG_SEC, growth_mb=GROWTH_MB):
        answers = at_once(20, lambda _: client.post("/api/workflow-events", content=body, headers=JSON))
    assert set(answers) == {413}


@pytest.mark.slow
def test_executions_at_once(gateway: GatewayProcess, client: httpx2.Client) -> None:
    """Their inputs are handed on to ten nodes each."""
    graph = fan(10)
    for name in graph["nodes"]:
        if name != "f":
            graph["nodes"][name]["params"] = {"a": "${input.v[0]}", "b": "${input.s}"}
    sent(client.put("/graphs/g", content=msgspec.json.encode(graph), headers=JSON), 201)
    value = {"v": [[[]]] * 20_000, "s": "x" * 50_000}
    ids = [f"e{n}" for n in range(20)]
    with unhurt(gateway, lag_sec=LAG_SEC, growth_mb=GROWTH_MB):
        for execution_id in ids:
            body = {"graph_id": "g", "execution_id": execution_id, "input": value, "start": False}
            sent(client.post("/executions", json=body), 201)
        answers = at_once(len(ids), lambda n: client.post(f"/executions/{ids[n]}/start"))
        assert set(answers) == {200}
        for execution_id in ids:
            wait_for(client, execution_id)


def until_node(client: httpx2.Client, execution_id: str, node_id: str, status: str) -> None:
    until_now(
        lambda: sent(client.get(f"/executions/{execution_id}"), 200)["nodes"][node_id]["status"] == status
    )


@pytest.mark.slow
def test_commands_and_resumes(gateway: GatewayProcess, client: httpx2.Client, dice: random.Random) -> None:
    """With a key, and again with the same: the answer to a repeat is folded from the log."""
    nodes = {
        "w": {"type": "task", "external": True},
        "q": {"type": "wait", "prompt": "?"},
    }
    graph = {"nodes": nodes, "edges": [{"from": "w", "to": "q"}]}
    sent(client.put("/graphs/g", content=msgspec.json.encode(graph), headers=JSON), 201)
    with unhurt(gateway, lag_sec=LAG_SEC, growth_mb=GROWTH_MB) as lag:
        for name, value in [*values(dice, 240 * KIB), *odd_values(240 * KIB)]:
            lag.doing = name
            sent(client.post("/executions", json={"graph_id": "g", "execution_id": name}), 201)
            path = f"/executions/{name}/nodes"
            until_node(client, name, "w", "READY")
            sent(client.post(f"{path}/w/start", json={}), 200)
            for verb, field, node in (
                ("progress", "metrics", "w"),
                ("succeed", "output", "w"),
                ("request-resume", "data", "q"),
                ("resume", "data", "q"),
            ):
                if verb == "request-resume":
                    until_node(client, name, "q", "WAITING")
                body = {field: {"v": value}}
                for _ in range(2):
                    answer = client.post(
                        f"{path}/{node}/{verb}", json=body, headers={"Idempotency-Key": verb}
                    )
                    sent(answer, 200)
            sent(client.get(f"/executions/{name}/events"), 200)
        sent(client.get("/waits?limit=200"), 200)


@pytest.mark.slow
def test_templates_and_actions(gateway: GatewayProcess, client: httpx2.Client) -> None:
    size = 290 * KIB
    step = {"id": "s", "action": "a", "trigger_kind": "external_event"}
    templates: list[Any] = [
        {"name": "t", "steps": [step] * (size // 60)},
        {"name": "t" * size, "steps": [step]},
        {"name": "t", "steps": [{**step, "title": "x" * (size // 30)} for _ in range(29)]},
        {"name": "t", "steps": [step], **{f"key{n}": n for n in range(size // 16)}},
        {"name": "t", "steps": [{**step, **{f"stp{n}": n for n in range(size // 16)}}]},
        [[[]]] * (size // 7),
    ]
    with unhurt(gateway, lag_sec=LAG_SEC, growth_mb=GROWTH_MB):
        for template in templates:
            sent(client.put("/api/workflow-templates/t", json=template), 422)
        for n in range(30):
            action = {"flow_name": "f", "params": {"v": [[[]]] * 25_000}}
            sent(client.put(f"/api/workflow-actions/a{n}", json=action), 200)
        assert len(sent(client.get("/api/workflow-actions"), 200)["items"]) == 30


@pytest.mark.slow
def test_an_execution_that_is_full(gateway: GatewayProcess, client: httpx2.Client) -> None:
    """Its nodes put in nested lists until it refuses more; then many read it at once."""
    nodes: Body = {"f": {"type": "fork"}, **{f"n{n}": {"type": "task", "external": True} for n in range(20)}}
    graph = {"nodes": nodes, "edges": [{"from": "f", "to": f"n{n}"} for n in range(20)]}
    sent(client.put("/graphs/g", content=msgspec.json.encode(graph), headers=JSON), 201)
    body = msgspec.json.encode({"output": [[[]]] * (240 * KIB // 5)})
    refusals = []
    with unhurt(gateway, lag_sec=LAG_SEC, growth_mb=GROWTH_MB) as lag:
        sent(client.post("/executions", json={"graph_id": "g", "execution_id": "e"}), 201)
        until_node(client, "e", "n19", "READY")
        for n in range(9):
            lag.doing = f"output {n}"
            sent(client.post(f"/executions/e/nodes/n{n}/start", json={}), 200)
            answer = client.post(f"/executions/e/nodes/n{n}/succeed", content=body, headers=JSON)
            if sent(answer, 200, 409).get("code") == "EXECUTION_TOO_LARGE":
                refusals.append(n)
        paths = ["/executions/e", "/executions/e/events", "/executions/e?include=edges"] * 3
        lag.doing = "reading"
        assert set(at_once(len(paths), lambda n: client.get(paths[n]))) == {200}
    assert refusals == [6, 7, 8]


@pytest.mark.slow
def test_events_that_nobody_waits_for(gateway: GatewayProcess, client: httpx2.Client) -> None:
    """They are kept until a node waits; whenever one begins to, all are listed."""
    graph = {"nodes": {"q": {"type": "wait", "prompt": "?"}}}
    sent(client.put("/graphs/g", content=msgspec.json.encode(graph), headers=JSON), 201)
    data: Body = {"v": [[[]]] * 40_000}
    with unhurt(gateway, lag_sec=LAG_SEC, growth_mb=GROWTH_MB) as lag:
        for n in range(30):
            lag.doing = f"event {n}"
            kept = client.post("/api/workflow-events", json={"wait_key": f"k{n}", "data": data})
            assert sent(kept, 200)["kept"]
        lag.doing = "a wait"
        sent(client.post("/executions", json={"graph_id": "g", "execution_id": "e"}), 201)
        until_node(client, "e", "q", "WAITING")


@pytest.mark.slow
def test_events_that_are_tried_again(gateway: GatewayProcess, client: httpx2.Client) -> None:
    """One run at a time: all but the first are queued, and listed with their data."""
    sent(client.put("/api/workflow-actions/a", json={"flow_name": "f", "concurrency": "one"}), 200)
    steps = [{"id": "s1", "action": "a", "trigger_kind": "external_event"}]
    sent(client.put("/api/workflow-templates/t", json={"name": "t", "steps": steps}), 200)
    with unhurt(gateway, lag_sec=LAG_SEC, growth_mb=GROWTH_MB) as lag:
        for n in range(30):
            lag.doing = f"event {n}"
            body = {"template_id": "t", "idempotency_key": f"k{n}", "data": {"v": [[[]]] * 40_000}}
            sent(client.post("/api/workflow-events", json=body), 409 if n else 200)
        lag.doing = "the list"
        jobs = sent(client.get("/api/workflow-events/retry-jobs?limit=200"), 200)["jobs"]
    assert [job["data"] is None for job in jobs] == [False] * 6 + [True] * 23


@pytest.mark.slow
def test_many_large_runs_of_one_execution(gateway: GatewayProcess, client: httpx2.Client) -> None:
    """Before it starts more, the gateway reads those that it has started: 800 KB each."""
    name = "interpolations in many nodes"

    def started() -> int:
        nodes = sent(asked(lambda: client.get("/executions/e")), 200)["nodes"]
        return sum(bool(node["run_id"]) for node in nodes.values())

    with unhurt(gateway, lag_sec=LAG_SEC, growth_mb=GROWTH_MB):
        register(client, name)
        create(client, name, "e")
        until_now(started, lambda count: count >= 100)
