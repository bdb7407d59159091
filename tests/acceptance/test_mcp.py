"""Tools for agents, with the reference client of the protocol, on a real server and worker."""

import asyncio
import json
import signal
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from mcp import Client, StdioServerParameters
from mcp.client.streamable_http import streamable_http_client
from mcp.types import CallToolResult, TextContent

from pyoco_server.http_client import PyocoHttpClient
from pyoco_server.mcp import CHANGES
from support.nats_server import free_port
from support.programs import SCRIPTS, Programs
from support.tables import every_row
from support.waiting import until

FLOWS = """
import time
from pathlib import Path
from pyoco import Flow, task

@task
def load(path: str = "") -> None:
    print("reading", path)
    raise ValueError("no rows in " + path)

@task
def chatter(lines: int) -> int:
    for n in range(lines):
        print(f"line {n} " + "x" * 100)
    return lines

@task
def needle() -> None:
    print("Traceback: \\x1b[31mthe needle\\x1b[0m")

@task
def wait(gate: str) -> str:
    deadline = time.monotonic() + 120
    while not Path(gate).exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    return "through"

bad = Flow(name="bad") >> load
chatty = Flow(name="chatty") >> chatter >> needle
waiting = Flow(name="waiting") >> wait
"""
GRAPH = {
    "id": "close",
    "nodes": {
        "ask": {"type": "wait", "prompt": "Close the month?"},
        "book": {"type": "task", "external": True},
    },
    "edges": [{"from": "ask", "to": "book"}],
}
READING = {
    "find_runs",
    "get_run",
    "read_log",
    "find_executions",
    "get_execution",
    "list_waits",
    "get_health",
    "get_stats",
}
CHANGING = {"submit_run", "cancel_run", "retry_run", "answer_wait"}
MAX_ANSWER = 25_000


class Agent:
    def __init__(self, client: Client) -> None:
        self.client = client

    async def tools(self) -> set[str]:
        return {tool.name for tool in (await self.client.list_tools()).tools}

    async def text(self, tool: str, **arguments: Any) -> str:
        result = await self.client.call_tool(tool, arguments)
        assert not result.is_error, text_of(result)
        assert len(text_of(result)) <= MAX_ANSWER
        return text_of(result)

    async def call(self, tool: str, **arguments: Any) -> Any:
        return json.loads(await self.text(tool, **arguments))

    async def refusal(self, tool: str, **arguments: Any) -> str:
        result = await self.client.call_tool(tool, arguments)
        assert result.is_error, text_of(result)
        assert "Traceback" not in text_of(result)
        return text_of(result).removeprefix(f"Error executing tool {tool}: ")

    async def ended(self, run_id: str) -> Any:
        return await until(lambda: self.call("get_run", run_id=run_id), lambda run: "end_time" in run)


def text_of(result: Any) -> str:
    assert isinstance(result, CallToolResult)
    (content,) = result.content
    assert isinstance(content, TextContent)
    return content.text


class Installation:
    """A server that wants keys, its worker, and the tools over HTTP."""

    def __init__(self, programs: Programs, url: str, mcp_url: str, keys: Mapping[str, str]) -> None:
        self.programs = programs
        self.url = url
        self.mcp_url = mcp_url
        self.keys = keys

    @asynccontextmanager
    async def over_http(self, key: str | None = "all", header: str = "X-API-Key") -> AsyncIterator[Agent]:
        sent = (
            {} if key is None else {header: ("Bearer " if header == "Authorization" else "") + self.keys[key]}
        )
        async with httpx2.AsyncClient(headers=sent, timeout=60) as http:
            transport = streamable_http_client(self.mcp_url, http_client=http)
            async with Client(transport) as client:
                yield Agent(client)

    @asynccontextmanager
    async def over_stdio(self, *options: str, key: str | None = "all", url: str = "") -> AsyncIterator[Agent]:
        environ = {} if key is None else {"PYOCO_API_KEY": self.keys[key]}
        parameters = StdioServerParameters(
            command=str(SCRIPTS / "pyoco-server"),
            args=["mcp", "--server", url or self.url, *options],
            env={**self.programs.environ, **environ},
            cwd=self.programs.directory,
        )
        async with Client(parameters) as client:
            yield Agent(client)

    @property
    def client(self) -> PyocoHttpClient:
        return PyocoHttpClient(self.url, self.keys["all"])


@pytest.fixture(scope="module")
def installation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    """One for all tests here."""
    directory: Path = tmp_path_factory.mktemp("mcp")
    (directory / "flows").mkdir()
    (directory / "flows/some.py").write_text(FLOWS)
    programs = Programs(directory, PYOCO_HTTP_AUTH_MODE="api_key")
    port = free_port()
    command = ("pyoco-server", "up", "--port", str(port), "--durability", "fast", "--with-worker")
    with programs.started(*command, "--flows", "flows") as up:
        up.says("worker ready")
        up.says("gateway ready")
        keys = {name: new_key(programs, scopes) for name, scopes in SCOPES.items()}
        url = f"http://127.0.0.1:{port}"
        with mcp_server(programs, "--server", url, *allowed()) as mcp_url:
            yield Installation(programs, url, mcp_url, keys)
        (directory / "gate").touch()


SCOPES = {"all": "read,submit,operate,deploy", "reader": "read", "submitter": "submit"}


def new_key(programs: Programs, scopes: str) -> str:
    made = programs.run("pyoco-server-admin", "api-key", "create", "-q", "--tenant", "t", "--scopes", scopes)
    assert made.returncode == 0, made.stderr
    return made.stdout.strip()


def allowed() -> list[str]:
    return [word for change in CHANGES for word in ("--allow", change)]


@contextmanager
def mcp_server(programs: Programs, *options: str, **environ: str) -> Iterator[str]:
    port = free_port()
    command = ("pyoco-server", "mcp", "--http", "--port", str(port), *options)
    with programs.started(*command, **environ) as program:
        url = program.says(r"MCP +(\S+)")[1]
        program.says("Ctrl-C stops it")
        yield url
        assert program.ends_after(signal.SIGTERM) == 0


# What there is


async def test_over_stdio_it_only_reads_unless_changes_are_allowed(installation: Installation) -> None:
    async with installation.over_stdio() as agent:
        assert await agent.tools() == READING
        assert (await agent.call("find_runs", flow="none of these")) == {"runs": []}
        assert "Unknown tool" in await agent.refusal("submit_run", flow="bad")
    async with installation.over_stdio("--allow", "cancel", "--allow", "answer") as agent:
        assert await agent.tools() == READING | {"cancel_run", "answer_wait"}


async def test_over_http_there_are_at_most_twelve_tools_and_each_says_what_it_does(
    installation: Installation,
) -> None:
    async with installation.over_http() as agent:
        tools = (await agent.client.list_tools()).tools
        assert {tool.name for tool in tools} == READING | CHANGING
        assert len(tools) <= 12
        for tool in tools:
            assert tool.description
            assert tool.annotations is not None
            assert tool.annotations.read_only_hint is (tool.name in READING)
        assert "diagnosis" in (agent.client.instructions or "")


# What an agent does with it


async def test_an_agent_finds_out_why_a_run_failed_and_retries_it(installation: Installation) -> None:
    async with installation.over_http() as agent:
        submitted = await agent.call("submit_run", flow="bad", params={"path": "a.csv"}, idempotency_key="k1")
        again = await agent.call("submit_run", flow="bad", params={"path": "a.csv"}, idempotency_key="k1")
        run_id = submitted["run_id"]
        assert again["run_id"] == run_id
        run = await agent.ended(run_id)
        assert run["diagnosis"]["cause"] == "error"
        assert "no rows in a.csv" in run["diagnosis"]["summary"]
        assert any("pyoco-client retry" in advice for advice in run["diagnosis"]["advice"])
        assert run["failure"]["task"] == "load"
        assert run["submitted_at"].endswith("Z")
        assert run["params"] == {"path": "a.csv"}
        failed = await agent.call("find_runs", status="FAILED", flow="bad", changed_since="1h")
        assert run_id in [one["run_id"] for one in failed["runs"]]
        retried = await agent.call("retry_run", run_id=run_id, params={"path": "b.csv"})
        assert "no rows in b.csv" in (await agent.ended(retried["run_id"]))["error"]


async def test_a_long_log_is_shown_with_its_beginning_and_its_end(installation: Installation) -> None:
    with installation.client as client:
        client.run("chatty", {"lines": 9_000})
        run_id = client.list_runs(flow="chatty", limit=1)[0]["run_id"]
    async with installation.over_stdio() as agent:
        shown = (await agent.text("read_log", run_id=run_id)).splitlines()
        assert shown[0].endswith(" lines")
        assert shown[1].startswith("1 [chatter] line 0 x")
        (cut,) = [line for line in shown if "left out here" in line]
        assert shown[-1].endswith("[needle] Traceback: the needle")
        between = 1 + shown.index(cut)
        found = (await agent.text("read_log", run_id=run_id, first_line=between)).splitlines()
        assert found[1].startswith(f"{between} [chatter] line ")
        assert " more lines from line " in found[-1]
        matching = (await agent.text("read_log", run_id=run_id, contains="NEEDLE")).splitlines()
        assert matching[0].endswith("1 of them match")
        assert len(matching) == 2
        assert len((await agent.text("read_log", run_id=run_id, task="needle")).splitlines()) == 2


async def test_an_agent_answers_a_wait(installation: Installation) -> None:
    with installation.client as client:
        client.put_graph("close", GRAPH)
        execution_id = client.executions.create("close", {"month": "2031-05"})["execution_id"]
    async with installation.over_http() as agent:
        waits = await until(lambda: agent.call("list_waits"), lambda found: found["waits"])
        assert waits["waits"][0]["prompt"] == "Close the month?"
        execution = await agent.call("get_execution", execution_id=execution_id)
        assert list(execution["nodes"]) == ["ask"]
        assert execution["nodes_not_reached"] == 1
        answered = await agent.call(
            "answer_wait", execution_id=execution_id, node_id="ask", data={"ok": True}
        )
        assert answered["node"]["output"] == {"ok": True}
        refused = json.loads(await agent.refusal("answer_wait", execution_id=execution_id, node_id="ask"))
        assert refused["status"] == 409
        listed = await agent.call("find_executions", graph_id="close", status="ACTIVE")
        assert [one["execution_id"] for one in listed["executions"]] == [execution_id]


async def test_an_agent_sees_what_lacks_a_worker_and_cancels_it(installation: Installation) -> None:
    async with installation.over_http() as agent:
        run_id = (await agent.call("submit_run", flow="waiting", tag="gpu"))["run_id"]
        run = await until(
            lambda: agent.call("get_run", run_id=run_id),
            lambda run: run["diagnosis"]["cause"] == "no_worker",
        )
        assert run["status"] == "PENDING"
        health = await agent.call("get_health")
        assert health["gateway"] == {"status": "ok", "nats": "ok"}
        assert health["workers_alive"] == 1
        (queue,) = [one for one in health["queues"] if one["tag"] == "gpu"]
        assert (queue["waiting"], queue["workers"]) == (1, 0)
        assert (await agent.call("get_health", flow="waiting"))["name"] == "waiting"
        cancelled = await agent.call("cancel_run", run_id=run_id, reason="no such machine")
        assert cancelled["cancel_reason"] == "no such machine"
        stats = await until(
            lambda: agent.call("get_stats", by="status", since="30m"),
            lambda found: "CANCELLED" in [one["status"] for one in found["series"]],
        )
        assert all(one["points"] for one in stats["series"])


# Refusals


async def test_the_scopes_of_the_key_apply(installation: Installation) -> None:
    async with installation.over_http("reader", header="Authorization") as agent:
        assert "runs" in await agent.call("find_runs")
        refused = json.loads(await agent.refusal("submit_run", flow="bad"))
        assert (refused["status"], refused["err_id"]) == (403, "ERR-PYOCO-0060")
        assert "submit" in refused["detail"]
        assert refused["advice"]
    async with installation.over_http("submitter") as agent:
        assert json.loads(await agent.refusal("find_runs"))["status"] == 403


async def test_over_http_every_agent_needs_a_key_of_its_own(installation: Installation) -> None:
    """Not that of the process: whoever reaches its port would act with it."""
    key = {"PYOCO_API_KEY": installation.keys["all"]}
    with mcp_server(installation.programs, "--server", installation.url, **key) as url:
        other = Installation(installation.programs, installation.url, url, installation.keys)
        async with other.over_http(None) as agent:
            refused = json.loads(await agent.refusal("find_runs"))
        async with other.over_http() as agent:
            assert await agent.tools() == READING
    assert (refused["status"], refused["err_id"]) == (401, "ERR-PYOCO-0014")


async def test_changes_are_audited_with_the_key_and_the_origin_of_the_agent(
    installation: Installation,
) -> None:
    async with installation.over_http() as agent:
        run_id = (await agent.call("submit_run", flow="waiting", tag="gpu"))["run_id"]
        await agent.call("cancel_run", run_id=run_id)
    admin = new_key(installation.programs, "admin")

    def entries() -> list[Any]:
        with PyocoHttpClient(installation.url, admin) as client:
            return [one for one in client.list_audit()["items"] if one["target"]["id"] == run_id]

    (entry,) = await until(lambda: asyncio.to_thread(entries))
    assert entry["action"] == "run.cancel"
    assert entry["source"]["user_agent"].startswith("pyoco-server-mcp/")
    assert entry["source"]["x_forwarded_for"] == "127.0.0.1"


async def test_a_server_that_is_away_is_an_error_with_advice(installation: Installation) -> None:
    async with installation.over_stdio(url=f"http://127.0.0.1:{free_port()}") as agent:
        refused = json.loads(await agent.refusal("get_health"))
    assert refused["err_id"] == "ERR-PYOCO-0001"
    assert refused["advice"]


WRONG: list[tuple[str, dict[str, Any], str]] = [
    (
        "get_run",
        {"run_id": "0190aaaa-bbbb-7ccc-8ddd-eeeeffff0009"},
        '"status": 404, "err_id": "ERR-PYOCO-0005"',
    ),
    ("get_run", {}, "run_id"),
    ("find_runs", {"since_hours": 3}, "since_hours"),
    ("find_runs", {"changed_since": "yesterday"}, "neither a duration"),
    ("find_runs", {"limit": 1_000}, "limit"),
    ("find_runs", {"cursor": "nonsense"}, '"status": 422, "err_id": "ERR-PYOCO-0017"'),
    ("submit_run", {"flow": "bad", "params": {"path": "${secrets.}"}}, '"status": 422'),
]


async def test_what_is_wrong_is_named(installation: Installation) -> None:
    async with installation.over_http() as agent:
        for tool, arguments, expected in WRONG:
            assert expected in await agent.refusal(tool, **arguments)


HEADERS = [
    ({"Host": "evil.example.com"}, 421),
    ({"Host": "localhost.evil.example.com:8100"}, 421),
    ({"Origin": "https://evil.example.com"}, 403),
    ({"Origin": "http://127.0.0.1:1"}, 403),
    ({"Content-Type": "text/plain"}, 400),
    ({}, 200),
]


@every_row(("headers", "status"), HEADERS)
async def test_web_pages_cannot_reach_it(
    installation: Installation, headers: dict[str, str], status: int
) -> None:
    """By another name that resolves to this machine, or from a page of another site."""
    message = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
    accept = {"Accept": "application/json, text/event-stream", "Content-Type": "application/json"}
    async with httpx2.AsyncClient() as http:
        response = await http.post(
            installation.mcp_url, content=json.dumps(message), headers={**accept, **headers}
        )
    assert response.status_code == status, response.text


async def test_an_open_address_needs_the_names_of_the_machine(installation: Installation) -> None:
    command = ("pyoco-server", "mcp", "--http", "--port", str(free_port()), "--host", "0.0.0.0")  # noqa: S104
    done = installation.programs.run(*command)
    assert done.returncode == 1
    assert "PYOCO_ALLOWED_HOSTS" in done.stderr


async def test_ctrl_c_ends_it_over_stdio_although_nothing_is_sent(installation: Installation) -> None:
    process = await asyncio.create_subprocess_exec(
        SCRIPTS / "pyoco-server",
        *("mcp", "--server", installation.url),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        env=installation.programs.environ,
        cwd=installation.programs.directory,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(b'{"jsonrpc": "2.0", "id": 1, "method": "ping"}\n')
    await process.stdout.readline()
    process.send_signal(signal.SIGINT)
    await process.communicate()
    assert process.returncode == -signal.SIGINT
