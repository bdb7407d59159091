"""REQ-0018: what YAML can do beyond JSON is refused, early and with its place."""

import json
import time
import tracemalloc
from contextlib import suppress
from typing import Any

import pytest
import yaml
from hypothesis import given, strategies as st

from pyoco_server.domain.strict_yaml import FLOW_YAML, MAX_ALIASES, MAX_DEPTH, decode, read_yaml
from pyoco_server.engine.flow_yaml import check_flow_yaml
from pyoco_server.errors import InvalidRequest, PyocoServerError
from support.tables import every_row

FILE = "flow: {graph: a}\n"


def refusal(data: bytes) -> str:
    with pytest.raises(InvalidRequest) as caught:
        read_yaml(decode(data))
    assert caught.value.entry.err_id == "ERR-PYOCO-0002"
    return caught.value.detail


@every_row(
    ("text", "message"),
    [
        ("", "line 1, column 1: the file is empty"),
        ("a: 1\nb: 2\na: 3", "line 3, column 1: duplicate key 'a'"),
        ("a: {b: {c: 1, c: 1}}", "line 1, column 15: duplicate key 'c'"),
        ("a: 1\n'a': 2", "line 2, column 1: duplicate key 'a'"),
        (
            "a: !!python/name:os.system x",
            "line 1, column 4: the tag 'tag:yaml.org,2002:python/name:os.system'",
        ),
        ("a: !!str 1", "line 1, column 4: the tag 'tag:yaml.org,2002:str' is not allowed"),
        ("a: ! 1", "line 1, column 4: the tag '!' is not allowed"),
        ("!!str a: 1", "line 1, column 1: the tag"),
        ("a: !x [1]", "line 1, column 4: the tag '!x'"),
        ("a: !!binary aGk=", "line 1, column 4: the tag"),
        ("a: !!set {x}", "line 1, column 4: the tag"),
        ("a: &x {k: 1}\nb:\n  <<: *x", "line 3, column 3: merge keys (<<) are not allowed"),
        ("a: *x", "line 1, column 4: the alias *x has no preceding anchor"),
        ("a: &x [1, *x]", "line 1, column 11: the alias *x has no preceding anchor"),
        ("a: 2026-01-31", "line 1, column 4: '2026-01-31' is a date"),
        ("a: 2026-01-31 10:00:00", "line 1, column 4: '2026-01-31 10:00:00' is a date"),
        ("a: .nan", "line 1, column 4: '.nan' is not a number that JSON has"),
        ("a: -.inf", "line 1, column 4: '-.inf' is not a number that JSON has"),
        ("a: 1.0e+999", "line 1, column 4: '1.0e+999' is not a number that JSON has"),
        ("a: =", "line 1, column 4: '=' is not a JSON value"),
        ("a: 0b_", "line 1, column 4: '0b_' is not a number"),
        ("a: 9223372036854775808", "has more than 64 bits"),
        ("a: " + "9" * 5000, "line 1, column 4: "),
        ("1: a", "line 1, column 1: YAML does not read the key '1' as a string"),
        ("on: a", "line 1, column 1: YAML does not read the key 'on' as a string"),
        ("~: a", "line 1, column 1: YAML does not read the key '~' as a string"),
        ("? [a]\n: 1", "line 1, column 3: a key must be a plain string"),
        ("a: &x b\n*x : 1", "line 2, column 1: a key must be a plain string"),
        ("a: 1\n---\nb: 2", "line 2, column 1: second document"),
        ("a: [1", "line 1, column 6"),
        ("a: b: c", "line 1, column 5: mapping values are not allowed"),
        ("a: '\x07'", "line 1, column 5: the character U+0007 is not allowed"),
        ("a:\n  b: \x1b[31m", "line 2, column 6: the character U+001B is not allowed"),
        ("%YAML 9.9\n---\na: 1", "line 1, column 1"),
    ],
)
def test_a_refusal_names_the_place_and_the_reason(text: str, message: str) -> None:
    if text == "a: [1":  # the parsers in C and in Python see the end at different columns
        message = "flow.yaml, line "
    assert message in refusal(text.encode())


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32"])
def test_a8_other_encodings_are_refused(encoding: str) -> None:
    assert "save the file as UTF-8" in refusal(FILE.encode(encoding))


def test_a_byte_order_mark_is_refused() -> None:
    assert "line 1, column 1: byte order mark" in refusal(FILE.encode("utf-8-sig"))


def test_bytes_that_are_not_utf8_are_refused_with_their_place() -> None:
    assert "line 2, column 4: the file is not UTF-8" in refusal(b"a: 1\nb: \xff")


def test_a_lone_surrogate_is_refused() -> None:
    assert "flow.yaml, line 1" in refusal(b'a: "\\ud800"')


def test_values_mean_what_they_mean_to_pyoco() -> None:
    text = "a: [1, 0x10, 1_000, 1.5, yes, ~, '1', \"x\\ty\", plain text]\nb: |\n  one\n  two\nc: {}\nd:\n"
    assert read_yaml(text).value == yaml.safe_load(text)


def test_a_few_aliases_are_values_of_their_own() -> None:
    value = read_yaml("a: &x {k: [1]}\nb: *x\nc: *x").value
    assert value["a"] == value["b"] == value["c"] == {"k": [1]}
    value["b"]["k"].append(2)
    assert value["c"] == {"k": [1]}


def test_more_aliases_than_the_limit_are_refused() -> None:
    text = "a: &x 1\nb: [" + "*x, " * (MAX_ALIASES + 1) + "]"
    assert f"line 2, column {4 + 4 * MAX_ALIASES + 1}: more than 10 aliases" in refusal(text.encode())


def test_an_alias_counts_as_much_as_it_stands_for() -> None:
    text = "a: &x [" + "1, " * (FLOW_YAML.max_nodes // 3) + "]\nb: [*x, *x, *x]"
    assert "line 2, column 9: more than 5,000 keys and values" in refusal(text.encode())


def test_an_alias_cannot_hide_depth() -> None:
    half = MAX_DEPTH // 2 + 2
    text = "a: &x " + "[" * half + "]" * half + "\nb: " + "[" * half + "*x" + "]" * half
    assert "nested more than 50 deep" in refusal(text.encode())


def test_fifty_levels_are_read_and_one_more_is_refused() -> None:
    deepest = "[" * (MAX_DEPTH - 1) + "]" * (MAX_DEPTH - 1)
    read_yaml(f"a: {deepest}")
    assert "line 1, column 53: lists and objects are nested more than 50 deep" in refusal(
        f"a: [{deepest}]".encode()
    )


def many_keys(count: int) -> str:
    return "".join(f"k{number}: {number}\n" for number in range(count))


ATTACKS = {
    "alias bomb": FILE
    + "a: &a [x, x, x, x, x, x, x, x, x]\n"
    + "".join(
        f"{b}: &{b} [{', '.join(['*' + a] * 9)}]\n" for a, b in zip("abcdefgh", "bcdefghi", strict=True)
    ),
    "two-way alias bomb": FILE + "a: &a [x, x]\n" + "".join(f"b{n}: &a [*a, *a]\n" for n in range(1000)),
    "100,000 keys": FILE + many_keys(100_000),
    "100,000 keys in defaults": "flow: {graph: a, defaults: {"
    + many_keys(100_000).replace("\n", ", ")
    + "}}",
    "100,000 items": FILE + "a: [" + "1," * 100_000 + "]",
    "100,000 duplicate keys": FILE + "a: 1\n" * 100_000,
    "100,000 brackets": FILE + "a: " + "[" * 100_000,
    "100,000 braces": FILE + "a: " + "{" * 100_000,
    "100,000 dashes": "- " * 100_000,
    "100,000 question marks": "? " * 100_000,
    "100,000 tags": FILE + "a: [" + "!x 1," * 100_000 + "]",
    "100,000 anchors": FILE + "a: [" + "&x 1," * 100_000 + "]",
    "merge keys": FILE + "a: &a {k: 1}\n" + "".join(f"b{n}: {{<<: *a}}\n" for n in range(10_000)),
    "long number": FILE + "a: " + "9" * 200_000,
    "100,000 documents": FILE + "---\n" * 100_000,
    "100,000 terms": "flow: {graph: '" + "a >> " * 100_000 + "a'}",
    "100,000 parentheses": "flow: {graph: '" + "(" * 100_000 + "a'}",
    "100,000 blocks": "flow: {graph: '" + "repeat(count=2){" * 100_000 + "a'}",
    "100,000 signs": "flow: {graph: '" + "-" * 100_000 + "a'}",
    "100,000 open templates": "flow: {graph: 'switch(on=" + "{{" * 100_000 + "'}",
    "long expression": "flow: {graph: 'repeat(count={{$ctx.a" + " + $ctx.a" * 20_000 + "}}){ a }'}",
}


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
@pytest.mark.parametrize("attack", ATTACKS)
def test_a8_an_attack_is_refused_in_no_time(attack: str, encoding: str) -> None:
    data = ATTACKS[attack].encode(encoding)
    assert any(cost_of(data) < 0.1 for _ in range(5))  # not always: a machine may be busy


def cost_of(data: bytes) -> float:
    started = time.process_time()
    with pytest.raises(InvalidRequest):
        check_flow_yaml(data, max_bytes=10_000_000)
    return time.process_time() - started


@pytest.mark.parametrize("attack", ATTACKS)
def test_a8_an_attack_leaves_memory_flat(attack: str) -> None:
    data = ATTACKS[attack].encode()
    tracemalloc.start()
    try:
        with pytest.raises(InvalidRequest):
            check_flow_yaml(data, max_bytes=10_000_000)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    # The text and the parser's copy of it, and what FLOW_YAML.max_nodes values may take.
    assert peak < 4 * len(data) + 4_000_000


def json_values() -> st.SearchStrategy[Any]:
    scalars = (
        st.none()
        | st.booleans()
        | st.integers(-(2**63) + 1, 2**63 - 1)
        | st.floats(allow_nan=False, allow_infinity=False)
        | st.text(st.characters(exclude_categories=["Cs"]))
    )
    return st.recursive(
        scalars,
        lambda inner: (
            st.lists(inner, max_size=4)
            | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), inner, max_size=4)
        ),
        max_leaves=12,
    )


@given(json_values())
def test_every_json_value_comes_through(value: Any) -> None:
    text = yaml.dump(
        {"a": value}, Dumper=type("Plain", (yaml.SafeDumper,), {"ignore_aliases": lambda *_: True})
    )
    assert read_yaml(text).value == {"a": value}
    json.dumps(value, allow_nan=False)


@given(st.text(st.sampled_from("ab1:-,[]{}#&*!|>'\"%@`?<=~ \n\t.é\x00\ufeff")))
def test_a8_no_text_does_more_than_be_refused(text: str) -> None:
    with suppress(InvalidRequest):
        json.dumps(read_yaml(text).value, allow_nan=False)


@given(st.binary())
def test_a8_no_bytes_do_more_than_be_refused(data: bytes) -> None:
    with pytest.raises(PyocoServerError):
        check_flow_yaml(data, max_bytes=100)
