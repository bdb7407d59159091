"""REQ-0013: logs in which an error's origin can be found."""

import io
import json
import logging
import re
import time
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import pytest

from pyoco_server.errors import ConfigError, DlqPublishFailed, NatsUnavailable, RunNotFound
from pyoco_server.logs import best_effort, bound_fields, configure_logging, get_logger, surviving

log = get_logger("tests.logs")


@pytest.fixture(autouse=True)
def _restored_logging() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers, root.level
    yield
    root.handlers, root.level = handlers, level


@pytest.fixture
def stream() -> io.StringIO:
    return io.StringIO()


def lines(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def fail_deep_inside() -> None:
    raise ValueError("the cause\nin two lines")


def fail(error: Exception) -> None:
    raise error


def test_a_line_says_what_happened_where_and_in_which_program(stream: io.StringIO) -> None:
    configure_logging(service="pyoco-server:worker", stream=stream)
    log.info("run claimed", action="run.claimed", run_id="r1")
    (line,) = lines(stream)
    assert list(line)[:5] == ["ts", "level", "service", "message", "action"]
    assert line["ts"].endswith("Z")
    assert (line["level"], line["service"]) == ("INFO", "pyoco-server:worker")
    assert (line["message"], line["action"], line["run_id"]) == ("run claimed", "run.claimed", "r1")
    assert (line["logger"], line["pathname"]) == ("tests.logs", __file__)
    assert line["func"] == "test_a_line_says_what_happened_where_and_in_which_program"
    assert line["lineno"] > 0


def test_an_exception_is_told_with_its_type_text_traceback_and_origin(stream: io.StringIO) -> None:
    configure_logging(service="pyoco-server:http", stream=stream)
    try:
        fail_deep_inside()
    except ValueError:
        log.exception("it failed")
    (line,) = lines(stream)
    assert (line["level"], line["exc_type"]) == ("ERROR", "ValueError")
    assert line["exc_message"] == "the cause\nin two lines"
    assert line["exc_origin"].startswith(f"{__file__}:")
    assert line["exc_origin"].endswith(" fail_deep_inside")
    assert line["exc_traceback"].startswith("Traceback (most recent call last)")


def test_an_error_of_ours_brings_its_ids(stream: io.StringIO) -> None:
    configure_logging(service="s", stream=stream)
    log.warning("refused", exc_info=RunNotFound())
    (line,) = lines(stream)
    assert (line["err_id"], line["msg_id"]) == ("ERR-PYOCO-0005", "MSG-PYOCO-0005")


def test_the_traceback_can_be_left_out_and_the_origin_stays(stream: io.StringIO) -> None:
    configure_logging(service="s", stream=stream, include_traceback=False)
    try:
        fail_deep_inside()
    except ValueError:
        log.exception("it failed")
    (line,) = lines(stream)
    assert "exc_traceback" not in line
    assert line["exc_origin"].endswith(" fail_deep_inside")


def test_loggers_of_libraries_come_out_the_same_way(stream: io.StringIO) -> None:
    configure_logging(service="s", stream=stream)
    try:
        fail_deep_inside()
    except ValueError:
        logging.getLogger("some.library").exception("a %s", "library")
    (line,) = lines(stream)
    assert (line["message"], line["logger"], line["service"]) == ("a library", "some.library", "s")
    assert (line["exc_type"], line["func"]) == (
        "ValueError",
        "test_loggers_of_libraries_come_out_the_same_way",
    )


def test_levels_below_the_chosen_one_and_chatter_of_libraries_are_left_out(stream: io.StringIO) -> None:
    configure_logging(service="s", stream=stream, level="INFO")
    log.debug("not this")
    logging.getLogger("nats").info("nor this")
    logging.getLogger("nats").warning("but this")
    assert [line["message"] for line in lines(stream)] == ["but this"]


def test_local_time_has_its_offset(stream: io.StringIO, monkeypatch: pytest.MonkeyPatch) -> None:
    """D31."""
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    try:
        configure_logging(service="s", stream=stream, utc=False)
        log.info("now")
    finally:
        monkeypatch.undo()
        time.tzset()
    written = lines(stream)[0]["ts"]
    assert written.endswith("+09:00")
    assert abs(datetime.fromisoformat(written).timestamp() - time.time()) < 60


def test_fields_bound_to_the_context_are_on_every_line(stream: io.StringIO) -> None:
    configure_logging(service="s", stream=stream)
    with bound_fields(run_id="r1", worker_id="w1"):
        log.info("inside")
    log.info("outside")
    inside, outside = lines(stream)
    assert (inside["run_id"], inside["worker_id"]) == ("r1", "w1")
    assert "run_id" not in outside


def test_a_value_that_json_cannot_hold_is_logged_as_its_repr(stream: io.StringIO) -> None:
    configure_logging(service="s", stream=stream)
    log.info("odd", value=1j, text="日本語")
    assert "日本語" in stream.getvalue()
    assert lines(stream)[0]["value"] == "1j"


@pytest.mark.parametrize("value", [{(1, 2): 3}, "half \ud800", float("nan")])
def test_no_line_is_lost_for_what_stands_in_it(stream: io.StringIO, value: Any) -> None:
    configure_logging(service="s", stream=stream)
    log.info("odd", value=value)
    assert lines(stream)[0]["message"] == "odd"


def test_the_text_format_is_one_readable_line(stream: io.StringIO) -> None:
    configure_logging(service="s", stream=stream, log_format="text")
    log.warning("run failed", action="run.failed", run_id="r1")
    line = stream.getvalue()
    assert line[8:] == " WARNING run failed  action=run.failed  run_id=r1\n"


@pytest.mark.parametrize(
    "evil", ["a\nERROR forged", "a\rb", "\x1b[31mred", "a\x00b", "\u202ereversed", "a\u2028b"]
)
def test_a11_the_text_format_neutralises_control_characters(stream: io.StringIO, evil: str) -> None:
    configure_logging(service="s", stream=stream, log_format="text")
    log.info(evil, value=evil)
    written = stream.getvalue()
    assert written.count("\n") == 1
    assert all(c.isprintable() for c in written.rstrip("\n"))


def test_a_traceback_in_the_text_format_forges_no_line(stream: io.StringIO) -> None:
    """D16: what an exception says cannot colour the terminal or look like a line of its own."""
    configure_logging(service="s", stream=stream, log_format="text")
    try:
        raise ValueError("\x1b[31mred\n12:00:00 ERROR   forged\rhidden")
    except ValueError:
        log.exception("it failed")
    first, *rest = stream.getvalue().rstrip("\n").split("\n")
    assert " ERROR   it failed " in first
    assert rest
    assert all(line.startswith("    ") and line.isprintable() for line in rest)
    assert any("forged" in line for line in rest)


def test_the_text_format_has_no_traceback_of_what_is_no_error(stream: io.StringIO) -> None:
    """D44: twenty lines for a mistyped id would bury everything else in a terminal."""
    configure_logging(service="s", stream=stream, log_format="text")
    log.info("request refused", exc_info=RunNotFound())
    (line,) = stream.getvalue().splitlines()
    assert "exc_type=RunNotFound  exc_message=run not found" in line


def test_a_traceback_of_another_process_is_left_out_as_well(stream: io.StringIO) -> None:
    """D31: PYOCO_LOG_INCLUDE_TRACEBACK=false prints none, wherever it comes from."""
    configure_logging(service="s", stream=stream, include_traceback=False)
    log.error("run failed", exc_type="ValueError", exc_traceback="Traceback (most recent call last)")
    (line,) = lines(stream)
    assert line["exc_type"] == "ValueError"
    assert "exc_traceback" not in line


@pytest.mark.parametrize(
    ("locale", "message", "detail"),
    [
        ("ja_JP.UTF-8", "NATSが利用できません", "lost the connection"),
        ("en_US.UTF-8", "lost the connection", None),
    ],
)
def test_the_message_of_an_id_is_in_the_language_of_the_locale(
    stream: io.StringIO, monkeypatch: pytest.MonkeyPatch, locale: str, message: str, detail: str | None
) -> None:
    """D31: the texts of the contract are Japanese; ids and fields are the same everywhere."""
    monkeypatch.setenv("LC_ALL", locale)
    configure_logging(service="s", stream=stream)
    log.warning("lost the connection", action="nats.disconnected", **NatsUnavailable().ids)
    (line,) = lines(stream)
    assert (line["message"], line.get("detail")) == (message, detail)
    assert (line["msg_id"], line["action"]) == ("MSG-PYOCO-0003", "nats.disconnected")


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.setenv("PYOCO_LOAD_DOTENV", "0")
    return monkeypatch


def test_the_level_comes_from_the_environment(stream: io.StringIO, environment: pytest.MonkeyPatch) -> None:
    """D32: PYOCO_LOG_LEVEL has its effect with `configure_logging(service=...)` alone."""
    environment.setenv("PYOCO_LOG_LEVEL", "warning")
    configure_logging(service="s", stream=stream)
    log.info("not this")
    log.warning("but this")
    assert [line["message"] for line in lines(stream)] == ["but this"]


def test_the_format_comes_from_the_environment(stream: io.StringIO, environment: pytest.MonkeyPatch) -> None:
    """D32: PYOCO_LOG_FORMAT."""
    environment.setenv("PYOCO_LOG_FORMAT", "text")
    configure_logging(service="s", stream=stream)
    log.info("readable")
    assert stream.getvalue()[8:] == " INFO    readable\n"


def test_the_time_zone_comes_from_the_environment(
    stream: io.StringIO, environment: pytest.MonkeyPatch
) -> None:
    """D32: PYOCO_LOG_UTC."""
    environment.setenv("PYOCO_LOG_UTC", "off")
    configure_logging(service="s", stream=stream)
    log.info("now")
    assert re.search(r"[+-]\d\d:\d\d$", lines(stream)[0]["ts"])


def test_tracebacks_are_switched_off_by_the_environment(
    stream: io.StringIO, environment: pytest.MonkeyPatch
) -> None:
    """D32: PYOCO_LOG_INCLUDE_TRACEBACK."""
    environment.setenv("PYOCO_LOG_INCLUDE_TRACEBACK", "false")
    configure_logging(service="s", stream=stream)
    log.warning("it failed", exc_info=RunNotFound())
    (line,) = lines(stream)
    assert line["exc_type"] == "RunNotFound"
    assert "exc_traceback" not in line


def test_a_setting_of_logs_that_cannot_be_used_is_named(environment: pytest.MonkeyPatch) -> None:
    environment.setenv("PYOCO_LOG_FORMAT", "xml")
    with pytest.raises(ConfigError, match="PYOCO_LOG_FORMAT='xml'"):
        configure_logging(service="s")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("chosen", "is_json"), [(None, False), ("json", True), ("text", False)])
def test_a_terminal_gets_text_unless_somebody_chose(
    environment: pytest.MonkeyPatch, chosen: str | None, *, is_json: bool
) -> None:
    """D44."""
    if chosen is not None:
        environment.setenv("PYOCO_LOG_FORMAT", chosen)
    terminal = Terminal()
    configure_logging(service="s", stream=terminal)
    log.info("hello")
    assert terminal.getvalue().startswith("{") == is_json


class BrokenStream(io.StringIO):
    def write(self, _text: str, /) -> int:
        raise OSError("no space left on device")


def test_a_stream_that_fails_costs_no_caller_and_is_said_once(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging(service="s", stream=BrokenStream())
    log.info("first")
    log.info("second")
    said = capsys.readouterr().err
    assert said.count("ERR-PYOCO-0013") == 1
    assert "MSG-PYOCO-0013" in said


@pytest.mark.parametrize("guard", [best_effort, surviving])
def test_an_expected_failure_is_logged_under_its_action(stream: io.StringIO, guard: Any) -> None:
    configure_logging(service="s", stream=stream)
    with guard(log, "dlq.publish", DlqPublishFailed, run_id="r1"):
        fail(NatsUnavailable())
    (line,) = lines(stream)
    assert (line["action"], line["err_id"], line["run_id"]) == ("dlq.publish", "ERR-PYOCO-0011", "r1")
    assert (line["exc_type"], line["level"]) == ("NatsUnavailable", "WARNING")


def test_best_effort_work_does_not_hide_a_bug(stream: io.StringIO) -> None:
    """D17: it catches what it names."""
    configure_logging(service="s", stream=stream)
    with pytest.raises(ValueError, match="the cause"), best_effort(log, "run.sweep", NatsUnavailable):
        fail_deep_inside()
    assert lines(stream) == []


def test_a_loop_survives_a_bug_and_logs_it_as_one(stream: io.StringIO) -> None:
    """D17: at level ERROR, with its traceback, and not as "NATS is not available"."""
    configure_logging(service="s", stream=stream)
    with surviving(log, "worker.heartbeat", NatsUnavailable, worker_id="w1"):
        fail_deep_inside()
    (line,) = lines(stream)
    assert (line["level"], line["action"], line["worker_id"]) == ("ERROR", "worker.heartbeat", "w1")
    assert line["exc_type"] == "ValueError"
    assert "fail_deep_inside" in line["exc_traceback"]
    assert "err_id" not in line


def test_best_effort_work_does_not_hide_that_the_program_is_stopping(stream: io.StringIO) -> None:
    configure_logging(service="s", stream=stream)
    with pytest.raises(KeyboardInterrupt), best_effort(log, "x", DlqPublishFailed):
        raise KeyboardInterrupt
    assert lines(stream) == []
