"""The tour of the README, in both languages: what it has somebody type works, up to the flow.yaml."""

import re
import shlex
import signal
import sys
from pathlib import Path

import pytest

from support.nats_server import free_port
from support.programs import Programs
from support.shell import open_shell
from tools.reference import ROOT

_COMMAND = re.compile(r"^    \$ (.+)$", re.MULTILINE)
_FILE = re.compile(r"^```(python|yaml)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_NAMED_FILE = re.compile(r'^```toml title="([^"]+)"\n(.*?)^```$', re.MULTILINE | re.DOTALL)
_RUN_ID = re.compile(r"[0-9a-f]{8}-[0-9a-f-]{27}")
NAMES = {"python": "flows.py", "yaml": "flow.yaml"}


def tour(page: str) -> str:
    """Its first four sections."""
    text = (ROOT / page).read_text()
    return text[text.index("\n### 1. ") : text.index("\n### 5. ")]


def wheels(page: str) -> str:
    text = (ROOT / page).read_text()
    return text[text.index("\n### 6. ") : text.index("\n## ", text.index("\n### 6. "))]


@pytest.mark.parametrize("page", ["README.md", "README.ja.md"])
def test_the_tour_works(page: str, programs: Programs, tmp_path: Path) -> None:
    for language, text in _FILE.findall(tour(page)):
        (tmp_path / NAMES[language]).write_text(text)
    server, worker, *typed = _COMMAND.findall(tour(page))
    url = f"http://127.0.0.1:{free_port()}"
    programs.environ |= {"PYOCO_HTTP_PORT": url.rpartition(":")[2], "PYOCO_SERVER_URL": url}
    with programs.started(*shlex.split(server)) as up:
        nats_url = up.says(r"NATS +started here at (nats://[\d.:]+),")[1]
        up.says("Ctrl-C stops it")
        with (
            programs.started(*shlex.split(worker), PYOCO_NATS_URL=nats_url) as working,
            open_shell(programs) as shell,
        ):
            working.says("worker ready")
            run_id = ""
            for command in typed:
                here = command.replace("http://127.0.0.1:8000", url).replace("curl -s", "curl -fs")
                answer = shell.run(_RUN_ID.sub(run_id, here))
                found = _RUN_ID.search(answer)
                run_id = run_id or (found[0] if found else "")
            assert '"status":"PENDING"' in answer  # the last one submits a flow.yaml
            assert working.ends_after(signal.SIGTERM) == 0
        assert up.ends_after(signal.SIGTERM) == 0


@pytest.mark.parametrize("page", ["README.md", "README.ja.md"])
def test_the_wheel_of_the_tour_reaches_a_worker(page: str, programs: Programs, tmp_path: Path) -> None:
    """D43: step 6 works as it is typed."""
    (tmp_path / "flows.py").write_text(dict(_FILE.findall(tour(page)))["python"])
    make, copy, build, upload, history, worker, workers = _COMMAND.findall(wheels(page))
    ((name, project),) = _NAMED_FILE.findall(wheels(page))
    # The page has pip fetch hatchling; here, the one that is installed does.
    programs.environ |= {"PIP_NO_BUILD_ISOLATION": "0", "PIP_NO_INDEX": "1"}
    url = f"http://127.0.0.1:{free_port()}"
    with programs.started("pyoco-server", "up", "--port", url.rpartition(":")[2]) as up:
        up.says("Ctrl-C stops it")
        with open_shell(programs) as shell:
            shell.run(make)
            shell.run(copy)
            (tmp_path / name).write_text(project)
            shell.run(f"{Path(sys.executable).parent}/{build}")
            shell.run(upload)
            assert '"action":"upload"' in shell.run(history.replace("http://127.0.0.1:8000", url))
            with programs.started(*shlex.split(worker)) as working:
                working.says("worker ready")
                assert "with-wheels" in shell.run(workers)
                ran = shell.run("pyoco-client submit --flow-name report --params '{\"rows\": 4}' --wait")
                assert '"my_flows-1.0.0-py3-none-any.whl"' in ran
