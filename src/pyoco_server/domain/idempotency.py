"""One key, one run: what is remembered of an `Idempotency-Key`."""

import hashlib

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from pyoco_server.domain.jobs import Submission
from pyoco_server.errors import InvalidRequest

MAX_KEY = 255


class Claim(Struct, frozen=True, kw_only=True):
    """Written before the run is started, so that a repeat after any crash starts the same run."""

    run_id: str
    request: str
    claimed_at: float
    is_accepted: bool = False
    """The run was placed: it is never placed again, not even when its snapshot has expired."""


def claim_key(tenant_id: str | None, key: str, scope: str | None = None) -> str:
    """Keys are anybody's text, so the bucket sees a hash; it is of the tenant's key, not of the key alone.

    `scope`: what the key is of, where that is not a run. Keys of different scopes never meet.
    """
    if not 1 <= len(key) <= MAX_KEY or not key.isprintable():
        raise InvalidRequest(f"Idempotency-Key must have 1 to {MAX_KEY} printable characters")
    of = [tenant_id, key] if scope is None else [tenant_id, key, scope]
    return hashlib.sha256(msgspec.json.encode(of)).hexdigest()


def request_digest(submission: Submission) -> str:
    """Equal for equal requests, however their JSON was written and with whichever key of the tenant."""
    wanted = replace(submission, api_key_id=None)
    return hashlib.sha256(msgspec.json.encode(wanted, order="deterministic")).hexdigest()
