"""REQ-0021: what a person at a terminal sees."""

import json
import re
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from pyoco_server.http_client import PyocoHttpClient
from support.nats_server import free_port
from support.programs import FreshPrograms, Programs
from support.terminals import Terminal, in_terminal
from support.waiting import until_now

FLOWS = """
import pathlib
import time
from pyoco import Flow, task

@task
def prepare(name):
    print(f"{name} を準備しました")

@task
def wait_for_go(name, prepare):
    while not pathlib.Path(name).exists():
        time.sleep(0.01)

@task
def finish(wait_for_go):
    print("all \\x1b[31mdone\\x1b[0m")

@task
def fail(wait_for_go):
    raise ValueError("[bold]on purpose[/bold]")

gate = Flow(name="gate") >> prepare >> wait_for_go >> finish
wide = Flow(name="月次の売上集計") >> prepare >> wait_for_go >> fail
"""


NUMBERS = ("one", "two", "three", "four", "five", "six", "seven", "eight")


class Stack:
    def __init__(self, programs: Programs, url: str) -> None:
        self.programs = programs
        self.environ = {"PYOCO_SERVER_URL": url}
        self.client = PyocoHttpClient(url)

    def submit(self, flow: str, name: str) -> str:
        """A run that stands at its gate until `go`."""
        run_id = self.client.submit_run(flow, {"name": name})["run_id"]
        until_now(lambda: self.client.get_run(run_id)["tasks"].get("wait_for_go") == "RUNNING")
        return run_id

    def submit_and_end(self, flow: str, name: str) -> str:
        run_id = self.client.submit_run(flow, {"name": name})["run_id"]
        until_now(lambda: self.client.get_run(run_id)["status"] in ("COMPLETED", "FAILED"))
        return run_id

    def terminal(
        self, *command: str, columns: int = 80, lines: int = 24, **environ: str
    ) -> AbstractContextManager[Terminal]:
        return in_terminal(self.programs, *command, columns=columns, lines=lines, **self.environ, **environ)

    def go(self, name: str) -> None:
        (self.programs.directory / name).touch()


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """One for all tests here: none of them hurts it."""
    directory: Path = tmp_path_factory.mktemp("terminals")
    (directory / "flows").mkdir()
    (directory / "flows/gates.py").write_text(FLOWS)
    programs = FreshPrograms(directory)
    port = free_port()
    command = ("pyoco-server", "up", "--port", str(port), "--durability", "fast", "--with-worker")
    with programs.started(*command, "--flows", "flows") as up:
        up.says("worker ready")
        running = Stack(programs, f"http://127.0.0.1:{port}")
        try:
            yield running
        finally:
            for number in NUMBERS:  # whatever happened: nothing stands at its gate any more
                running.go(number)
            until_now(lambda: running.client.list_runs("RUNNING") == [])
            running.client.close()
    assert programs.are_gone()


# Following a run


def test_a_run_is_drawn_anew_while_it_changes(stack: Stack) -> None:
    run_id = stack.submit("gate", "one")
    with stack.terminal("pyoco-client", "watch", run_id) as terminal:
        terminal.shows(r"RUNNING  gate  on worker  \d")
        terminal.shows(r"✔  prepare +succeeded +\S+ m?s\n.  wait_for_go +running +\d.*s\n·  finish +pending")
        terminal.shows("  prepare │ one を準備しました")
        before = terminal.shows(r"running +(\S+ m?s)")[1]
        terminal.shows(rf"running +(?!{re.escape(before)})\S+ m?s")  # its clock goes on
        stack.go("one")
        terminal.shows(r"COMPLETED  gate  on worker")
        assert terminal.ends() == 0
        assert terminal.text.count("gate  on worker") == 1, "one picture, not one after the other"
        terminal.shows(r"✔  finish +succeeded")
        terminal.shows("  finish │ all done$")
        assert b"\x1b[32m" in terminal.raw, "in colour"


def test_a11_what_a_flow_printed_is_text_in_a_terminal_and_untouched_elsewhere(stack: Stack) -> None:
    stack.go("eight")
    run_id = stack.submit_and_end("gate", "eight")
    with stack.terminal("pyoco-client", "logs", run_id) as terminal:
        assert terminal.ends() == 0
        assert terminal.lines == ["eight を準備しました", "all done"]
        assert b"\x1b" not in terminal.raw
    piped = stack.programs.run("pyoco-client", "logs", run_id, **stack.environ)
    assert piped.stdout == "eight を準備しました\nall \x1b[31mdone\x1b[0m\n"


def test_ctrl_c_ends_the_watch_and_not_the_run(stack: Stack) -> None:
    run_id = stack.submit("gate", "two")
    with stack.terminal("pyoco-client", "watch", run_id) as terminal:
        terminal.shows("wait_for_go +running")
        terminal.press_ctrl_c()
        assert terminal.ends() == 130
        terminal.shows(f"the run continues. To cancel it:\npyoco-client cancel {run_id}")
        assert terminal.text.count("gate  on worker") == 1
        assert "Traceback" not in terminal.text
        assert terminal.raw.rstrip().endswith(b"\x1b[?25h") or b"\x1b[?25h" in terminal.raw, (
            "the cursor is back"
        )
    assert stack.client.get_run(run_id)["status"] == "RUNNING"
    stack.go("two")


def test_submit_and_wait_shows_the_run_and_then_its_answer(stack: Stack) -> None:
    stack.go("three")
    submit = ("pyoco-client", "submit", "--flow-name", "月次の売上集計", "--param", "name=three", "--wait")
    with stack.terminal(*submit, lines=120) as terminal:
        assert terminal.ends() == 1
        terminal.shows("FAILED  月次の売上集計  on worker")
        terminal.shows(r"✘  fail +failed")
        terminal.shows(r"ValueError: \[bold\]on purpose\[/bold\]")
        terminal.shows('"status": "FAILED"')


def test_ctrl_c_ends_the_wait_with_130(stack: Stack) -> None:
    submit = ("pyoco-client", "submit", "--flow-name", "gate", "--param", "name=four", "--wait")
    with stack.terminal(*submit) as terminal:
        terminal.shows("wait_for_go +running")
        terminal.press_ctrl_c()
        assert terminal.ends() == 130
        terminal.shows("the run continues")
    stack.go("four")


def test_without_a_terminal_each_change_is_a_line(stack: Stack) -> None:
    stack.go("five")
    run_id = stack.submit_and_end("gate", "five")
    for options in ((), ("--json",), ("--output", "json")):
        done = stack.programs.run("pyoco-client", "watch", run_id, *options, **stack.environ)
        (event,) = [json.loads(line) for line in done.stdout.splitlines()]
        assert (event["event"], event["snapshot"]["status"]) == ("snapshot", "COMPLETED")
        assert "\x1b" not in done.stdout


# Tables


@pytest.mark.parametrize("columns", [140, 80, 60, 40])
def test_a_table_fits_the_terminal_and_its_columns_stand_under_each_other(stack: Stack, columns: int) -> None:
    stack.go("six")
    ids = [stack.submit_and_end(flow, "six") for flow in ("月次の売上集計", "gate")]
    with stack.terminal("pyoco-client", "list", "--output", "table", columns=columns, lines=60) as terminal:
        assert terminal.ends() == 0
        header, *rows = terminal.lines
        start = terminal.column_of("run_id", header)
        for run_id in ids:
            (row,) = [row for row in rows if run_id[:28] in row]
            assert terminal.column_of(run_id[:28], row) == start
        shown = {name for name in ("tasks", "updated_at", "flow_name", "error") if name in header}
    assert (
        shown
        == {
            140: {"tasks", "updated_at", "flow_name", "error"},
            80: {"tasks", "updated_at", "flow_name"},
            60: {"flow_name"},
            40: set(),
        }[columns]
    )


def test_tasks_and_workers_fit_too(stack: Stack) -> None:
    stack.go("seven")
    run_id = stack.submit_and_end("月次の売上集計", "seven")
    with stack.terminal("pyoco-client", "tasks", run_id, "--output", "table") as terminal:
        assert terminal.ends() == 0
        assert [line.split()[:2] for line in terminal.lines] == [
            ["state", "task"],
            ["SUCCEEDED", "prepare"],
            ["SUCCEEDED", "wait_for_go"],
            ["FAILED", "fail"],
        ]
    until_now(lambda: stack.client.get_workers()[0]["state"] == "IDLE")
    with stack.terminal("pyoco-client", "workers", "--output", "table") as terminal:
        assert terminal.ends() == 0
        assert len(terminal.lines) == 2
        assert terminal.lines[1].split()[:3] == ["IDLE", "worker", "default"]
    with stack.terminal("pyoco-client", "get", run_id, "--output", "table") as terminal:
        assert terminal.ends() == 0
        terminal.shows("FAILED  月次の売上集計  on worker")
        terminal.shows("  prepare │ seven を準備しました")


# Starting and stopping


def test_ctrl_c_stops_a_server_with_130(programs: Programs) -> None:
    port = str(free_port())
    with in_terminal(programs, "pyoco-server", "up", "--port", port, PYOCO_LOG_LEVEL="ERROR") as terminal:
        terminal.shows("Ctrl-C stops it")
        first_words = [line.split()[0] for line in terminal.lines]
        if "Port" in first_words:  # somebody else uses NATS's own port on this machine
            assert first_words[1:5] == ["Port", "To", "Commands", "--nats-url"]
            del first_words[1:5]
        expected = ["NATS", "Dashboard", "HTTP", "Worker", "pyoco-worker", "Ctrl-C"]
        assert first_words == expected, "no line is wrapped"
        terminal.press_ctrl_c()
        assert terminal.ends() == 130
        assert "Traceback" not in terminal.text


def test_ctrl_c_stops_a_worker_with_130(stack: Stack) -> None:
    """It finds the server of its directory, and its log is text."""
    with stack.terminal("pyoco-worker", "--flows", "flows", "--worker-id", "w2", columns=200) as terminal:
        terminal.shows("INFO +found the server of this directory")
        terminal.shows("INFO +worker ready +action=worker.ready")
        assert b'"action"' not in terminal.raw
        terminal.press_ctrl_c()
        assert terminal.ends() == 130
        assert "Traceback" not in terminal.text


@pytest.mark.slow
def test_ctrl_c_stops_the_demo_with_130(programs: Programs) -> None:
    with in_terminal(programs, "pyoco-server", "demo", "--stay", columns=120) as terminal:
        terminal.shows("Ctrl-C stops it")
        terminal.shows(r"✔  report +succeeded")
        terminal.press_ctrl_c()
        assert terminal.ends() == 130


# Help


@pytest.mark.parametrize("columns", [80, 120])
def test_help_is_japanese_in_a_japanese_locale(stack: Stack, columns: int) -> None:
    with stack.terminal(
        "pyoco-client", "cancel", "--help", columns=columns, LC_ALL="ja_JP.UTF-8"
    ) as terminal:
        assert terminal.ends() == 0
        terminal.shows("使い方: pyoco-client cancel")
        terminal.shows(r"RUN-ID --run-id +runのid。 \[必須\]")
        terminal.shows(r"\[既定: 60.0\]")
        assert not re.search("Usage|required|default|choices", terminal.text)
        frame = [line for line in terminal.lines if line[0] in "╭│╰"]
        assert {terminal.column_of("\n", f"{line}\n") for line in frame} == {columns}, "a straight frame"


# What goes wrong, in both languages


@pytest.mark.parametrize(
    ("locale", "command", "told"),
    [
        (
            "C.UTF-8",
            ("get", "nope"),
            "HTTP 404 ERR-PYOCO-0005 run not found\nCheck the run id: pyoco-client list",
        ),
        (
            "ja_JP.UTF-8",
            ("get", "nope"),
            "ERR-PYOCO-0005 runが見つかりません: run not found\nrun_id を確認して",
        ),
        ("C.UTF-8", ("watch", "nope"), "HTTP 404 ERR-PYOCO-0005"),
        ("C.UTF-8", ("submit",), "Usage:    pyoco-client submit --help"),
        ("ja_JP.UTF-8", ("submit",), "使い方:  pyoco-client submit --help"),
        ("ja_JP.UTF-8", ("submit", "--flow-name", "x", "--param", "y"), "CLI引数が不正です"),
        ("ja_JP.UTF-8", ("watch", "x", "--server", "http://127.0.0.1:1"), "起動するには: pyoco-server up"),
    ],
)
def test_failures_say_what_to_do(stack: Stack, locale: str, command: tuple[str, ...], told: str) -> None:
    with stack.terminal("pyoco-client", *command, columns=120, LC_ALL=locale) as terminal:
        assert terminal.ends() == 1
        assert told in terminal.text
        assert "Traceback" not in terminal.text


@pytest.mark.slow
def test_json_is_the_same_in_every_language(stack: Stack) -> None:
    stack.go("eight")
    run_id = stack.submit_and_end("gate", "eight")
    for command in (
        ("get", run_id),
        ("list", "--limit", "1"),
        ("tasks", run_id),
        ("watch", run_id),
        ("wheels",),
    ):
        said = [
            stack.programs.run("pyoco-client", *command, LC_ALL=locale, **stack.environ).stdout
            for locale in ("C.UTF-8", "ja_JP.UTF-8")
        ]
        without_times = [re.sub(r'"(ts|worker_heartbeat_at)": [\d.]+', "", text) for text in said]
        assert without_times[0] == without_times[1], command
