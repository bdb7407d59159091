"""Retries of ended runs: a new run with the same input."""

from typing import Any

from msgspec import Struct, field

from pyoco_server.domain.large_values import below
from pyoco_server.domain.runs.jobs import Submission
from pyoco_server.domain.runs.model import RunSnapshot
from pyoco_server.domain.secrets import references as secret_references


class Retry(Struct, frozen=True, kw_only=True):
    """A request for a retry."""

    from_failed: bool = False
    """Keep the outputs of the tasks that succeeded."""
    params: dict[str, Any] = field(default_factory=dict)
    """Params to change."""
    key: str | None = None
    """Idempotency key."""


def repeated(
    run: RunSnapshot, workflow_yaml: str | None, api_key_id: str | None, changed: dict[str, Any]
) -> Submission:
    """The submission of a run once more, with some params changed.

    Its delay is over. A run of an execution's node is repeated outside of the execution. Params that stay
    name what they named; their text is not read again, because some of it may be of an outside sender.
    """
    new, in_new = secret_references.read(changed)
    kept = secret_references.under(run.references, run.params.keys() - new.keys())
    return Submission(
        flow_name=run.flow_name,
        params={**run.params, **new},
        references=None if run.references is None and in_new is None else (*kept, *(in_new or ())),
        values=tuple(place for place in below(run.values, "params") if place[1] not in new),
        tag=run.tag or "",
        tags=run.tags,
        tenant_id=run.tenant_id,
        api_key_id=api_key_id,
        workflow_yaml=workflow_yaml,
        workflow_yaml_sha256=run.workflow_yaml_sha256,
        workflow_yaml_bytes=run.workflow_yaml_bytes,
        start_within_sec=run.start_within_sec,
        timeout_sec=run.timeout_sec,
        retry=run.retry,
        priority=run.priority,
        retried_from=run.run_id,
        parent_run_id=run.parent_run_id,
    )
