"""Traces, as a collector of OpenTelemetry receives them from real processes."""

import json
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from pyoco_server.config import NatsBackendConfig
from support.collector import Collector, collector
from support.gateway_process import GatewayProcess, gateway_process
from support.installation import TERMINAL, environment
from support.programs import Program, Programs
from support.waiting import PATIENCE_SEC, until_now

pytest.importorskip("opentelemetry.sdk", reason="the extra `otel` is not installed")

from opentelemetry.context import Context
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.sampling import Decision

from pyoco_server.otel.exporting import Exporting

FLOWS = f"{Path(__file__).parents[1]}/support/traced_flows.py:resolve"
PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
SAMPLED_OUT = "00-0af7651916cd43dd8448eb211c80319d-b7ad6b7169203331-00"


@pytest.fixture
def traces(programs: Programs) -> Iterator[Collector]:
    """What is started now sends its traces there."""
    with collector() as found:
        programs.environ.update(found.environ)
        yield found


class Site:
    def __init__(self, programs: Programs, config: NatsBackendConfig) -> None:
        self._programs = programs
        self._settings = environment(config)
        self._config = config
        self.marks = programs.directory / "marks"
        self.marks.mkdir()

    def gateway(self) -> Any:
        return gateway_process(self._programs, self._config)

    def worker(self, worker_id: str = "w1", **environ: str) -> Any:
        return self._programs.started(
            *("pyoco-worker", "--flow-resolver", FLOWS, "--worker-id", worker_id, "--concurrency", "1"),
            **self._settings,
            **environ,
        )


@pytest.fixture
def site(programs: Programs, config: NatsBackendConfig) -> Site:
    return Site(programs, config)


def submitted(gateway: GatewayProcess, flow: str, headers: dict[str, str] | None = None, **body: Any) -> str:
    answer = httpx2.post(
        f"{gateway.url}/runs", json={"flow_name": flow, **body}, headers=headers, timeout=PATIENCE_SEC
    )
    assert answer.status_code == 200, answer.text
    run_id: str = answer.json()["run_id"]
    return run_id


def ended(gateway: GatewayProcess, run_id: str) -> dict[str, Any]:
    def look() -> dict[str, Any]:
        found: dict[str, Any] = httpx2.get(f"{gateway.url}/runs/{run_id}", timeout=PATIENCE_SEC).json()
        return found

    return until_now(look, lambda run: run["status"] in TERMINAL)


def lines_of(program: Program) -> list[dict[str, Any]]:
    return [json.loads(line) for line in program.output.splitlines() if line.startswith("{")]


TASKS: dict[str, Any] = {"pyoco.task load": {"query": {}}, "pyoco.task send": {"post": {}}}
JOB = {"pyoco.job": {"pyoco.run": TASKS}}


def test_a_run_is_one_tree_from_the_request_to_the_spans_of_its_tasks(site: Site, traces: Collector) -> None:
    with site.gateway() as gateway, site.worker() as worker:
        worker.says("worker ready")
        run_id = submitted(gateway, "shop", {"traceparent": PARENT, "tracestate": "vendor=1"})
        run = ended(gateway, run_id)
        worker.ends_after(signal.SIGTERM)  # flushes
        request = traces.one("POST /runs")
        assert (request.trace_id, request.parent_id) == (PARENT[3:35], PARENT[36:52])
        traces.named("pyoco.run", run_id=run_id)
        assert traces.tree(request) == JOB
        (attempt,) = traces.named("pyoco.run")
        assert run["trace"]["attempt"] == f"00-{attempt.trace_id}-{attempt.span_id}-01"
        assert attempt.attributes["pyoco.worker_id"] == "w1"
        assert (request.service, attempt.service) == ("pyoco-gateway", "pyoco-worker")
        assert {span.state for span in (request, attempt)} == {"vendor=1"}
        (load,) = traces.named("pyoco.task", task="load")
        assert load.attributes["shop.rows"] == 3
        assert traces.one("query").events[0][0] == "fetched"
        job = traces.one("pyoco.job")
        assert (
            job.start_ns <= job.end_ns <= attempt.start_ns <= load.start_ns <= load.end_ns <= attempt.end_ns
        )
        in_run = [line for line in lines_of(worker) if line.get("run_id") == run_id]
        assert {(line["trace_id"], line["span_id"]) for line in in_run} == {
            (attempt.trace_id, attempt.span_id)
        }


def test_an_event_its_execution_and_its_runs_are_one_tree_over_a_killed_worker(
    site: Site, traces: Collector, programs: Programs
) -> None:
    """The span of the attempt that was killed is emitted by the worker that takes the run over."""
    programs.environ.update(PYOCO_CONSUMER_ACK_WAIT_SEC="2", PYOCO_ACK_PROGRESS_INTERVAL_SEC="0.3")
    with site.gateway() as gateway:
        with httpx2.Client(base_url=gateway.url, timeout=PATIENCE_SEC) as http:
            for action in ("load", "send"):
                body = {"flow_name": "shop", "params": {"marks": str(site.marks)}}
                assert http.put(f"/api/workflow-actions/{action}", json=body).status_code == 200
            steps = [
                {"id": "load", "action": "load", "trigger_kind": "external_event"},
                {"id": "send", "action": "send", "trigger_kind": "after_previous"},
            ]
            template = {"name": "Shop", "year": 2026, "month": 2, "steps": steps}
            assert http.put("/api/workflow-templates/shop", json=template).status_code == 200
            with site.worker("w1") as first:
                first.says("worker ready")
                event = http.post("/api/workflow-events", json={"template_id": "shop"}).json()
                until_now((site.marks / "in-load").exists)
                first.ends_after(signal.SIGKILL)
            with site.worker("w2") as second:
                second.says("worker ready")
                (site.marks / "go").write_text("0")
                execution = traces.one("pyoco.execution")
                second.ends_after(signal.SIGTERM)
        traces.named("pyoco.run", 3)
        request = traces.one("POST /api/workflow-events")
        whole = [span for span in traces.spans if span.trace_id == request.trace_id]
        assert traces.roots(request.trace_id) == [request]
        assert len({span.span_id for span in whole}) == len(whole)
        (received,) = traces.children(request)
        assert (received.name, received.attributes["pyoco.run_id"]) == ("pyoco.event", event["run_id"])
        assert traces.children(received) == [execution]
        load, send = traces.children(execution)
        assert [job.attributes["pyoco.node_id"] for job in (load, send)] == ["load", "send"]
        lost, again = traces.children(load)
        assert (lost.attributes["pyoco.status"], lost.is_error) == ("LOST", True)
        assert (lost.attributes["pyoco.worker_id"], again.attributes["pyoco.worker_id"]) == ("w1", "w2")
        assert (lost.links, again.links) == ((), (lost.span_id,))
        assert traces.tree(again) == TASKS
        (attempt,) = traces.children(send)
        assert (attempt.links, traces.tree(attempt)) == ((), TASKS)


def test_a_next_try_has_a_job_of_its_own_and_links_to_the_one_before(site: Site, traces: Collector) -> None:
    retry = {"max_attempts": 2, "backoff_sec": 0}
    with site.gateway() as gateway, site.worker() as worker:
        worker.says("worker ready")
        run_id = submitted(gateway, "refusing", retry=retry, params={"token": "t"})
        assert ended(gateway, run_id)["status"] == "FAILED"
        first, second = traces.named("pyoco.job", 2)
        assert first.parent_id == second.parent_id == traces.one("POST /runs").span_id
        before, after = traces.named("pyoco.run", 2)
        assert [span.attributes["pyoco.try"] for span in (before, after)] == [1, 2]
        assert (before.parent_id, after.parent_id) == (first.span_id, second.span_id)
        assert (before.links, after.links) == ((), (before.span_id,))
        assert {span.description for span in (before, after)} == {"ValueError: refused with t"}
        task, _ = traces.named("pyoco.task", 2)
        ((kind, exception),) = task.events
        assert (kind, exception["exception.type"]) == ("exception", "ValueError")
        assert "refuse" in exception["exception.stacktrace"]


def test_spans_in_threads_of_one_flow_are_below_their_own_task(site: Site, traces: Collector) -> None:
    with site.gateway() as gateway, site.worker() as worker:
        worker.says("worker ready")
        ended(gateway, submitted(gateway, "beside"))
        for side in ("left", "right"):
            span = traces.one(f"in-{side}")
            assert span.parent_id == traces.one("pyoco.task", task=side).span_id


def test_secrets_are_masked_in_every_span(site: Site, traces: Collector, programs: Programs) -> None:
    made = programs.run("pyoco-server-admin", "secrets", "new-key")
    programs.environ["PYOCO_SECRETS_KEY"] = json.loads(made.stdout)["key"]
    with site.gateway() as gateway, site.worker() as worker:
        worker.says("worker ready")
        put = httpx2.put(f"{gateway.url}/secrets/shop", json={"value": "s3cr3t-of-the-shop"})
        assert put.status_code == 201, put.text
        params = {"token": "${secrets.shop}"}
        assert ended(gateway, submitted(gateway, "using", params=params))["status"] == "COMPLETED"
        assert traces.one("pyoco.task").attributes["shop.token"] == "•••"
        sent, answer = traces.one("send •••"), traces.one("answer")
        assert "•••" in str(sent.attributes["auth"])
        assert sent.events == (("sent", {"url": "https://shop/?t=•••"}),)
        assert answer.description == "••• is refused"
        assert "s3cr3t" not in repr(traces.spans)


def test_what_the_sender_does_not_sample_is_not_sampled_here(site: Site, traces: Collector) -> None:
    with site.gateway() as gateway, site.worker() as worker:
        worker.says("worker ready")
        ended(gateway, submitted(gateway, "shop", {"traceparent": SAMPLED_OUT}))
        run_id = submitted(gateway, "shop", {"traceparent": "00-nonsense"})
        ended(gateway, run_id)
        worker.ends_after(signal.SIGTERM)
    assert SAMPLED_OUT[3:35] not in {span.trace_id for span in traces.spans}
    assert len([span for span in traces.spans if span.name == "query"]) == 1
    assert [span.parent_id for span in traces.spans if span.name == "POST /runs"] == [""]


def test_what_the_gateway_does_not_sample_is_sampled_by_nobody(
    site: Site, traces: Collector, programs: Programs
) -> None:
    """Also not by a worker that would sample everything, and not by users' code."""
    programs.environ.update(OTEL_TRACES_SAMPLER="parentbased_always_off")
    with site.gateway() as gateway, site.worker(OTEL_TRACES_SAMPLER="parentbased_always_on") as worker:
        worker.says("worker ready")
        for flow in ("shop", "beside"):
            assert ended(gateway, submitted(gateway, flow))["status"] == "COMPLETED"
        ended(gateway, submitted(gateway, "shop", {"traceparent": PARENT}))
        worker.ends_after(signal.SIGTERM)
    assert {span.trace_id for span in traces.spans} == {PARENT[3:35]}
    assert len(traces.named("pyoco.run")) == 1


@pytest.mark.parametrize("sampler", ["parentbased_traceidratio", "traceidratio", "always_on", "always_off"])
def test_it_is_decided_as_the_sdk_decides(sampler: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", sampler)
    monkeypatch.setenv("OTEL_TRACES_SAMPLER_ARG", "0.3")
    tracer, sdk = Exporting(Resource({}), []), TracerProvider().sampler
    for trace_id in (tracer.new_trace_id() for _ in range(200)):
        decision = sdk.should_sample(Context(), int(trace_id, 16), "x").decision
        assert tracer.is_sampled(None, trace_id, "x") is (decision is Decision.RECORD_AND_SAMPLE)


def test_a_collector_that_is_away_delays_nothing_and_is_logged_once(site: Site, programs: Programs) -> None:
    with socket.socket() as taken:  # nobody listens there
        taken.bind(("127.0.0.1", 0))
        programs.environ.update(
            OTEL_EXPORTER_OTLP_ENDPOINT=f"http://127.0.0.1:{taken.getsockname()[1]}",
            OTEL_BSP_SCHEDULE_DELAY="20",
            OTEL_EXPORTER_OTLP_TIMEOUT="1",
        )
        with site.gateway() as gateway, site.worker() as worker:
            worker.says("worker ready")
            for _ in range(3):
                assert ended(gateway, submitted(gateway, "shop"))["status"] == "COMPLETED"
            worker.says("traces.export_failed")
            for _ in range(3):
                assert ended(gateway, submitted(gateway, "shop"))["status"] == "COMPLETED"
            assert worker.ends_after(signal.SIGTERM) == 0
            assert gateway.program.ends_after(signal.SIGTERM) == 0
    failures = [line for line in lines_of(worker) if line.get("action") == "traces.export_failed"]
    assert len(failures) == 1
    assert failures[0]["reason"]
    assert [line for line in lines_of(worker) if line["logger"].startswith("opentelemetry")] == []


def in_fresh_process(code: str, **environ: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=True
    )
    return done.stdout


LISTED = "print([m for m in sys.modules if m.startswith('opentelemetry')])"


def test_nothing_is_imported_unless_traces_are_wanted() -> None:
    """FastAPI imports the API of OpenTelemetry by itself; the SDK and the exporter are what costs."""
    worker = "import sys; import pyoco_server.cli.worker, pyoco_server.engine.executors.zygote as z; "
    start = "from pyoco_server import otel; otel.start('x'); otel.preload(); otel.open_executor(); "
    assert in_fresh_process(f"{worker}{start}{LISTED}") == "[]\n"
    gateway = "import sys; from pyoco_server.http_api import create_app; create_app(); "
    found = in_fresh_process(f"{gateway}{start}{LISTED}")
    assert "opentelemetry.sdk" not in found
    assert "opentelemetry.exporter" not in found


@pytest.mark.parametrize(
    "environ",
    [{"OTEL_TRACES_EXPORTER": "none", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1"}, {}],
)
def test_none_is_an_exporter_that_exports_nothing(environ: dict[str, str]) -> None:
    code = f"import sys; from pyoco_server import otel; otel.start('x'); {LISTED}"
    assert in_fresh_process(code, **environ) == "[]\n"


def test_without_the_extra_a_start_logs_one_warning_and_goes_on() -> None:
    code = (
        "import sys; sys.modules['opentelemetry.sdk'] = None\n"
        "from pyoco_server import logs, otel, tracing\n"
        "logs.configure_logging(service='x')\n"
        "otel.start('pyoco-worker'); otel.preload(); otel.open_executor(); otel.stop()\n"
        "assert tracing.active is None\n"
    )
    (line,) = in_fresh_process(code, OTEL_TRACES_EXPORTER="otlp").splitlines()
    found = json.loads(line)
    assert (found["level"], found["action"]) == ("WARNING", "traces.not_installed")
    assert found["advice"] == "pip install 'pyoco-server[otel]'"


def test_an_exporter_that_nobody_has_is_one_warning() -> None:
    code = "from pyoco_server import logs, otel; logs.configure_logging(service='x'); otel.start('x')"
    (line,) = in_fresh_process(code, OTEL_TRACES_EXPORTER="pigeon").splitlines()
    assert "pigeon" in json.loads(line)["exc_message"]
