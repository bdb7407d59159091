"""Ids of executions: a tenant's own ids are its own.

An execution is stored under an id that is a part of its subject, in one stream for all tenants. An id that a
tenant chose is stored as one derived from tenant and id, so that no tenant can take, or learn of, the ids of
another. Without tenants, and for ids that the server chose, both are the same.
"""

from uuid import NAMESPACE_URL, UUID, uuid5


def stored_id(tenant_id: str | None, given_id: str) -> str:
    if tenant_id is None:
        return given_id
    return str(uuid5(NAMESPACE_URL, f"pyoco:tenant:{tenant_id}:execution:{given_id}"))


def possible_ids(tenant_id: str | None, shown_id: str) -> tuple[str, ...]:
    """Under which an execution that a tenant calls so may be stored, the likelier one first.

    Older versions stored all of them under the id that was given.
    """
    if tenant_id is None:
        return (shown_id,)
    derived = stored_id(tenant_id, shown_id)
    return (shown_id, derived) if _is_of_server(shown_id) else (derived, shown_id)


def _is_of_server(text: str) -> bool:
    try:
        return str(UUID(text)) == text
    except ValueError:
        return False
