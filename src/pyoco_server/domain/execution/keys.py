"""Ids and digests that follow from what they are of: a repeat comes to the same ones."""

import hashlib
from uuid import NAMESPACE_URL, uuid5

import msgspec

from pyoco_server.domain.execution.commands import Command
from pyoco_server.domain.idempotency import claim_key


def keyed_command_id(tenant_id: str | None, scope: str, key: str) -> str:
    """The command of an `Idempotency-Key`, in the scope of one execution (or of all creates)."""
    return str(uuid5(NAMESPACE_URL, f"pyoco:command:{scope}:{claim_key(tenant_id, key)}"))


def command_digest(command: Command) -> str:
    """Equal for equal commands, whoever sends them and however they were written."""
    fields = msgspec.to_builtins(command)
    fields.pop("actor", None)
    fields.pop("correlation_id", None)
    wanted = [type(command).__name__, fields]
    return hashlib.sha256(msgspec.json.encode(wanted, order="deterministic")).hexdigest()
