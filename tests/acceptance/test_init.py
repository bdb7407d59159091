"""REQ-0021: `pyoco-server init`, and that what it writes works."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from pyoco_server.http_client import PyocoHttpClient
from support.machine import Machine
from support.nats_server import free_port
from support.programs import Programs
from support.shell import open_shell
from support.waiting import PATIENCE_SEC, until_now


@pytest.fixture
def project(programs: Programs, tmp_path: Path) -> Path:
    done = programs.run("pyoco-server", "init", "shop")
    assert done.returncode == 0, done.stderr
    assert "pyoco-server up --with-worker --flows flows" in done.stdout
    assert "pip install -r requirements-dev.txt\n  python -m pytest" in done.stdout  # D43
    return tmp_path / "shop"


@pytest.mark.slow
def test_its_own_tests_pass(project: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q"],
        cwd=project,
        capture_output=True,
        text=True,
        timeout=PATIENCE_SEC,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert "6 passed" in done.stdout
    assert (project / "requirements-dev.txt").read_text() == "pytest>=8\n"


@pytest.mark.long
def test_it_brings_what_its_tests_need_to_somebody_who_has_only_the_wheel(
    reader: Machine, tmp_path: Path
) -> None:
    with open_shell(reader.programs_in(tmp_path)) as shell:
        printed = shell.run("pyoco-server init shop")
        typed = [line.strip() for line in printed.splitlines() if re.match(r"  (cd|pip|python) ", line)]
        assert [command.split()[0] for command in typed] == ["cd", "pip", "python"]
        assert "6 passed" in "".join(shell.run(command) for command in typed)


def test_its_flows_run_on_a_server_as_its_readme_says(programs: Programs, project: Path) -> None:
    port = free_port()
    server = ("--server", f"http://127.0.0.1:{port}")
    command = ("pyoco-server", "up", "--port", str(port), "--durability", "fast", "--with-worker")
    with programs.started(*command, "--flows", "shop/flows") as up:
        up.says("worker ready")
        done = programs.run(
            *("pyoco-client", *server, "submit", "--flow-name", "extract", "--param", "ym=2026-03", "--wait")
        )
        assert done.returncode == 0, done.stderr
        rows = json.loads(done.stdout)["result"]["valid_sales"]
        assert [row["ym"] for row in rows] == ["2026-03", "2026-03"]
        params = json.dumps({"rows": rows, "title": "March"})
        done = programs.run(
            *("pyoco-client", *server, "submit", "--flow-name", "report", "--params", params, "--wait")
        )
        assert json.loads(done.stdout)["result"] == {"text": "March: 2 sales, 3,000 in all"}
        by_file = ("submit-yaml", "--workflow-file", "shop/flow.yaml", "--flow-name", "by-file", "--wait")
        done = programs.run("pyoco-client", *server, *by_file)
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["result"]["valid_sales"][0]["ym"] == "2026-02"


def test_its_graph_is_registered_and_executed_as_its_readme_says(programs: Programs, project: Path) -> None:
    port = free_port()
    command = ("pyoco-server", "up", "--port", str(port), "--durability", "fast", "--with-worker")

    def client(*words: str) -> str:
        done = programs.run("pyoco-client", *words, PYOCO_SERVER_URL=f"http://127.0.0.1:{port}")
        assert done.returncode == 0, done.stderr
        return done.stdout

    with (
        programs.started(*command, "--flows", "shop/flows") as up,
        PyocoHttpClient(f"http://127.0.0.1:{port}") as http,
    ):
        up.says("worker ready")
        client("graphs", "put", "shop/graphs/monthly-sales.yaml")
        created = json.loads(client("executions", "create", "monthly-sales", "--param", "ym=2026-03"))
        execution_id = created["execution_id"]
        until_now(lambda: http.executions.waits()["items"] != [])
        assert "Send the report?" in client("waits", "--output", "table")
        for listed in ("graphs", "executions"):
            assert "monthly-sales" in client(listed, "list", "--output", "table")
        client("resume", execution_id, "approve", "--data", '{"ok": true}')
        ended = until_now(
            lambda: http.executions.get(execution_id), lambda execution: execution["status"] == "COMPLETED"
        )
    report = ended["nodes"]["report"]["output"]
    assert report == {"text": "Sales of 2026-03: 2 sales, 3,000 in all"}


def test_its_graph_and_template_hang_together(project: Path) -> None:
    graph = yaml.safe_load((project / "graphs/monthly-sales.yaml").read_text())
    template = json.loads((project / "templates/monthly-sales.json").read_text())
    action = json.loads((project / f"actions/{template['steps'][0]['action']}.json").read_text())
    assert action["graph_id"] == graph["id"]
    assert template["steps"][0]["trigger_kind"] == "external_event"
    entries = set(graph["nodes"]) - {edge["to"] for edge in graph["edges"]}
    assert entries == {"extract"}


def test_a_directory_that_is_not_empty_is_left_alone_unless_it_is_forced(
    programs: Programs, tmp_path: Path
) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/notes.txt").write_text("keep me")
    done = programs.run("pyoco-server", "init", "mine")
    assert done.returncode == 1
    assert "mine is not empty (notes.txt)" in done.stderr
    assert "--force" in done.stderr
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["notes.txt"]
    assert programs.run("pyoco-server", "init", "mine", "--force").returncode == 0
    assert (tmp_path / "mine/notes.txt").read_text() == "keep me"
    assert (tmp_path / "mine/flow.yaml").is_file()


def test_a_file_is_not_a_directory(programs: Programs, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    done = programs.run("pyoco-server", "init", "file")
    assert (done.returncode, "file is a file" in done.stderr) == (1, True)


def test_the_readme_is_in_the_readers_language(programs: Programs, tmp_path: Path) -> None:
    done = programs.run("pyoco-server", "init", "mise", LANG="ja_JP.UTF-8", LC_ALL="")
    assert "個のファイルを作成しました" in done.stdout
    assert (tmp_path / "mise/README.md").read_text().startswith("# pyoco-server プロジェクト")
