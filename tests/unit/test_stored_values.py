"""References to stored values at noted places, and looking into them."""

from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from hypothesis import given, strategies as st
from msgspec.structs import replace

from pyoco_server.domain.codec import decode_job, encode_job
from pyoco_server.domain.executions import events as e
from pyoco_server.domain.executions.codec import decode_commit, encode_commit
from pyoco_server.domain.executions.interpolation import render, rendered
from pyoco_server.domain.executions.records import LoggedCommit, RunFact, summarise
from pyoco_server.domain.executions.stored import (
    GONE,
    MAX_OPENED_BYTES,
    CannotOpen,
    Lacking,
    Opened,
    Stored,
)
from pyoco_server.domain.large_values import (
    ValueReference,
    at_place,
    hashes_in,
    reference_at,
    to_store,
    with_value,
)
from pyoco_server.domain.runs.jobs import Submission, accept, pending
from pyoco_server.domain.runs.model import RunStatus
from pyoco_server.domain.runs.repeats import repeated
from support.builders import NOW, RUN_ID
from support.executions import Life, begun, graph_of, map_of, task
from support.tables import every_row

HASH = "a" * 64


def reference(size: int = 5_000, sha256: str = HASH, **more: Any) -> dict[str, Any]:
    return {"$ref": f"sha256:{sha256}", "size": size, "type": "application/json", **more}


@every_row(
    ("sizes", "fixed", "stored"),
    [
        ({"a": 10_000, "b": 20_000}, (), []),
        ({"a": 60_000, "b": 50_000}, (), ["a"]),
        ({"a": 60_000, "b": 50_000}, ("a",), ["b"]),
        ({"a": 200_000, "b": 150_000, "c": 99_000}, (), ["a", "b"]),
        ({f"k{n}": 1_000 for n in range(500)}, (), []),
    ],
)
def test_the_largest_params_are_stored_until_the_rest_fits(
    sizes: dict[str, int], fixed: tuple[str, ...], stored: list[str]
) -> None:
    assert to_store(sizes, fixed, 100_000) == stored


def test_a_value_is_put_at_a_place_of_a_copy() -> None:
    value = {"a": [{"b": 1}, 2], "c": {"0": 3}}
    assert with_value(value, ("a", "0", "b"), 9) == {"a": [{"b": 9}, 2], "c": {"0": 3}}
    assert with_value(value, ("c", "0"), 9) == {"a": [{"b": 1}, 2], "c": {"0": 9}}
    assert value == {"a": [{"b": 1}, 2], "c": {"0": 3}}
    assert at_place(value, ("a", "7")) is at_place(value, ("a", "x")) is at_place(value, ("x", "y")) is None


@every_row("found", [None, "text", {"$ref": "sha256:short"}, {"size": 5}, {"$ref": 5}])
def test_a_place_without_a_reference_is_an_error(found: Any) -> None:
    with pytest.raises(ValueError, match=r"params\.x: there is no reference at its noted place"):
        reference_at({"params": {"x": found}}, ("params", "x"))


def test_a_reference_may_mean_a_part() -> None:
    params = {"params": {"x": reference(part=["rows", 0]), "y": reference()}}
    assert reference_at(params, ("params", "x")) == ValueReference(HASH, 5_000, ("rows", 0))
    assert hashes_in(params, [("params", "x"), ("params", "y")]) == [HASH]


def test_what_is_opened_is_bounded_and_what_lacks_is_named() -> None:
    opened = Opened()
    small, other = ValueReference(HASH, 10), ValueReference("b" * 64, 10, ("k", 1))
    with pytest.raises(Lacking) as lacking:
        opened.value(small, ("input",))
    assert lacking.value.sha256 == HASH
    opened.add(HASH, [1])
    opened.add("b" * 64, {"k": [1, 2]})
    assert opened.value(small, ("input",)) == [1]
    assert opened.value(other, ("input",)) == 2
    for _ in range(2):
        with pytest.raises(CannotOpen, match=r"^input\.x is a stored value of 2,097,140 bytes of JSON; "):
            opened.value(ValueReference("c" * 64, MAX_OPENED_BYTES - 12), ("input", "x"))
    assert opened.value(small, ("input",)) == [1], "a refusal takes nothing of the room"
    opened.add("d" * 64, GONE)
    with pytest.raises(CannotOpen, match="does not exist any more"):
        opened.value(ValueReference("d" * 64, 1), ("input",))


def life_with(graph: Any, output: Any, *places: tuple[str, ...]) -> Life:
    """The node `a` has ended with this output."""
    life = begun(graph)
    run_id = life.node("a").run_id
    assert run_id is not None
    life.runs[run_id] = RunFact(RunStatus.COMPLETED, output, values=places)
    return life


def test_params_get_references_and_their_places() -> None:
    params = {
        "all": "${nodes.a.output}",
        "one": ["${nodes.a.output.big}"],
        "part": "${nodes.a.output.big.rows[2]}",
        "small": "${nodes.a.output.n}",
    }
    life = life_with(
        graph_of({"a": task(), "b": task(params=params)}, "a > b"),
        {"big": reference(), "n": 1},
        ("result", "big"),
    )
    life.react()
    (_, dispatched) = life.dispatched
    assert dispatched.params == {
        "all": {"big": reference(), "n": 1},
        "one": [reference()],
        "part": reference(part=["rows", 2]),
        "small": 1,
    }
    assert dispatched.values == (("params", "all", "big"), ("params", "one", "0"), ("params", "part"))
    assert life.node("a").values == (("output", "big"),)


def test_a_path_over_a_reference_that_nobody_noted_reads_the_data() -> None:
    life = life_with(
        graph_of({"a": task(), "b": task(params={"x": "${nodes.a.output.big.size}"})}, "a > b"),
        {"big": reference()},
    )
    life.react()
    assert (life.dispatched[1].params, life.dispatched[1].values) == ({"x": 5_000}, ())


def test_a_reaction_that_has_to_look_inside_says_what_it_lacks() -> None:
    graph = graph_of({"a": task(), "b": task()}, "a > b ? nodes.a.output.big.ok")
    life = life_with(graph, {"big": reference()}, ("result", "big"))
    with pytest.raises(Lacking):
        life.react()
    opened = Opened()
    opened.add(HASH, {"ok": True})
    life.opened = opened
    life.react()
    assert life.node("b").status == "RUNNING"


def test_places_in_the_output_of_a_map_have_the_index() -> None:
    life = begun(graph_of({"a": map_of(task(params={"n": "${item}"}), over=[1, 2])}))
    for index, run_id in enumerate(list(life.runs)):
        life.runs[run_id] = RunFact(
            RunStatus.COMPLETED, {"t": reference()}, values=(("result", "t"),) * index
        )
    life.react()
    assert life.node("a").output == [{"t": reference()}] * 2
    assert life.node("a").values == (("output", "1", "t"),)
    assert life.state.values == (("result", "a", "1", "t"),)


def test_a_commit_with_places_has_no_effect_in_older_versions() -> None:
    life = life_with(graph_of({"a": task()}), {"big": reference()}, ("result", "big"))
    before = life.state
    life.react()
    commit = life.commits[-1]
    data = encode_commit(LoggedCommit(commit, summarise(life.state)))
    assert msgspec.json.decode(data)["schema_version"] == 2
    assert decode_commit(data).commit == commit
    plain = replace(commit, payloads=(e.NodeSucceeded(node_id="a", output={"big": reference()}),))
    data = encode_commit(LoggedCommit(plain, summarise(before)))
    assert "schema_version" not in msgspec.json.decode(data), "1"


def test_a_job_with_stored_values_is_unreadable_to_older_workers_and_readable_to_us() -> None:
    job = a_job_with_values()
    data = encode_job(job)
    assert decode_job(data) == job
    older = msgspec.json.decode(data)
    assert {"flow_name", "params"}.isdisjoint(older)
    assert older["run_id"] == RUN_ID


def a_job_with_values() -> Any:
    values = (("params", "x"), ("params", "y", "0"))
    params = {"x": reference(), "y": [reference()], "z": 1}
    return accept(Submission(flow_name="f", tag="t", params=params, values=values), RUN_ID, NOW)


def test_a_retry_keeps_the_values_of_params_that_stay() -> None:
    again = repeated(pending(a_job_with_values()), None, None, {"y": [reference()]})
    assert again.values == (("params", "x"),), "what somebody sends is data"


def test_looking_finds_places_at_above_and_below_a_path() -> None:
    stored = Stored(None, local={"output": (("output", "a", "0"), ("output", "b"))})
    assert stored.noted(("output",)) == (("output", "a", "0"), ("output", "b"))
    assert stored.noted(("output", "a")) == (("output", "a", "0"),)
    assert stored.noted(("output", "b", "c", "d")) == (("output", "b"),)
    assert stored.noted(("output", "c")) == stored.noted(("input",)) == ()


# Whatever is stored: a task gets what it would get if nothing was

KEYS = st.sampled_from(["a", "b", "c d", "0"])
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=12,
)


def paths_in(value: Any, above: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    items: Any = (
        value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    )
    return [above, *(path for step, item in items for path in paths_in(item, (*above, step)))]


@given(VALUES, st.data())
def test_a_task_gets_the_same_wherever_its_values_are(output: Any, data: st.DataObject) -> None:
    paths = paths_in(output)
    store: dict[str, Any] = {}
    kept = output
    places: list[tuple[str, ...]] = []
    for path in data.draw(st.lists(st.sampled_from(paths), max_size=3, unique=True)):
        place = tuple(map(str, path))
        if any(one[: len(place)] == place or place[: len(one)] == one for one in places):
            continue
        sha256 = f"{len(store):064x}"
        store[sha256] = at_place(output, place)
        kept = with_value(kept, place, reference(sha256=sha256))
        places.append(place)
    wanted = data.draw(st.sampled_from(paths))
    written = "".join(f"[{step}]" if isinstance(step, int) else f"['{step}']" for step in wanted)
    template = {"p": f"${{nodes.n.output{written}}}", "text": f"it is ${{nodes.n.output{written}}}."}
    plain = render(template, input=None, nodes={"n": {"output": output}})
    opened = Opened()
    for sha256, value in store.items():
        opened.add(sha256, value)
    state = SimpleNamespace(
        values=(), nodes={"n": SimpleNamespace(values=tuple(("output", *place) for place in places))}
    )
    found = rendered(template, input=None, nodes={"n": {"output": kept}}, stored=Stored(state, opened))
    params = found.value
    for place in found.values:
        noted = reference_at(params, place)
        value = store[noted.sha256]
        for step in noted.part:
            value = value[step]
        params = with_value(params, place, value)
    assert params == plain
