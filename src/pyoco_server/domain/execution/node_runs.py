"""The runs that carry out nodes: their ids, what is known of them, what is wanted of them."""

from functools import lru_cache
from typing import Any
from uuid import NAMESPACE_URL, uuid5

from msgspec import Struct

from pyoco_server.domain.runs import RunStatus


class RunFact(Struct, frozen=True):
    """What is known of a node's run."""

    status: RunStatus
    result: Any = None
    error: str | None = None
    code: str = "RUN_FAILED"
    """Of the failure, if it is one."""


class DispatchRun(Struct, frozen=True, kw_only=True):
    run_id: str
    node_id: str
    flow: str
    tag: str | None
    params: dict[str, Any]


class CancelRun(Struct, frozen=True, kw_only=True):
    run_id: str
    reason: str


@lru_cache(maxsize=4_096)
def run_id_of(execution_id: str, node_id: str, attempt: int) -> str:
    return str(uuid5(NAMESPACE_URL, f"pyoco:run:{execution_id}:{node_id}:{attempt}"))
