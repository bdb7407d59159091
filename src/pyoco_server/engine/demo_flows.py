"""The flows of `pyoco-server demo --fill`: those of a web shop, some of which fail."""

import time
from collections.abc import Callable
from typing import Any

from pyoco import Flow, task

from pyoco_server.engine.resolve import UnknownFlow

STEP_SEC = 0.15


def _say(text: str) -> None:
    print(text)  # noqa: T201 - what a flow prints is its log
    time.sleep(STEP_SEC)


def orders_import() -> Flow:
    @task
    def fetch(customer: str = "acme", orders: int = 12) -> list[int]:
        _say(f"GET /orders?customer={customer}: {orders} orders")
        return list(range(1, orders + 1))

    @task
    def validate(fetch: list[int]) -> list[int]:
        _say(f"{len(fetch)} orders are valid")
        return fetch

    @task
    def store(validate: list[int]) -> int:
        _say(f"{len(validate)} rows written")
        return len(validate)

    @task
    def notify(validate: list[int]) -> str:
        _say("the warehouse was notified")
        return f"{len(validate)} parcels"

    @task
    def summary(store: int, notify: str) -> dict[str, Any]:
        return {"stored": store, "notified": notify}

    return Flow(name="orders-import") >> fetch >> validate >> [store, notify] >> summary


def nightly_report() -> Flow:
    @task
    def extract(day: str = "2026-11-17") -> dict[str, int]:
        _say(f"reading the books of {day}")
        return {"sales": 1284, "returns": 31, "stock": 90210}

    @task
    def sales(extract: dict[str, int]) -> int:
        _say("\x1b[32mok\x1b[0m sales")
        return extract["sales"]

    @task
    def returns(extract: dict[str, int]) -> int:
        _say("\x1b[33mwarning\x1b[0m 31 returns, 12 more than usual")
        time.sleep(2 * STEP_SEC)
        return extract["returns"]

    @task
    def stock(extract: dict[str, int]) -> int:
        _say("\x1b[32mok\x1b[0m stock")
        time.sleep(4 * STEP_SEC)
        return extract["stock"]

    @task
    def combine(sales: int, returns: int, stock: int) -> dict[str, int]:
        _say("report written")
        return {"sales": sales, "returns": returns, "stock": stock}

    return Flow(name="nightly-report") >> extract >> [sales, returns, stock] >> combine


def fraud_score() -> Flow:
    @task
    def load(order: int = 1, currency: str = "EUR") -> dict[str, Any]:
        _say(f"order {order}, {currency}")
        return {"order": order, "currency": currency}

    @task
    def rate(load: dict[str, Any]) -> float:
        rates = {"EUR": 1.0, "JPY": 0.0061, "USD": 0.92}
        _say(f"looking up {load['currency']}")
        if load["currency"] not in rates:
            raise LookupError(f"no exchange rate for {load['currency']}")
        return rates[load["currency"]]

    @task
    def score(load: dict[str, Any], rate: float) -> dict[str, float]:
        _say("scored")
        return {"score": round(0.07 * load["order"] * rate % 1, 3)}

    return Flow(name="fraud-score") >> load >> rate >> score


def search_index() -> Flow:
    @task
    def plan(batches: int = 400) -> int:
        _say(f"{batches} batches to index")
        return batches

    @task
    def index(ctx: Any, plan: int) -> int:
        for batch in range(plan):
            if ctx.is_cancelled:
                break
            print(f"batch {batch + 1} of {plan}: 500 products")  # noqa: T201 - what a flow prints is its log
            time.sleep(1)
        return plan

    @task
    def publish(index: int) -> str:
        return f"{index} batches are live"

    return Flow(name="search-index") >> plan >> index >> publish


FLOWS: dict[str, Callable[[], Flow]] = {
    "orders-import": orders_import,
    "nightly-report": nightly_report,
    "fraud-score": fraud_score,
    "search-index": search_index,
}


def resolve(flow_name: str) -> Flow:
    if flow_name not in FLOWS:
        raise UnknownFlow(flow_name, list(FLOWS))
    return FLOWS[flow_name]()


resolve.list_flows = lambda: list(FLOWS)  # type: ignore[attr-defined]
