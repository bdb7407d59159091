"""A secret reaches its flow and the channel that names it, and nothing else has it.

Not the files of NATS, logs, answers, the page, audit, messages of alerts, or a backup.
"""

import hashlib
import json
import re
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import httpx2

import pyoco_server
from support.nats_server import free_port
from support.programs import Program, Programs
from support.receivers import HttpReceiver, http_receiver
from support.waiting import until_now

VALUE = "correct-horse\"battery'staple"
STATIC = Path(pyoco_server.__file__).parent / "http_api" / "static"
PARTS = (b"correct-horse", b"battery", b"staple")
FLOWS = """
import hashlib, json, os, pathlib, subprocess, sys
from pyoco import Flow, task

@task
def use(password):
    pathlib.Path("received").write_text(hashlib.sha256(password.encode()).hexdigest())
    print("key in the environment:", "PYOCO_SECRETS_KEY" in os.environ)
    print("with", password, repr(password), json.dumps({"p": password}))
    sys.stdout.write(password[:5]); sys.stdout.write(password[5:] + "\\n")
    print(password[:9]); print(password[9:])
    print("x" * 8190 + password)
    subprocess.run(["printf", "%s", "child " + password])
    return {"dsn": f"db://{password}@host", "password": password}

@task
def fail(use):
    password = pathlib.Path("secret-value").read_text()
    sys.stderr.write("about to fail " + password)
    raise ValueError("x" * 16_380 + password + "y" * 40_000)

good = Flow(name="good") >> use
bad = Flow(name="bad") >> use >> fail
"""


def ended(http: httpx2.Client, run_id: str) -> None:
    until_now(lambda: http.get(f"/runs/{run_id}").json()["status"] in ("COMPLETED", "FAILED"))


def found_in(data: bytes) -> list[bytes]:
    return [part for part in PARTS if part in data]


def answers(http: httpx2.Client, run_ids: list[str]) -> dict[str, bytes]:
    of_runs = [
        f"/runs/{run_id}{more}"
        for run_id in run_ids
        for more in ("?include=full", "/tasks", "/logs", "/watch")
    ]
    others = [
        "/runs?include=full",
        "/audit",
        "/secrets",
        "/secrets/db",
        "/dead-letters",
        "/metrics",
        "/workers",
    ]
    found = {path: http.get(path) for path in (*of_runs, *others, "/flows", "/queues", *of_alerts(http))}
    assert {path: answer.status_code for path, answer in found.items() if not answer.is_success} == {}
    return {path: answer.content for path, answer in {**found, **page(http)}.items()}


def of_alerts(http: httpx2.Client) -> list[str]:
    listed = http.get("/deliveries").json()["items"]
    return [
        "/alerts",
        "/channels",
        "/channels/ops",
        "/deliveries",
        *(f"/deliveries/{one['id']}" for one in listed),
    ]


def page(http: httpx2.Client) -> dict[str, httpx2.Response]:
    """The dashboard as a browser gets it: its HTML, and all scripts and styles of its build."""
    html = http.get("/")
    parts = [f"/static/{file.relative_to(STATIC)}" for file in STATIC.rglob("*") if file.is_file()]
    assert any(part.endswith(".js") and part in html.text for part in parts)
    return {"/": html, **{part: http.get(part) for part in parts}}


def test_a_secret_is_nowhere_but_in_its_flow(programs: Programs) -> None:
    directory = Path(programs.directory)
    (directory / "flows").mkdir()
    (directory / "flows" / "flows.py").write_text(FLOWS)
    (directory / "secret-value").write_text(VALUE)
    port = free_port()
    key = json.loads(programs.run("pyoco-server-admin", "secrets", "new-key").stdout)["key"]
    command = ("pyoco-server", "up", "--with-worker", "--flows", "flows", "--port", str(port))
    settings = {"PYOCO_SECRETS_KEY": key, "PYOCO_ALERTS_ALLOW_PRIVATE": "1"}
    with http_receiver() as receiver, programs.started(*command, **settings) as server:
        with httpx2.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as http:
            until_now(lambda: is_ready(http))
            put = programs.run("pyoco-client", "secrets", "put", "db", "--file", "secret-value")
            assert put.returncode == 0, put.stderr
            define_alert(http, receiver)
            run_ids = [submitted(http, flow) for flow in ("good", "bad")]
            for run_id in run_ids:
                ended(http, run_id)
            (message,) = until_now(lambda: list(receiver.messages))
            assert not found_in(message.body)
            assert message.data["flow_name"] == "bad"
            assert parse_qs(urlsplit(message.path).query)["token"] == [VALUE]
            shown = answers(http, run_ids)
            assert {path: found for path, data in shown.items() if (found := found_in(data))} == {}
            good = json.loads(shown[f"/runs/{run_ids[0]}?include=full"])
            assert good["result"]["use"] == {"dsn": "db://•••@host", "password": "•••"}
            logged = shown[f"/runs/{run_ids[0]}/logs"].decode()
            assert "key in the environment: False" in logged
            assert "child •••" in logged
            assert put_is_silent(put.stdout)
            backup = programs.run("pyoco-server-admin", "backup", "saved", PYOCO_SECRETS_KEY=key)
            assert backup.returncode == 0, backup.stderr
        assert received(directory) == received_of(VALUE)
        check_files(directory, server)


def define_alert(http: httpx2.Client, receiver: HttpReceiver) -> None:
    """Over a channel that names the secret: the receiver gets it in the URL, and nobody else does."""
    url = f"http://127.0.0.1:{receiver.port}/hooks?token=${{secrets.db}}"
    for path, body in (
        ("/channels/ops", {"type": "webhook", "url": url}),
        (
            "/alerts/pager",
            {"on": ["run.failed", "dead_letter"], "filter": 'type == "run.failed"', "channel": "ops"},
        ),
    ):
        answer = http.put(path, json=body)
        assert answer.status_code == 201, answer.text


def put_is_silent(output: str) -> bool:
    return not found_in(output.encode()) and '"name"' in output


def submitted(http: httpx2.Client, flow: str) -> str:
    answer = http.post("/runs", json={"flow_name": flow, "params": {"password": "${secrets.db}"}})
    assert answer.status_code == 200, answer.text
    run_id: str = answer.json()["run_id"]
    return run_id


def is_ready(http: httpx2.Client) -> bool:
    try:
        return http.get("/ready").is_success
    except httpx2.TransportError:
        return False


def received(directory: Path) -> str:
    return next(directory.rglob("received")).read_text()


def received_of(value: str) -> str:
    return hashlib.sha256(value.encode()).hexdigest()


def check_files(directory: Path, server: Program) -> None:
    """Everything that the installation has written: NATS, index, backup; and both logs."""
    assert not found_in(server.output.encode()), re.findall(r".{60}correct-horse.{20}", server.output)
    files = [path for path in directory.rglob("*") if path.is_file() and path.name != "secret-value"]
    assert any("nats" in path.parts for path in files)
    assert any("saved" in path.parts for path in files)
    assert [path for path in files if found_in(path.read_bytes())] == []
