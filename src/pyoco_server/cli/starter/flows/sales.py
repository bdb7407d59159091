"""The flow `extract`: reads the sales of a month and keeps the valid ones."""

from typing import Any

from pyoco import Flow, task


@task
def read_sales(ym: str = "2026-01") -> list[dict[str, Any]]:
    """Replace with your database or file; `ym` is a parameter of the run."""
    print(f"reading the sales of {ym}")
    return [
        {"ym": ym, "item": "tea", "amount": 1200},
        {"ym": ym, "item": "coffee", "amount": 1800},
        {"ym": ym, "item": "returned", "amount": -300},
    ]


@task
def valid_sales(read_sales: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """An argument named after a task receives that task's result."""
    valid = [sale for sale in read_sales if sale["amount"] > 0]
    print(f"{len(valid)} of {len(read_sales)} are valid")
    return valid


extract = Flow(name="extract") >> read_sales >> valid_sales
