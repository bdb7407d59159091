"""Flows to be looked at: branches, failures, many tasks, and texts that want to be more than text."""

import base64
import time
from pathlib import Path
from typing import Any

from pyoco import Flow, task

from pyoco_server import artifact, log, progress
from support.process_flows import LOOK_SEC, mark, wait_for

HOSTILE = "</script><img src=x onerror=document.title='owned'>\x1b[31m\u202eevil"


def _task(name: str, work: Any) -> Any:
    work.__name__ = name
    return task(work)


def report() -> Flow:
    """Two branches; it prints, and returns something."""

    @task
    def fetch(rows: int = 3) -> list[int]:
        print(f"fetched {rows} rows")  # noqa: T201
        return list(range(rows))

    @task
    def double(fetch: list[int]) -> list[int]:
        return [2 * number for number in fetch]

    @task
    def square(fetch: list[int]) -> list[int]:
        return [number * number for number in fetch]

    @task
    def total(double: list[int], square: list[int]) -> dict[str, int]:
        return {"double": sum(double), "square": sum(square)}

    return Flow(name="report") >> fetch >> [double, square] >> total


def gated() -> Flow:
    """Stops in its second task until the test lets it go on, or it is cancelled."""

    @task
    def begin(marks: str) -> str:
        print("begun")  # noqa: T201
        mark(marks, "begun")
        return "begun"

    @task
    def wait(ctx: Any, marks: str, gate: str = "go") -> str:
        while not ctx.is_cancelled:
            try:
                wait_for(marks, gate, patience=LOOK_SEC)
            except TimeoutError:
                continue
            print("the gate is open")  # noqa: T201
            return "passed"
        return "cancelled"

    @task
    def end() -> str:
        return "ended"

    return Flow(name="gated") >> begin >> wait >> end


def failing() -> Flow:
    @task
    def load() -> int:
        return 1

    @task
    def divide(load: int) -> float:
        return load / 0

    return Flow(name="failing") >> load >> divide


def mended() -> Flow:
    """Fails until the test has made a mark."""

    @task
    def load() -> list[int]:
        return [1, 2, 3]

    @task
    def check(load: list[int], marks: str, gate: str) -> int:
        if not (Path(marks) / gate).exists():
            raise RuntimeError(f"the supplier's file has not arrived: {gate}")
        return sum(load)

    return Flow(name="mended") >> load >> check


def opaque() -> Flow:
    """Fails behind an output that is not kept exactly."""

    @task
    def load() -> set[int]:
        return {1}

    @task
    def divide() -> float:
        return 1 / 0

    return Flow(name="opaque") >> load >> divide


def warned() -> Flow:
    """Its result is too large to be kept."""

    @task
    def load() -> str:
        return "x" * 1_000_000

    return Flow(name="warned") >> load


def hostile() -> Flow:
    def work() -> None:
        print(HOSTILE)  # noqa: T201
        raise RuntimeError(HOSTILE)

    return Flow(name="hostile") >> _task(f"task {HOSTILE}", work)


def many() -> Flow:
    """200 tasks in layers."""

    def made(name: str) -> Any:
        def work() -> float:
            time.sleep(0.001)
            return 1.0

        return _task(name, work)

    flow = Flow(name="many") >> made("plan")
    for layer in range(9):
        flow = flow >> [made(f"part_{layer}_{number}") for number in range(22)]
    return flow >> made("collect")


def chatty() -> Flow:
    """Prints a lot; with a gate, one line more when the test lets it."""

    @task
    def talk(lines: int, marks: str = "", gate: str = "") -> None:
        for number in range(lines):
            print(f"line {number:05d} of many")  # noqa: T201
        if gate:
            wait_for(marks, gate)
            print("the last line")  # noqa: T201

    return Flow(name="chatty") >> talk


PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPj/HwADBwIAMCbHYQAAAABJRU5ErkJggg=="
)
NOTES = """# Sales

Fell in **June**, see [the report](https://example.org/june) and `rows.csv`:

- one <b>shop</b> closed
- *two* opened

| month | sales |
|---|---:|
| May | 12 |
"""
PAGE = f"""<!doctype html><style>h1 {{ color: rgb(0, 128, 0) }}</style><h1>Sales of June</h1>
<p>{HOSTILE}</p><script>parent.document.title = "owned"</script><img src="/health">"""


def saving() -> Flow:
    """Uses the helpers of tasks; with a gate, it stops in the middle until the test lets it go on."""

    @task
    def load(marks: str = "", gate: str = "") -> int:
        log("loaded", rows=1204, source="orders.csv")
        log("rows without a price", level="warning", rows=3, hostile=HOSTILE)
        log("cannot reach the archive", level="error")
        progress(0.42, "row 505 of 1204")
        if gate:
            wait_for(marks, gate)
        return 1204

    @task
    def draw(load: int) -> None:
        artifact.save("report.html", PAGE.encode())
        artifact.save("rows.csv", b'shop,sales\n"Sapporo, north",1204\nOsaka,7\n')
        artifact.save("notes.md", NOTES.encode())
        artifact.save("totals.json", b'{"sales": 1211, "shops": ["Sapporo", "Osaka"]}')
        artifact.save("pixel.png", PIXEL)
        artifact.save("long.txt", b"0123456789abcde\n" * 20_000)
        artifact.save("model.bin", b"\x00\x01")

    return Flow(name="saving") >> load >> draw


_FLOWS = {
    maker.__name__: maker for maker in (report, gated, failing, mended, opaque, many, chatty, warned, saving)
} | {f"hostile {HOSTILE}": hostile}


def resolve(name: str) -> Flow:
    return _FLOWS[name]()


resolve.list_flows = lambda: list(_FLOWS)  # type: ignore[attr-defined]
