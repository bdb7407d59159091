"""What `pyoco-server demo --fill` puts into an installation: a web shop on an ordinary day."""

import time
from typing import Any

from pyoco_server.http_client import PyocoHttpClient

CLOSE: dict[str, Any] = {
    "nodes": {
        "extract": {"type": "task", "flow": "nightly-report"},
        "split": {"type": "fork"},
        "match_bank": {"type": "task", "flow": "orders-import", "params": {"customer": "bank"}},
        "match_cards": {"type": "task", "flow": "orders-import", "params": {"customer": "cards"}},
        "gather": {"type": "join"},
        "approve": {
            "type": "wait",
            "prompt": "Close the books of ${input.month}?",
            "wait_key": "${input.month}",
            "timeout_sec": 86_400,
        },
        "book": {"type": "task", "flow": "nightly-report"},
        "reopen": {"type": "task", "flow": "nightly-report"},
    },
    "edges": [
        {"from": "extract", "to": "split"},
        {"from": "split", "to": "match_bank"},
        {"from": "split", "to": "match_cards"},
        {"from": "match_bank", "to": "gather"},
        {"from": "match_cards", "to": "gather"},
        {"from": "gather", "to": "approve"},
        {"from": "approve", "to": "book", "when": "nodes.approve.output.ok == true"},
        {"from": "approve", "to": "reopen", "when": "nodes.approve.output.ok == false"},
    ],
}
REFUND: dict[str, Any] = {
    "nodes": {
        "score": {"type": "task", "flow": "fraud-score", "params": {"order": "${input.order}"}},
        "decide": {"type": "wait", "prompt": "Refund order ${input.order}?", "timeout_sec": 7200},
        "pay": {"type": "task", "flow": "nightly-report"},
    },
    "edges": [{"from": "score", "to": "decide"}, {"from": "decide", "to": "pay"}],
}
CUSTOMERS = ("acme", "globex", "initech", "umbrella")
CURRENCIES = ("EUR", "USD", "JPY", "EUR", "XTS")
"""There is no rate for the last one: one in five scores fails."""
SETTLE_SEC = 120.0


def fill(client: PyocoHttpClient) -> None:
    _settings(client)
    history = _history(client)
    _executions(client)
    _until_settled(client, history)
    _present(client)


def _settings(client: PyocoHttpClient) -> None:
    client.put_graph("monthly-close", CLOSE)
    client.put_graph("refund", REFUND)
    flows = client.flows
    flows.put(
        "orders-import", description="Orders of a customer, every quarter of an hour", owner="shop-team"
    )
    flows.put("fraud-score", description="Scores an order", owner="risk-team", timeout_sec=120)
    flows.put("nightly-report", description="Sales, returns and stock of the day before", owner="finance")
    schedules = client.schedules
    report = {"flow": "nightly-report", "timeout_sec": 600}
    schedules.put("nightly-report", report, cron="30 2 * * *", timezone="Asia/Tokyo")
    orders = {"flow": "orders-import", "params": {"customer": "acme"}}
    schedules.put("orders-import", orders, every_sec=900, timezone="UTC")
    schedules.put("month-end-close", {"graph": "monthly-close"}, cron="0 6 L * *", timezone="Asia/Tokyo")
    schedules.put("stock-sync", {"flow": "nightly-report"}, cron="0 */2 * * *", timezone="Europe/Berlin")
    schedules.pause("stock-sync", "the supplier's API is down until Thursday")
    schedules.trigger("nightly-report")
    client.limits.put("per-customer", {"flow": "orders-import"}, key="params.customer", max_running=2)
    rate = {"count": 60, "per_sec": 60}
    client.limits.put(
        "exchange-rates", {"flow": "fraud-score"}, rate=rate, description="Contract with the bank"
    )


def _history(client: PyocoHttpClient) -> list[str]:
    imports = [
        {"flow_name": "orders-import", "params": {"customer": CUSTOMERS[n % 4], "orders": 8 + n % 7}}
        for n in range(24)
    ]
    scores = [
        {"flow_name": "fraud-score", "params": {"order": 1000 + n, "currency": CURRENCIES[n % 5]}}
        for n in range(20)
    ]
    reports = [
        {"flow_name": "nightly-report", "params": {"day": f"2026-11-{day:02}"}} for day in range(10, 18)
    ]
    misspelled = [{"flow_name": "fraud-scores"}]
    accepted = client.submit_runs([*imports, *scores, *reports, *misspelled])
    return [run["run_id"] for run in accepted["results"]]


def _executions(client: PyocoHttpClient) -> None:
    create = client.executions.create
    closing = [create("monthly-close", {"month": f"2026-{month:02}"}) for month in (9, 10, 11)]
    for order in (1042, 1077):
        create("refund", {"order": order})
    september = closing[0]["execution_id"]
    for event in client.executions.watch(september):
        if event["type"] == "NODE_WAITING":
            break
    client.executions.resume(september, "approve", {"ok": True}, resume_key="2026-09")


def _until_settled(client: PyocoHttpClient, run_ids: list[str]) -> None:
    """All that can end has ended; what waits, waits."""
    ends_at = time.monotonic() + SETTLE_SEC
    for run_id in run_ids:
        left = ends_at - time.monotonic()
        if left <= 0:
            return
        for _ in client.watch_run(run_id, timeout_sec=left):
            pass


def _present(client: PyocoHttpClient) -> None:
    """What goes on now, and what is stuck."""
    client.submit_run("search-index", {"batches": 900})
    client.submit_runs([{"flow_name": "train-model", "tag": "gpu-a100"} for _ in range(6)])
    client.submit_run("nightly-report", {"day": "2026-11-18"}, delay_sec=5400)
    client.pause_queue("reports", reason="disk of the report server is being replaced")
    failed = client.list_runs(status="FAILED", flow="fraud-score", limit=2)
    client.bulk.start("retry", ids=[run["run_id"] for run in failed])
