"""REQ-0008: from what `--flow-resolver` and `--flows` name to a flow."""

import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from pyoco import Flow, task

from pyoco_server.domain.fleet import FlowList
from pyoco_server.domain.runs.jobs import Ending, FlowOutcome
from pyoco_server.engine.resolve import (
    FlowNames,
    flow_names,
    flow_of,
    load_resolver,
    reported_flows,
    resolver_of,
)
from pyoco_server.errors import InvalidCliInput
from support.builders import a_job
from support.captured_logs import capture_logs

FLOW = """
from pyoco import Flow, task

@task
def give():
    return 1

{variable} = Flow(name={name!r}) >> give
"""


@pytest.fixture(autouse=True)
def _own_imports(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is loaded changes how the process imports: put it back."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(sys, "dont_write_bytecode", sys.dont_write_bytecode)


def write(path: Path, variable: str, name: str) -> None:
    path.write_text(FLOW.format(variable=variable, name=name))


def test_a_file_of_flows_answers_with_a_flow_by_its_name_and_its_variable(tmp_path: Path) -> None:
    write(tmp_path / "mine.py", "variable", "a name")
    resolve = load_resolver(str(tmp_path / "mine.py"))
    assert resolve("variable") is resolve("a name")
    with pytest.raises(KeyError):
        resolve("give")


@pytest.mark.parametrize(
    ("asked", "advice"),
    [
        ("nightly_reprot", "did you mean nightly_report?"),
        ("xyz", "this worker has a, b, c, … (5 in all)"),
    ],
)
def test_a_name_that_no_flow_has_is_answered_with_those_that_there_are(
    tmp_path: Path, asked: str, advice: str
) -> None:
    """D45"""
    for name in ("nightly_report", "a", "b", "c", "d"):
        write(tmp_path / f"{name}.py", name, name)
    job = a_job(flow_name=asked)
    outcome = flow_of(job, load_resolver(str(tmp_path)))
    assert isinstance(outcome, FlowOutcome)
    assert (outcome.ending, outcome.error) == (
        Ending.FLOW_NOT_FOUND,
        f"flow not found: {asked}; {advice}",
    )


def test_a_directory_answers_with_the_flows_of_all_its_files(tmp_path: Path) -> None:
    write(tmp_path / "one.py", "first", "first")
    write(tmp_path / "two.py", "second", "second")
    write(tmp_path / "json.py", "third", "third")  # a name that Python knows already
    write(tmp_path / "_helper.py", "fourth", "fourth")
    resolve = load_resolver(str(tmp_path))
    assert [resolve(name).name for name in ("first", "second", "third")] == ["first", "second", "third"]
    with pytest.raises(KeyError):
        resolve("fourth")


def test_two_flows_of_one_name_are_refused(tmp_path: Path) -> None:
    write(tmp_path / "one.py", "first", "the same")
    write(tmp_path / "two.py", "second", "the same")
    with pytest.raises(InvalidCliInput, match="two flows have the name 'the same'"):
        load_resolver(str(tmp_path))


def test_a_directory_without_flows_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidCliInput, match="no pyoco Flow"):
        load_resolver(str(tmp_path))


async def resolve_later(name: str) -> str:
    return name


def resolve_to_a_task(name: str) -> Any:
    @task
    def give() -> str:
        return name

    return give


@pytest.mark.parametrize(
    ("resolver", "what"),
    [
        (resolve_later, "a coroutine"),
        (resolve_to_a_task, "a TaskWrapper"),
        (lambda _: None, "a NoneType"),
    ],
)
def test_a_resolver_that_returns_no_flow_fails_the_run_by_name(resolver: Any, what: str) -> None:
    outcome = flow_of(a_job(), resolver)
    assert isinstance(outcome, FlowOutcome)
    assert (outcome.ending, outcome.error) == (
        Ending.EXECUTION_ERROR,
        f"the flow resolver returned {what}, not a pyoco Flow",
    )


# The list of flows that a worker reports


def test_a_directory_lists_each_flow_once_although_it_has_two_names(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text(FLOW.format(variable="by_variable", name="by name"))
    (tmp_path / "b.py").write_text(FLOW.format(variable="other", name="other"))
    found = flow_names(load_resolver(str(tmp_path)))
    assert set(found.names or ()) == {"by name", "other"}
    assert found.aliases == ("by_variable",), "it runs by this name, too"
    assert reported_flows(found) == FlowList(("by name", "other"), ("by_variable",), is_complete=True)


def test_flows_are_listed_by_the_names_that_find_them() -> None:
    flow = Flow(name="inside")
    resolver = resolver_of({"outside": flow})
    assert flow_names(resolver) == FlowNames(("outside",))
    assert resolver("outside") is flow


def test_a_mapping_that_makes_up_what_is_missing_may_have_more_flows() -> None:
    found = flow_names(defaultdict(int, a=1).__getitem__)
    assert (found.names, found.is_open) == (("a",), True)
    assert reported_flows(found) == FlowList(("a",), is_complete=False)


def test_a_function_lists_its_flows_if_it_can() -> None:
    def resolve(name: str) -> Any: ...

    assert flow_names(resolve) == FlowNames()
    assert flow_names({"b": 1, "a": 2}.__getitem__) == FlowNames(("b", "a"))
    resolve.list_flows = lambda: ["x", "y", "x"]  # type: ignore[attr-defined]
    assert flow_names(resolve) == FlowNames(("x", "y"))


def test_a_list_that_fails_is_reported_and_does_not_stop_the_worker() -> None:
    def resolve(name: str) -> Any: ...

    def fail() -> list[str]:
        raise OSError("disk")

    resolve.list_flows = fail  # type: ignore[attr-defined]
    found = flow_names(resolve)
    assert found == FlowNames(problem="OSError: disk")
    with capture_logs() as lines:
        assert reported_flows(found) is None
        many = tuple(f"flow-{number:05d}" for number in range(5000))
        kept = reported_flows(FlowNames(many))
        assert kept is not None
        assert len(kept.names) < 5000
        assert not kept.is_complete
    assert [line["action"] for line in lines] == ["flows.unlisted"] * 2
    assert lines[1]["total"] == 5000
