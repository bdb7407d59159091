"""REQ-0002: from a submission to its job and its first snapshot."""

from typing import Any

import pytest

from pyoco_server.domain.runs.jobs import accept, check, pending
from pyoco_server.domain.runs.model import RunStatus
from pyoco_server.errors import InvalidJob, InvalidRequest
from support.builders import NOW, RUN_ID, a_job, a_submission


def test_an_accepted_job_carries_what_was_submitted() -> None:
    wanted = a_submission(tag="gpu", tags=("a", "b"), tenant_id="t1", api_key_id="k1")
    job = accept(wanted, RUN_ID, NOW)
    assert (job.run_id, job.flow_name, job.params, job.submitted_at) == (RUN_ID, "sample", {"x": 1}, NOW)
    assert (job.tag, job.tags, job.tenant_id, job.api_key_id) == ("gpu", ("a", "b"), "t1", "k1")


def test_tags_are_the_routing_tag_when_none_are_given() -> None:
    assert accept(a_submission(tag="gpu"), RUN_ID, NOW).tags == ("gpu",)


def test_no_tags_at_all_can_be_asked_for() -> None:
    assert accept(a_submission(tags=()), RUN_ID, NOW).tags == ()


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"flow_name": ""}, "flow_name"),
        ({"flow_name": "x" * 201}, "flow_name"),
        ({"tag": "a.b"}, "'a.b'"),
        ({"tag": ""}, "tag ''"),
        ({"tags": ("all fine", "not\nfine")}, r"'not\\nfine'"),
        ({"tags": tuple(f"t{n}" for n in range(33))}, "at most 32"),
    ],
)
def test_a_submission_with_unusable_names_is_refused_with_the_name(
    changes: dict[str, Any], named: str
) -> None:
    with pytest.raises(InvalidRequest, match=named):
        accept(a_submission(**changes), RUN_ID, NOW)


def test_the_longest_allowed_names_are_accepted() -> None:
    wanted = a_submission(flow_name="x" * 200, tag="t" * 64, tags=tuple(f"t{n}" for n in range(32)))
    assert accept(wanted, RUN_ID, NOW).flow_name == "x" * 200


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"run_id": "../x"}, "is not a UUID"),
        ({"run_id": ""}, "is not a UUID"),
        ({"flow_name": ""}, "flow_name"),
    ],
)
def test_a_job_from_the_queue_is_not_trusted(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(InvalidJob, match=named):
        check(a_job(**changes))


def test_the_first_snapshot_comes_from_the_job_alone() -> None:
    job = a_job(tags=("a",), tenant_id="t1", api_key_id="k1", workflow_yaml_sha256="s", workflow_yaml_bytes=3)
    snapshot = pending(job)
    assert snapshot.status is RunStatus.PENDING
    assert (snapshot.run_id, snapshot.flow_name, snapshot.params) == (job.run_id, "sample", {"x": 1})
    assert (snapshot.tag, snapshot.tags, snapshot.tasks) == ("default", ("a",), {})
    assert snapshot.submitted_at == snapshot.updated_at == snapshot.heartbeat_at == job.submitted_at
    assert (snapshot.tenant_id, snapshot.api_key_id) == ("t1", "k1")
    assert (snapshot.workflow_yaml_sha256, snapshot.workflow_yaml_bytes) == ("s", 3)
    assert snapshot.owner is None


def test_a_job_without_params_has_an_empty_object_in_its_snapshot() -> None:
    assert pending(a_job(params=None)).params == {}
