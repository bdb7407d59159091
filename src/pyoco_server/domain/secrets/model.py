"""What is stored of secrets and variables, and what the HTTP API answers with."""

from typing import Any

from msgspec import Struct

from pyoco_server.domain.named import stored_key

MAX_VALUE_BYTES = 32 * 1024
KEY_SETTING = "PYOCO_SECRETS_KEY"


class SecretRecord(Struct, frozen=True, kw_only=True):
    """`sealed`: the value, encrypted; bound to the tenant and the name."""

    name: str
    sealed: str
    created_at: float
    updated_at: float
    tenant_id: str | None = None

    @property
    def key(self) -> str:
        return stored_key(self.tenant_id, self.name)


class VariableRecord(Struct, frozen=True, kw_only=True):
    name: str
    value: Any
    created_at: float
    updated_at: float
    tenant_id: str | None = None

    @property
    def key(self) -> str:
        return stored_key(self.tenant_id, self.name)


def bound_to(tenant_id: str | None, name: str) -> bytes:
    """What a sealed value belongs to: it opens under no other name, and for no other tenant."""
    return f"secret\0{stored_key(tenant_id, name)}".encode()


class Secret(Struct, frozen=True, kw_only=True):
    """Its value never comes back."""

    name: str
    created_at: float
    updated_at: float


class SecretList(Struct, frozen=True):
    items: list[Secret]
    next_cursor: str | None = None


class Variable(Struct, frozen=True, kw_only=True):
    name: str
    value: Any
    created_at: float
    updated_at: float


class VariableList(Struct, frozen=True):
    items: list[Variable]
    next_cursor: str | None = None


class SecretDeleted(Struct, frozen=True):
    name: str
    deleted: bool


class VariableDeleted(Struct, frozen=True):
    name: str
    deleted: bool


def secret_view(record: SecretRecord) -> Secret:
    return Secret(name=record.name, created_at=record.created_at, updated_at=record.updated_at)


def variable_view(record: VariableRecord) -> Variable:
    return Variable(
        name=record.name,
        value=record.value,
        created_at=record.created_at,
        updated_at=record.updated_at,
    )


SECRET_ANSWERS: tuple[type[Struct], ...] = (
    Secret,
    SecretList,
    SecretDeleted,
    Variable,
    VariableList,
    VariableDeleted,
)
"""Types of the HTTP API."""
