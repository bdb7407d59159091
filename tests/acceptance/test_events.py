"""Workflow events with real processes: the commands, the how-to page, and a gateway that is killed."""

import json
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from pyoco_server.config import NatsBackendConfig
from pyoco_server.http_client import PyocoHttpClient
from support import hanging_gateway
from support.installation import environment
from support.nats_server import free_port
from support.programs import SCRIPTS, Programs
from support.waiting import PATIENCE_SEC

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "events.md"
TOKEN = "choose-a-long-one"  # noqa: S105 - as the page has it


def blocks(language: str) -> list[str]:
    return re.findall(
        rf'^```{language}(?: title="[^"]+")?\n(.*?)^```', PAGE.read_text(), re.MULTILINE | re.DOTALL
    )


@pytest.fixture
def url(programs: Programs) -> Iterator[str]:
    (flows,) = blocks("python")
    (programs.directory / "flows.py").write_text(flows)
    port = free_port()
    with programs.started(
        *("pyoco-server", "up", "--port", str(port), "--durability", "fast"),
        *("--with-worker", "--flow-resolver", "flows.py:resolve"),
        AX_WORKFLOW_EVENT_TOKEN=TOKEN,
    ) as up:
        up.says("worker ready")
        yield f"http://127.0.0.1:{port}"
    shown = up.output
    assert TOKEN not in shown


def shell(programs: Programs, url: str, script: str) -> str:
    """As a person types it, but for the port."""
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script.replace("http://127.0.0.1:8000", url)],
        cwd=programs.directory,
        env={**programs.environ, "PYOCO_SERVER_URL": url, "PATH": f"{SCRIPTS}:/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=PATIENCE_SEC,
        check=False,
    )
    assert done.returncode == 0, f"{script}\n{done.stdout}{done.stderr}"
    return done.stdout


def define(programs: Programs, url: str) -> None:
    """What the first block of the page does, without a shell."""
    block = blocks("sh")[0]
    (template,) = re.findall(r"<<'JSON'\n(.*?)^JSON$", block, re.MULTILINE | re.DOTALL)
    (programs.directory / "template.json").write_text(template)
    commands = re.findall(r"^pyoco-client \w+ put .+$", block, re.MULTILINE)
    assert len(commands) == 2
    for command in commands:
        done = programs.run(*shlex.split(command), PYOCO_SERVER_URL=url)
        assert done.returncode == 0, done.stderr


def as_cron(programs: Programs, url: str, crontab: str) -> str:
    """D43: as cron does it: its variables, five fields of time, and a `%` that is not escaped ends a line."""
    *settings, line = crontab.splitlines()
    environ = dict(setting.split("=", 1) for setting in settings)
    fields, command = line.split(" ", 5)[:5], line.split(" ", 5)[5]
    assert all(re.fullmatch(r"[\d*,/-]+", field) for field in fields)
    assert re.search(r"(?<!\\)%", command) is None, "cron would cut the command there"
    assert TOKEN not in command, "every user sees the arguments of a process"
    environ["PATH"] = environ["PATH"].replace("/srv/flows/.venv/bin", str(SCRIPTS))
    done = subprocess.run(
        ["/bin/sh", "-c", command.replace("\\%", "%")],
        cwd=programs.directory,
        env={"HOME": str(programs.directory), **environ, "PYOCO_SERVER_URL": url},
        capture_output=True,
        text=True,
        timeout=PATIENCE_SEC,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def ended(client: PyocoHttpClient, run_id: str) -> Any:
    for event in client.watch_run(run_id, timeout_sec=PATIENCE_SEC):
        if event.get("snapshot", {}).get("status") == "COMPLETED":
            return event["snapshot"]["result"]["close"]
    raise AssertionError("the run did not complete")


def test_the_crontab_of_the_how_to_page_works_as_cron_reads_it(programs: Programs, url: str) -> None:
    """The other commands of the page are typed by test_pages.py."""
    shell(programs, url, blocks("sh")[0])
    (cron,) = blocks("crontab")
    nightly = json.loads(as_cron(programs, url, cron))
    assert (nightly["triggered"], nightly["idempotency_key"][:8]) == (True, "nightly-")
    with PyocoHttpClient(url) as client:
        assert ended(client, nightly["run_id"]) == "closed 2026-02 with None"


def test_the_other_commands(programs: Programs, url: str) -> None:
    def client(*arguments: str, code: int = 0) -> Any:
        done = programs.run("pyoco-client", *arguments, PYOCO_SERVER_URL=url, AX_WORKFLOW_EVENT_TOKEN=TOKEN)
        assert done.returncode == code, done.stdout + done.stderr
        return json.loads(done.stdout) if code == 0 else done.stderr

    define(programs, url)
    lost = client("events", "send", "--template-id", "later", "--key", "k", code=1)
    assert "HTTP 404 ERR-PYOCO-0042 Workflow template not found." in lost
    refused = programs.run("pyoco-client", "events", "send", "--token", "wrong", PYOCO_SERVER_URL=url)
    assert "HTTP 401 ERR-PYOCO-0041 Invalid workflow event token." in refused.stderr
    month = time.strftime("%Y-%m", time.gmtime())
    found = client("events", "summary", month, "--recent-limit", "200")
    event_id = next(event["event_id"] for event in found["recent"] if event["template_id"] == "later")
    client("templates", "put", "later", "--file", "template.json")
    replayed = client("events", "replay", event_id)
    assert (replayed["triggered"], replayed["idempotency_key"]) == (True, "k")
    assert client("events", "send", "--template-id", "later", "--key", "k")["run_id"] == replayed["run_id"]
    assert client("templates", "start", "later", "--data", '{"by": "hand"}')["triggered"] is True
    assert [template["id"] for template in client("templates", "list")] == ["close-month", "later"]
    assert client("templates", "get", "later")["steps"][0]["action"] == "month.closed"
    options = ("--file", "template.json", "--when", "event.n > 1", "--no-month")
    changed = client("templates", "put", "later", *options)
    assert (changed["when"], changed["needs_month"]) == ("event.n > 1", False)
    wrong = client("templates", "put", "later", "--file", "template.json", "--when", "evnt.n > 1", code=1)
    assert "when: 'evnt.n > 1': column 5: undeclared reference to 'evnt.n'" in wrong
    event = {"specversion": "1.0", "source": "/erp", "type": "x"}
    with PyocoHttpClient(url) as http:
        events = [{**event, "id": str(n), "data": {"template_id": "later", "n": n}} for n in (1, 2)]
        filtered, started = http.events.send_cloud_events(events, token=TOKEN)
    assert (filtered["reason_code"], started["status"], started["triggered"]) == ("filtered", 200, True)
    assert client("templates", "delete", "later") == {"id": "later", "deleted": True}
    assert client("actions", "put", "one", "--flow-name", "close", "--one-at-a-time")["concurrency"] == "one"
    assert "exactly one of --flow-name and --graph-id" in client("actions", "put", "none", code=1)
    assert [action["key"] for action in client("actions", "list")] == ["month.closed", "one"]
    assert client("actions", "delete", "one") == {"key": "one", "deleted": True}
    assert "ERR-PYOCO-0042" in client("events", "retry", "nope", code=1)
    assert "ERR-PYOCO-0042" in client("events", "discard", "nope", code=1)


def test_receipts_jobs_and_settings_are_exported(programs: Programs, config: NatsBackendConfig) -> None:
    port, settings = free_port(), environment(config)
    with programs.started("pyoco-server", "up", "--port", str(port), **settings) as up:
        up.says("Ctrl-C stops it")
        url = f"http://127.0.0.1:{port}"
        define(programs, url)
        with PyocoHttpClient(url) as client:
            started = client.events.send(event_name="month.closed", idempotency_key="k")
            client.events.save_notification_settings(
                "https://chat.googleapis.com/v1/spaces/AAAAsecret/messages?key=KEYKEY&token=TOKTOK"
            )
            assert client.events.notification_settings()["source"] == "file"
        done = programs.run("pyoco-server-admin", "events", "export", "--dir", "out/export", **settings)
        assert done.returncode == 0, done.stderr
    files = {path.name: path.read_text() for path in (programs.directory / "out/export").iterdir()}
    assert set(files) == {"receipts.json", "retry_jobs.json", "notification_settings.json"}
    assert [receipt["run_id"] for receipt in json.loads(files["receipts.json"])] == [started["run_id"]]
    assert json.loads(files["retry_jobs.json"]) == []
    assert "AAAA***" in files["notification_settings.json"]
    assert not any("TOKTOK" in text or "KEYKEY" in text for text in files.values())


def test_files_of_an_earlier_server_are_imported_and_the_banner_has_it(
    programs: Programs, config: NatsBackendConfig
) -> None:
    """D38"""
    directory = programs.directory / "artifacts/mfcloud-expense-receipt-reconcile/_workflow_events"
    directory.mkdir(parents=True)
    at = time.strftime("%Y-%m-%dT%H:%M:%S")
    entry = {"template_id": "close-month", "idempotency_key": "k", "run_id": "r-1", "created_at": at}
    (directory / "receipts.json").write_text(json.dumps({"receipts": {"close-month:k": entry}}))
    (directory / "retry_jobs.json").write_text("{")
    port, settings = free_port(), environment(config)
    with programs.started("pyoco-server", "up", "--port", str(port), **settings) as up:
        up.says(r"Events +1 records imported from artifacts/.*receipts.json")
        up.says("events.import_failed")
        url = f"http://127.0.0.1:{port}"
        define(programs, url)
        with PyocoHttpClient(url) as client:
            again = client.events.send(event_name="month.closed", idempotency_key="k")
            assert (again["duplicate"], again["run_id"]) == (True, "r-1")


def test_a_gateway_killed_between_the_claim_and_the_start_starts_nothing_twice(
    programs: Programs, config: NatsBackendConfig
) -> None:
    """kill -9, and the repeat at another gateway starts the run that the dead one had claimed."""
    settings = {**environment(config), "PYOCO_LOG_FORMAT": "text"}
    port = free_port()
    with programs.started("pyoco-server", "up", "--port", str(port), **settings) as living:
        living.says("Ctrl-C stops it")
        url = f"http://127.0.0.1:{port}"
        define(programs, url)
        claimed_run = _claim_and_kill(programs, settings)
        body = {"event_name": "month.closed", "idempotency_key": "k"}
        with httpx2.Client(base_url=url, timeout=PATIENCE_SEC) as http:
            answer = _when_it_is_over(http, body)
            assert (answer["triggered"], answer["run_id"]) == (True, claimed_run)
            again = http.post("/api/workflow-events", json=body).json()
            assert (again["duplicate"], again["run_id"]) == (True, claimed_run)
            assert [run["run_id"] for run in http.get("/runs").json()] == [claimed_run]


def _claim_and_kill(programs: Programs, settings: dict[str, str]) -> str:
    """The run id that a gateway had written down when it was killed."""
    port, mark = free_port(), programs.directory / "claimed"
    process = subprocess.Popen(
        [sys.executable, hanging_gateway.__file__, str(port), str(mark)],
        env={**programs.environ, **settings},
        cwd=programs.directory,
    )
    try:
        http = httpx2.Client(base_url=f"http://127.0.0.1:{port}", timeout=1)
        body = {"event_name": "month.closed", "idempotency_key": "k"}
        deadline = time.monotonic() + PATIENCE_SEC
        while not mark.exists():
            assert time.monotonic() < deadline, "it never came to the start"
            try:
                http.post("/api/workflow-events", json=body)
            except httpx2.TransportError:
                time.sleep(0.02)
        http.close()
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait(PATIENCE_SEC)
    return mark.read_text()


def _when_it_is_over(http: httpx2.Client, body: dict[str, Any]) -> dict[str, Any]:
    deadline = time.monotonic() + PATIENCE_SEC
    while (answer := http.post("/api/workflow-events", json=body)).status_code == 409:
        assert time.monotonic() < deadline, answer.text
        assert (answer.headers["retry-after"], answer.json()["reason_class"]) == ("1", "duplicate")
    found: dict[str, Any] = answer.json()
    return found
