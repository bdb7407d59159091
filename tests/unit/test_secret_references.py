"""Where params name secrets and variables, and their values in place of them."""

from typing import Any

import pytest
from hypothesis import given, strategies as st

from pyoco_server.domain.codec import decode_job, encode_job
from pyoco_server.domain.executions import interpolation
from pyoco_server.domain.runs.jobs import Submission, accept, pending, with_references
from pyoco_server.domain.runs.repeats import repeated
from pyoco_server.domain.secrets.references import Kind, Named, Reference, named_in, read, resolved
from pyoco_server.errors import InvalidRequest
from support.builders import NOW, RUN_ID
from support.tables import every_row

PASSWORD = Named(Kind.SECRET, "db-password")
ROWS = Named(Kind.VARIABLE, "rows")
VALUES = {PASSWORD: "hunter2", ROWS: 100}


def through(params: dict[str, Any]) -> dict[str, Any]:
    """From a client to the flow."""
    shown, references = read(params)
    return shown if references is None else resolved(shown, references, VALUES)


@every_row(
    ("text", "value"),
    [
        ("${secrets.db-password}", "hunter2"),
        ("${ secrets.db-password }", "hunter2"),
        ("${vars.rows}", 100),
        ("a ${vars.rows} b", "a 100 b"),
        ("u:${secrets.db-password}@h/${vars.rows}", "u:hunter2@h/100"),
        ("${secrets.db-password}${secrets.db-password}", "hunter2hunter2"),
        ("$${secrets.db-password}", "${secrets.db-password}"),
        ("$$${secrets.db-password}", "$${secrets.db-password}"),
        ("$${secrets.x} ${secrets.db-password} $${vars.", "${secrets.x} hunter2 ${vars."),
        ("${input.x} ${HOME} $${HOME} $$ ${", "${input.x} ${HOME} $${HOME} $$ ${"),
        ("${secretsx.a} ${vars} ${secrets}", "${secretsx.a} ${vars} ${secrets}"),
    ],
)
def test_a_text_with_references_gets_their_values(text: str, value: Any) -> None:
    assert through({"a": [{"b": text}, 1]}) == {"a": [{"b": value}, 1]}


@pytest.mark.parametrize(
    "text",
    ["${secrets.}", "${secrets.a b}", "${secrets.a", "${vars.a.b}", "${secrets['a']}", "${secrets[0]}"],
)
def test_what_looks_like_a_reference_and_is_none_is_refused_with_its_place(text: str) -> None:
    with pytest.raises(InvalidRequest, match=r"params\.a\[0\]: .* is not a reference"):
        read({"a": [text]})


def test_a_key_that_names_a_secret_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="only values are resolved"):
        read({"a": {"${secrets.x}": 1}})


SHORT = st.text(alphabet="$${}secrtva. ", max_size=6)
JSON = SHORT | st.integers() | st.lists(SHORT, max_size=3) | st.dictionaries(SHORT, SHORT, max_size=3)


@given(st.dictionaries(SHORT, JSON, max_size=3))
def test_params_without_references_are_not_touched(params: dict[str, Any]) -> None:
    if "{secrets" not in str(params) and "{vars" not in str(params):
        assert read(params)[0] is params


PIECES = st.sampled_from(
    ["$", "${", "}", "${secrets.db-password}", "$${secrets.db-password}", "a", "${vars.rows}"]
)


@given(st.lists(PIECES, max_size=8))
def test_a_value_that_looks_like_a_reference_is_never_resolved_again(pieces: list[str]) -> None:
    """Whatever the text: the value is put in once, and is only a value."""
    try:
        shown, references = read({"a": "".join(pieces)})
    except InvalidRequest:
        return
    hostile = {PASSWORD: "${vars.rows}", ROWS: "${secrets.db-password}"}
    found = resolved(shown, references or (), hostile)["a"]
    assert len(named_in(shown, references or ())) <= 2
    spans = [(one.start, one.end) for one in references or ()]
    expected = shown["a"]
    for start, end in reversed(spans):
        inserted = "${vars.rows}" if "secrets" in expected[start:end] else "${secrets.db-password}"
        expected = expected[:start] + inserted + expected[end:]
    assert found == expected


def test_values_beside_a_reference_are_not_copied() -> None:
    large: list[Any] = [[[]]] * 10
    given: dict[str, Any] = {
        "large": large,
        "nested": [{"escaped": "$${vars.a}"}, large],
        "key": "${secrets.a}",
    }
    found, references = read(given)
    assert found == {"large": large, "nested": [{"escaped": "${vars.a}"}, large], "key": "${secrets.a}"}
    assert list(found) == list(given)
    assert references == (Reference(("key",), 0, 12),)
    assert found["large"] is large
    assert found["nested"][1] is large
    assert given["nested"][0] == {"escaped": "$${vars.a}"}, "the sender's own params have changed"


def test_a_place_that_holds_no_reference_is_refused() -> None:
    """The sender of a job is untrusted."""
    for path in (("a",), ("b",), ("a", 0), ("a", "x")):
        with pytest.raises(InvalidRequest, match="no reference at its noted place"):
            named_in({"a": "no reference"}, [Reference(path, 0, 5)])


# Nodes of executions


def test_references_of_a_node_stay_and_what_an_input_says_is_no_reference() -> None:
    params = {
        "dsn": "${secrets.db-password}@${input.host}:${vars.rows}",
        "whole": "${input.evil}",
        "object": "${input}",
        "output": "${nodes.a.output.text}",
        "literal": "$${secrets.db-password}",
    }
    evil = "${secrets.db-password}"
    found = interpolation.rendered(
        params, input={"host": evil, "evil": evil}, nodes={"a": {"output": {"text": evil}}}
    )
    assert found.value["dsn"] == "${secrets.db-password}@${secrets.db-password}:${vars.rows}"
    got = resolved(found.value, found.references, VALUES)
    assert got == {
        "dsn": "hunter2@${secrets.db-password}:100",
        "whole": evil,
        "object": {"host": evil, "evil": evil},
        "output": evil,
        "literal": evil,
    }


@given(st.text(alphabet="$${}secrets.db-password", max_size=30))
def test_no_input_changes_what_a_node_names(text: str) -> None:
    template = {"a": "${input.x}${secrets.db-password}${input.x}"}
    found = interpolation.rendered(template, input={"x": text}, nodes={})
    assert resolved(found.value, found.references, VALUES) == {"a": f"{text}hunter2{text}"}


def test_a_graph_may_name_secrets_in_params_only() -> None:
    assert interpolation.check({"a": "${secrets.x} ${vars.y}"}) == frozenset()
    with pytest.raises(interpolation.TemplateError, match="only resolved in the params"):
        interpolation.check("${secrets.x}", allows_secrets=False)
    with pytest.raises(interpolation.TemplateError, match=r"reference like \$\{secrets.name\}"):
        interpolation.check({"a": "${secrets.x.y}"})


# Jobs and runs


def submission(**params: Any) -> Submission:
    return with_references(Submission(flow_name="f", tag="default", params=params))


def test_a_job_with_references_is_unreadable_to_older_workers_and_readable_to_us() -> None:
    import msgspec  # noqa: PLC0415

    job = accept(submission(a="${secrets.x}"), RUN_ID, NOW)
    data = encode_job(job)
    assert decode_job(data) == job
    older = msgspec.json.decode(data)
    assert "flow_name" not in older
    assert "params" not in older
    assert older["run_id"] == RUN_ID


def test_a_retry_names_what_the_run_named_and_what_is_new() -> None:
    """Params of the run are not read again: some of their text may be of an outside sender."""
    job = accept(
        submission(kept="${secrets.x}", changed="${secrets.y}", literal="$${secrets.z}"), RUN_ID, NOW
    )
    run = pending(job)
    again = repeated(run, None, None, {"changed": "${vars.v}"})
    assert again.params == {"kept": "${secrets.x}", "changed": "${vars.v}", "literal": "${secrets.z}"}
    assert [str(named) for named in named_in(again.params, again.references or ())] == [
        "secret 'x'",
        "variable 'v'",
    ]
    plain = pending(accept(Submission(flow_name="f", tag="t", params={"event": "${secrets.x}"}), RUN_ID, NOW))
    assert repeated(plain, None, None, {}).references is None
