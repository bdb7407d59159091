"""The wheel of `pyoco-client`, built and used with no other package than those it needs."""

import json
import os
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterable, Iterator
from importlib.metadata import Distribution, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from pyoco_server.http_client import PyocoHttpClient
from support.nats_server import free_port
from support.programs import Programs
from support.waiting import PATIENCE_SEC, until_now

ROOT = Path(__file__).parents[2]
MAX_PACKAGES = 16
MAX_BYTES = 15 * 1000 * 1000


def needed_by(requirements: Iterable[str]) -> dict[str, Distribution]:
    """The distributions of this environment that pip would install for these requirements."""
    found: dict[str, Distribution] = {}
    waiting = [Requirement(text) for text in requirements]
    while waiting:
        wanted = waiting.pop()
        is_for_here = wanted.marker is None or wanted.marker.evaluate({"extra": ""})
        name = canonicalize_name(wanted.name)
        if is_for_here and name not in found:
            found[name] = distribution(name)
            waiting += [Requirement(text) for text in found[name].requires or []]
    return found


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of a Python with the wheel, the packages that it needs, and no others (`-S`)."""
    directory = tmp_path_factory.mktemp("thin")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(directory)]
    subprocess.run(build, cwd=ROOT / "client", check=True, capture_output=True)
    (wheel,) = directory.glob("pyoco_client-*-py3-none-any.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(directory / "site")  # which is all that installing it means
    project = tomllib.loads((ROOT / "client" / "pyproject.toml").read_text())["project"]
    packages = needed_by(project["dependencies"])
    assert len(packages) + 1 <= MAX_PACKAGES
    files = [file for package in packages.values() for file in package.files or []]
    sizes = [path.stat().st_size for file in files if (path := Path(str(file.locate()))).is_file()]
    assert sum(sizes) + sum(path.stat().st_size for path in (directory / "site").rglob("*")) <= MAX_BYTES
    for package in packages.values():
        for top in {file.parts[0] for file in package.files or []} - {"..", "__pycache__"}:
            (directory / "site" / top).symlink_to(str(package.locate_file(top)))
    return {**os.environ, "PYTHONPATH": str(directory / "site")}


@pytest.fixture
def server(programs: Programs) -> Iterator[str]:
    port = free_port()
    with programs.started("pyoco-server", "up", "--with-worker", PYOCO_HTTP_PORT=str(port)) as running:
        running.says("worker ready")
        yield f"http://127.0.0.1:{port}"


def run(installed: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    return python(installed, "-m", "pyoco_client", *arguments)


def python(installed: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-S", *arguments],
        env=installed,
        capture_output=True,
        text=True,
        timeout=PATIENCE_SEC,
        check=False,
    )


def test_the_thin_client_runs_a_flow_on_a_real_server(installed: dict[str, str], server: str) -> None:
    connection = ("--server", server)
    helped = run(installed, "--help")
    assert helped.returncode == 0, helped.stderr
    assert "pyoco-client[terminal]" in helped.stdout

    done = run(installed, *connection, "submit", "--flow-name", "sample", "--param", "rows=4", "--wait")
    assert done.returncode == 0, done.stderr
    ended = json.loads(done.stdout)
    assert (ended["status"], ended["result"]) == ("COMPLETED", {"report": {"rows": 4, "sum": 30}})
    assert done.stderr.splitlines()[-1].startswith("COMPLETED")

    run_id = ended["run_id"]
    assert run(installed, "logs", run_id, "--follow", *connection).stdout == "fetching 4 rows\n"
    last = json.loads(run(installed, "watch", run_id, *connection).stdout.splitlines()[-1])
    assert last["snapshot"]["status"] == "COMPLETED"
    assert [item["run_id"] for item in json.loads(run(installed, "list", *connection).stdout)] == [run_id]

    failed = run(installed, "submit", "--flow-name", "sample", "--param", "rows=many", "--wait", *connection)
    assert failed.returncode == 1
    ended = json.loads(failed.stdout)
    assert ended["status"] == "FAILED"
    assert ended["error"] in failed.stderr
    late = ("submit", "sample", "--tag", "nobody", "--wait", "--timeout-sec", "0.1", "--output", "json")
    reason = json.loads(run(installed, *late, *connection).stderr)["error"]
    assert reason["run_status"] == "PENDING"
    assert reason["detail"].startswith("Timed out after 0.1 s; the run continues.")

    missing = run(installed, "get", "no-such-run", *connection)
    assert (missing.returncode, missing.stdout) == (1, "")
    assert missing.stderr.startswith("HTTP 404 ERR-PYOCO-0005 run not found")


@pytest.mark.slow
def test_the_thin_command_has_the_other_levels_too(
    installed: dict[str, str], server: str, tmp_path: Path
) -> None:
    def answer(*arguments: str, code: int = 0) -> str:
        done = run(installed, *arguments, "--server", server)
        assert done.returncode == code, f"{arguments}: {done.stdout}{done.stderr}"
        return done.stdout if code == 0 else done.stderr

    graph = tmp_path / "close.yaml"
    graph.write_text(
        "id: close\nnodes: {a: {type: task, flow: sample}, b: {type: wait}}\nedges: [{from: a, to: b}]\n"
    )
    assert json.loads(answer("graphs", "put", str(graph)))["graph_id"] == "close"
    assert answer("graphs", "-q") == "close\n"
    execution_id = answer("executions", "create", "close", "-q").strip()
    client = PyocoHttpClient(server)
    until_now(lambda: bool(client.executions.waits()["items"]))
    client.close()
    assert answer("waits", "-q") == f"{execution_id} b\n"
    assert (
        json.loads(answer("resume", execution_id, "b", "--data", '{"ok": true}'))["execution_id"]
        == execution_id
    )
    assert answer("executions", "watch", execution_id).splitlines()[-1].startswith("{")
    header, row = answer("executions", "list", "--output", "table").splitlines()
    assert header.split() == ["execution_id", "status", "graph_id", "graph_version"]
    assert row.split() == [execution_id, "COMPLETED", "close", "1"]
    assert json.loads(answer("actions", "put", "nightly", "--flow-name", "sample"))["key"] == "nightly"
    assert answer("flows", "-q") == "sample\n"
    rerun_id = answer("rerun", answer("list", "-q").split()[0], "--param", "rows=5", "--wait", "-q").strip()
    assert json.loads(answer("get", rerun_id))["result"] == {"report": {"rows": 5, "sum": 55}}
    error = json.loads(answer("executions", "get", "nobody", "--output", "json", code=1))["error"]
    assert (error["status"], error["err_id"]) == (404, "ERR-PYOCO-0031")


@pytest.mark.slow
def test_the_thin_command_has_schedules(installed: dict[str, str], server: str, tmp_path: Path) -> None:
    def answer(*arguments: str, code: int = 0) -> str:
        done = run(installed, *arguments, "--server", server)
        assert done.returncode == code, f"{arguments}: {done.stdout}{done.stderr}"
        return done.stdout if code == 0 else done.stderr

    nightly = tmp_path / "schedules" / "nightly.json"
    nightly.parent.mkdir()
    nightly.write_text('{"target": {"flow": "sample"}, "cron": "30 2 * * *", "timezone": "Asia/Tokyo"}')
    assert len(json.loads(answer("schedules", "preview", "--cron", "@daily", "-n", "2"))["items"]) == 2
    assert answer("schedules", "put", str(nightly), "-q") == "nightly\n"
    assert json.loads(answer("apply", str(tmp_path), "--dry-run"))[0]["change"] == "none"
    assert answer("schedules", "pause", "nightly", "--reason", "r", "-q") == "nightly\n"
    assert json.loads(answer("schedules", "show", "nightly"))["paused_reason"] == "r"
    run_id = answer("schedules", "trigger", "nightly", "-q").strip()
    assert answer("schedules", "ticks", "nightly", "-q").strip() == run_id
    assert answer("schedules", "resume", "nightly", "-q") == "nightly\n"
    period = ("2026-01-01T00:00+09:00", "2026-01-02T00:00+09:00")
    assert len(json.loads(answer("schedules", "backfill", "nightly", *period, "--dry-run"))["items"]) == 1
    assert answer("schedules", "list", "--output", "table").splitlines()[1].split()[0] == "nightly"
    assert json.loads(answer("schedules", "delete", "nightly"))["deleted"]
    nightly.write_text('{"target": {"flow": "sample"}, "cron": "30 25 * * *"}')
    refused = answer("apply", str(tmp_path), code=1)
    assert refused.startswith(f"{nightly}: not applied\nHTTP 422")
    as_json = json.loads(answer("apply", str(tmp_path), "--output", "json", code=1))
    assert as_json["error"]["path"] == str(nightly)


@pytest.mark.slow
def test_the_thin_command_sets_flows(installed: dict[str, str], server: str, tmp_path: Path) -> None:
    def answer(*arguments: str, code: int = 0) -> str:
        done = run(installed, "flows", *arguments, "--server", server)
        assert done.returncode == code, f"{arguments}: {done.stdout}{done.stderr}"
        return done.stdout if code == 0 else done.stderr

    (tmp_path / "schema.json").write_text('{"required": ["rows"]}')
    (tmp_path / "all.json").write_text('{"timeout_sec": 7}')
    options = ("--timeout", "1h", "--retries", "2", "--params-schema", str(tmp_path / "schema.json"))
    assert answer("set", "other", *options, "-q") == "other\n"
    assert answer("set", "other", "--owner", "me", "--unset", "retry", "-q") == "other\n"
    shown = json.loads(answer("show", "other"))
    names = ("timeout_sec", "retry", "params_schema", "owner")
    assert [shown[name] for name in names] == [3600, None, {"required": ["rows"]}, "me"]
    assert "other" in answer("list", "-q").split()
    replaced = json.loads(answer("set", "other", "--file", str(tmp_path / "all.json")))
    assert [replaced[name] for name in names] == [7, None, None, None]
    assert "retries: not a setting" in answer("set", "other", "--unset", "retries", code=1)
    answer("set", "other", "--unset", "timeout_sec")
    assert "HTTP 404" in answer("show", "other", code=1)


def test_both_clients_work_without_other_packages(installed: dict[str, str], server: str) -> None:
    program = """
import asyncio, sys
from pyoco_server.http_client import AsyncPyocoHttpClient, PyocoHttpClient
import pyoco_server
print(pyoco_server.__file__)
with PyocoHttpClient(sys.argv[1]) as client:
    print(client.run("sample"))
async def main():
    async with AsyncPyocoHttpClient(sys.argv[1]) as client:
        print(await client.run("sample"))
asyncio.run(main())
"""
    done = python(installed, "-c", program, server)
    result = "{'report': {'rows': 3, 'sum': 14}}"
    package = f"{installed['PYTHONPATH']}/pyoco_server/__init__.py"
    assert done.stdout.splitlines() == [package, result, result], done.stderr
