"""REQ-0018: a flow.yaml runs on a worker."""

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from pyoco.schemas.config import TaskConfig

from pyoco_server.config import NatsBackendConfig
from pyoco_server.domain.runs.jobs import Ending, FlowOutcome, FlowProgress, Job
from pyoco_server.domain.runs.logs import LogEntry
from pyoco_server.domain.runs.task_requests import TaskAnswer, TaskRequest
from pyoco_server.engine.executors.thread import ThreadExecutors
from pyoco_server.engine.flow_yaml import HAS_BLOCKS, HAS_NAMED_NODES, check_flow_yaml, load_flow
from pyoco_server.errors import ConfigError, ExecutionFailed, InvalidRequest

RUN_ID = "0198c0de-0000-7000-8000-000000000001"
HAS_USE = "use" in {field.name for field in fields(TaskConfig)}

blocks_only = pytest.mark.skipif(not HAS_BLOCKS, reason="this pyoco's graphs are Python operators")
operators_only = pytest.mark.skipif(HAS_BLOCKS, reason="this pyoco has a graph grammar of its own")

TASKS = """
from pyoco import task

def start(n):
    return n

def double(start):
    return start * 2

def note(ctx):
    seen = ctx.params.setdefault("seen", [])
    seen.append(ctx.loop.item if ctx.loop else "once")
    return list(seen)

def count(ctx):
    ctx.params["n"] += 1
    return ctx.params["n"]

def left():
    return "left"

def right():
    return "right"

def boom():
    raise ValueError("no")

@task
def found(ctx):
    return "found"

@task
def greet(name="nobody"):
    return f"hello {name}"

class Made:
    def __init__(self):
        self.name = "made"
        self.rows = (n for n in "ab")

def made():
    return Made()

async def waits():
    return "waited"

def rows():
    yield 1

not_a_function = 3
"""

ALL = ("start", "double", "note", "count", "left", "right", "boom")


@pytest.fixture(autouse=True)
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A module that files can name. The working directory moves too: pyoco writes ./artifacts into it."""
    package = tmp_path / "yaml_tasks"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "steps.py").write_text(TASKS)
    (package / "broken.py").write_text("raise RuntimeError('half installed')")
    (package / "leaving.py").write_text("raise SystemExit(3)")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delenv("PYOCO_DISCOVERY_MODULES", raising=False)
    yield "yaml_tasks.steps"
    for name in [name for name in sys.modules if name.split(".")[0] == "yaml_tasks"]:
        del sys.modules[name]


def file_of(graph: str, defaults: dict[str, Any] | None = None, **more: Any) -> str:
    tasks = {name: {"callable": f"yaml_tasks.steps:{name}"} for name in ALL}
    return json.dumps({"flow": {"graph": graph, "defaults": defaults or {}}, "tasks": tasks} | more)


def job_with(text: str, params: dict[str, Any] | None = None) -> Job:
    return Job(
        run_id=RUN_ID,
        flow_name="from_yaml",
        tag="default",
        submitted_at=1.0,
        params=params,
        workflow_yaml=text,
    )


async def run(
    job: Job, allowed_modules: tuple[str, ...] = (), allowed_env: tuple[str, ...] = ()
) -> FlowOutcome:
    def resolver(name: str) -> Any:
        raise AssertionError(f"the resolver was asked for {name}")

    executors = ThreadExecutors(resolver, allowed_modules, allowed_env)
    try:
        flow = await executors.start(job, Nobody(), timeout_sec=1.0)
        return await flow.outcome()
    finally:
        await executors.close()


class Nobody:
    """Ignores the reports of a flow."""

    def progressed(self, progress: FlowProgress) -> None:
        pass

    def asked(self, request: TaskRequest, answer: Callable[[TaskAnswer], None]) -> None:
        raise NotImplementedError

    def printed(self, entries: Sequence[LogEntry]) -> None:
        pass


@pytest.mark.parametrize("params", [None, {}, {"n": 4}])
async def test_a_file_runs_with_its_defaults(params: dict[str, Any] | None) -> None:
    outcome = await run(job_with(file_of("start >> double", {"n": 4}), params))
    assert (outcome.ending, outcome.error) == (Ending.COMPLETED, None)
    assert outcome.result == {"double": 8}
    assert set(outcome.progress.tasks) == {"start", "double"}


async def test_inputs_and_outputs_of_tasks_are_used() -> None:
    tasks = {
        "start": {"callable": "yaml_tasks.steps:start", "outputs": ["params.first"]},
        "double": {"callable": "yaml_tasks.steps:double", "inputs": {"start": "$ctx.params.first"}},
    }
    outcome = await run(job_with(file_of("start >> double", {"n": 5}, tasks=tasks)))
    assert outcome.result == {"double": 10}


async def test_a_failing_task_fails_its_run() -> None:
    outcome = await run(job_with(file_of("boom")))
    assert (outcome.ending, outcome.error) == (Ending.EXECUTION_ERROR, "ValueError: no")


@blocks_only
@pytest.mark.parametrize(("mode", "taken"), [("l", "left"), ("other", "right")])
async def test_a_switch_takes_one_branch(mode: str, taken: str) -> None:
    outcome = await run(job_with(file_of("switch(on={{mode}}){ l: left; default: right }", {"mode": mode})))
    assert outcome.result == {taken: taken}


@blocks_only
async def test_loops_repeat_their_body() -> None:
    graph = (
        "repeat(count={{times}}){ count }\n"
        ">> foreach(over={{items}}, item=it){ note }  # each of them\n"
        '>> until(cond="$ctx.params.n >= 7", max_iter=9){ count }'
    )
    outcome = await run(job_with(file_of(graph, {"n": 0, "times": 3, "items": ["a", "b"]})))
    assert (outcome.ending, outcome.error) == (Ending.COMPLETED, None)
    assert outcome.result == {"count": 7}
    assert outcome.progress.task_records["note"].output == ["a", "b"]


@blocks_only
async def test_pipes_and_quoted_branches_are_expanded() -> None:
    graph = 'pipe(both) >> switch(on=n){ 4: "left"; default: right }'
    outcome = await run(job_with(file_of(graph, {"n": 4}, pipes={"both": "start >> double"})))
    assert outcome.result == {"left": "left"}
    assert outcome.progress.task_records["double"].output == 8


@pytest.mark.skipif(not HAS_NAMED_NODES, reason="this pyoco has no named nodes")
async def test_a_task_can_stand_under_two_names() -> None:
    outcome = await run(job_with(file_of("first: left >> second: left")))
    assert set(outcome.progress.tasks) == {"first", "second"}


@operators_only
async def test_parallel_tasks_join() -> None:
    outcome = await run(job_with(file_of("(left & right) >> note")))
    assert outcome.result == {"note": ["once"]}
    assert set(outcome.progress.tasks) == {"left", "right", "note"}


@operators_only
async def test_operators_make_loops_and_switches() -> None:
    graph = (
        "flow >> count[3] >> note['$ctx.params.items'] >> count % ('$ctx.params.n >= 7', 9)\n"
        "flow >> switch('$ctx.params.mode')['l' >> left, '*' >> (right >> note)]"
    )
    outcome = await run(job_with(file_of(graph, {"n": 0, "items": ["a", "b"], "mode": "l"})))
    assert (outcome.ending, outcome.error) == (Ending.COMPLETED, None)
    assert outcome.result == {"left": "left"}
    assert outcome.progress.task_records["count"].output == 7


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("flow: [", "flow.yaml, line "),
        ("flows: {}", "flow.yaml, line 1, column 1: flows is not allowed"),
        ("flow: {graph: 'print(1)'}", "flow.graph, line 1, column "),
        ("\ufeffflow: {graph: a}", "flow.yaml, line 1, column 1: byte order mark"),
        (file_of("start >> strat"), "flow.graph: the task 'strat' is not defined (did you mean 'start'?)"),
        (
            file_of("a", tasks={"a": {"callable": "no_such_module:x"}}),
            "tasks.a.callable: 'no_such_module:x' could not be loaded: ModuleNotFoundError",
        ),
        (
            file_of("a", tasks={"a": {"callable": "yaml_tasks.steps:missing"}}),
            "tasks.a.callable: 'yaml_tasks.steps:missing' could not be loaded: AttributeError",
        ),
        (
            file_of("a", tasks={"a": {"callable": "yaml_tasks.broken:x"}}),
            "tasks.a.callable: 'yaml_tasks.broken:x' could not be loaded: RuntimeError: half installed",
        ),
        (
            file_of("a", tasks={"a": {"callable": "yaml_tasks.leaving:x"}}),
            "tasks.a.callable: 'yaml_tasks.leaving:x' could not be loaded: SystemExit: 3",
        ),
        (
            file_of("a", tasks={"a": {"callable": "yaml_tasks.steps:not_a_function"}}),
            "tasks.a.callable: 'yaml_tasks.steps:not_a_function' is not a function",
        ),
    ],
)
async def test_a_file_that_cannot_run_ends_its_run_with_the_reason(text: str, error: str) -> None:
    outcome = await run(job_with(text))
    assert outcome.ending is Ending.EXECUTION_ERROR
    assert outcome.error is not None
    assert error in outcome.error


@pytest.mark.parametrize("allowed", ["yaml_tasks", "yaml_tasks.steps", "other, yaml_tasks"])
async def test_a_worker_runs_modules_that_it_allows(allowed: str) -> None:
    settings = NatsBackendConfig(worker_allowed_modules=allowed)
    outcome = await run(job_with(file_of("left")), settings.allowed_modules)
    assert outcome.ending is Ending.COMPLETED


@pytest.mark.parametrize("allowed", ["yaml", "yaml_tasks.step", "yaml_tasks.steps.more"])
async def test_a_worker_does_not_even_import_other_modules(allowed: str, module: str) -> None:
    outcome = await run(
        job_with(file_of("left")), NatsBackendConfig(worker_allowed_modules=allowed).allowed_modules
    )
    assert outcome.ending is Ending.EXECUTION_ERROR
    assert outcome.error == (
        "tasks.start.callable: this worker may not run 'yaml_tasks.steps:start'; "
        f"PYOCO_WORKER_ALLOWED_MODULES allows {allowed}"
    )
    assert module not in sys.modules


def test_by_default_every_module_is_allowed() -> None:
    assert NatsBackendConfig().allowed_modules == ()
    assert NatsBackendConfig.from_env({"PYOCO_WORKER_ALLOWED_MODULES": "a.b, c"}).allowed_modules == (
        "a.b",
        "c",
    )


def test_allowed_modules_that_are_no_names_stop_the_start() -> None:
    with pytest.raises(ConfigError, match="PYOCO_WORKER_ALLOWED_MODULES"):
        NatsBackendConfig(worker_allowed_modules="a; b")


def reading(value: str) -> str:
    """A file whose task gets `value` as its input."""
    tasks = {
        "made": {"callable": "yaml_tasks.steps:made"},
        "greet": {"callable": "yaml_tasks.steps:greet", "inputs": {"name": value}},
    }
    return json.dumps({"flow": {"graph": "made >> greet"}, "tasks": tasks})


async def test_a_file_does_not_read_the_workers_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """D52"""
    monkeypatch.setenv("PYOCO_NATS_URL", "nats://me:secret@host")
    text = reading("$env.PYOCO_NATS_URL")
    problem = (
        "tasks.greet.inputs.name reads the environment variable 'PYOCO_NATS_URL' ($env); "
        "PYOCO_WORKER_ALLOWED_ENV allows none"
    )
    with pytest.raises(InvalidRequest) as caught:
        check_flow_yaml(text.encode(), max_bytes=10_000)
    assert problem in caught.value.detail
    outcome = await run(job_with(text))
    assert outcome.ending is Ending.EXECUTION_ERROR
    assert problem in (outcome.error or "")
    assert "secret" not in str(outcome)


async def test_a_file_reads_what_the_operator_lists(monkeypatch: pytest.MonkeyPatch) -> None:
    """D52"""
    monkeypatch.setenv("REGION", "tokyo")
    listed = NatsBackendConfig.from_env({"PYOCO_WORKER_ALLOWED_ENV": "STAGE, REGION"}).allowed_env
    assert listed == ("STAGE", "REGION")
    check_flow_yaml(reading("$env.REGION").encode(), 10_000, listed)
    assert (await run(job_with(reading("$env.REGION")), allowed_env=listed)).result == {
        "greet": "hello tokyo"
    }
    outcome = await run(job_with(reading("$env.REGION_2")), allowed_env=listed)
    assert "PYOCO_WORKER_ALLOWED_ENV allows STAGE, REGION" in (outcome.error or "")


@pytest.mark.parametrize("names", ["A; B", "1A", "A-B", "$A"])
def test_allowed_env_that_are_no_names_stop_the_start(names: str) -> None:
    with pytest.raises(ConfigError, match="PYOCO_WORKER_ALLOWED_ENV"):
        NatsBackendConfig(worker_allowed_env=names)


OPERATORS = [
    'flow >> start["$env.PYOCO_NATS_URL as x"]',
    'flow >> start % ("$ctx.params.a == $env.PYOCO_NATS_URL", 2)',
    'flow >> switch("$env.PYOCO_NATS_URL")["a" >> left]',
]
BLOCKS = [
    "switch(on={{env.PYOCO_NATS_URL}}){ a: left }",
    "switch(on={{ $env.PYOCO_NATS_URL }}){ a: left }",
    'switch(on="env.PYOCO_NATS_URL"){ a: left }',
    r'switch(on="$e\nv.PYOCO_NATS_URL"){ a: left }',
    'until(cond="$ctx.params.a == $env.PYOCO_NATS_URL.x", max_iter=2){ left }',
    "switch(on=mode){ a: \"foreach(over='$env.PYOCO_NATS_URL'){ left }\" }",
]


@pytest.mark.parametrize("graph", BLOCKS if HAS_BLOCKS else OPERATORS)
async def test_a_graph_does_not_read_the_workers_environment(graph: str) -> None:
    """D52"""
    text = file_of(graph, {"mode": "a", "a": 1})
    with pytest.raises(InvalidRequest, match="reads the environment variable 'PYOCO_NATS_URL'"):
        check_flow_yaml(text.encode(), max_bytes=10_000)
    assert "'PYOCO_NATS_URL'" in ((await run(job_with(text))).error or "")
    check_flow_yaml(text.encode(), 10_000, ("PYOCO_NATS_URL",))


@pytest.mark.parametrize(
    "value",
    [
        "$node.made.output.__init__.__globals__.os.environ",
        "$node.made.output.rows.gi_frame.f_globals",
        "$node.made.output.__class__",
    ],
)
async def test_a_reference_does_not_lead_out_of_a_value(value: str) -> None:
    """D52"""
    with pytest.raises(InvalidRequest, match="which is not part of a value"):
        check_flow_yaml(reading(value).encode(), max_bytes=10_000)
    assert "which is not part of a value" in ((await run(job_with(reading(value)))).error or "")


async def test_a_reference_to_a_field_of_a_value_is_fine() -> None:
    assert (await run(job_with(reading("$node.made.output.name")))).result == {"greet": "hello made"}


async def test_async_tasks_of_a_file_are_awaited() -> None:
    """D20"""
    text = "flow: {graph: wait}\ntasks: {wait: {callable: 'yaml_tasks.steps:waits'}}"
    assert (await run(job_with(text))).result == {"wait": "waited"}


async def test_a_generator_function_of_a_file_is_refused() -> None:
    """D20"""
    text = "flow: {graph: rows}\ntasks: {rows: {callable: 'yaml_tasks.steps:rows'}}"
    outcome = await run(job_with(text))
    assert outcome.error == ("task 'rows' is a generator function (it has a yield): return a list instead")


async def test_tasks_come_from_discovery_modules_too(monkeypatch: pytest.MonkeyPatch, module: str) -> None:
    monkeypatch.setenv("PYOCO_DISCOVERY_MODULES", module)
    outcome = await run(job_with("flow: {graph: found}"))
    assert outcome.result == {"found": "found"}
    assert set(outcome.progress.tasks) == {"found"}


async def test_runs_do_not_inherit_from_each_other(monkeypatch: pytest.MonkeyPatch, module: str) -> None:
    monkeypatch.setenv("PYOCO_DISCOVERY_MODULES", module)
    named = await run(job_with("flow: {graph: greet >> found}\ntasks: {greet: {inputs: {name: bob}}}"))
    assert named.progress.task_records["greet"].output == "hello bob"
    plain = await run(job_with("flow: {graph: found >> greet}"))
    assert (plain.ending, plain.result) == (Ending.COMPLETED, {"greet": "hello nobody"})


@pytest.mark.skipif(not HAS_USE, reason="this pyoco has no tasks.*.use")
async def test_use_binds_a_registered_task(monkeypatch: pytest.MonkeyPatch, module: str) -> None:
    monkeypatch.setenv("PYOCO_DISCOVERY_MODULES", module)
    outcome = await run(job_with("flow: {graph: hi}\ntasks: {hi: {use: greet, inputs: {name: bob}}}"))
    assert outcome.result == {"hi": "hello bob"}
    with pytest.raises(
        ExecutionFailed, match="the tasks could not be loaded: ValueError: Task 'hi' uses unknown"
    ):
        load_flow("flow: {graph: hi}\ntasks: {hi: {use: nothing}}", "f")


def test_a_loaded_flow_has_the_name_of_its_run() -> None:
    flow = load_flow(file_of("start >> double"), "nightly", ())
    assert flow.name == "nightly"
    assert {task.name for task in flow.tasks} == {"start", "double"}
