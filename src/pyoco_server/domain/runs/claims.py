"""Idempotency keys: which run belongs to one."""

import hashlib

import msgspec
from msgspec import Struct

from pyoco_server.domain.runs.jobs import Submission
from pyoco_server.domain.runs.model import replace
from pyoco_server.errors import InvalidRequest

MAX_KEY = 255


class IdempotencyClaim(Struct, frozen=True, kw_only=True):
    """Written before the run is started, so that a retry after a crash starts the same run."""

    run_id: str
    request: str
    claimed_at: float
    is_accepted: bool = False
    """The run was accepted and is never started again, even after its snapshot has expired."""


def claim_key(tenant_id: str | None, key: str, scope: str | None = None) -> str:
    """The bucket key for an idempotency key: a hash of tenant and key, because keys are arbitrary text.

    `scope`: the kind of request, if not a run. Keys of different scopes never collide.
    """
    if not 1 <= len(key) <= MAX_KEY or not key.isprintable():
        raise InvalidRequest(f"Idempotency-Key must have 1 to {MAX_KEY} printable characters")
    of = [tenant_id, key] if scope is None else [tenant_id, key, scope]
    return hashlib.sha256(msgspec.json.encode(of)).hexdigest()


def request_digest(submission: Submission) -> str:
    """Equal for equal requests, regardless of JSON formatting and of the tenant's API key."""
    wanted = msgspec.structs.asdict(replace(submission, api_key_id=None))
    if submission.priority is None:  # a key claimed by a version without priorities stays valid
        del wanted["priority"]
    if submission.references is None:  # nor with one without secrets
        del wanted["references"]
    if not submission.values:  # nor with one without stored values
        del wanted["values"]
    return hashlib.sha256(msgspec.json.encode(wanted, order="deterministic")).hexdigest()
