"""Child runs: started by a task of their parent, by way of its worker and a gateway."""

from uuid import NAMESPACE_URL, uuid5

from msgspec import Struct

from pyoco_server.domain.runs.jobs import Submission
from pyoco_server.domain.runs.model import Owner, RunSnapshot, RunStatus
from pyoco_server.domain.runs.task_requests import ChildRequest


class ChildOrder(Struct, frozen=True):
    """A worker asks a gateway for a child of a run that it executes."""

    parent_run_id: str
    owner: Owner
    child: ChildRequest


class ChildAnswer(Struct, frozen=True, kw_only=True):
    run_id: str = ""
    error: str | None = None
    """Why the child was not started."""
    is_passing: bool = False
    """Worth another request."""


def child_run_id(order: ChildOrder) -> str:
    """The same at every delivery and try of the parent: none of them starts its child twice."""
    return str(uuid5(NAMESPACE_URL, f"pyoco:child:{order.parent_run_id}:{order.child.key}"))


def refusal_of(parent: RunSnapshot | None, order: ChildOrder) -> ChildAnswer | None:
    """Only the worker that executes a run may start children of it."""
    if parent is None:
        return ChildAnswer(error="the run does not exist any more", is_passing=True)
    if parent.status is RunStatus.CANCELLING:
        return ChildAnswer(error="the run was cancelled")
    if parent.status is RunStatus.RUNNING and parent.owner == order.owner:
        return None
    is_behind = parent.owner is None or parent.owner.attempt < order.owner.attempt
    return ChildAnswer(
        error="the run has ended, or another worker executes it",
        is_passing=is_behind and not parent.status.is_terminal,  # a replica may not have the claim yet
    )


def submission_of(parent: RunSnapshot, child: ChildRequest) -> Submission:
    """With the rights of the parent. Its params are data of a task: they name no secrets."""
    return Submission(
        flow_name=child.flow_name,
        params=child.params,
        tag=child.tag or parent.tag or "",
        tags=child.tags,
        tenant_id=parent.tenant_id,
        api_key_id=parent.api_key_id,
        priority=child.priority,
        delay_sec=child.delay_sec,
        timeout_sec=child.timeout_sec,
        parent_run_id=parent.run_id,
    )


def is_another(known: RunSnapshot, wanted: Submission) -> bool:
    """Whether the key of a child was used for another request before."""
    return (known.flow_name, known.params) != (wanted.flow_name, wanted.params)
