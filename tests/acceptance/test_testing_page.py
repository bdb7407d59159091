"""docs/how-to/test-your-flows.md: its files are written, its commands typed, their outputs compared."""

import re
from pathlib import Path

from support.page import File, pattern, steps
from support.programs import Programs
from support.shell import open_shell

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "test-your-flows.md"


def test_the_tests_of_the_page_pass(programs: Programs) -> None:
    page = list(steps(PAGE))
    for file in page:
        if isinstance(file, File):
            path = programs.directory / file.path
            path.parent.mkdir(exist_ok=True)
            path.write_text(file.text)
    programs.environ["PYTEST_ADDOPTS"] = "-p no:asyncio"  # it warns of options that the page does not need
    with open_shell(programs) as shell:
        for step in page:
            if isinstance(step, File) or step.command == "pip install pytest":
                continue
            output = shell.run(step.command)
            assert re.fullmatch(pattern(step.output), output), f"$ {step.command}\n{output}"
