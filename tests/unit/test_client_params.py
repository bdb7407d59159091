"""REQ-0021: params from a file, JSON and single values; what is given last wins."""

from pathlib import Path

import pytest

from pyoco_server.cli.client_params import read_document, read_params
from pyoco_server.errors import InvalidCliInput
from pyoco_server.http_client.schedules import documents_in


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


# Directories of definitions


def test_definitions_are_read_in_the_order_in_which_they_name_each_other(tmp_path: Path) -> None:
    for name in ("schedules/b.yaml", "schedules/a.yml", "graphs/z.json", "actions/m.yaml", "README.md"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("{}")
    (tmp_path / "actions/m.yaml").write_text("key: dotted.key")
    found = documents_in(tmp_path, (".yaml", ".yml", ".json"), lambda path: read_document(path, str(path)))
    assert [(one.kind, one.id) for one in found] == [
        ("graphs", "z"),
        ("actions", "dotted.key"),
        ("schedules", "a"),
        ("schedules", "b"),
    ]


@pytest.mark.parametrize("name", ["nightly.yaml", "schedule/nightly.yaml"])
def test_a_definition_that_would_be_overlooked_is_refused(tmp_path: Path, name: str) -> None:
    for one in ("schedules/a.yaml", name):
        (tmp_path / one).parent.mkdir(exist_ok=True)
        (tmp_path / one).write_text("{}")
    with pytest.raises(
        ValueError, match="not applied; definitions belong in flows, graphs, limits, alerts, actions"
    ) as refused:
        documents_in(tmp_path, (".yaml",), lambda _: {})
    assert str(tmp_path / Path(name).parts[0]) in str(refused.value)


def test_a_directory_without_definitions_is_refused(tmp_path: Path) -> None:
    for directory in (tmp_path, tmp_path / "missing"):
        with pytest.raises(ValueError, match="nothing to apply; expected flows/"):
            documents_in(directory, (".yaml",), lambda _: {})


def test_two_definitions_with_one_id_are_refused(tmp_path: Path) -> None:
    """The order of the files would decide which one is applied."""
    (tmp_path / "schedules").mkdir()
    for name, text in (("a.yaml", "{}"), ("b.yaml", "id: a")):
        (tmp_path / "schedules" / name).write_text(text)
    with pytest.raises(ValueError, match=r"schedule a is defined in .*\.yaml, too"):
        documents_in(tmp_path, (".yaml",), lambda path: read_document(path, str(path)))
