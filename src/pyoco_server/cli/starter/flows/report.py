"""The flow `report`: sums up the sales and formats a summary."""

from typing import Any

from pyoco import Flow, task


@task
def totals(rows: list[dict[str, Any]]) -> dict[str, int]:
    return {"count": len(rows), "amount": sum(row["amount"] for row in rows)}


@task
def text(totals: dict[str, int], title: str = "Sales") -> str:
    return f"{title}: {totals['count']} sales, {totals['amount']:,} in all"


report = Flow(name="report") >> totals >> text
