"""Where a worker's flows may come from, with real workers."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from support.installation import Lab, environment
from support.process_flows import __file__ as process_flows_file
from support.programs import Program
from support.waiting import until

Labs = Callable[..., Awaitable[Lab]]

FLOWS = """
from pyoco import Flow, task

@task
def give():
    return {answer!r}

by_variable = Flow(name="by name") >> give
"""

WAITING = """
import sys
sys.path.insert(0, {support!r})
from process_flows import mark, wait_for
from pyoco import Flow, task

@task
def give(marks):
    mark(marks, "in-give")
    wait_for(marks, "go")
    return {answer!r}

waiting = Flow(name="waiting") >> give
"""


@asynccontextmanager
async def worker(lab: Lab, *options: str) -> AsyncIterator[Program]:
    with lab.programs.started(
        "pyoco-worker", *options, "--worker-id", "w1", "--concurrency", "2", **environment(lab.config)
    ) as program:
        await asyncio.to_thread(program.says, "worker ready")
        yield program


async def answer_of(lab: Lab, flow: str) -> Any:
    run = await lab.ended(await lab.submit(flow))
    return run["result"]["give"] if run["status"] == "COMPLETED" else run["error"]


@pytest.mark.parametrize("named", ["my_flows", "my_flows.py"])
async def test_a_module_of_flows_is_found_by_names_and_variables(
    labs: Labs, tmp_path: Path, named: str
) -> None:
    lab = await labs()
    (tmp_path / "my_flows.py").write_text(FLOWS.format(answer="from a module"))
    async with worker(lab, "--flow-resolver", named):
        assert await answer_of(lab, "by_variable") == "from a module"
        assert await answer_of(lab, "by name") == "from a module"
        assert str(await answer_of(lab, "give")).startswith("flow not found: give;")


async def test_the_files_of_a_directory_are_loaded_again_when_they_change(labs: Labs, tmp_path: Path) -> None:
    lab = await labs()
    directory = tmp_path / "flows"
    directory.mkdir()
    (directory / "_helping.py").write_text("raise SystemExit")
    (directory / "one.py").write_text(FLOWS.format(answer="old"))
    async with worker(lab, "--flows", str(directory)) as program:
        assert await answer_of(lab, "by_variable") == "old"
        (directory / "one.py").write_text(FLOWS.format(answer="new"))  # of the same size
        await asyncio.to_thread(program.says, "flows.reloaded")
        answers = {await answer_of(lab, "by_variable") for _ in range(6)}
        assert answers == {"new"}
        (directory / "one.py").write_text("def broken(:")
        await asyncio.to_thread(program.says, "flows.unusable")
        assert await answer_of(lab, "by_variable") == "new"
        other = FLOWS.format(answer="2").replace("by_", "other_").replace("by ", "")
        (directory / "two.py").write_text(other)
        (directory / "one.py").write_text(FLOWS.format(answer="mended"))
        await asyncio.to_thread(program.says, r"(?s)flows.reloaded.*flows.reloaded")
        assert await answer_of(lab, "by_variable") == "mended"
        assert await answer_of(lab, "other_variable") == "2"

        async def reported() -> list[str]:
            flows = (await lab.http.get("/flows")).json()["items"]
            return [flow["name"] for flow in flows if flow["workers"] == ["w1"]]

        await until(reported, lambda names: names == ["by name", "name"])


async def test_a_run_that_is_going_ends_with_the_code_it_began_with(labs: Labs, tmp_path: Path) -> None:
    lab = await labs()
    directory = tmp_path / "flows"
    directory.mkdir()
    support = str(Path(process_flows_file).parent)
    (directory / "one.py").write_text(WAITING.format(answer="old", support=support))
    async with worker(lab, "--flows", str(directory)) as program:
        running = await lab.submit("waiting")
        pid = await lab.reached("in-give")
        (directory / "one.py").write_text(WAITING.format(answer="new", support=support))
        await asyncio.to_thread(program.says, "flows.reloaded")
        lab.let("go")
        assert (await lab.ended(running))["result"] == {"give": "old"}
        assert {await answer_of(lab, "waiting") for _ in range(6)} == {"new"}
        assert await lab.reached("in-give") != pid
