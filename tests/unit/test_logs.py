"""REQ-0013: logs in which an error's origin can be found."""

import io
import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest
import structlog

from pyoco_server.errors import DlqPublishFailed, RunNotFound
from pyoco_server.logs import best_effort, configure_logging, get_logger

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


def test_a_line_says_what_happened_where_and_in_which_program(stream: io.StringIO) -> None:
    configure_logging(service="pyoco-server:worker", stream=stream)
    log.info("run claimed", action="run.claimed", run_id="r1")
    (line,) = lines(stream)
    assert list(line)[:5] == ["ts", "level", "service", "message", "action"]
    assert line["ts"].endswith("Z")
    assert (line["level"], line["service"]) == ("info", "pyoco-server:worker")
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
    assert (line["level"], line["exc_type"]) == ("error", "ValueError")
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


def test_local_time_has_no_utc_mark(stream: io.StringIO) -> None:
    configure_logging(service="s", stream=stream, utc=False)
    log.info("now")
    assert not lines(stream)[0]["ts"].endswith("Z")


def test_fields_bound_to_the_context_are_on_every_line(stream: io.StringIO) -> None:
    configure_logging(service="s", stream=stream)
    with structlog.contextvars.bound_contextvars(run_id="r1", worker_id="w1"):
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


def test_best_effort_work_logs_its_failure_under_its_action(stream: io.StringIO) -> None:
    configure_logging(service="s", stream=stream)
    with best_effort(log, "dlq.publish", DlqPublishFailed, run_id="r1"):
        fail_deep_inside()
    (line,) = lines(stream)
    assert (line["action"], line["err_id"], line["run_id"]) == ("dlq.publish", "ERR-PYOCO-0011", "r1")
    assert (line["exc_type"], line["level"]) == ("ValueError", "warning")


def test_best_effort_work_does_not_hide_that_the_program_is_stopping(stream: io.StringIO) -> None:
    configure_logging(service="s", stream=stream)
    with pytest.raises(KeyboardInterrupt), best_effort(log, "x", DlqPublishFailed):
        raise KeyboardInterrupt
    assert lines(stream) == []
