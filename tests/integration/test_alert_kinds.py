"""Every kind of alert is delivered, over every kind of channel: real gateway, worker and receivers.

All tests share one installation. One alert is about everything, so a test looks for what it has caused.
"""

import asyncio
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import msgspec
import pytest

from pyoco_server.config import NatsBackendConfig
from pyoco_server.domain.alerts.model import AlertKind
from pyoco_server.wiring import EmbeddedNats
from support.http_executions import APPROVAL, graph, task
from support.installation import FLOWS, environment
from support.nats_access import Authority
from support.nats_server import delete_streams_of, free_port, raw_nats, unique_config
from support.programs import Program, Programs
from support.receivers import LOGIN, HttpReceiver, MailSink, Received, http_receiver, mail_server
from support.waiting import PATIENCE_SEC, until_now

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"  # noqa: S105 - of the specification
SILENT_SEC = 2.0
PEOPLE = {"from": "pyoco@example.org", "to": ["ops@example.org", "boss@example.org"]}


@dataclass
class Site:
    config: NatsBackendConfig
    programs: Programs
    http: httpx2.Client
    hook: HttpReceiver
    authority: Authority

    def put(self, path: str, **body: Any) -> dict[str, Any]:
        answer = self.http.put(path, json=body)
        assert answer.status_code in (200, 201), answer.text
        found: dict[str, Any] = answer.json()
        return found

    def post(self, path: str, **body: Any) -> dict[str, Any]:
        answer = self.http.post(path, json=body)
        assert answer.status_code in (200, 201, 202), answer.text
        found: dict[str, Any] = answer.json()
        return found

    def submit(self, flow: str, tag: str = "idle", **params: Any) -> str:
        body = {"flow_name": flow, "tag": tag, "params": {"marks": str(self.marks), **params}}
        run_id: str = self.post("/runs", **body)["run_id"]
        return run_id

    @property
    def marks(self) -> Path:
        return self.programs.directory

    def message(self, kind: str, **data: Any) -> dict[str, Any]:
        """Waits for a message of this kind with these data; it may come twice, and means one event."""

        def look() -> list[Received]:
            return [one for one in list(self.hook.messages) if _fits(one, kind, data)]

        found = until_now(look)
        assert len({one.event_id for one in found}) == 1
        assert self.hook.unsigned == 0
        return found[0].data

    def delivery(self, channel: str, status: str = "DELIVERED") -> dict[str, Any]:
        def look() -> list[dict[str, Any]]:
            query = {"channel": channel, "status": status}
            items: list[dict[str, Any]] = self.http.get("/deliveries", params=query).json()["items"]
            return items

        return until_now(look)[0]

    def worker(self, worker_id: str, tag: str) -> Any:
        options = ("--flow-resolver", FLOWS, "--worker-id", worker_id, "--tags", tag)
        return self.programs.started("pyoco-worker", *options, **environment(self.config))


def _fits(message: Received, kind: str, data: dict[str, Any]) -> bool:
    return message.json["type"] == kind and data.items() <= message.data.items()


@pytest.fixture(scope="module")
def site(nats_server: EmbeddedNats, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    directory = tmp_path_factory.mktemp("site")
    authority = Authority(directory / "authority")
    config = unique_config(
        nats_server.url,
        alerts_allow_private=True,
        worker_disconnect_timeout_sec=SILENT_SEC,
        workflow_event_retry_base_delay_seconds=0.2,
    )
    programs = Programs(directory, SSL_CERT_FILE=str(authority.certificate))
    port = free_port()
    up = ("pyoco-server", "up", "--port", str(port), "--nats-url", config.nats_url)
    with ExitStack() as stack:
        stack.callback(lambda: asyncio.run(delete_streams_of(config)))
        hook = stack.enter_context(http_receiver(HttpReceiver(secret=SECRET)))
        gateway: Program = stack.enter_context(programs.started(*up, **environment(config)))
        http = stack.enter_context(httpx2.Client(base_url=f"http://127.0.0.1:{port}", timeout=PATIENCE_SEC))
        gateway.says("gateway ready")
        found = Site(config, programs, http, hook, authority)
        worker: Program = stack.enter_context(found.worker("steady", "default"))
        worker.says("worker ready")
        found.put("/channels/hook", type="webhook", url=hook.url, secret=SECRET)
        everything = [kind.value for kind in AlertKind]
        found.put("/alerts/everything", on=everything, channel="hook", late_after_sec=0.3)
        yield found
    assert programs.are_gone()


# Kinds


def test_a_failed_run_and_its_dead_letter(site: Site) -> None:
    run_id = site.submit("nobody", tag="default")
    failed = site.message("run.failed", run_id=run_id)
    assert (failed["flow_name"], failed["tag"], failed["status"]) == ("nobody", "default", "FAILED")
    letter = site.message("dead_letter", run_id=run_id)
    assert (letter["reason"], letter["worker_id"]) == ("flow_not_found", "steady")
    assert site.http.get(f"/dead-letters/{letter['dead_letter_id']}").json()["run_id"] == run_id


def test_a_late_run(site: Site) -> None:
    run_id = site.submit("tiny")
    assert site.message("run.late", run_id=run_id)["status"] == "PENDING"


def test_a_run_that_waits_for_a_limit(site: Site) -> None:
    site.put("/limits/one-at-a-time", match={"flow": "tiny", "tag": "limited"}, max_running=1)
    first, second = site.submit("tiny", tag="limited"), site.submit("tiny", tag="limited")
    waiting = site.message("limit.waiting", run_id=second)
    assert (waiting["limit"], waiting["status"]) == ("one-at-a-time", "PENDING")
    assert not [one for one in site.hook.messages if _fits(one, "limit.waiting", {"run_id": first})]


def test_a_wait_that_opens_and_is_overdue(site: Site) -> None:
    waits = {**APPROVAL, "nodes": {"approve": APPROVAL["nodes"]["approve"]}, "edges": []}
    site.put("/graphs/approval", **waits)
    execution_id = site.post("/executions", graph_id="approval", input={"ym": "2026-11"})["execution_id"]
    opened = site.message("wait.opened", execution_id=execution_id)
    wanted = {"node_id": "approve", "graph_id": "approval", "prompt": "Close 2026-11?", "wait_key": "2026-11"}
    assert wanted.items() <= opened.items()
    overdue = site.message("wait.overdue", execution_id=execution_id)
    assert (overdue["node_id"], overdue["status"]) == ("approve", "WAITING")


def test_a_failed_execution(site: Site) -> None:
    site.put("/graphs/failing", **graph({"only": task("nobody")}))
    execution_id = site.post("/executions", graph_id="failing", input={})["execution_id"]
    failed = site.message("execution.failed", execution_id=execution_id)
    assert (failed["node_id"], failed["graph_id"], failed["status"]) == ("only", "failing", "FAILED")
    assert site.message("run.failed", execution_id=execution_id)["node_id"] == "only"


def test_a_tick_that_is_skipped(site: Site) -> None:
    site.put("/schedules/busy", target={"flow": "tiny", "tag": "idle"}, every_sec=1, overlap="skip")
    skipped = site.message("schedule.skipped", schedule_id="busy")
    assert (skipped["reason"], skipped["flow_name"], skipped["status"]) == ("overlap", "tiny", "SKIPPED")
    assert site.http.delete("/schedules/busy").status_code == 200


def test_ticks_that_are_missed(site: Site) -> None:
    """What a gateway finds that was down for a minute."""
    target = {"flow": "tiny", "tag": "idle"}
    site.put("/schedules/down", target=target, every_sec=3600, catch_up="none")
    asyncio.run(_due_before(site.config, "=.down", seconds=60))
    missed = site.message("schedule.missed", schedule_id="down")
    assert (missed["flow_name"], missed["status"]) == ("tiny", "MISSED")
    assert missed["due_at"] == pytest.approx(time.time() - 60, abs=PATIENCE_SEC)


async def _due_before(config: NatsBackendConfig, key: str, seconds: float) -> None:
    async with raw_nats(config.nats_url) as client:
        bucket = await client.jetstream().key_value(config.schedules_kv_bucket)
        entry = await bucket.get(key)
        stored = msgspec.json.decode(entry.value)
        stored["next_due_at"] = time.time() - seconds
        await bucket.update(key, msgspec.json.encode(stored), entry.revision)


def test_an_event_that_is_escalated(site: Site) -> None:
    """A second event conflicts with the run of the first, in every attempt."""
    site.put("/api/workflow-actions/close.month", flow_name="tiny", tag="idle", concurrency="one")
    steps = [{"id": "one", "action": "close.month", "trigger_kind": "external_event"}]
    site.put("/api/workflow-templates/close", name="Close the month", year=2026, month=2, steps=steps)
    site.post("/api/workflow-events", template_id="close", idempotency_key="first")
    conflict = site.http.post(
        "/api/workflow-events", json={"template_id": "close", "idempotency_key": "second"}
    )
    assert conflict.status_code == 409, conflict.text
    drained = [site.post("/api/workflow-events/retry-jobs/drain", force=True) for _ in range(3)]
    assert [one["escalated"] for one in drained] == [0, 0, 1]
    escalated = site.message("event.escalated", template_id="close")
    assert (escalated["idempotency_key"], escalated["attempts"]) == ("second", 3)
    assert escalated["reason"] == "run_conflict/http_409"


def test_a_lost_worker_and_its_stuck_run(site: Site) -> None:
    with site.worker("stopped", "doomed") as worker:
        worker.says("worker ready")
        worker.ends_after(signal.SIGTERM)
    with site.worker("doomed", "doomed") as worker:
        worker.says("worker ready")
        run_id = site.submit("steps", tag="doomed")
        until_now((site.marks / "in-first").exists)
        site.programs.kill(worker.pid)
    lost = site.message("worker.lost", worker_id="doomed")
    assert (lost["tag"], lost["status"]) == ("doomed", "DISCONNECTED")
    stuck = site.message("run.stuck", run_id=run_id)
    assert (stuck["worker_id"], stuck["status"]) == ("doomed", "RUNNING")
    (site.marks / "go").write_text("0")
    assert not [one for one in site.hook.messages if _fits(one, "worker.lost", {"worker_id": "stopped"})]


# Channels


def over(site: Site, channel: str, **definition: Any) -> str:
    """Defines the channel and an alert over it, fails a run, and answers with its id."""
    site.put(f"/channels/{channel}", **definition)
    site.put(
        f"/alerts/{channel}", on=["run.failed"], filter=f'tags.exists(t, t == "{channel}")', channel=channel
    )
    body = {"flow_name": "nobody", "tag": "default", "tags": [channel]}
    run_id: str = site.post("/runs", **body)["run_id"]
    return run_id


@pytest.mark.parametrize("kind", ["slack", "google_chat", "teams"])
def test_a_chat_gets_a_text_for_people(site: Site, kind: str) -> None:
    with http_receiver() as chat:
        run_id = over(site, kind, type=kind, url=chat.url)
        (message,) = until_now(lambda: list(chat.messages))
        assert message.path == "/hooks/s3cret?key=t0ken"
        assert "webhook-signature" not in message.headers
        text = _card_text(message.json) if kind == "teams" else message.json["text"]
        lines = text.splitlines()
        assert lines[0] == "pyoco-server: a run failed: nobody"
        assert f"run_id: {run_id}" in lines
        assert site.delivery(kind)["attempts"] == 1


def _card_text(body: dict[str, Any]) -> str:
    (attached,) = body["attachments"]
    assert body["type"] == "message"
    assert attached["contentType"] == "application/vnd.microsoft.card.adaptive"
    assert (attached["content"]["type"], attached["content"]["version"]) == ("AdaptiveCard", "1.4")
    blocks = attached["content"]["body"]
    assert {block["type"] for block in blocks} == {"TextBlock"}
    return "\n".join(block["text"] for block in blocks)


def test_a_webhook_over_tls_is_signed_and_its_certificate_is_verified(site: Site) -> None:
    trusted = site.authority.issue("hook")
    with http_receiver(HttpReceiver(secret=SECRET), trusted) as hook:
        url = hook.url.replace("http://127.0.0.1", "https://localhost")
        run_id = over(site, "tls-hook", type="webhook", url=url, secret=SECRET)
        (message,) = until_now(lambda: list(hook.messages))
        assert (message.data["run_id"], hook.unsigned) == (run_id, 0)
        assert message.headers["host"] == f"localhost:{hook.port}"
    stranger = Authority(site.marks / "stranger").issue("hook")
    with http_receiver(HttpReceiver(), stranger) as hook:
        url = hook.url.replace("http://127.0.0.1", "https://localhost")
        over(site, "strange-hook", type="webhook", url=url)
        refused = site.delivery("strange-hook", "FAILED")
        assert "certificate" in refused["last_error"]
        assert hook.messages == []


@pytest.mark.parametrize("security", ["starttls", "tls"])
def test_a_mail_is_sent_encrypted_with_a_login(site: Site, security: str) -> None:
    certificate = site.authority.issue("mail")
    with mail_server(security, certificate) as (sink, port):
        name = f"mail-{security}"
        server = {"type": "email", "host": "localhost", "port": port, "security": security, **PEOPLE}
        login = {"username": LOGIN[0], "password": LOGIN[1]}
        run_id = over(site, name, **server, **login)
        mail = received(sink)
        assert str(mail["Subject"]) == "pyoco-server: a run failed: nobody"
        assert (str(mail["From"]), str(mail["To"])) == (PEOPLE["from"], ", ".join(PEOPLE["to"]))
        assert run_id in mail.get_content()
        assert str(mail["Message-ID"]) == f"<{site.delivery(name)['event_id']}@pyoco-server>"
        # Another password is kept for nobody: the server refuses it, and the error names its answer.
        over(site, name, **server, **{**login, "password": "wrong"})
        refused = site.delivery(name, "FAILED")
        assert refused["last_error"] == "the mail server answered with 535"
    stranger = Authority(site.marks / f"stranger-{security}").issue("mail")
    with mail_server(security, stranger) as (sink, port):
        name = f"strange-{security}"
        over(site, name, **{**server, "port": port}, **login)
        assert "certificate" in site.delivery(name, "FAILED")["last_error"]
        assert sink.mails == []


def received(sink: MailSink) -> Any:
    (mail,) = until_now(lambda: list(sink.mails))
    return mail
