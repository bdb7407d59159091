"""The README in both languages: its first flow works as typed, and the two say the same."""

import json
import re
import shlex
import signal
from pathlib import Path

import pytest

from support.nats_server import free_port
from support.programs import Programs
from support.shell import open_shell
from tools.reference import ROOT

pytestmark = pytest.mark.fresh_start

PAGES = ["README.md", "README.ja.md"]
MAX_LINES = 150
_COMMAND = re.compile(r"^    \$ (.+)$", re.MULTILINE)
_FLOW = re.compile(r"`(flows/\w+\.py)`.*?^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_CODE = re.compile(r"^```.*?^```$|^    (?:\$ )?[a-z][^#\n]*|`[^`\n]+`", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\]\(([^)]+)\)")


def test_the_first_flow_works(programs: Programs, tmp_path: Path) -> None:
    """D43: as it is typed. The other language has the same code, see below."""
    text = (ROOT / PAGES[0]).read_text()
    ((name, flow),) = _FLOW.findall(text)
    (tmp_path / name).parent.mkdir()
    (tmp_path / name).write_text(flow)
    server, submit, listing = _COMMAND.findall(text)
    url = f"http://127.0.0.1:{free_port()}"
    programs.environ |= {"PYOCO_HTTP_PORT": url.rpartition(":")[2], "PYOCO_SERVER_URL": url}
    with programs.started(*shlex.split(server)) as up:
        up.says("worker ready")
        with open_shell(programs) as shell:
            ran = json.loads(shell.run(f"{submit} 2>/dev/null"))
            assert f"`{json.dumps(ran['result'])}`" in text
            (listed,) = json.loads(shell.run(listing.replace("http://127.0.0.1:8000", url)))
            assert listed["run_id"] == ran["run_id"]
        assert up.ends_after(signal.SIGTERM) == 0


@pytest.mark.parametrize("page", PAGES)
def test_it_is_short_and_names_the_two_commands(page: str) -> None:
    text = (ROOT / page).read_text()
    assert len(text.splitlines()) <= MAX_LINES
    assert re.search(r"^    make demo .*\n    make test ", text, re.MULTILINE)
    assert re.search(r"^    pip install pyoco-server\n    pyoco-server up ", text, re.MULTILINE)


def test_both_languages_have_the_same_code_and_links() -> None:
    english, japanese = ((ROOT / page).read_text() for page in PAGES)
    assert set(_CODE.findall(english)) == set(_CODE.findall(japanese))
    to_japanese, *links = _LINK.findall(english)
    to_english, *japanese_links = _LINK.findall(japanese)
    assert [to_english, to_japanese] == PAGES
    assert sorted(links) == sorted(japanese_links)
