"""The flow of `pyoco-server demo`: three tasks, slow enough to watch."""

import time

from pyoco import Flow, task

from pyoco_server.engine.resolve import UnknownFlow


@task
def fetch(rows: int = 3) -> list[int]:
    print(f"fetching {rows} rows")  # noqa: T201 - part of the demo
    time.sleep(0.4)
    return list(range(1, rows + 1))


@task
def square(fetch: list[int]) -> list[int]:
    time.sleep(0.6)
    return [number * number for number in fetch]


@task
def report(square: list[int]) -> dict[str, int]:
    time.sleep(0.3)
    return {"rows": len(square), "sum": sum(square)}


def resolve(flow_name: str) -> Flow:
    if flow_name != "sample":
        raise UnknownFlow(flow_name, ["sample"])
    return Flow(name="sample") >> fetch >> square >> report


resolve.list_flows = lambda: ["sample"]  # type: ignore[attr-defined]
