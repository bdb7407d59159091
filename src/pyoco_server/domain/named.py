"""What somebody defines under a name of their own, per tenant: secrets, variables, alerts, channels."""

from pyoco_server.domain.inputs import is_tag
from pyoco_server.errors import InvalidRequest

NO_TENANT = "="
"""Not a name of a tenant."""


def of_tenant(tenant_id: str | None) -> str:
    """The beginning of a tenant's keys."""
    return f"{NO_TENANT if tenant_id is None else tenant_id}."


def stored_key(tenant_id: str | None, name: str) -> str:
    return of_tenant(tenant_id) + name


def check_name(what: str, name: str) -> None:
    """Raises InvalidRequest."""
    if not is_tag(name):
        raise InvalidRequest(f"{what} {name[:80]!r} must match [A-Za-z0-9_-]{{1,64}}")
