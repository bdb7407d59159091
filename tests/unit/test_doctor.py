"""REQ-0021: what the doctor makes of what it sees."""

import re
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

import pyoco_server
from pyoco_server.cli import Message
from pyoco_server.cli.doctor import (
    Finding,
    Level,
    check_clocks,
    check_disk,
    check_packages,
    check_page,
    check_settings,
    check_streams,
    check_workers,
    unknown_names,
)
from pyoco_server.cli.doctor_live import Problems
from pyoco_server.domain.fleet import WorkerRecord, WorkerState
from pyoco_server.jetstream.admin import NatsReport, StreamReport, WorkerReport

NOW = 1000.0
TIMEOUT = 20.0


def a_report(
    *workers: WorkerReport, waiting: dict[str, int] | None = None, streams: Any = "ok", ahead: float = 0.0
) -> NatsReport:
    return NatsReport(
        version="2.15.1",
        clock_ahead_sec=ahead,
        streams=[
            StreamReport(name="PYOCO_WORK", purpose="work queue", state=streams, differences="max_age 1")
        ],
        workers=list(workers),
        waiting=waiting or {},
    )


def a_worker(name: str, *tags: str, seen: float = NOW, clock: float = 0.0) -> WorkerReport:
    record = WorkerRecord(
        worker_id=name,
        instance_id="i",
        state=WorkerState.IDLE,
        tags=tags,
        last_seen_at=seen,
        last_heartbeat_at=seen,
    )
    return WorkerReport(record, clock)


def told(findings: list[Finding]) -> list[tuple[str, str]]:
    return [(finding.level, finding.fact) for finding in findings]


def test_workers_are_counted_by_tag() -> None:
    report = a_report(a_worker("a", "cpu", "default"), a_worker("b", "cpu"), waiting={"cpu": 3})
    assert told(check_workers(report, "default", NOW, TIMEOUT)) == [
        ("OK", "tag cpu: 2 live, queued jobs: 3"),
        ("OK", "tag default: 1 live, queued jobs: 0"),
    ]


@pytest.mark.parametrize("off", [-300.0, 300.0])
def test_f9_a_worker_whose_clock_is_wrong_counts_as_alive(off: float) -> None:
    report = a_report(a_worker("a", "default", seen=NOW + off, clock=off))
    assert told(check_workers(report, "default", NOW, TIMEOUT)) == [
        ("OK", "tag default: 1 live, queued jobs: 0")
    ]


def test_jobs_that_nobody_takes_are_a_failure_and_a_tag_without_both_a_warning() -> None:
    found = check_workers(a_report(waiting={"gpu": 2}), "default", NOW, TIMEOUT)
    assert told(found) == [
        ("WARN", "tag default: no live worker"),
        ("FAIL", "tag gpu: no live worker, queued jobs: 2"),
    ]
    assert found[1].advice == "start a worker: pyoco-worker --flows DIR --tags gpu"


def test_a_worker_that_fell_silent_is_named_and_not_counted() -> None:
    found = check_workers(a_report(a_worker("a", "default", seen=NOW - 21)), "default", NOW, TIMEOUT)
    assert told(found) == [("WARN", "tag default: no live worker"), ("WARN", "no heartbeat: a")]


@pytest.mark.parametrize(("ahead", "level"), [(0.5, "OK"), (-1.9, "OK"), (3.0, "WARN"), (-3.0, "WARN")])
def test_a_clock_that_is_off_is_a_warning(ahead: float, level: str) -> None:
    (ours,) = check_clocks(a_report(ahead=ahead))
    (theirs,) = check_clocks(a_report(a_worker("w1", clock=ahead)))
    assert (ours.level, theirs.level) == (level, level)
    if level == "WARN":
        assert ours.fact == f"the clock of this machine differs from NATS by {-ahead:+.1f} s"
        assert theirs.fact == f"the clock of worker w1 differs from NATS by {ahead:+.1f} s"


@pytest.mark.parametrize(
    ("state", "level"), [("ok", "OK"), ("missing", "WARN"), ("different", "WARN"), ("unusable", "FAIL")]
)
def test_streams_are_judged_by_whether_the_product_works_with_them(state: str, level: str) -> None:
    (found,) = check_streams(a_report(streams=state))
    assert found.level == level
    assert (found.advice is None) == (level == "OK")


def test_a_mistyped_setting_is_found_with_what_was_meant(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("PYOCO_DEFAULT_TAGG=x\nOTHER=1\n")
    found = check_settings({"PYOCO_NATS_URI": "x", "PYOCO_SERVER_URL": "y"})
    assert told(found) == [
        ("WARN", "PYOCO_DEFAULT_TAGG is not a setting"),
        ("WARN", "PYOCO_NATS_URI is not a setting"),
        ("OK", "2 set in the environment, .env loaded"),
    ]
    assert [finding.advice for finding in found[:2]] == [
        "did you mean PYOCO_DEFAULT_TAG?",
        "did you mean PYOCO_NATS_URL?",
    ]


def test_packages_that_do_not_fit_together_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    assert check_packages().level == "OK"
    real = metadata.version
    monkeypatch.setattr(metadata, "version", lambda name: "0.5" if name == "pyoco" else real(name))
    found = check_packages()
    assert (found.level, found.fact.startswith("pyoco 0.5: ")) == ("FAIL", True)


@pytest.mark.parametrize(("free", "level"), [(2**31, "OK"), (2**29, "WARN"), (2**20, "FAIL")])
def test_a_disk_that_fills_is_told_in_time(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, free: int, level: str
) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda _: type("Usage", (), {"free": free}))
    assert check_disk(tmp_path / "not" / "there").level == level


def test_a_missing_dashboard_is_a_warning(tmp_path: Path) -> None:
    """D40"""
    missing = check_page(tmp_path)
    assert (missing.level, missing.fact) == ("WARN", "missing from this installation")
    assert "make web" in (missing.advice or "")
    (tmp_path / "index.html").touch()
    assert check_page(tmp_path).level == "OK"


def test_programs_read_english_whatever_the_locale_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LC_ALL", "ja_JP.UTF-8")
    (found,) = check_clocks(a_report(ahead=9))
    assert "このマシン" in found.fact
    assert found.as_json() == {
        "check": "clock",
        "level": "WARN",
        "fact": "the clock of this machine differs from NATS by -9.0 s",
        "advice": "synchronize the clock (NTP): heartbeats, lists and timeouts compare times",
    }


def test_every_variable_that_a_command_reads_is_known() -> None:
    """D42: PYOCO_HTTP_PORT was called unknown."""
    read = re.compile(r'(?:environ(?:\.get)?[\[(]|env_var=|secret_variable\()"(PYOCO_\w+)"')
    source = Path(pyoco_server.__path__[0])
    found = {name for path in source.rglob("*.py") for name in read.findall(path.read_text())}
    assert {"PYOCO_HTTP_HOST", "PYOCO_HTTP_PORT", "PYOCO_SERVER_URL", "PYOCO_API_KEY"} <= found
    assert unknown_names({"PYOCO_LOAD_DOTENV": "0", **dict.fromkeys(found, "1")}) == []


# doctor --live


def levels(problems: Problems, *findings: Finding) -> list[tuple[str, str]]:
    return [(noticed.event, noticed.finding.fact.en) for noticed in problems.noticed(findings)]


def a_finding(level: Level, fact: str, subject: str | None = None) -> Finding:
    return Finding("workers", level, Message.of(fact, fact), subject=subject)


def test_problems_are_reported_when_they_appear_change_and_disappear() -> None:
    problems = Problems()
    fine, few = a_finding("OK", "tag cpu: 1 live"), a_finding("FAIL", "tag gpu: 1 queued", "gpu")
    assert levels(problems, fine, few) == [("appeared", "tag gpu: 1 queued")]
    assert levels(problems, fine, a_finding("FAIL", "tag gpu: 2 queued", "gpu")) == [], "only the figure"
    assert levels(problems, a_finding("WARN", "tag gpu: none live", "gpu")) == [
        ("changed", "tag gpu: none live")
    ]
    assert levels(problems, fine, a_finding("FAIL", "tag x: 1 queued", "x")) == [
        ("appeared", "tag x: 1 queued"),
        ("disappeared", "tag gpu: none live"),
    ]
    assert problems.count == 1


def test_findings_about_workers_and_clocks_stay_the_same_while_their_figures_change() -> None:
    keys = [
        [one.key for one in check_workers(a_report(waiting={"gpu": count}), "default", NOW, TIMEOUT)]
        for count in (1, 2)
    ]
    assert keys[0] == keys[1]
    assert [one.key for one in check_clocks(a_report(ahead=9.0))] == [
        one.key for one in check_clocks(a_report(ahead=10.0))
    ]
