"""What is kept of what a run prints."""

from pyoco_server.domain.runs.logs import MAX_RUN_BYTES, LogEntry, LogLine, RunOutput, cut_text, in_order

LINE = "x" * 19 + "\n"
TASK_LIMIT, RUN_LIMIT = 200, 2000


def an_output() -> RunOutput:
    return RunOutput(TASK_LIMIT, RUN_LIMIT)


def add(output: RunOutput, task: str | None, count: int, start: int = 0) -> None:
    for number in range(start, start + count):
        output.add(task, "stdout", f"{task or '-'}{number}".ljust(19) + "\n", float(number))


def texts(entries: list[LogEntry]) -> list[str]:
    return [entry.text.strip() for entry in sorted(entries, key=lambda entry: entry.n)]


def test_what_fits_is_kept_whole_and_handed_on_at_once() -> None:
    """D28"""
    output = an_output()
    add(output, "a", 5)
    assert texts(output.take()) == ["a0", "a1", "a2", "a3", "a4"]
    assert output.take() == []
    add(output, "a", 5, start=5)
    assert output.take() == [], "held: it is not known yet whether more follows"
    output.ended("a")
    assert texts(output.take()) == ["a5", "a6", "a7", "a8", "a9"]


def test_a_mark_stands_where_lines_were_cut() -> None:
    """D28"""
    output = an_output()
    add(output, "a", 100)
    output.ended("a")
    entries = output.take()
    assert texts(entries) == [
        *(f"a{n}" for n in range(5)),
        "… 90 lines (1,800 bytes) were cut here …",
        *(f"a{n}" for n in range(95, 100)),
    ]
    (mark,) = (entry for entry in entries if entry.cut_lines)
    assert (mark.task, mark.n, mark.cut_lines, mark.cut_bytes) == ("a", 5, 90, 1800)


def test_the_last_task_of_a_run_that_prints_much_has_its_lines() -> None:
    """D28"""
    output = an_output()
    for task in range(100):
        add(output, str(task), 50)
        output.ended(str(task))
    output.close()
    entries = output.take()
    last = [entry for entry in entries if entry.task == "99"]
    assert texts(last)[-1] == "9949"
    assert len(last) >= 5
    assert any(entry.task == "0" for entry in entries)
    kept = sum(len(entry.text) for entry in entries if not entry.cut_lines)
    cut = sum(entry.cut_bytes for entry in entries)
    assert kept + cut == 100 * 50 * len(LINE)
    assert kept <= RUN_LIMIT


def test_a_task_that_runs_again_and_again_has_one_share() -> None:
    """D28"""
    output = an_output()
    for turn in range(20):
        add(output, "loop", 50, start=50 * turn)
        output.ended("loop")
    output.close()
    entries = output.take()
    assert texts(entries)[0] == "loop0"
    assert texts(entries)[-1] == "loop999"
    assert sum(len(entry.text) for entry in entries if not entry.cut_lines) <= 1.5 * TASK_LIMIT
    assert sum(entry.cut_lines for entry in entries) + sum(not entry.cut_lines for entry in entries) == 1000


def test_tasks_side_by_side_stay_within_the_runs_limit() -> None:
    """D28"""
    output = RunOutput(TASK_LIMIT, 1000)
    for number in range(200):
        for task in range(20):
            output.add(str(task), "stdout", f"{number}".ljust(19) + "\n", 0.0)
    output.close()
    entries = output.take()
    assert {entry.text.strip() for entry in entries if entry.n >= 199 * 20} == {"199"}
    assert sum(len(entry.text) for entry in entries if not entry.cut_lines) <= 1000 + 20 * len(LINE)


def test_empty_lines_take_room_too() -> None:
    """D28"""
    output = RunOutput()
    for _ in range(1_000_000):
        output.add(None, "stdout", "\n", 0.0)
    output.close()
    entries = output.take()
    assert len(entries) < MAX_RUN_BYTES / 16
    assert sum(entry.cut_lines for entry in entries) + len(entries) - 1 == 1_000_000


def test_an_excerpt_has_the_newest_held_lines_once() -> None:
    """D28"""
    output = an_output()
    add(output, "a", 20)
    output.take()
    assert [entry.text.strip() for entry in output.excerpt(60)] == ["a17", "a18", "a19"]
    assert output.excerpt(60) == []
    add(output, "a", 2, start=20)
    excerpt = output.excerpt(60)
    assert [entry.text.strip() for entry in excerpt] == ["a20", "a21"]
    assert all(entry.is_excerpt for entry in excerpt)
    output.close()
    assert texts(output.take())[-1] == "a21"


def test_sizes_are_bytes_and_surrogates_are_escaped() -> None:
    """D24"""
    output = an_output()
    for text in ("caf\udce9\n", "日" * 20 + "\n", "é" * 40 + "\n", "é" * 45 + "\n"):
        output.add("a", "stdout", text, 0.0)
    output.close()
    assert [entry.text for entry in output.take()] == [
        "caf\\udce9\n",
        "日" * 20 + "\n",
        "… 1 line (81 bytes) were cut here …\n",
        "é" * 45 + "\n",
    ]


def test_a_mark_reads_well() -> None:
    assert cut_text(1, 5) == "… 1 line (5 bytes) were cut here …\n"
    assert cut_text(9184, 1234567) == "… 9,184 lines (1,234,567 bytes) were cut here …\n"
    assert cut_text(0, 1000) == "… 1,000 bytes were cut here …\n"


def test_lines_that_were_stored_twice_are_read_once() -> None:
    def line(n: int, attempt: int = 1) -> LogLine:
        return LogLine(attempt=attempt, n=n, task="t", stream="stdout", text=f"{n}\n", ts=0.0)

    assert in_order([line(1), line(0), line(1), line(0, attempt=2)]) == [line(0), line(1), line(0, attempt=2)]
