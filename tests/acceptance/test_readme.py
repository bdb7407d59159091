"""The tour of the README, in both languages: what it has somebody type works, up to the flow.yaml."""

import re
import shlex
import signal
from pathlib import Path

import pytest

from support.nats_server import free_port
from support.programs import Programs
from support.shell import open_shell
from tools.reference import ROOT

_COMMAND = re.compile(r"^    \$ (.+)$", re.MULTILINE)
_FILE = re.compile(r"^```(python|yaml)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_RUN_ID = re.compile(r"[0-9a-f]{8}-[0-9a-f-]{27}")
NAMES = {"python": "flows.py", "yaml": "flow.yaml"}


def tour(page: str) -> str:
    """Its first four sections; those about keys and wheels need more than the page gives."""
    text = (ROOT / page).read_text()
    return text[text.index("\n### 1. ") : text.index("\n### 5. ")]


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
