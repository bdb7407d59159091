"""Under which keys things of a tenant are stored."""

NO_TENANT = "="
"""Who has no tenant because auth is off. No tenant can have this name."""
DRAIN_LEASE = "drain"
NOTIFY_LEASE = "notify"
LEASE_SEC = 30.0
"""Renewed with every job: whoever holds it for longer without a word has died."""


def of_tenant(tenant_id: str | None) -> str:
    """The prefix of all keys of a tenant."""
    return f"{tenant_id or NO_TENANT}."


def place(tenant_id: str | None, name: str) -> str:
    return of_tenant(tenant_id) + name
