"""A7: the rights of deploy/nats are enough for the product, and too few for a hostile worker."""

import json
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import nats
import nats.errors
import pytest
from nats.js.errors import NotFoundError

from pyoco_server.http_client import PyocoHttpClient
from support import process_flows
from support.installation import TERMINAL
from support.nats_accounts import NatsWithAccounts, nats_with_accounts
from support.nats_server import free_port
from support.programs import Programs
from support.waiting import PATIENCE_SEC, until, until_now
from support.wheels import a_wheel_file, wheel_name

YAML = 'flow: {graph: "which"}\ntasks: {which: {callable: "my_flows.tasks:which"}}\n'
CODE = "def which():\n    print('from the wheel')\n    return 42\n"
QUICKLY = {
    "PYOCO_CONSUMER_ACK_WAIT_SEC": "2",
    "PYOCO_ACK_PROGRESS_INTERVAL_SEC": "0.5",
    "PYOCO_WORKER_HEARTBEAT_INTERVAL_SEC": "0.2",
}


@dataclass(frozen=True)
class Site:
    """An installation whose parts have the rights of deploy/nats."""

    nats: NatsWithAccounts
    programs: Programs
    client: PyocoHttpClient
    url: str
    key: dict[str, str]
    """Of the client."""


@pytest.fixture
def site(programs: Programs) -> Iterator[Site]:
    port = free_port()
    programs.environ |= QUICKLY
    with nats_with_accounts(programs.directory / "jetstream") as server:
        # The administrator comes first: it, too, may make what is missing.
        made = programs.run(
            "pyoco-server-admin",
            "--nats-url",
            server.url("admin"),
            "api-key",
            "create",
            "--tenant",
            "acme",
            *("--scopes", "read,submit,operate,deploy,admin"),
        )
        assert made.returncode == 0, made.stderr
        key = json.loads(made.stdout)
        rights = {
            "PYOCO_NATS_URL": server.url("gateway"),
            "PYOCO_QUEUE_TAGS": "default",
            "PYOCO_HTTP_AUTH_MODE": "api_key",
        }
        with programs.started("pyoco-server", "up", "--port", str(port), **rights) as gateway:
            gateway.says("gateway ready")
            url = f"http://127.0.0.1:{port}"
            with PyocoHttpClient(url, api_key=key["api_key"]) as client:
                yield Site(server, programs, client, url, key)


def worker_of(site: Site, *options: str, user: str = "worker") -> Any:
    flows = ("--flow-resolver", f"{process_flows.__file__}:resolve", "--worker-id", "w1")
    return site.programs.started(
        "pyoco-worker",
        *flows,
        *options,
        PYOCO_NATS_URL=site.nats.url(user),
        PYOCO_JETSTREAM_API_PREFIX="pyoco.js",
    )


async def ended(client: PyocoHttpClient, run_id: str) -> dict[str, Any]:
    async def look() -> Any:
        return client.get_run(run_id)

    found: dict[str, Any] = await until(look, lambda run: run["status"] in TERMINAL)
    return found


async def test_with_these_rights_the_whole_product_works(site: Site, tmp_path: Path) -> None:
    site.client.upload_wheel(a_wheel_file(tmp_path, tasks=CODE))
    marks = tmp_path / "marks"
    marks.mkdir()
    with worker_of(site, "--wheel-sync") as worker:
        worker.says("worker ready")
        (listed,) = until_now(site.client.get_workers)
        assert listed["worker_id"] == "w1"

        from_wheel = await ended(site.client, site.client.submit_run_yaml(YAML, flow_name="y")["run_id"])
        assert (from_wheel["status"], from_wheel["result"]) == ("COMPLETED", {"which": 42})
        assert from_wheel["wheels"][0]["name"] == wheel_name()
        assert [line["text"] for line in site.client.get_logs(from_wheel["run_id"])] == ["from the wheel\n"]

        large = await ended(site.client, site.client.submit_run("bulky", {"size": 400_000})["run_id"])
        assert len(site.client.get_value(large["result"]["give"])) == 400_000

        saving = site.client.submit_run("saving", {"marks": str(marks), "megabytes": 1})["run_id"]
        assert (await ended(site.client, saving))["error"] is None
        assert len(site.client.get_artifact(saving, "data.bin")) == 1_000_000

        (marks / "go").touch()
        parent = await ended(
            site.client, site.client.submit_run("submitting", {"marks": str(marks)})["run_id"]
        )
        (marks / "go").unlink()
        assert parent["status"] == "COMPLETED", parent["error"]
        for child in parent["result"]["start"]:
            assert (await ended(site.client, child))["status"] == "COMPLETED"

        watching = site.client.submit_run("watchful", {"marks": str(marks)})["run_id"]

        async def is_in_it() -> bool:
            return (marks / "in-watch").exists()

        await until(is_in_it)
        assert site.client.cancel_run(watching)["status"] == "CANCELLING"
        assert (await ended(site.client, watching))["status"] == "CANCELLED"

        failing = await ended(site.client, site.client.submit_run("no such flow")["run_id"])
        assert failing["status"] == "FAILED"
        until_now(site.client.get_metrics, lambda found: "pyoco_dlq_messages_total 1.0" in found)
        site.client.delete_wheel(wheel_name())
        assert "Permissions Violation" not in worker.output
    async with connected(site, "gateway") as gateway:
        written = (await gateway.jetstream().stream_info("KV_pyoco_runs")).state.last_seq
    assert written < 60  # a worker that hears its own writes as those of others would never stop


async def test_with_these_rights_a_failed_run_is_tried_again_in_time(site: Site, tmp_path: Path) -> None:
    """The worker may not queue the next try, so a gateway does, and not when 20 deliveries are used up."""
    with worker_of(site) as worker:
        worker.says("worker ready")
        (tmp_path / "marks").mkdir()
        params = {"marks": str(tmp_path / "marks"), "failures": 3}
        retry: Any = {"max_attempts": 5, "backoff_sec": 0.2, "jitter": 0}
        run = await ended(site.client, site.client.submit_run("flaky", params, retry=retry)["run_id"])
    assert (run["status"], run["result"], len(run["tries"])) == ("COMPLETED", {"work": 4}, 3)
    ends = [one["ended_at"] for one in run["tries"]]
    starts = [*(one["started_at"] for one in run["tries"][1:]), run["start_time"]]
    assert max(start - end for end, start in zip(ends, starts, strict=True)) < 10.0
    async with connected(site, "gateway") as gateway:
        jetstream = gateway.jetstream()

        async def left() -> int:
            count: int = (await jetstream.stream_info("PYOCO_WORK")).state.messages
            return count

        assert await until(left, lambda count: count == 0) == 0, "no job is left behind"


GRAPH: dict[str, Any] = {
    "nodes": {
        "split": {"type": "fork"},
        "a": {"type": "task", "flow": "tiny"},
        "b": {"type": "task", "flow": "tiny"},
        "gather": {"type": "join"},
        "approve": {"type": "wait", "wait_key": "k"},
    },
    "edges": [
        {"from": "split", "to": "a"},
        {"from": "split", "to": "b"},
        {"from": "a", "to": "gather"},
        {"from": "b", "to": "gather"},
        {"from": "gather", "to": "approve"},
    ],
}


async def test_with_these_rights_a_schedule_fires_and_its_changes_are_on_record(site: Site) -> None:
    site.client.schedules.put("often", {"flow": "tiny", "params": {}}, every_sec=1, overlap="allow")

    async def ticks() -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = site.client.schedules.ticks("often")["items"]
        return found

    started = await until(ticks, lambda found: len(found) > 1)
    assert {tick["status"] for tick in started} == {"STARTED"}
    site.client.schedules.delete("often")
    trail = httpx2.get(
        f"{site.url}/audit?target=schedule", headers={"X-API-Key": site.key["api_key"]}
    ).json()["items"]
    assert [entry["action"] for entry in trail] == ["schedule.delete", "schedule.put"]
    assert {entry["actor"]["api_key_id"] for entry in trail} == {site.key["key_id"]}


def test_with_these_rights_defaults_of_flows_are_set(site: Site) -> None:
    assert site.client.flows.put("tiny", timeout_sec=5)["timeout_sec"] == 5
    run_id = site.client.submit_run("tiny")["run_id"]
    assert site.client.get_run(run_id)["timeout_sec"] == 5


def test_with_these_rights_a_graph_is_carried_out_and_resumed_by_an_event(site: Site) -> None:
    client = site.client
    client.put_graph("g", GRAPH)
    assert [graph["graph_id"] for graph in client.list_graphs()["items"]] == ["g"]
    client.executions.create("g", execution_id="e1")
    early = client.events.resume(wait_key="k", data=7, idempotency_key="early")
    assert early["kept"] is True
    with worker_of(site) as worker:
        worker.says("worker ready")
        ended = until_now(lambda: client.executions.get("e1"), lambda state: state["status"] != "ACTIVE")
    assert (ended["status"], ended["result"]) == ("COMPLETED", {"approve": 7})
    again = client.events.resume(wait_key="k", data=7, idempotency_key="early")
    assert (again["duplicate"], again["execution_id"]) == (True, "e1")
    assert client.executions.archive("e1")["archived_at"]


def test_with_these_rights_events_start_runs_and_executions_and_are_tried_again(site: Site) -> None:
    events = site.client.events
    events.put_action("once", {"flow_name": "tiny", "concurrency": "one"})
    events.put_action("many", {"flow_name": "tiny"})
    for name, actions in (("one", ["once"]), ("steps", ["many", "many"])):
        steps = [
            {
                "id": f"s{number}",
                "action": action,
                "trigger_kind": "after_previous" if number else "external_event",
            }
            for number, action in enumerate(actions)
        ]
        events.put_template(name, {"name": name, "year": 2026, "month": 2, "steps": steps})
    first = events.send(template_id="one", idempotency_key="k1")
    assert events.send(template_id="one", idempotency_key="k1")["duplicate"] is True
    with pytest.raises(httpx2.HTTPStatusError, match="409"):
        events.send(template_id="one", idempotency_key="k2")
    several = events.send(template_id="steps", idempotency_key="k1")
    with worker_of(site) as worker:
        worker.says("worker ready")
        until_now(lambda: site.client.get_run(first["run_id"]), lambda run: run["status"] == "COMPLETED")
        until_now(
            lambda: site.client.executions.get(several["execution_id"]),
            lambda state: state["status"] == "COMPLETED",
        )
    drained = events.drain(force=True)
    assert (drained["succeeded"], drained["remaining_due"]) == (1, 0)
    found = events.summary("2026-02")
    assert (found["total"], found["by_status"]["success"]) == (4, 2)
    replayed = events.replay(found["recent"][0]["event_id"])
    assert replayed["triggered"] is True
    events.delete_template("one")
    events.delete_action("once")


def test_what_is_remembered_of_events_is_exported_with_the_gateways_rights(site: Site) -> None:
    site.client.events.put_action("many", {"flow_name": "tiny"})
    steps = [{"id": "s", "action": "many", "trigger_kind": "external_event"}]
    site.client.events.put_template("one", {"name": "one", "year": 2026, "month": 2, "steps": steps})
    site.client.events.send(template_id="one", idempotency_key="k1")
    done = site.programs.run(
        *("pyoco-server-admin", "--nats-url", site.nats.url("gateway"), "events", "export", "--dir", "out")
    )
    assert done.returncode == 0, done.stderr
    (receipt,) = json.loads((site.programs.directory / "out" / "receipts.json").read_text())
    assert receipt["idempotency_key"] == "k1"


def test_the_rights_of_the_page_about_backups_are_enough_for_them(site: Site, tmp_path: Path) -> None:
    run_id = site.client.submit_run("tiny")["run_id"]
    admin = ("pyoco-server-admin", "--nats-url")
    saved = site.programs.run(*admin, site.nats.url("backup"), "backup", "--directory", "saved")
    assert saved.returncode == 0, saved.stderr
    assert json.loads(saved.stdout)["streams"]["KV_pyoco_auth"] == 1
    with nats_with_accounts(tmp_path / "elsewhere") as other:
        restored = site.programs.run(*admin, other.url("backup"), "restore", "--directory", "saved")
        assert restored.returncode == 0, restored.stderr
        assert json.loads(restored.stdout) == json.loads(saved.stdout)
    assert run_id in site.client.list_runs()[0]["run_id"]


async def test_a_worker_that_may_not_make_its_consumer_says_so_and_waits(site: Site) -> None:
    with worker_of(site, "--tags", "elsewhere") as worker:
        worker.says("permitted for this user")


# What a hostile worker tries, with the worker's own credentials.


@asynccontextmanager
async def connected(site: Site, user: str) -> AsyncIterator[Any]:
    async def quietly(_error: Exception) -> None:
        pass

    client = await nats.connect(site.nats.url(user), error_cb=quietly)
    try:
        yield client
    finally:
        await client.close()


async def is_refused(client: Any, subject: str, payload: bytes = b"", patience: float = 0.3) -> bool:
    """Nobody answers, or only that there is no JetStream here."""
    try:
        answer = await client.request(subject, payload, timeout=patience)
    except (nats.errors.NoRespondersError, nats.errors.TimeoutError):
        return True
    return NO_JETSTREAM in answer.data


NO_JETSTREAM = b'"err_code":10039'
FORBIDDEN = {
    "read API keys": ("$JS.API.DIRECT.GET.KV_pyoco_auth", {"last_by_subj": "$KV.pyoco_auth.>"}),
    "read API keys from the leader": ("$JS.API.STREAM.MSG.GET.KV_pyoco_auth", {"seq": 1}),
    "write API keys": ("$KV.pyoco_auth.api_keys.mine", {}),
    "read idempotency keys": ("$JS.API.STREAM.MSG.GET.KV_pyoco_idempotency", {"seq": 1}),
    "register a wheel": ("$O.pyoco_wheels.M.x", {}),
    "write a chunk of a wheel": ("$O.pyoco_wheels.C.x", {}),
    "publish a job": ("pyoco.work.default", {}),
    "read another tag's jobs": ("$JS.API.STREAM.MSG.GET.PYOCO_WORK", {"seq": 1}),
    "take another tag's jobs": ("$JS.API.CONSUMER.MSG.NEXT.PYOCO_WORK.pyoco_workers_gpu", {"batch": 1}),
    "make a consumer": (
        "$JS.API.CONSUMER.CREATE.KV_pyoco_runs",
        {"stream_name": "KV_pyoco_runs", "config": {"deliver_subject": "$KV.pyoco_auth.api_keys.mine"}},
    ),
    "delete a consumer": ("$JS.API.CONSUMER.DELETE.PYOCO_WORK.pyoco_workers_default", {}),
    "purge the runs": ("$JS.API.STREAM.PURGE.KV_pyoco_runs", {}),
    "purge the queue": ("$JS.API.STREAM.PURGE.PYOCO_WORK", {}),
    "delete a bucket": ("$JS.API.STREAM.DELETE.KV_pyoco_auth", {}),
    "delete a message": ("$JS.API.STREAM.MSG.DELETE.KV_pyoco_runs", {"seq": 1}),
    "change a stream": ("$JS.API.STREAM.UPDATE.PYOCO_DLQ", {"name": "PYOCO_DLQ", "subjects": ["x"]}),
    "make a stream": ("$JS.API.STREAM.CREATE.MINE", {"name": "MINE", "subjects": ["$KV.pyoco_auth.>"]}),
    "write an execution": ("pyoco.exec.mine", {}),
    "read executions": ("$JS.API.STREAM.MSG.GET.PYOCO_EXECUTIONS", {"seq": 1}),
    "read executions directly": ("$JS.API.DIRECT.GET.PYOCO_EXECUTIONS", {"seq": 1}),
    "write an execution's state": ("$KV.pyoco_executions.mine", {}),
    "read an execution's state": ("$JS.API.DIRECT.GET.KV_pyoco_executions", {"last_by_subj": "$KV.>"}),
    "read graphs": ("$JS.API.DIRECT.GET.KV_pyoco_graphs", {"last_by_subj": "$KV.>"}),
    "write graphs": ("$KV.pyoco_graphs.acme.mine", {}),
    "read leases": ("$JS.API.DIRECT.GET.KV_pyoco_leases", {"last_by_subj": "$KV.>"}),
    "take a lease": ("$KV.pyoco_leases.orchestrator", {}),
    "read templates and secrets of sources": (
        "$JS.API.DIRECT.GET.KV_pyoco_workflows",
        {"last_by_subj": "$KV.>"},
    ),
    "write templates": ("$KV.pyoco_workflows.template.acme.mine", {}),
    "read receipts": ("$JS.API.DIRECT.GET.KV_pyoco_workflow_receipts", {"last_by_subj": "$KV.>"}),
    "write receipts": ("$KV.pyoco_workflow_receipts.mine", {}),
    "delete receipts": ("$JS.API.STREAM.MSG.DELETE.KV_pyoco_workflow_receipts", {"seq": 1}),
    "read retry jobs": ("$JS.API.STREAM.MSG.GET.KV_pyoco_workflow_retry_jobs", {"seq": 1}),
    "write retry jobs": ("$KV.pyoco_workflow_retry_jobs.acme.mine", {}),
    "read kept events": ("$JS.API.STREAM.MSG.GET.KV_pyoco_workflow_resumes", {"seq": 1}),
    "write kept events": ("$KV.pyoco_workflow_resumes.acme.mine", {}),
    "read the audit": ("$JS.API.STREAM.MSG.GET.PYOCO_AUDIT", {"seq": 1}),
    "write the audit": ("pyoco.audit.acme.2026-02", {}),
    "list streams": ("$JS.API.STREAM.NAMES", {}),
}


@pytest.mark.parametrize("prefix", ["$JS.API.", "pyoco.js."])
async def test_a_worker_cannot_do_what_is_not_its_work(site: Site, prefix: str) -> None:
    async with connected(site, "worker") as hostile:
        allowed = [
            what
            for what, (subject, body) in FORBIDDEN.items()
            if not await is_refused(hostile, subject.replace("$JS.API.", prefix), json.dumps(body).encode())
        ]
        assert allowed == []
        # The same question, where it is allowed: it is the rights that refuse, not the way of asking.
        assert not await is_refused(hostile, "pyoco.js.STREAM.INFO.PYOCO_WORK", patience=30)
    assert site.client.list_runs() == []


async def test_the_gateway_cannot_rewrite_the_past_nor_the_admin_write_wheels(site: Site) -> None:
    async with connected(site, "gateway") as gateway, connected(site, "admin") as admin:
        assert await is_refused(gateway, "$JS.API.STREAM.DELETE.KV_pyoco_auth")
        for stream in ("PYOCO_AUDIT", "PYOCO_AUDIT_TRAIL"):
            for change in ("MSG.DELETE", "PURGE", "UPDATE", "DELETE"):
                assert await is_refused(gateway, f"$JS.API.STREAM.{change}.{stream}", b'{"seq": 1}')
        for change in ("MSG.DELETE", "DELETE"):  # purging a subject is how an archived execution is deleted
            assert await is_refused(gateway, f"$JS.API.STREAM.{change}.PYOCO_EXECUTIONS", b'{"seq": 1}')
        assert await is_refused(admin, "pyoco.exec.mine", b"{}")
        assert await is_refused(admin, "$KV.pyoco_workflows.template.acme.mine", b"{}")
        assert await is_refused(admin, "$O.pyoco_wheels.M.x", b"{}")
        assert await is_refused(admin, "pyoco.work.default", b"{}")


async def stored(site: Site, bucket: str, key: str) -> bytes | None:
    async with connected(site, "admin") as admin:
        try:
            message = await admin.jetstream().get_last_msg(f"KV_{bucket}", f"$KV.{bucket}.{key}")
        except NotFoundError:
            return None
        data: bytes = message.data
        return data


def has_last_use(data: bytes | None) -> bool:
    """So the gateway may write it, and will not write it again within a minute."""
    return data is not None and json.loads(data)["last_used_at"] is not None


async def test_administrators_and_the_command_line_leave_their_records(site: Site) -> None:
    """With the rights of deploy/nats/accounts.conf."""
    made = site.programs.run(
        *("pyoco-server-admin", "--nats-url", site.nats.url("admin"), "api-key", "create"),
        *("--tenant", "acme", "--scopes", "admin"),
    )
    assert (made.returncode, made.stderr) == (0, "")
    with PyocoHttpClient(site.url, api_key=json.loads(made.stdout)["api_key"]) as admin:
        created = admin.api_keys.create(["read"], description="display")
        admin.api_keys.revoke(created["key_id"])
        actions = [entry["action"] for entry in admin.list_audit(target="api_key")["items"]]
    assert actions[:3] == ["api_key.revoke", "api_key.create", "api_key.create"]


async def test_an_answer_of_nats_cannot_be_sent_where_the_asker_may_not_write(site: Site) -> None:
    """In one account it can: the server writes an answer with its own rights, to whatever subject is named.

    So a worker would forge an API key by storing it as a run and asking for that run, to be answered there.
    """
    key = f"api_keys.{site.key['key_id']}"
    assert site.client.list_runs() == []
    before = await until(lambda: stored(site, "pyoco_auth", key), has_last_use)
    assert before is not None
    async with connected(site, "worker") as hostile:
        await hostile.request("$KV.pyoco_runs.forged", b'{"forged": true}')
        for ask in (
            "pyoco.js.DIRECT.GET.KV_pyoco_runs.$KV.pyoco_runs.forged",
            "$KV.pyoco_runs.forged",
            "pyoco.js.STREAM.INFO.PYOCO_WORK",
        ):
            await hostile.publish(ask, b"", reply=f"$KV.pyoco_auth.{key}")
        # Answered in the same order, so that the forgeries would have arrived before this.
        await hostile.request("pyoco.js.STREAM.INFO.PYOCO_WORK")
    assert await stored(site, "pyoco_auth", key) == before
    assert site.client.list_runs() == []


@pytest.mark.parametrize("who", [{}, {"user": "worker", "pass": "guess"}, {"user": "root", "pass": ""}])
def test_nobody_comes_in_without_a_password(site: Site, who: dict[str, str]) -> None:
    with socket.create_connection(("127.0.0.1", site.nats.port), timeout=PATIENCE_SEC) as connection:
        lines = connection.makefile("rb")
        assert b'"auth_required":true' in lines.readline()
        connection.sendall(f"CONNECT {json.dumps(who)}\r\nPING\r\n".encode())
        assert b"Authorization Violation" in lines.readline()
