"""The tutorial and the how-to pages: files are written, commands typed, outputs compared, as printed.

`support/page.py` describes what a page may contain. What cannot be run here is listed below, with its reason.
"""

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.desk import Desk
from support.machine import Machine
from support.page import CONSOLE, File, NotRun, Typed, steps
from support.programs import Programs
from support.tables import every_row

pytestmark = pytest.mark.fresh_start

DOCS = Path(__file__).parents[2] / "docs"
PAGES = [DOCS / "tutorial.md", *sorted((DOCS / "how-to").glob("*.md"))]
SHARED = [
    ["how-to/flows.md", "how-to/cancel.md", "how-to/flow-yaml.md"],
    ["how-to/python-client.md", "how-to/logs.md", "how-to/observe.md"],
]
"""Pages that start the same server, and do not mind what the one before them has left."""
EVERY_DAY = {"tutorial.md"}
"""The other pages are typed every night."""
NOT_RUN = {
    "how-to/backup.md": {"a second NATS; test_backup.py does it": 1},
    "how-to/events.md": {
        "cron; test_events.py runs the line as cron does": 1,
        "Google Chat; test_events_notifications.py uses a server of its own": 1,
    },
    "how-to/observe.md": {"systemd": 1},
    "how-to/several-machines.md": {
        "several machines; test_nats_access.py, test_tls.py and test_cluster.py do it on one": 4
    },
    "how-to/traces.md": {"a collector; test_traces.py has one": 1},
}
"""Reasons why blocks of a page are not run, and of how many."""


def name_of(page: Path) -> str:
    return page.relative_to(DOCS).as_posix()


def readings() -> list[list[str]]:
    """Every page with commands, alone or with those that share its server."""
    shared = [name for group in SHARED for name in group]
    alone = [[name_of(page)] for page in PAGES if name_of(page) not in shared and CONSOLE in page.read_text()]
    return [*alone, *SHARED]


def every_day_or_every_night() -> Iterator[Any]:
    for pages in readings():
        yield pytest.param(pages, id="+".join(pages), marks=[pytest.mark.slow] * (pages[0] not in EVERY_DAY))


def follow(pages: list[str], desk: Desk) -> None:
    for page in pages:
        for step in steps(DOCS / page):
            desk.do(step)
    interrupted = any("^C" in (DOCS / page).read_text() for page in pages)
    assert desk.busy_terminals == [] or not interrupted, "the page leaves something running"


@pytest.mark.parametrize("pages", list(every_day_or_every_night()))
def test_pages_do_what_they_show(pages: list[str], programs: Programs) -> None:
    with Desk(programs) as desk:
        follow(pages, desk)


@pytest.mark.long
@pytest.mark.parametrize("pages", readings(), ids="+".join)
def test_pages_do_what_they_show_where_only_the_wheel_is_installed(
    pages: list[str], reader: Machine, tmp_path: Path
) -> None:
    """What a page installs is installed, from the index."""
    programs = reader.programs_in(tmp_path)
    with Desk(programs, installs=True) as desk:
        follow(pages, desk)
    assert programs.are_gone()


def test_nothing_is_skipped_silently() -> None:
    skipped = {
        name_of(page): Counter(step.reason for step in steps(page) if isinstance(step, NotRun))
        for page in PAGES
    }
    assert {page: dict(reasons) for page, reasons in skipped.items() if reasons} == NOT_RUN


@every_row("page", PAGES)
def test_every_command_is_in_a_block_that_is_run(page: Path) -> None:
    """A block that is indented would not be found."""
    prefixes = ("    $ ", "    pyoco-", "    curl ", "    ```", "  ```")
    assert [line for line in page.read_text().splitlines() if line.startswith(prefixes)] == []


@every_row("page", PAGES)
def test_a_page_that_is_typed_says_so(page: Path) -> None:
    is_typed = any(isinstance(step, Typed) for step in steps(page))
    assert bool(re.search(r"\b[Aa]\stest(\sof\sthe\sdocumentation)?\sruns\s", page.read_text())) == (
        is_typed or page.stem == "index"
    )


@every_row("page", PAGES)
def test_every_program_of_a_page_is_run(page: Path) -> None:
    files = [step.path for step in steps(page) if isinstance(step, File) and step.path.endswith(".py")]
    typed = "\n".join(step.command for step in steps(page) if isinstance(step, Typed))
    loaded = [path for path in files if path.startswith("flows/") and "--flows flows" in typed]
    loaded += files if "python -m pytest" in typed else []
    assert [path for path in files if path not in loaded and Path(path).stem not in typed] == []
