"""REQ-0021: params from a file, JSON and single values; what is given last wins."""

from pathlib import Path

import pytest

from pyoco_server.cli.client_params import read_params
from pyoco_server.errors import InvalidCliInput


def test_later_values_win(tmp_path: Path) -> None:
    file = tmp_path / "params.yaml"
    file.write_text("a: file\nb: file\nc: file\n")
    assert read_params(file, '{"b": "json", "c": "json"}', ["c=single", "d=4"]) == {
        "a": "file",
        "b": "json",
        "c": "single",
        "d": 4,
    }


@pytest.mark.parametrize(
    ("pair", "value"),
    [
        ("x=1", 1),
        ("x=true", True),
        ("x=[1]", [1]),
        ("x=text", "text"),
        ("x=", ""),
        ("x=a=b", "a=b"),
        ('x="1"', "1"),
    ],
)
def test_a_single_value_is_json_where_it_is_json(pair: str, value: object) -> None:
    assert read_params(None, None, [pair]) == {"x": value}


@pytest.mark.parametrize(
    ("text", "single", "problem"),
    [
        ("{x", [], "is not JSON"),
        ("[1]", [], "must be a JSON object, not list; example"),
        (None, ["x"], "is not key=value; example"),
        (None, ["=1"], "is not key=value"),
    ],
)
def test_what_cannot_be_read_is_refused_with_an_example(
    text: str | None, single: list[str], problem: str
) -> None:
    """ERR-PYOCO-0018"""
    with pytest.raises(InvalidCliInput, match=problem):
        read_params(None, text, single)


@pytest.mark.parametrize(
    ("content", "value"),
    [
        ('{"x": 1e5}', 1e5),
        ('\ufeff{"x": "1"}', "1"),
        ("{x: 1}", 1),
        ('{"x": [1, {"y": null}]}', [1, {"y": None}]),
        ("x: yes", True),
    ],
)
def test_a_file_is_json_where_it_is_json(tmp_path: Path, content: str, value: object) -> None:
    file = tmp_path / "params"
    file.write_text(content, encoding="utf-8")
    assert read_params(file, None, []) == {"x": value}


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("a: 1\nb: 2\na: 3\n", "p.yaml, line 3, column 1: duplicate key 'a'"),
        ("a:\n  b: 1\n  b: 2\n", "p.yaml, line 3, column 3: duplicate key 'b'"),
        ('{"a": {"b": 1, "b": 2}}', "p.yaml: a.b: duplicate key 'b'"),
        ("a: 18446744073709551616\n", "has more than 64 bits"),
        ("a: [\n", "p.yaml, line 2, column 1"),
    ],
)
def test_what_a_file_means_must_be_clear(tmp_path: Path, content: str, problem: str) -> None:
    """The last of two equal keys won, and nobody noticed."""
    file = tmp_path / "p.yaml"
    file.write_text(content)
    with pytest.raises(InvalidCliInput) as refused:
        read_params(file, None, [])
    assert problem in refused.value.detail


@pytest.mark.parametrize("content", ["- 1", "a: [", "\x00"])
def test_a_file_that_is_no_object_is_refused_with_its_name(tmp_path: Path, content: str) -> None:
    file = tmp_path / "p.json"
    file.write_text(content)
    with pytest.raises(InvalidCliInput, match=r"p\.json"):
        read_params(file, None, [])
    with pytest.raises(InvalidCliInput, match="No such file"):
        read_params(tmp_path / "missing", None, [])
