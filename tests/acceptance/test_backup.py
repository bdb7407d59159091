"""Backup and restore: after it everything is as it was, and runs that waited go on."""

import json
import re
import shlex
import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx2
import pytest

from pyoco_server.http_client import PyocoHttpClient
from pyoco_server.wiring import EmbeddedNats
from support.nats_server import free_port
from support.programs import Programs
from support.wheels import a_wheel_file

SAMPLES = "pyoco_server.engine.sample_flows:resolve"
WORKER = (
    "pyoco-worker",
    "--flow-resolver",
    SAMPLES,
    "--run-once",
    "--poll-timeout",
    "20",
    "--worker-id",
    "w1",
)


class Server:
    def __init__(self, url: str, nats_url: str) -> None:
        self.url = url
        self.nats_url = nats_url

    def everything(self) -> dict[str, bytes]:
        """What anybody can see of it, byte for byte."""
        with httpx2.Client(base_url=self.url) as http:
            runs = http.get("/runs", params={"include": "full", "limit": 200})
            paths = [f"/runs/{run['run_id']}/{part}" for run in runs.json() for part in ("tasks", "logs")]
            paths += ["/wheels", "/wheels/history"]
            paths += [f"/wheels/{wheel['name']}" for wheel in http.get("/wheels").json()]
            return {"/runs": runs.content, **{path: http.get(path).content for path in paths}}

    def keys(self, programs: Programs) -> str:
        return programs.run("pyoco-server-admin", "--nats-url", self.nats_url, "api-key", "list").stdout


@contextmanager
def up(programs: Programs, *options: str) -> Iterator[Server]:
    port = free_port()
    with programs.started("pyoco-server", "up", "--port", str(port), *options) as program:
        nats_url = program.says(r"NATS +(?:started here at )?(nats://[\d.:]+)")[1]
        program.says("Ctrl-C stops it")
        with PyocoHttpClient(f"http://127.0.0.1:{port}") as client:
            client.list_runs()  # waits until the gateway has read everything
        yield Server(f"http://127.0.0.1:{port}", nats_url)
        assert program.ends_after(signal.SIGTERM) == 0


def fill(server: Server, programs: Programs, tmp_path: Path) -> str:
    """A run that has ended, a wheel, a key; answers with a run that waits."""
    environ = {"PYOCO_NATS_URL": server.nats_url}
    with PyocoHttpClient(server.url) as client:
        client.submit_run("sample", {"rows": 3})
        worked = programs.run(*WORKER, **environ)
        assert worked.returncode == 0, worked.stdout
        client.upload_wheel(a_wheel_file(tmp_path), ["cpu"])
        created = programs.run("pyoco-server-admin", "api-key", "create", "--tenant", "a", **environ)
        assert created.returncode == 0, created.stderr
        return client.submit_run("sample", {"rows": 5})["run_id"]


def goes_on(server: Server, programs: Programs, run_id: str) -> None:
    worked = programs.run(*WORKER, PYOCO_NATS_URL=server.nats_url)
    assert worked.returncode == 0, worked.stdout
    with PyocoHttpClient(server.url) as client:
        run = client.get_run(run_id)
        assert (run["status"], run["result"]) == ("COMPLETED", {"report": {"rows": 5, "sum": 55}})


@pytest.mark.long
def test_a_copy_of_the_directory_is_a_backup(programs: Programs, tmp_path: Path) -> None:
    with up(programs) as server:
        waiting = fill(server, programs, tmp_path)
        before, keys = server.everything(), server.keys(programs)
    shutil.copytree(tmp_path / ".pyoco", tmp_path / "copy")
    shutil.rmtree(tmp_path / ".pyoco")
    with up(programs) as empty:
        assert empty.everything()["/runs"] == b"[]"
    shutil.rmtree(tmp_path / ".pyoco")
    shutil.copytree(tmp_path / "copy", tmp_path / ".pyoco")
    with up(programs) as server:
        assert (server.everything(), server.keys(programs)) == (before, keys)
        goes_on(server, programs, waiting)


@pytest.mark.long
def test_a_backup_of_a_running_server_is_restored_elsewhere(
    programs: Programs, own_nats: EmbeddedNats, tmp_path: Path
) -> None:
    with up(programs) as server:
        waiting = fill(server, programs, tmp_path)
        before, keys = server.everything(), server.keys(programs)
        saved = programs.run(
            *("pyoco-server-admin", "--nats-url", server.nats_url), *("backup", "--directory", "saved")
        )
        assert saved.returncode == 0, saved.stderr
        assert server.everything() == before
    restore = ("pyoco-server-admin", "--nats-url", own_nats.url, "restore", "--directory", "saved")
    restored = programs.run(*restore)
    assert restored.returncode == 0, restored.stderr
    assert json.loads(restored.stdout) == json.loads(saved.stdout)
    with up(programs, "--nats-url", own_nats.url) as server:
        assert (server.everything(), server.keys(programs)) == (before, keys)
        goes_on(server, programs, waiting)
    again = programs.run(*restore)
    assert again.returncode == 1
    assert "restore into a NATS without these streams" in again.stderr


@pytest.mark.slow
def test_a_backup_of_a_running_server_is_restored_on_one_machine(programs: Programs, tmp_path: Path) -> None:
    """D43: as docs/how-to/backup.md has it, word for word."""
    page = (Path(__file__).parents[2] / "docs/how-to/backup.md").read_text()
    backup, restore = (
        re.findall(rf"^\$ (pyoco-server-admin {verb} .*)$", page, re.MULTILINE)
        for verb in ("backup", "restore")
    )
    with up(programs) as server:
        waiting = fill(server, programs, tmp_path)
        before, keys = server.everything(), server.keys(programs)
        saved = programs.run(*shlex.split(backup[0]), PYOCO_NATS_URL=server.nats_url)
        assert saved.returncode == 0, saved.stderr
        running = programs.run(*shlex.split(restore[-1]))
        assert (running.returncode, "in use by another pyoco-server" in running.stderr) == (1, True)
    shutil.rmtree(tmp_path / ".pyoco")
    restored = programs.run(*shlex.split(restore[-1]))
    assert restored.returncode == 0, restored.stderr
    assert json.loads(restored.stdout) == json.loads(saved.stdout)
    again = programs.run(*shlex.split(restore[-1]))
    assert (again.returncode, "exist" in again.stderr) == (1, True)
    with up(programs) as server:
        assert (server.everything(), server.keys(programs)) == (before, keys)
        goes_on(server, programs, waiting)


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (("backup", "--directory", "full"), "full is not empty"),
        (("restore", "--directory", "nowhere"), "no such directory"),
        (("restore", "--directory", "empty"), "contains no backup"),
    ],
)
def test_a_directory_that_cannot_be_used_is_refused(
    command: tuple[str, ...], said: str, programs: Programs, nats_server: EmbeddedNats, tmp_path: Path
) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "something").touch()
    refused = programs.run("pyoco-server-admin", "--nats-url", nats_server.url, *command)
    assert (refused.returncode, refused.stdout) == (1, "")
    assert said in refused.stderr


def test_a_nats_with_nothing_has_a_backup_of_nothing(programs: Programs, own_nats: EmbeddedNats) -> None:
    saved = programs.run("pyoco-server-admin", "--nats-url", own_nats.url, "backup", "--directory", "saved")
    assert json.loads(saved.stdout) == {"streams": {}}
