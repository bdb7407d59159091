"""Templates, actions and events to start a test with, and a gateway that knows them."""

import asyncio
import hashlib
import hmac
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import httpx2
import msgspec
from msgspec.structs import replace

from pyoco_server.config import NatsBackendConfig
from pyoco_server.domain.events.audit import AuditRecord
from pyoco_server.domain.events.receipts import KeptResume, WaitPlace
from pyoco_server.domain.events.requests import ResumeTarget
from pyoco_server.domain.events.templates import Action, Step, Template, TriggerKind
from pyoco_server.errors import ExecutionNotFound
from pyoco_server.memory import MemoryGatewayBackend, open_memory_gateway_backend
from pyoco_server.usecases.audit_trail import AuditTrail
from pyoco_server.usecases.auth import ANONYMOUS
from pyoco_server.usecases.events.attempts import Answer, Attempt, Origin, Outcome
from pyoco_server.usecases.events.receive import Arrival, Credentials, ReceiveEvent
from pyoco_server.usecases.events.start import PATIENCE_SEC
from pyoco_server.usecases.ports.gateway import ExecutionOrder, Executions, Waits
from pyoco_server.usecases.runs.submit import SubmitRun
from pyoco_server.wiring import new_run_id
from pyoco_server.wiring.event_level import EventLevel, EventUseCases
from support.builders import NOW
from support.gateway import RunningGateway, memory_app
from support.waiting import until

URL = "/api/workflow-events"
TEMPLATES, SOURCES = "/api/workflow-templates", "/api/workflow-sources"
ACTION = "close.month"
SECRET = "a-secret-that-is-long-enough"  # noqa: S105
WEBHOOK = "https://chat.googleapis.com/v1/spaces/AAAAsecretspace/messages?key=KEYKEYKEY&token=TOKTOKTOK"


def a_template(action: str = ACTION, trigger: str = "external_event", **changes: Any) -> dict[str, Any]:
    steps = [{"id": "one", "action": action, "trigger_kind": trigger}]
    return {"name": "Close the month", "year": 2026, "month": 2, "steps": steps, **changes}


def without_month(action: str = ACTION, **changes: Any) -> dict[str, Any]:
    template = a_template(action, **changes)
    del template["year"], template["month"]
    return template


def from_github(body: bytes, event: str, **headers: str) -> dict[str, Any]:
    signature = hmac.new(SECRET.encode(), body, hashlib.sha256).hexdigest()
    return {
        "content": body,
        "headers": {
            "content-type": "application/json",
            "x-hub-signature-256": f"sha256={signature}",
            "x-github-event": event,
            **headers,
        },
    }


async def define(client: httpx2.AsyncClient, template_id: str = "close", **changes: Any) -> None:
    """A template that an event starts, and its action."""
    template = a_template(**changes)
    for step in template["steps"]:
        await put(client, f"/api/workflow-actions/{step['action']}", {"flow_name": "flow"})
    await put(client, f"/api/workflow-templates/{template_id}", template)


async def put(client: httpx2.AsyncClient, path: str, body: dict[str, Any], **headers: str) -> dict[str, Any]:
    answer = await client.put(path, json=body, headers=headers)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


@asynccontextmanager
async def events_gateway(**settings: Any) -> AsyncIterator[RunningGateway]:
    """With one template, `close`."""
    async with memory_app(**settings) as gateway:
        await define(gateway.client)
        yield gateway


def records(gateway: RunningGateway, event_type: str = "workflow_event") -> list[AuditRecord]:
    stored = gateway.backend.events.audit.events
    return [event.record for event in stored if event.record.event_type == event_type]


def lines_of(path: str) -> list[dict[str, Any]]:
    return [msgspec.json.decode(line) for line in Path(path).read_bytes().splitlines()]


def run_ids(gateway: RunningGateway) -> set[str]:
    return set(gateway.backend.runs._values)


async def run_params(gateway: RunningGateway, run_id: str) -> dict[str, Any]:
    stored = await gateway.backend.runs.get(run_id)
    assert stored is not None
    return stored.value.params


class RecordedExecutions:
    """Keeps what it is asked for. An order under the same id is the same execution."""

    def __init__(self) -> None:
        self.orders: dict[str, ExecutionOrder] = {}
        self.active: set[str] = set()

    async def start(self, order: ExecutionOrder) -> str:
        self.orders.setdefault(order.execution_id, order)
        self.active.add(order.execution_id)
        return f"first-run-of-{order.execution_id}"

    async def is_active(self, execution_id: str) -> bool | None:
        return execution_id in self.active if execution_id in self.orders else None


class NothingWaits:
    """There are no executions."""

    def find(self, _tenant_id: str | None, _target: ResumeTarget) -> list[WaitPlace]:
        return []

    async def resume(self, _kept: KeptResume, _place: WaitPlace) -> None:
        raise ExecutionNotFound

    async def next_wait(self, _seconds: float) -> bool:
        await asyncio.Event().wait()
        return False


class FakeClock:
    def __init__(self) -> None:
        self.now = NOW

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += seconds


@dataclass(frozen=True)
class EventsLab:
    """The use cases of events on a memory backend, with a clock of the test's own."""

    backend: MemoryGatewayBackend
    level: EventLevel
    use_cases: EventUseCases
    clock: FakeClock


@asynccontextmanager
async def events_lab(executions: Executions | None = None, **settings: Any) -> AsyncIterator[EventsLab]:
    config = NatsBackendConfig(audit_log_path="", **settings)
    async with open_memory_gateway_backend(config) as backend:
        yield on_memory(backend, config, FakeClock(), executions)


def on_memory(
    backend: Any,
    config: NatsBackendConfig,
    clock: FakeClock,
    executions: Executions | None = None,
    waits: Waits | None = None,
    repeat_patience_sec: float = PATIENCE_SEC,
) -> EventsLab:
    level = EventLevel(config, clock, new_run_id)
    use_cases = EventUseCases(
        backend=backend,
        config=config,
        level=level,
        submit_run=SubmitRun(backend.runs, backend.queue, clock, new_run_id),
        executions=executions or RecordedExecutions(),
        waits=waits or NothingWaits(),
        clock=clock,
        new_id=new_run_id,
        repeat_patience_sec=repeat_patience_sec,
        trail=AuditTrail(backend.change_log, clock, new_run_id),
    )
    level.connect(use_cases)
    return EventsLab(backend, level, use_cases, clock)


async def prepare(lab: EventsLab, **action: Any) -> None:
    """One template, whose action runs one at a time."""
    step = Step(id="one", action=ACTION, trigger_kind=TriggerKind.EXTERNAL_EVENT)
    await lab.use_cases.templates.put(
        Template(id="close", name="Close", steps=(step,), updated_at="", year=2026, month=2), None, ANONYMOUS
    )
    wanted = Action(key=ACTION, updated_at="", flow_name="flow", concurrency="one")
    await lab.use_cases.actions.put(replace(wanted, **action), ANONYMOUS)


async def send(receive: ReceiveEvent, body: dict[str, Any], token: str = "") -> Answer:
    """As the route does."""
    attempt = receive.begin(Origin())
    return await receive.audited(attempt, _received(receive, attempt, body, token))


async def _received(receive: ReceiveEvent, attempt: Attempt, body: dict[str, Any], token: str) -> Outcome:
    sender = await receive.admit(attempt, Credentials(token=token, caller=ANONYMOUS))
    return await receive(attempt, Arrival(sender=sender, headers={}, body=msgspec.json.encode(body)))


async def post(lab: EventsLab, key: str | None = "k", **fields: Any) -> Answer:
    return await send(lab.level.receive, {"idempotency_key": key, **fields} if key else fields)


class FakeGoogleChat:
    """On loopback, as `AX_GOOGLE_CHAT_BASE_URL`."""

    def __init__(self, status: int = 200, headers: dict[str, str] | None = None) -> None:
        self.requests: list[tuple[str, dict[str, Any]]] = []
        self.status = status
        self.headers = headers or {}

    @property
    def texts(self) -> list[str]:
        return [body["text"] for _, body in self.requests]

    async def heard(self, count: int) -> list[str]:
        async def look() -> list[str]:
            return self.texts

        return await until(look, lambda texts: len(texts) >= count)


@asynccontextmanager
async def google_chat(
    status: int = 200, headers: dict[str, str] | None = None
) -> AsyncIterator[tuple[str, FakeGoogleChat]]:
    chat = FakeGoogleChat(status, headers)
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(chat))
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", chat
    finally:
        await asyncio.to_thread(server.shutdown)
        server.server_close()
        thread.join()


def _handler(chat: FakeGoogleChat) -> Callable[..., BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            chat.requests.append((self.path, msgspec.json.decode(body)))
            self.send_response(chat.status)
            for name, value in chat.headers.items():
                self.send_header(name, value)
            self.send_header("content-length", "23")
            self.end_headers()
            self.wfile.write(b'{"upstream": "private"}')

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - its name there
            pass

    return Handler
