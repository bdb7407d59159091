"""Flows that make spans of their own, as users' code does."""

import random
import time
from pathlib import Path
from typing import Any

from opentelemetry import trace
from pyoco import Flow, task

tracer = trace.get_tracer("shop")


@task
def load(marks: str = "", **_: Any) -> str:
    random.seed(1)  # ids of spans must not depend on it
    trace.get_current_span().set_attribute("shop.rows", 3)
    with tracer.start_as_current_span("query", attributes={"db.system": "sqlite"}) as span:
        span.add_event("fetched")
    if marks:
        (Path(marks) / "in-load").touch()
        while not (Path(marks) / "go").exists():
            time.sleep(0.01)
    return "loaded"


@task
async def send() -> str:
    with tracer.start_as_current_span("post"):
        return "sent"


@task
def refuse(token: str = "") -> str:
    raise ValueError(f"refused with {token}")


@task
def left() -> int:
    with tracer.start_as_current_span("in-left"):
        return 1


@task
def right() -> int:
    with tracer.start_as_current_span("in-right"):
        return 2


@task
def use(token: str) -> int:
    trace.get_current_span().set_attribute("shop.token", token)
    with tracer.start_as_current_span(f"send {token}", attributes={"auth": ("basic", token)}) as span:
        span.add_event("sent", {"url": f"https://shop/?t={token}"})
        with tracer.start_as_current_span("answer") as inner:
            inner.set_status(trace.StatusCode.ERROR, f"{token} is refused")
    return 1


FLOWS = {
    "using": lambda: Flow(name="using") >> use,
    "shop": lambda: Flow(name="shop") >> load >> send,
    "refusing": lambda: Flow(name="refusing") >> refuse,
    "beside": lambda: Flow(name="beside") >> (left & right),
}


def resolve(name: str) -> Flow:
    return FLOWS[name]()
