"""The page about chaos says what the kept results say, and the figures on it are counted rightly."""

import json
from pathlib import Path

import pytest

import networks
import pages
from campaigns import CAMPAIGNS
from figures import descendants_of, slope, taken_by
from network_faults import a_node_is_cut_off
from reports import FULL, SHORT, Report
from support.programs import proc


def test_the_page_is_made_of_the_results_that_are_kept() -> None:
    assert pages.PAGE.read_text() == pages.page(pages.remembered(), list(CAMPAIGNS))


def test_a_result_stands_beside_the_earlier_ones(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(pages, "RESULTS", tmp_path / "results.json")
    monkeypatch.setattr(pages, "PAGE", tmp_path / "page.md")
    order = ["workers", "nats", "soak"]
    for name, seed in (("nats", 1), ("workers", 2), ("nats", 3)):
        report = Report("F5", f"{name} dies", ["some facts"], ["something"] if seed == 1 else [])
        pages.remember({name: pages.result_of(name, report, seed, SHORT)}, order)
    assert list(json.loads(pages.RESULTS.read_text())) == ["workers", "nats"]
    page = pages.PAGE.read_text()
    assert "seed 3" in page
    assert "seed 1;" not in page
    assert "broken" not in page.partition("## What")[0].partition("| fault")[2]
    assert "Never run so far: soak." in page


def test_what_could_not_be_tried_is_no_success() -> None:
    report = Report("F6", "cut off", left_out="needs root")
    assert pages.result_of("partition", report, 1, SHORT).verdict == "left out: needs root"


async def test_without_root_the_networks_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    report = await a_node_is_cut_off(1, SHORT)
    assert networks.NEEDS in report.left_out
    assert report.broken == []


def test_the_full_size_asks_for_a_hundred_faults() -> None:
    assert (FULL.acts, FULL.executions, FULL.events, FULL.min_faults) == (10_000, 1_000, 1_000, 100)


def test_a_slope_is_told_per_hour_with_its_error() -> None:
    rising = slope([(second, 100 + second / 3600) for second in range(0, 3600, 30)])
    assert (round(rising.per_hour, 6), round(rising.error, 6)) == (1.0, 0.0)
    assert slope([(0.0, 5.0), (30.0, 7.0), (60.0, 5.0)]).per_hour == 0.0


def test_a_process_takes_memory_and_files_and_one_that_has_gone_takes_none() -> None:
    proc()
    mine = taken_by([1 << 22, *descendants_of(0)])
    assert mine.rss_mb > 0
    assert mine.processes > 0
