"""Twelve situations of runs on a real server with real workers: `pyoco-client why` names each.

Why it waits: no worker, busy, paused, delayed, limit, next try, worker lost. Why it failed: an error, an
unknown flow, a crash, a timeout, nobody started it in time.
"""

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pyoco_server.http_client import PyocoHttpClient
from support.nats_server import free_port
from support.programs import Programs
from support.waiting import until_now

FLOWS = """
import os, signal, time
from pathlib import Path
from pyoco import Flow, task

@task
def load(path: str = "") -> None:
    print("reading", path)
    raise ValueError("no rows")

@task
def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)

@task
def wait(gate: str) -> None:
    deadline = time.monotonic() + 120
    while not Path(gate).exists() and time.monotonic() < deadline:
        time.sleep(0.02)

bad = Flow(name="bad") >> load
dying = Flow(name="dying") >> die
waiting = Flow(name="waiting") >> wait
"""
QUICK = {
    "PYOCO_WORKER_HEARTBEAT_INTERVAL_SEC": "0.3",
    "PYOCO_WORKER_DISCONNECT_TIMEOUT_SEC": "3",
    "PYOCO_CANCEL_GRACE_PERIOD_SEC": "0.5",
}


class Server:
    def __init__(self, programs: Programs, url: str) -> None:
        self.programs = programs
        self.client = PyocoHttpClient(url)
        self.gate = programs.directory / "gate"

    def submit(self, flow: str, params: dict[str, Any] | None = None, **fields: Any) -> str:
        return self.client.submit_run(flow, params, **fields)["run_id"]

    def has_cause(self, run_id: str, cause: str) -> dict[str, Any]:
        found = until_now(lambda: self.client.get_diagnosis(run_id), lambda found: found["cause"] == cause)
        return {**found}

    def why(self, run_id: str, *options: str, **environ: str) -> str:
        done = self.programs.run("pyoco-client", "why", run_id, *options, **environ)
        assert done.returncode == 0, done.stderr
        return done.stdout


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One for all tests here: each has tags or flows of its own."""
    directory: Path = tmp_path_factory.mktemp("diagnosis")
    (directory / "flows").mkdir()
    (directory / "flows/some.py").write_text(FLOWS)
    programs = Programs(directory, **QUICK)
    port = free_port()
    command = ("pyoco-server", "up", "--port", str(port), "--durability", "fast", "--with-worker")
    with programs.started(*command, "--flows", "flows") as up:
        up.says("worker ready")
        running = Server(programs, f"http://127.0.0.1:{port}")
        yield running
        running.gate.touch()
        running.client.close()


def test_no_worker(server: Server) -> None:
    run_id = server.submit("bad", tag="gpu")
    server.has_cause(run_id, "no_worker")
    first, *others = server.why(run_id).splitlines()
    assert first == "No live worker has the tag 'gpu': the run waits until one is started."
    assert any(line.startswith("→ Start a worker: pyoco-worker --tags gpu") for line in others)
    assert "tag「gpu」のworkerが動いていない" in server.why(run_id, LC_ALL="ja_JP.UTF-8")
    as_json = json.loads(server.why(run_id, "--output", "json", LC_ALL="ja_JP.UTF-8"))
    assert (as_json["cause"], as_json["summary"]) == ("no_worker", first)


def test_busy(server: Server) -> None:
    command = ("pyoco-worker", "--flows", "flows", "--tags", "narrow", "--concurrency", "1")
    with server.programs.started(*command) as worker:
        worker.says("worker ready")
        first, second, third = [
            server.submit("waiting", {"gate": str(server.gate)}, tag="narrow") for _ in range(3)
        ]
        server.has_cause(first, "running")
        found = until_now(
            lambda: server.client.get_diagnosis(third),
            lambda found: found["evidence"].get("queue", {}).get("position") == 2,
        )
        assert found["cause"] == "busy"
        assert server.why(third).startswith(
            "The workers with the tag 'narrow' are busy: the run is number 2 of 2 in the queue."
        )
        for run_id in (third, second, first):
            server.client.cancel_run(run_id)
        server.has_cause(first, "cancelled")


def test_paused(server: Server) -> None:
    server.client.pause_queue("slow", "maintenance")
    run_id = server.submit("bad", tag="slow")
    server.has_cause(run_id, "paused")
    assert "(maintenance)" in server.why(run_id)
    server.client.resume_queue("slow")
    server.has_cause(run_id, "no_worker")


def test_limit(server: Server) -> None:
    server.client.limits.put("one", {"flow": "waiting"}, max_running=1)
    first, second = [server.submit("waiting", {"gate": str(server.gate)}) for _ in range(2)]
    server.has_cause(first, "running")
    found = server.has_cause(second, "limit")
    assert found["evidence"]["waiting_for"]["limit"] == "one"
    assert "limit 'one' is reached" in server.why(second)
    for run_id in (second, first):
        server.client.cancel_run(run_id)
    server.has_cause(second, "cancelled")
    server.client.limits.delete("one")


def test_delayed(server: Server) -> None:
    run_id = server.submit("bad", delay_sec=600)
    server.has_cause(run_id, "delayed")
    assert "can start in" in server.why(run_id)


def test_next_try(server: Server) -> None:
    run_id = server.submit("bad", retry={"max_attempts": 2, "backoff_sec": 600})
    server.has_cause(run_id, "next_try")
    assert server.why(run_id).startswith("Try 1 of 2 failed: ValueError: no rows. The next try can start in ")
    server.client.cancel_run(run_id)


def test_timeout(server: Server) -> None:
    run_id = server.submit("waiting", {"gate": "there is none"}, timeout_sec=0.3)
    found = server.has_cause(run_id, "timeout")
    assert found["evidence"]["failure"]["kind"] == "timeout"
    assert "0.3 s" in server.why(run_id)


def test_expired(server: Server) -> None:
    run_id = server.submit("bad", tag="nobody", start_within_sec=1)
    found = server.has_cause(run_id, "expired")
    assert any("pyoco-worker --tags nobody" in advice for advice in found["advice"])
    assert "within 1 s" in server.why(run_id)


def test_error(server: Server) -> None:
    earlier = server.submit("bad", {"path": "a.csv"})
    server.has_cause(earlier, "error")
    run_id = server.submit("bad", {"path": "b.csv"})
    found = until_now(
        lambda: server.client.get_diagnosis(run_id),
        lambda found: found["evidence"].get("same_error", {}).get("count", 0) >= 2,
    )
    assert found["cause"] == "error"
    assert found["evidence"]["failure"]["task"] == "load"
    assert "reading b.csv" in found["evidence"]["log"]
    printed = server.why(run_id)
    assert printed.startswith("The run failed in the task 'load': ValueError: no rows.\n")
    assert "\n  reading b.csv\n" in printed


def test_crash(server: Server) -> None:
    run_id = server.submit("dying")
    found = server.has_cause(run_id, "crash")
    assert "SIGKILL" in found["summary"]
    assert "killed by SIGKILL" in found["evidence"]["log"][-1]


def test_flow_not_found(server: Server) -> None:
    run_id = server.submit("baad")
    found = server.has_cause(run_id, "flow_not_found")
    assert found["evidence"]["flow"]["similar_flows"] == ["bad"]


def test_worker_lost(server: Server) -> None:
    command = ("pyoco-worker", "--flows", "flows", "--tags", "frail", "--worker-id", "frail-1")
    with server.programs.started(*command) as worker:
        worker.says("worker ready")
        run_id = server.submit("waiting", {"gate": str(server.gate)}, tag="frail")
        server.has_cause(run_id, "running")
        worker.ends_after(signal.SIGKILL)
        found = server.has_cause(run_id, "worker_lost")
    assert found["evidence"]["worker"]["worker_id"] == "frail-1"
    assert "No other live worker has the tag 'frail'" in " ".join(found["advice"])


def test_an_unknown_run_is_an_error_with_advice(server: Server) -> None:
    done = server.programs.run("pyoco-client", "why", "0190aaaa-bbbb-7ccc-8ddd-eeeeffff0009")
    assert done.returncode == 1
    assert "ERR-PYOCO-0005" in done.stderr
