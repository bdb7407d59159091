"""What a task asks its worker for, and the answer."""

from typing import Annotated, Any

from msgspec import Meta, Struct

from pyoco_server.domain.inputs import MAX_DELAY_SEC, Priority


class ChildRequest(Struct, frozen=True, kw_only=True, tag="child"):
    """Start a child run."""

    key: str
    """Names the child within its parent: a second request with it is the same child."""
    flow_name: str
    params: dict[str, Any]
    tag: str | None = None
    """None: that of the parent."""
    tags: tuple[str, ...] | None = None
    priority: Priority | None = None
    delay_sec: Annotated[float, Meta(ge=0, le=MAX_DELAY_SEC)] | None = None
    timeout_sec: Annotated[float, Meta(gt=0, le=MAX_DELAY_SEC)] | None = None


class ArtifactRequest(Struct, frozen=True, kw_only=True, tag="artifact"):
    """Save a file with the run."""

    name: str
    path: str
    media_type: str
    task: str | None
    is_temporary: bool
    """The file is only for this request."""


TaskRequest = ChildRequest | ArtifactRequest


class TaskAnswer(Struct, frozen=True, kw_only=True):
    run_id: str = ""
    """Of the child."""
    error: str | None = None
