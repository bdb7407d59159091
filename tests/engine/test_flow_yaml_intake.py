"""REQ-0018: a flow.yaml is checked at the gateway and sent with its job."""

import hashlib
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from pyoco_server.domain import codec
from pyoco_server.domain.runs.jobs import Submission, accept, pending
from pyoco_server.engine.flow_yaml import HAS_NAMED_NODES, check_flow_yaml
from pyoco_server.errors import InvalidRequest, WorkflowTooLarge
from support.builders import RUN_ID


def file_of(graph: str, defaults: dict[str, Any] | None = None) -> str:
    tasks = {name: {"callable": f"yaml_tasks.steps:{name}"} for name in ("start", "double")}
    return json.dumps({"flow": {"graph": graph, "defaults": defaults or {}}, "tasks": tasks})


def test_an_accepted_file_is_known_by_its_bytes() -> None:
    data = "# größe\nflow: {graph: a, defaults: {n: 3}}\n".encode()
    checked = check_flow_yaml(data, max_bytes=len(data))
    assert checked.text.encode() == data
    assert checked.sha256 == hashlib.sha256(data).hexdigest()
    assert checked.bytes == len(data)
    assert checked.defaults == {"n": 3}


def test_a_file_over_the_limit_is_too_large() -> None:
    with pytest.raises(WorkflowTooLarge, match=r"flow\.yaml has 17 bytes; 16 are allowed") as caught:
        check_flow_yaml(b"flow: {graph: a}\n", max_bytes=16)
    assert (caught.value.entry.err_id, caught.value.status) == ("ERR-PYOCO-0016", 413)


def test_the_size_is_checked_first() -> None:
    with pytest.raises(WorkflowTooLarge):
        check_flow_yaml(b"\xff" * 100, max_bytes=99)


def test_defaults_may_not_grow_over_the_limit_by_aliases() -> None:
    data = ("flow: {graph: a, defaults: {x: &x " + "x" * 500 + ", y: [*x, *x, *x]}}").encode()
    with pytest.raises(WorkflowTooLarge, match=r"flow\.defaults has .* bytes as JSON; 1,000 are allowed"):
        check_flow_yaml(data, max_bytes=1_000)


def test_a_gateway_does_not_know_which_tasks_a_worker_has() -> None:
    check_flow_yaml(b"flow: {graph: some_plugin_task >> other}", max_bytes=1_000)


def test_a_gateway_imports_nothing_that_a_file_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "yaml_tasks").mkdir()
    (tmp_path / "yaml_tasks" / "steps.py").write_text("def start(): ...")
    monkeypatch.syspath_prepend(str(tmp_path))
    check_flow_yaml(file_of("start").encode(), max_bytes=10_000)
    assert not {"yaml_tasks", "yaml_tasks.steps"} & sys.modules.keys()


@pytest.mark.skipif(not HAS_NAMED_NODES, reason="this pyoco has no named nodes")
def test_what_only_pyoco_knows_is_refused_at_the_gateway_too() -> None:
    with pytest.raises(InvalidRequest, match=r"flow\.graph: Duplicate node name: x"):
        check_flow_yaml(file_of("x: start >> x: double").encode(), max_bytes=10_000)


def test_the_file_travels_in_the_job_and_its_hash_in_the_snapshot() -> None:
    checked = check_flow_yaml(file_of("start", {"n": 2}).encode(), max_bytes=10_000)
    job = accept(
        Submission(
            flow_name="from_yaml",
            tag="default",
            params=checked.defaults,
            workflow_yaml=checked.text,
            workflow_yaml_sha256=checked.sha256,
            workflow_yaml_bytes=checked.bytes,
        ),
        RUN_ID,
        1.0,
    )
    assert codec.decode_job(codec.encode(job)) == job
    assert (job.workflow_yaml, job.params) == (checked.text, {"n": 2})
    snapshot = pending(job)
    assert (snapshot.workflow_yaml_sha256, snapshot.workflow_yaml_bytes) == (checked.sha256, checked.bytes)
    assert b"yaml_tasks" not in codec.encode(snapshot)


def test_a_submission_without_a_file_has_no_traces_of_one() -> None:
    job = accept(Submission(flow_name="f", tag="default"), RUN_ID, 1.0)
    assert (job.workflow_yaml, job.workflow_yaml_sha256, job.workflow_yaml_bytes) == (None, None, None)
