"""REQ-0021: which columns of a table a terminal has room for, and how wide they are."""

from datetime import UTC, datetime

import pytest

from pyoco_server.cli.output import GAP, fitted, print_table, printable, shown_time
from pyoco_server.cli.run_view import duration
from support.tables import every_row

NATURAL = {"status": 9, "flow_name": 30, "run_id": 36, "tasks": 5, "updated_at": 10, "error": 200}
EXPENDABLE = ("error", "updated_at", "tasks", "flow_name")


def width_of(shown: dict[str, int]) -> int:
    return sum(shown.values()) + GAP * (len(shown) - 1)


@every_row("width", [47, 57, 60, 72, 80, 100, 140, 300])
def test_what_is_shown_fits(width: int) -> None:
    shown = fitted(NATURAL, EXPENDABLE, width)
    assert width_of(shown) <= width
    assert shown["run_id"] == 36, "an id that is cut is of no use"
    assert list(shown) == [name for name in NATURAL if name in shown], "in their order"


def test_columns_are_left_out_in_the_order_of_how_little_they_matter() -> None:
    shown = [set(NATURAL) - set(fitted(NATURAL, EXPENDABLE, width)) for width in (140, 80, 70, 60, 50)]
    assert shown == [
        set(),
        {"error"},
        {"error", "updated_at"},
        {"error", "updated_at", "tasks"},
        {"error", "updated_at", "tasks", "flow_name"},
    ]


def test_where_there_is_room_nothing_is_cut() -> None:
    assert fitted(NATURAL, EXPENDABLE, 1000) == NATURAL


@pytest.mark.parametrize("width", [1, 10, 20, 40])
def test_a_terminal_that_is_too_narrow_for_anything_is_no_error(width: int) -> None:
    assert set(fitted(NATURAL, EXPENDABLE, width)) == {"status", "run_id"}


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (-3, "<1 ms"),
        (0.0004, "<1 ms"),
        (0.4014, "401 ms"),
        (12.34, "12.3 s"),
        (245, "4 min 05 s"),
        (7384, "2 h 03 min"),
    ],
)
def test_durations_are_short(seconds: float, shown: str) -> None:
    assert duration(seconds) == shown


def test_what_a_terminal_would_obey_is_not_printed() -> None:
    assert printable("a\x1b[31mb\tc\nd\x07") == "a�[31mb  c d�"


def test_times_of_today_are_times_and_others_dates() -> None:
    now = datetime(2026, 11, 16, 12, 0, tzinfo=UTC).astimezone()
    assert shown_time(now.timestamp(), now) == now.strftime("%H:%M:%S")
    assert shown_time(now.timestamp() - 86_400 * 2, now) == "2026-11-14"


def test_into_a_pipe_every_column_is_written_whole(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    row = {"execution_id": "e" * 60, "status": "COMPLETED", "error": "x" * 200}
    print_table([row], list(row), expendable=["error"])
    written = capsys.readouterr().out
    assert all(value in written for value in row.values())
