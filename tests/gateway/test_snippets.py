"""The programs on pages that nobody types: each is run, on a server in this process."""

import re
from typing import Any

import pytest

from pyoco_server.engine import sample_flows
from pyoco_server.testing import LocalServer
from tools.reference import ROOT


def snippet(page: str) -> str:
    (found,) = re.findall(r"^```python\n(.*?)^```$", (ROOT / page).read_text(), re.MULTILINE | re.DOTALL)
    text: str = found
    return text


def executed(program: str) -> dict[str, Any]:
    names: dict[str, Any] = {}
    exec(compile(program, "page", "exec"), names)  # noqa: S102 - of our own documentation
    return names


def test_the_flow_of_the_first_page() -> None:
    with LocalServer(executed(snippet("docs/index.md"))["report"]) as server:
        assert server.run("report", {"rows": 4}) == {"total": 10}


def test_the_program_of_the_thin_clients_readme(capsys: pytest.CaptureFixture[str]) -> None:
    with LocalServer(sample_flows.resolve) as server:
        executed(snippet("client/README.md").replace("http://127.0.0.1:8000", server.url))
    assert capsys.readouterr().out.endswith("{'report': {'rows': 3, 'sum': 14}}\n")


def test_the_timeout_of_a_task() -> None:
    program = "from pyoco import task\n" + snippet("docs/explanation/when-something-dies.md")
    assert executed(program)["fetch"].task.timeout_sec == 600
