"""docs/how-to/python-client.md: its programs are run as printed, their outputs compared."""

import re
from pathlib import Path

from support.nats_server import free_port
from support.page import File, pattern, steps
from support.programs import Programs
from support.shell import open_shell

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "python-client.md"
SERVER = "pyoco-server up --with-worker"
DEFAULT = "http://127.0.0.1:8000"


def test_the_programs_of_the_page_do_what_it_says(programs: Programs) -> None:
    port = free_port()
    programs.environ["PYOCO_HTTP_PORT"] = str(port)
    with programs.started(*SERVER.split()) as server, open_shell(programs) as shell:
        server.says("worker ready")
        ran = []
        for step in steps(PAGE):
            if isinstance(step, File):
                text = step.text.replace(DEFAULT, f"http://127.0.0.1:{port}")
                (programs.directory / step.path).write_text(text)
            elif step.command.startswith("python "):
                output = shell.run(step.command)
                assert re.fullmatch(pattern(step.output), output), f"$ {step.command}\n{output}"
                ran.append(step.command.removeprefix("python "))
            else:
                assert step.command in (SERVER, "pip install pyoco-client")
    programs_of_page = [step.path for step in steps(PAGE) if isinstance(step, File)]
    assert ran == programs_of_page, "every program of the page is run"
