"""What an agent reads: bounded, whatever is stored, with marks where something was left out."""

import json
from typing import Any

import pytest
from hypothesis import given, settings, strategies

from pyoco_server.mcp.answers import (
    HEAD_CHARS,
    MAX_CHARS,
    TAIL_CHARS,
    Line,
    answer,
    chosen,
    log_from,
    log_head_and_tail,
    shortened,
)

VALUES = strategies.recursive(
    strategies.none() | strategies.booleans() | strategies.integers() | strategies.text(max_size=50),
    lambda inner: strategies.lists(inner) | strategies.dictionaries(strategies.text(max_size=5), inner),
    max_leaves=10,
)


@settings(max_examples=30)
@given(strategies.dictionaries(strategies.text(max_size=5), VALUES, max_size=3))
def test_every_answer_is_json(value: dict[str, Any]) -> None:
    assert isinstance(json.loads(answer(value)), dict)


HUGE: dict[str, Any] = {
    "a long text": {"result": "x" * 1_000_000},
    "many items": {"runs": [{"run_id": str(n), "error": "e" * 500} for n in range(50_000)]},
    "many fields": {"nodes": {f"node {n}": {"status": "FAILED"} for n in range(50_000)}},
    "long names": {"output": {"n" * 10_000 + str(n): 1 for n in range(1_000)}},
    "many levels": {"result": [[[["x" * 500] * 12] * 12] * 12]},
}


@pytest.mark.parametrize("name", HUGE)
def test_an_answer_is_bounded_and_marks_what_it_left_out(name: str) -> None:
    text = answer(HUGE[name])
    assert len(text) <= MAX_CHARS + 100
    assert "left out" in text


def test_a_page_of_runs_is_never_cut_because_its_cursor_would_skip_the_rest() -> None:
    runs = [{"run_id": f"{n:036}", "flow_name": "f" * 64, "error": "e" * 2_000} for n in range(50)]
    assert len(json.loads(answer({"runs": runs, "next_cursor": "c"}))["runs"]) == 50


def test_times_are_readable_and_values_of_users_are_as_they_were() -> None:
    found = json.loads(
        answer({"created_at": 0, "waits": [{"deadline": 1.9}], "params": {"created_at": 0, "x": None}})
    )
    assert found == {
        "created_at": "1970-01-01T00:00:00Z",
        "waits": [{"deadline": "1970-01-01T00:00:01Z"}],
        "params": {"created_at": 0, "x": None},
    }


def test_empty_fields_are_left_out_but_not_false_and_zero() -> None:
    record: dict[str, Any] = {"a": None, "b": [], "c": {}, "d": "", "e": 0, "f": False}
    assert chosen(record, *record) == {"e": 0, "f": False}
    assert json.loads(answer({"one": record, "runs": []})) == {"one": {"e": 0, "f": False}, "runs": []}


def test_a_text_keeps_its_beginning_and_its_end() -> None:
    text = shortened("a" * 100 + "z" * 100, 60)
    assert text.startswith("a" * 20)
    assert text.endswith("z" * 40)
    assert "140 characters left out" in text
    assert shortened("short", 60) == "short"


def lines(count: int, text: str = "x" * 80) -> list[Line]:
    return [Line(n, "load", "stdout", text) for n in range(1, count + 1)]


def test_a_short_log_is_whole() -> None:
    assert log_head_and_tail(lines(3, "hello")) == [f"{n} [load] hello" for n in (1, 2, 3)]
    assert log_head_and_tail([Line(1, None, "stderr", "oops")]) == ["1 stderr: oops"]
    assert log_head_and_tail([]) == log_from([], 1) == []


@pytest.mark.parametrize("count", [200, 201, 5_000])
def test_every_line_is_shown_or_counted(count: int) -> None:
    shown = log_head_and_tail(lines(count))
    (mark,) = [line for line in shown if "left out" in line] or [""]
    left_out = int(mark.split()[1].replace(",", "")) if mark else 0
    assert len(shown) - bool(mark) + left_out == count
    assert sum(map(len, shown)) <= HEAD_CHARS + TAIL_CHARS + 100
    rest = log_from(lines(count), shown.index(mark) + 1) if mark else []
    assert not mark or rest[0].startswith(f"{shown.index(mark) + 1} [load]")


def test_a_line_that_is_too_long_is_cut_and_shown() -> None:
    (shown,) = log_from([Line(1, None, "stdout", "x" * 100_000)], 1)
    assert "left out" in shown
    assert len(shown) < 1_000
