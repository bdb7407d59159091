"""Run with `python -m pytest`. The fixture `pyoco_server` is a whole server in memory, for one test."""

import json
from pathlib import Path

import pytest
from pyoco_server.http_client import RunFailed

ROOT = Path(__file__).parents[1]
DAY_SEC = 86_400


def test_extract_keeps_the_valid_sales(pyoco_server):
    rows = pyoco_server.run("extract", {"ym": "2026-03"})["valid_sales"]
    assert [row["amount"] for row in rows] == [1200, 1800]
    assert {row["ym"] for row in rows} == {"2026-03"}


def test_report_sums_them_up(pyoco_server):
    rows = [{"amount": 1200}, {"amount": 1800}]
    assert pyoco_server.run("report", {"rows": rows, "title": "March"}) == {
        "text": "March: 2 sales, 3,000 in all"
    }


def test_a_sale_without_an_amount_fails_the_run(pyoco_server):
    with pytest.raises(RunFailed, match="KeyError: 'amount'"):
        pyoco_server.run("report", {"rows": [{}]})


def test_the_flow_file_runs(pyoco_server):
    submitted = pyoco_server.client.submit_run_yaml(ROOT / "flow.yaml", flow_name="sales-by-file")
    pyoco_server.settle()
    run = pyoco_server.client.get_run(submitted["run_id"])
    assert run["status"] == "COMPLETED"
    assert pyoco_server.log(run["run_id"]).startswith("reading the sales of 2026-02\n")


@pytest.fixture
def monthly_sales(pyoco_server):
    """The graph, the action and the template, as the README registers them."""
    pyoco_server.client.put_graph("monthly-sales", ROOT / "graphs/monthly-sales.yaml")
    events = pyoco_server.client.events
    events.put_action("monthly-sales", json.loads((ROOT / "actions/monthly-sales.json").read_text()))
    events.put_template("monthly-sales", json.loads((ROOT / "templates/monthly-sales.json").read_text()))
    return pyoco_server.client


def test_an_event_starts_the_graph_and_the_report_waits_for_approval(pyoco_server, monthly_sales):
    monthly_sales.events.send(template_id="monthly-sales", idempotency_key="2026-03", year=2026, month=3)
    pyoco_server.settle()
    [wait] = monthly_sales.executions.waits()["items"]
    assert wait["prompt"] == "Send the report?"
    monthly_sales.executions.resume(wait["execution_id"], "approve", {"ok": True})
    pyoco_server.settle()
    ended = monthly_sales.executions.get(wait["execution_id"])
    assert ended["status"] == "COMPLETED"
    assert ended["nodes"]["report"]["output"] == {"text": "Sales of 2026-03: 2 sales, 3,000 in all"}


def test_without_an_approval_the_execution_fails_after_a_day(pyoco_server, monthly_sales):
    started = monthly_sales.executions.create("monthly-sales", {"ym": "2026-03"})
    pyoco_server.settle()
    pyoco_server.advance(DAY_SEC)
    assert monthly_sales.executions.get(started["execution_id"])["status"] == "FAILED"
