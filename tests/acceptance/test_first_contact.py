"""What somebody meets who has just installed it: one directory, a few commands, nothing set."""

import json
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

import pyoco_server
from pyoco_server.http_client import PyocoHttpClient
from pyoco_server.wiring import find_nats_server
from support.nats_server import free_port
from support.programs import Programs
from support.terminals import in_terminal
from support.waiting import until_now

pytestmark = pytest.mark.fresh_start

FLOWS = """
import pathlib
import time
from pyoco import Flow, task

@task
def wait():
    pathlib.Path("waiting").touch()
    while True:
        time.sleep(0.01)

@task
def save(ctx):
    return ctx.save_artifact("notes/report.txt", "done")

endless = Flow(name="endless") >> wait
saving = Flow(name="saving") >> save
"""
USUAL_PORT = 4222


@pytest.fixture
def flows(programs: Programs) -> Path:
    directory = programs.directory / "flows"
    directory.mkdir()
    (directory / "mine.py").write_text(FLOWS)
    return directory


@contextmanager
def usual_port_taken() -> Iterator[None]:
    """By this test, as soon as whoever else has it lets go."""
    with until_now(_the_usual_port, lambda taken: taken is not None):
        yield


def _the_usual_port() -> Any:
    try:
        return socket.create_server(("127.0.0.1", USUAL_PORT))
    except OSError:
        return None


# The server of a directory (D34)


@pytest.mark.slow
def test_commands_of_a_directory_find_its_server_wherever_it_listens(programs: Programs, flows: Path) -> None:
    """D34: something else is on 4222, and nobody sets anything."""
    port = free_port()
    with (
        usual_port_taken(),
        programs.started("pyoco-server", "up", "--port", str(port), "--durability", "fast") as up,
    ):
        url = up.says(r"started here at (nats://[\d.:]+),")[1]
        assert not url.endswith(":4222")
        up.says(r"Port 4222 is in use by .*; it is ignored")
        up.says("Ctrl-C stops it")
        with programs.started("pyoco-worker", "--flows", str(flows)) as worker:
            worker.says("worker ready")
            done = programs.run("pyoco-client", "submit", "--flow-name", "saving", "--wait")
            assert done.returncode == 0, done.stderr
            assert programs.run("pyoco-server-admin", "api-key", "list").stdout.strip() == "[]"
            assert programs.run("pyoco-server", "doctor").returncode == 0
            assert worker.ends_after(signal.SIGTERM) == 0
        elsewhere = programs.run("pyoco-client", "list", PYOCO_SERVER_URL=f"http://127.0.0.1:{free_port()}")
        assert "ERR-PYOCO-0001" in elsewhere.stderr  # what is set wins
        assert up.ends_after(signal.SIGTERM) == 0


@pytest.mark.slow
def test_a_worker_waits_for_the_server_of_its_directory(programs: Programs, flows: Path) -> None:
    """D34: started first, with something else on 4222; and again after the server was killed."""
    with usual_port_taken(), programs.started("pyoco-worker", "--flows", str(flows)) as worker:
        worker.says("cannot connect to NATS; retrying")
        command = ("pyoco-server", "up", "--port", str(free_port()), "--durability", "fast")
        with programs.started(*command) as up:
            url = up.says(r"started here at (nats://[\d.:]+),")[1]
            worker.says("worker ready")
            assert up.ends_after(signal.SIGKILL) == -signal.SIGKILL
        with programs.started(*command) as up:  # at the same port, or its workers would be lost
            assert up.says(r"started here at (nats://[\d.:]+),")[1] == url
            worker.says("reconnected to NATS")


def test_what_a_killed_server_left_behind_counts_for_nothing(programs: Programs) -> None:
    """D34"""
    left = programs.directory / ".pyoco" / "server.json"
    left.parent.mkdir()
    left.write_text(json.dumps({"nats_url": "nats://127.0.0.1:1", "http_url": "http://127.0.0.1:1"}))
    done = programs.run("pyoco-client", "list")
    assert "127.0.0.1:1 " not in done.stderr
    assert "http://127.0.0.1:8000" in done.stderr or done.returncode == 0


# Connections, signals


@contextmanager
def nats_with_a_password(directory: Path) -> Iterator[int]:
    port = free_port()
    config = directory / "password.conf"
    config.write_text(
        f'listen: "127.0.0.1:{port}"\nauthorization {{ user: me, password: right }}\n'
        f'jetstream {{ store_dir: "{directory}/guarded" }}\n'
    )
    binary = find_nats_server()
    assert binary is not None
    with subprocess.Popen([binary, "-c", config], stderr=subprocess.DEVNULL) as server:
        try:
            until_now(lambda: _listens(port))
            yield port
        finally:
            server.kill()


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def test_a_wrong_password_is_named_as_the_cause_without_a_traceback(
    programs: Programs, flows: Path, tmp_path: Path
) -> None:
    """D42: by the worker, the gateway, doctor and the admin command."""
    with nats_with_a_password(tmp_path) as port:
        wrong = f"nats://me:wrong@127.0.0.1:{port}"
        programs.environ["PYOCO_NATS_URL"] = wrong
        with (
            programs.started("pyoco-worker", "--flows", str(flows)) as worker,
            programs.started("pyoco-server", "up", "--port", str(free_port())) as gateway,
        ):
            worker.says(r"rejected the credentials \(authorization\)(.|\n)*\"pause_sec\": 2.0")
            gateway.says(r'"action": "nats.unauthorized"(.|\n)*"pause_sec": 2.0')
            for program in (worker, gateway):
                assert "Traceback" not in program.output
                assert "wrong" not in program.output
        examined = json.loads(programs.run("pyoco-server", "doctor", "--json").stdout)
        (nats,) = [check for check in examined["checks"] if check["check"] == "nats"]
        assert (nats["level"], "authorization" in nats["fact"]) == ("FAIL", True)
        listed = programs.run("pyoco-server-admin", "api-key", "list")
        assert listed.stderr.startswith("ERR-PYOCO-0003 NATS at nats://***@127.0.0.1")
        assert "(authorization)" in listed.stderr


def test_a_second_ctrl_c_ends_a_draining_worker_at_once(programs: Programs, flows: Path) -> None:
    """D42: the first says how long it waits; the run goes back to the queue."""
    url = f"http://127.0.0.1:{free_port()}"
    with programs.started(
        "pyoco-server", "up", "--port", url.rpartition(":")[2], "--durability", "fast"
    ) as up:
        up.says("Ctrl-C stops it")
        with (
            programs.started("pyoco-worker", "--flows", str(flows), "--drain-timeout", "55") as worker,
            PyocoHttpClient(url) as client,
        ):
            run_id = client.submit_run("endless")["run_id"]
            until_now((programs.directory / "waiting").exists)
            worker.send(signal.SIGINT)
            worker.says("Active runs: 1; waiting up to 55 s. Press Ctrl-C again")
            assert client.get_run(run_id)["status"] == "RUNNING"
            assert worker.ends_after(signal.SIGINT) == 130
            assert '"worker.gave_back"' in worker.output
            assert '"worker stopped"' in worker.output


@pytest.mark.parametrize(("host", "warns"), [("0.0.0.0", True), ("127.0.0.2", False)])  # noqa: S104
def test_a_gateway_that_everybody_reaches_without_a_key_warns(
    programs: Programs, host: str, *, warns: bool
) -> None:
    """D42"""
    with programs.started("pyoco-server", "up", "--host", host, "--port", str(free_port())) as up:
        up.says("Ctrl-C stops it")
        assert ("without API keys" in up.output) == warns


def test_a_server_is_found_without_its_scheme(programs: Programs) -> None:
    """D42: `--server localhost:8000`."""
    port = free_port()
    with programs.started("pyoco-server", "up", "--port", str(port), "--durability", "fast") as up:
        up.says("gateway ready")
        listed = programs.run("pyoco-client", "list", "--server", f"localhost:{port}")
        assert (listed.returncode, listed.stdout) == (0, "[]\n"), listed.stderr


# What a terminal shows, and what is left in the directory (D44)


def test_the_banner_names_the_dashboard_and_stays_readable(programs: Programs) -> None:
    """D44: text in a terminal; no line of JSON between."""
    port = free_port()
    command = ("pyoco-server", "up", "--with-worker", "--port", str(port), "--durability", "fast")
    with in_terminal(programs, *command, lines=40) as terminal:
        terminal.shows(rf"Dashboard +http://127.0.0.1:{port}/")
        terminal.shows("worker ready")
        assert "{" not in terminal.text
        assert httpx2.get(f"http://127.0.0.1:{port}/health").is_success
        terminal.press_ctrl_c()
        assert terminal.ends() == 130


def test_a_run_leaves_nothing_in_the_current_directory(programs: Programs, flows: Path) -> None:
    """D44: no ./artifacts; what a flow saves is under .pyoco, by its run."""
    command = ("pyoco-server", "up", "--with-worker", "--flows", str(flows), "--port", str(free_port()))
    with programs.started(*command, "--durability", "fast") as up:
        up.says("worker ready")
        done = programs.run("pyoco-client", "submit", "--flow-name", "saving", "--wait")
        assert done.returncode == 0, done.stderr
        run = json.loads(done.stdout)
    saved = Path(run["result"]["save"])
    assert saved.read_text() == "done"
    assert saved == programs.directory / ".pyoco" / "artifacts" / run["run_id"] / "notes" / "report.txt"
    assert not (programs.directory / "artifacts").exists()


# Names that nobody has (D45)


def test_a_flow_that_nobody_has_fails_with_the_nearest_names(programs: Programs, flows: Path) -> None:
    """D45"""
    command = ("pyoco-server", "up", "--with-worker", "--flows", str(flows), "--port", str(free_port()))
    with programs.started(*command, "--durability", "fast") as up:
        up.says("worker ready")
        done = programs.run("pyoco-client", "submit", "--flow-name", "savign", "--wait")
    assert done.returncode == 1
    assert json.loads(done.stdout)["error"] == "flow not found: savign; did you mean saving?"


# Without the page (D40)


def test_a_server_without_its_page_reports_it_and_serves_the_rest(programs: Programs, tmp_path: Path) -> None:
    package = Path(pyoco_server.__file__).parent
    copy = tmp_path / "copy" / package.name
    shutil.copytree(package, copy, ignore=shutil.ignore_patterns("static", "__pycache__"))
    programs.environ["PYTHONPATH"] = str(copy.parent)
    url = f"http://127.0.0.1:{free_port()}"
    up = ("pyoco-server", "up", "--port", url.rpartition(":")[2], "--durability", "fast")
    with programs.started(*up) as server:
        server.says(f"Dashboard  missing from this installation; {url}/ explains how to get it")
        server.says("gateway ready")
        page = httpx2.get(f"{url}/")
        assert (page.status_code, "pip install --force-reinstall" in page.text) == (404, True)
        assert httpx2.get(f"{url}/runs").json() == []
        checks = json.loads(programs.run("pyoco-server", "doctor", "--json").stdout)["checks"]
        (found,) = [check for check in checks if check["check"] == "dashboard"]
        assert (found["level"], found["fact"]) == ("WARN", "missing from this installation")
