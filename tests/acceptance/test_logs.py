"""REQ-0013: the log lines of real processes, by the fields and texts of the contract."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

from pyoco_server.http_client import PyocoHttpClient
from support.nats_server import free_port
from support.programs import Program, Programs
from support.waiting import until_now

FLOWS = """
from pyoco import Flow, task

@task
def breaks():
    raise ValueError("broken on purpose")

def resolve(name):
    if name == "raising":
        raise RuntimeError("no catalogue of flows")
    return {"breaks": Flow(name="breaks") >> breaks}[name]
"""
UNKNOWN = "00000000-0000-7000-8000-000000000000"


@contextmanager
def a_gateway_of_uvicorn(programs: Programs, nats_url: str, **environ: str) -> Iterator[tuple[Program, str]]:
    """As the contract has it started."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    command = ("uvicorn", "pyoco_server.http_api:create_app", "--factory", "--port", str(port))
    with programs.started(*command, PYOCO_NATS_URL=nats_url, **environ) as program:
        until_now(lambda: _is_ready(url))
        yield program, url


def _is_ready(url: str) -> bool:
    try:
        return httpx2.get(f"{url}/ready").is_success
    except httpx2.TransportError:
        return False


def lines(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]


def of_action(program: Program, action: str) -> dict[str, Any]:
    found = until_now(lambda: [line for line in lines(program.output) if line.get("action") == action])
    return found[0]


@pytest.fixture
def nats_url(programs: Programs) -> Iterator[str]:
    port = str(free_port())
    with programs.started("pyoco-server", "up", "--port", port, "--durability", "fast") as server:
        url = server.says(r"(nats://[\d.:]+)")[1]
        server.says("Ctrl-C stops it")
        programs.environ["PYOCO_SERVER_URL"] = f"http://127.0.0.1:{port}"
        yield url


@pytest.fixture
def flows(programs: Programs) -> Path:
    path = programs.directory / "flows.py"
    path.write_text(FLOWS)
    return path


def test_a_worker_logs_the_exception_behind_every_failed_run(
    programs: Programs, nats_url: str, flows: Path
) -> None:
    """D31: a failing flow, a resolver that raises and a flow that nobody has; the texts in Japanese."""
    command = ("pyoco-worker", "--flow-resolver", f"{flows}:resolve", "--worker-id", "w1")
    with (
        programs.started(*command, PYOCO_NATS_URL=nats_url, LC_ALL="ja_JP.UTF-8") as worker,
        PyocoHttpClient(programs.environ["PYOCO_SERVER_URL"]) as client,
    ):
        for name in ("breaks", "raising", "nowhere"):
            client.submit_run(name)
        failed = until_now(
            lambda: {line["flow_name"]: line for line in lines(worker.output) if "exc_type" in line},
            lambda found: len(found) == 3,
        )
    assert {name: (line["exc_type"], line["exc_message"]) for name, line in failed.items()} == {
        "breaks": ("ValueError", "broken on purpose"),
        "raising": ("RuntimeError", "no catalogue of flows"),
        "nowhere": ("KeyError", "'nowhere'"),
    }
    for line in failed.values():
        assert (line["level"], line["worker_id"], line["tag"]) == ("ERROR", "w1", "default")
        assert line["exc_origin"].startswith(f"{flows}:")
        assert line["exc_traceback"].startswith("Traceback (most recent call last)")
    assert failed["breaks"]["exc_origin"].endswith(" breaks")
    assert {(line["message"], line["err_id"], line["reason"]) for line in failed.values()} == {
        ("実行に失敗しました", "ERR-PYOCO-0007", "execution_error"),
        ("flowが見つかりません", "ERR-PYOCO-0006", "flow_not_found"),
    }


def test_a_worker_leaves_tracebacks_out_where_that_is_set(
    programs: Programs, nats_url: str, flows: Path
) -> None:
    """D31: PYOCO_LOG_INCLUDE_TRACEBACK=false; type, message and origin stay."""
    command = ("pyoco-worker", "--flow-resolver", f"{flows}:resolve", "--run-once", "--poll-timeout", "20")
    with PyocoHttpClient(programs.environ["PYOCO_SERVER_URL"]) as client:
        client.submit_run("breaks")
    worked = programs.run(*command, PYOCO_NATS_URL=nats_url, PYOCO_LOG_INCLUDE_TRACEBACK="no")
    (failure,) = [line for line in lines(worked.stdout) if line.get("action") == "run.execution_error"]
    assert (failure["exc_type"], failure["exc_origin"].endswith(" breaks")) == ("ValueError", True)
    assert "Traceback" not in worked.stdout


def test_a_gateway_under_uvicorn_logs_as_it_is_set(programs: Programs, nats_url: str) -> None:
    """D32, D31: PYOCO_LOG_UTC and the others; a 404 with run_id and reason, its text in Japanese."""
    environ = {"PYOCO_LOG_UTC": "false", "TZ": "Asia/Tokyo", "LC_ALL": "ja_JP.UTF-8"}
    with a_gateway_of_uvicorn(programs, nats_url, **environ) as (program, url):
        assert httpx2.get(f"{url}/runs/{UNKNOWN}").status_code == 404
        line = of_action(program, "http.refused")
    assert (line["service"], line["level"], line["run_id"]) == ("pyoco-server:http", "INFO", UNKNOWN)
    assert (line["message"], line["reason"]) == ("runが見つかりません", "run not found")
    assert (line["err_id"], line["msg_id"]) == ("ERR-PYOCO-0005", "MSG-PYOCO-0005")
    assert (line["exc_type"], line["ts"][-6:]) == ("RunNotFound", "+09:00")


def test_a_gateway_under_uvicorn_logs_text_at_the_level_that_is_set(
    programs: Programs, nats_url: str
) -> None:
    """D32: PYOCO_LOG_FORMAT and PYOCO_LOG_LEVEL."""
    environ = {"PYOCO_LOG_FORMAT": "text", "PYOCO_LOG_LEVEL": "DEBUG"}
    with a_gateway_of_uvicorn(programs, nats_url, **environ) as (program, url):
        httpx2.post(f"{url}/runs", json={"flow_name": "breaks"}).raise_for_status()
        program.says(r"\d\d:\d\d:\d\d DEBUG   run accepted  action=run.accepted")
    assert lines(program.output) == []
