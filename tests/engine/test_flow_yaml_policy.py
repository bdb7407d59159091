"""REQ-0018: the keys of a flow.yaml are those of the installed pyoco; others are refused with their place."""

from dataclasses import fields

import pytest
from pyoco.schemas.config import PyocoConfig, TaskConfig

from pyoco_server.domain.strict_yaml import read_yaml
from pyoco_server.engine.flow_yaml import check_policy
from pyoco_server.errors import InvalidRequest
from support.tables import every_row

HAS_PIPES = "pipes" in {field.name for field in fields(PyocoConfig)}
HAS_USE = "use" in {field.name for field in fields(TaskConfig)}

needs_pipes = pytest.mark.skipif(not HAS_PIPES, reason="this pyoco has no pipes")
needs_use = pytest.mark.skipif(not HAS_USE, reason="this pyoco has no tasks.*.use")

FLOW = "flow: {graph: a >> b, defaults: {n: 1}}\n"


def refusal(text: str) -> str:
    with pytest.raises(InvalidRequest) as caught:
        check_policy(read_yaml(text))
    return caught.value.detail


def test_a_full_file_becomes_pyocos_configuration() -> None:
    config = check_policy(
        read_yaml(
            "version: 1\n"
            + FLOW
            + "tasks:\n  a: {callable: 'pkg.mod:fn', inputs: {x: $ctx.params.n}, outputs: [params.y]}\n"
            "  b: {inputs: {y: 1}}\nruntime: {expose_env: [HOME]}\n"
        )
    )
    assert (config.version, config.flow.graph, config.flow.defaults) == (1, "a >> b", {"n": 1})
    assert config.tasks["a"] == TaskConfig(
        callable="pkg.mod:fn", inputs={"x": "$ctx.params.n"}, outputs=["params.y"]
    )
    assert config.tasks["b"].callable is None
    assert config.runtime.expose_env == ["HOME"]


def test_only_flow_is_needed() -> None:
    config = check_policy(read_yaml("flow: {graph: a}"))
    assert (config.version, config.tasks, config.flow.defaults) == (1, {}, {})


@every_row(
    ("text", "message"),
    [
        ("[flow]", "top level: must be an object with the key `flow`"),
        ("flow", "top level: must be an object with the key `flow`"),
        ("{}", "top level: flow is missing"),
        ("tasks: {}", "top level: flow is missing"),
        ("flow:", "line 1, column 1: flow must be an object, got null"),
        ("flow: a >> b", "line 1, column 1: flow must be an object, got a string"),
        ("flow: {}", "line 1, column 1: flow.graph is missing"),
        ("flow: {graph: }", "line 1, column 8: flow.graph has a wrong type: Expected `str`, got `null`"),
        ("flow: {graph: [a]}", "line 1, column 8: flow.graph has a wrong type: Expected `str`, got `array`"),
        ("flow: {graph: ' '}", "line 1, column 8: flow.graph is empty"),
        ("flow: {graph: a, defaults: 1}", "flow.defaults has a wrong type: Expected `object`, got `int`"),
        ("flow: {graph: a, defaults: }", "flow.defaults has a wrong type: Expected `object`, got `null`"),
        (
            "flow: {graph: a, default: {}}",
            "flow.default is not a key of flow.yaml (did you mean 'defaults'?)",
        ),
        (FLOW + "flows: {}", "line 2, column 1: flows is not allowed: a file holds one flow; write `flow:`"),
        (FLOW + "discovery: {}", "line 2, column 1: discovery is not allowed: a file does not choose"),
        (FLOW + "task: {}", "line 2, column 1: task is not a key of flow.yaml (did you mean 'tasks'?)"),
        (
            FLOW + "zzz: {}",
            "line 2, column 1: zzz is not a key of flow.yaml; known here: version, flow, tasks",
        ),
        (FLOW + "version: one", "line 2, column 1: version has a wrong type: Expected `int`, got `str`"),
        (FLOW + "version: true", "line 2, column 1: version has a wrong type: Expected `int`, got `bool`"),
        (FLOW + "tasks: [a]", "line 2, column 1: tasks has a wrong type: Expected `object`, got `array`"),
        (FLOW + "tasks:", "line 2, column 1: tasks has a wrong type: Expected `object`, got `null`"),
        (FLOW + "tasks: {a: pkg:fn}", "line 2, column 9: tasks.a must be an object, got a string"),
        (FLOW + "tasks: {'': {}}", "has an empty name"),
        (
            FLOW + "tasks:\n  fetch:\n    callabel: 'a:b'",
            "line 4, column 5: tasks.fetch.callabel is not a key of flow.yaml (did you mean 'callable'?)",
        ),
        (FLOW + "tasks: {a: {callable: 1}}", "tasks.a.callable has a wrong type: Expected `str`, got `int`"),
        (
            FLOW + "tasks: {a: {inputs: [x]}}",
            "tasks.a.inputs has a wrong type: Expected `object`, got `array`",
        ),
        (FLOW + "tasks: {a: {outputs: x}}", "tasks.a.outputs has a wrong type: Expected `array`, got `str`"),
        (FLOW + "tasks: {a: {outputs: [1]}}", "tasks.a.outputs has a wrong type: Expected `str`, got `int`"),
        (FLOW + "runtime: {expose_env: X}", "runtime.expose_env has a wrong type: Expected `array`"),
        (FLOW + "runtime: {cpu: 1}", "line 2, column 11: runtime.cpu is not a key of flow.yaml"),
    ],
)
def test_a_refusal_names_the_place_and_the_reason(text: str, message: str) -> None:
    assert message in refusal(text)


@every_row(
    "target",
    [
        "os.system",
        "os:",
        ":system",
        "os:path:join",
        "os:path.join",
        ".os:x",
        "a b:c",
        "os:__import__",
        "a.__b__:c",
    ],
)
def test_a_callable_is_module_and_function(target: str) -> None:
    message = refusal(f"{FLOW}tasks: {{a: {{callable: '{target}'}}}}")
    assert f"tasks.a.callable must be module:function, got {target!r}" in message


@needs_use
def test_a_task_has_callable_or_use() -> None:
    assert "tasks.a has both `callable` and `use`" in refusal(
        f"{FLOW}tasks: {{a: {{callable: 'm:f', use: b}}}}"
    )
    assert "tasks.a.use is empty" in refusal(f"{FLOW}tasks: {{a: {{use: ''}}}}")
    assert check_policy(read_yaml(f"{FLOW}tasks: {{a: {{use: demo/a}}}}")).tasks["a"].use == "demo/a"


@needs_pipes
def test_pipes_are_texts() -> None:
    assert "pipes.p has a wrong type: Expected `str`, got `array`" in refusal(f"{FLOW}pipes: {{p: [a]}}")
    assert check_policy(read_yaml(f"{FLOW}pipes: {{p: a}}")).pipes == {"p": "a"}


@pytest.mark.skipif(HAS_PIPES, reason="this pyoco has pipes")
def test_pipes_are_unknown_to_a_pyoco_without_them() -> None:
    assert "pipes is not a key of flow.yaml" in refusal(f"{FLOW}pipes: {{p: a}}")


@pytest.mark.skipif(HAS_USE, reason="this pyoco has tasks.*.use")
def test_use_is_unknown_to_a_pyoco_without_it() -> None:
    assert "tasks.a.use is not a key of flow.yaml" in refusal(f"{FLOW}tasks: {{a: {{use: b}}}}")
