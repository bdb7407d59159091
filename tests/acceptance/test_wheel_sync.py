"""REQ-0026: code reaches the workers as wheels, with real processes all the way."""

import json
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from pyoco_server.http_client import PyocoHttpClient
from support.nats_server import free_port
from support.programs import Programs
from support.waiting import PATIENCE_SEC
from support.wheels import a_wheel, a_wheel_file, wheel_name

RESOLVER = "def resolve(name):\n    raise KeyError(name)\n"
WORKFLOW = 'flow: {graph: "which"}\ntasks: {which: {callable: "my_flows.tasks:which"}}\n'


@pytest.fixture
def server(programs: Programs) -> Iterator[PyocoHttpClient]:
    port = free_port()
    (programs.directory / "flows.py").write_text(RESOLVER)
    with programs.started("pyoco-server", "up", "--port", str(port), "--durability", "fast") as up:
        url = up.says(r"at (nats://\S+?),").group(1)
        up.says("Ctrl-C stops it")
        programs.environ["PYOCO_NATS_URL"] = url
        with PyocoHttpClient(f"http://127.0.0.1:{port}") as client:
            wait_for(lambda: client.get_health()["nats"] == "ok")
            yield client


def start_worker(programs: Programs, worker_id: str, tags: str) -> Any:
    return programs.started(
        *("pyoco-worker", "--flow-resolver", "flows.py:resolve", "--worker-id", worker_id, "--tags", tags),
        *("--concurrency", "1", "--wheel-sync", "--wheel-sync-interval-sec", "0.2"),
    )


def wait_for(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_SEC
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def sync_of(client: PyocoHttpClient, worker_id: str) -> dict[str, Any]:
    workers: Any = client.get_workers(scope="all")
    return next((w["wheel_sync"] for w in workers if w["worker_id"] == worker_id), {})


def installed_on(client: PyocoHttpClient, worker_id: str) -> list[str]:
    return [wheel["name"] for wheel in sync_of(client, worker_id).get("installed_wheels", [])]


def ended(client: PyocoHttpClient, run_id: str) -> Any:
    *_, last = client.watch_run(run_id, timeout_sec=PATIENCE_SEC)
    return last["snapshot"]


def run_yaml(client: PyocoHttpClient, tag: str = "cpu") -> Any:
    return ended(client, client.submit_run_yaml(WORKFLOW, tag)["run_id"])


def code(version: str, before: str = "") -> str:
    return f"import time\ndef which():\n    {before or 'pass'}\n    return {version!r}\n"


def test_new_code_is_what_the_next_run_uses_and_removed_code_is_gone(
    programs: Programs, server: PyocoHttpClient, tmp_path: Path
) -> None:
    """D19: pip started during a run, and the record showed the new version while the old one was running."""
    gate = tmp_path / "go"
    waits = f"import pathlib\n    while not pathlib.Path({str(gate)!r}).exists(): time.sleep(0.01)"
    with start_worker(programs, "w-cpu", "cpu") as worker, start_worker(programs, "w-gpu", "gpu"):
        server.upload_wheel(a_wheel_file(tmp_path, version="0.1.0", tasks=code("0.1.0", waits)), ["cpu"])
        wait_for(lambda: installed_on(server, "w-cpu") == [wheel_name(version="0.1.0")])

        going = server.submit_run_yaml(WORKFLOW, "cpu")["run_id"]
        wait_for(lambda: server.get_run(going)["tasks"].get("which") == "RUNNING")
        server.upload_wheel(a_wheel_file(tmp_path, version="0.2.0", tasks=code("0.2.0")), ["cpu"])
        worker.says("wheel.waiting")
        after = server.submit_run_yaml(WORKFLOW, "cpu")["run_id"]
        assert installed_on(server, "w-cpu") == [wheel_name(version="0.1.0")]
        directory = programs.directory / ".pyoco" / "wheels" / "w-cpu"
        assert len([*directory.iterdir()]) == 1, "nothing is installed while a run is going"
        gate.touch()
        first = ended(server, going)
        assert (first["result"], first["wheels"][0]["version"]) == ({"which": "0.1.0"}, "0.1.0")
        second = ended(server, after)
        assert (second["result"], second["wheels"][0]["version"]) == ({"which": "0.2.0"}, "0.2.0")
        wait_for(lambda: installed_on(server, "w-cpu") == [wheel_name(version="0.2.0")])
        assert second["wheels"][0]["sha256"] == server.list_wheels()[-1]["sha256_hex"]

        assert installed_on(server, "w-gpu") == []
        assert run_yaml(server, "gpu")["status"] == "FAILED"

        server.delete_wheel(wheel_name(version="0.1.0"))
        server.delete_wheel(wheel_name(version="0.2.0"))
        wait_for(lambda: installed_on(server, "w-cpu") == [])
        gone = run_yaml(server)
        assert (gone["status"], gone["wheels"]) == ("FAILED", None)
        assert "my_flows" in gone["error"]


def test_a_wheel_that_cannot_be_installed_is_shown_and_harms_nothing(
    programs: Programs, server: PyocoHttpClient, tmp_path: Path
) -> None:
    """ERR-PYOCO-0024; D31: its log line has the exception and where it was raised."""
    with start_worker(programs, "w", "cpu") as worker:
        server.upload_wheel(a_wheel_file(tmp_path, version="0.1.0", tasks=code("0.1.0")))
        wait_for(lambda: installed_on(server, "w") == [wheel_name(version="0.1.0")])
        bad = tmp_path / wheel_name(version="0.2.0")
        bad.write_bytes(a_wheel(version="0.2.0", files={"my_flows-0.2.0.data/nonsense/x": "x"}))
        server.upload_wheel(bad)
        wait_for(lambda: sync_of(server, "w")["last_result"] == "error")
        assert wheel_name(version="0.2.0") in sync_of(server, "w")["error"]
        logged = json.loads(worker.says(r'\{[^\n]*"wheel.install_failed"[^\n]*')[0])
        assert (logged["err_id"], logged["exc_type"]) == ("ERR-PYOCO-0024", "WheelSyncFailed")
        assert "worker/wheels.py" in logged["exc_origin"]
        assert logged["exc_traceback"].startswith("Traceback")
        assert run_yaml(server)["result"] == {"which": "0.1.0"}


def test_a_worker_that_was_killed_while_installing_starts_into_a_whole_state(
    programs: Programs, server: PyocoHttpClient, tmp_path: Path
) -> None:
    server.upload_wheel(a_wheel_file(tmp_path, version="0.1.0", tasks=code("0.1.0")))
    directory = programs.directory / ".pyoco" / "wheels" / "w"
    with start_worker(programs, "w", "cpu") as worker:
        wait_for(lambda: any(directory.glob(".unfinished-*")) or worker_has_code(directory))
        worker.ends_after(signal.SIGKILL)
    with start_worker(programs, "w", "cpu"):
        wait_for(lambda: installed_on(server, "w") == [wheel_name(version="0.1.0")])
        assert run_yaml(server)["result"] == {"which": "0.1.0"}
        assert not list(directory.glob(".unfinished-*"))


def test_f12_a_run_that_is_going_keeps_its_code(
    programs: Programs, server: PyocoHttpClient, tmp_path: Path
) -> None:
    """F12: a task may import late; what it imports then is of the version that the run began with."""
    gate = tmp_path / "go"
    waits = f"import pathlib\n    while not pathlib.Path({str(gate)!r}).exists(): time.sleep(0.01)"
    late = "\n    import my_flows.late"
    directory = programs.directory / ".pyoco" / "wheels" / "w"
    with start_worker(programs, "w", "cpu") as worker:
        content = {"tasks": code("0.1.0", waits + late), "late": ""}
        server.upload_wheel(a_wheel_file(tmp_path, version="0.1.0", **content))
        wait_for(lambda: installed_on(server, "w") == [wheel_name(version="0.1.0")])
        going = server.submit_run_yaml(WORKFLOW, "cpu")["run_id"]
        wait_for(lambda: server.get_run(going)["tasks"].get("which") == "RUNNING")
        server.upload_wheel(a_wheel_file(tmp_path, version="0.2.0", tasks=code("0.2.0")))
        worker.says("wheel.waiting")
        gate.touch()
        assert ended(server, going)["result"] == {"which": "0.1.0"}
        wait_for(lambda: installed_on(server, "w") == [wheel_name(version="0.2.0")])
        # A sync keeps what the one before it had, so the old version goes with the next.
        server.upload_wheel(a_wheel_file(tmp_path, version="0.3.0", tasks=code("0.3.0")))
        wait_for(lambda: installed_on(server, "w") == [wheel_name(version="0.3.0")])
        assert not [kept for kept in directory.glob("*/wheel.json") if "0.1.0" in kept.read_text()]


def test_the_flows_themselves_can_come_in_a_wheel(
    programs: Programs, server: PyocoHttpClient, tmp_path: Path
) -> None:
    flows = (
        "from pyoco import Flow, task\n@task\ndef hi(): return 'hi'\ndef resolve(name): return Flow() >> hi\n"
    )
    server.upload_wheel(a_wheel_file(tmp_path, flows=flows))
    command = (
        "pyoco-worker",
        "--flow-resolver",
        "my_flows.flows:resolve",
        "--worker-id",
        "w",
        "--wheel-sync",
    )
    with programs.started(*command):
        assert ended(server, server.submit_run("any")["run_id"])["result"] == {"hi": "hi"}


def worker_has_code(directory: Path) -> bool:
    return any(directory.glob("*/wheel.json"))


@pytest.mark.slow
def test_wheels_are_synced_as_the_environment_says(
    programs: Programs, server: PyocoHttpClient, tmp_path: Path
) -> None:
    """PYOCO_WHEEL_SYNC_ENABLED, PYOCO_WHEEL_SYNC_DIR, PYOCO_WHEEL_SYNC_INTERVAL_SEC (10 s by default) and
    PYOCO_WHEEL_INSTALL_TIMEOUT_SEC."""
    environ = {
        "PYOCO_WHEEL_SYNC_ENABLED": "1",
        "PYOCO_WHEEL_SYNC_DIR": str(tmp_path / "code"),
        "PYOCO_WHEEL_SYNC_INTERVAL_SEC": "0.2",
    }
    command = ("pyoco-worker", "--flow-resolver", "flows.py:resolve", "--concurrency", "1", "--worker-id")
    with (
        programs.started(*command, "patient", **environ),
        programs.started(*command, "hasty", **environ, PYOCO_WHEEL_INSTALL_TIMEOUT_SEC="0.01"),
    ):
        wait_for(lambda: bool(sync_of(server, "patient").get("last_attempt_at")))
        first = sync_of(server, "patient")["last_attempt_at"]
        wait_for(lambda: sync_of(server, "patient")["last_attempt_at"] > first)
        assert sync_of(server, "patient")["last_attempt_at"] - first < 9.0
        server.upload_wheel(a_wheel_file(tmp_path, version="0.1.0", tasks=code("0.1.0")))
        wait_for(lambda: installed_on(server, "patient") == [wheel_name(version="0.1.0")])
        wait_for(lambda: "pip timed out after 0.01 s" in (sync_of(server, "hasty").get("error") or ""))
    assert list((tmp_path / "code" / "patient").glob("*/**/my_flows"))


def test_a_worker_without_wheel_sync_installs_nothing(programs: Programs, server: PyocoHttpClient) -> None:
    """Without --wheel-sync nothing is installed, and the record says so."""
    with programs.started("pyoco-worker", "--flow-resolver", "flows.py:resolve", "--worker-id", "plain"):
        wait_for(lambda: bool(sync_of(server, "plain")))
        assert sync_of(server, "plain")["last_result"] == "disabled"
        with pytest.raises(httpx2.HTTPStatusError):
            server.delete_wheel(wheel_name())
