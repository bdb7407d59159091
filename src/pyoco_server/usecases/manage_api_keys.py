"""Issue, list and revoke API keys. Only the answer to issuing one ever holds its secret."""

from msgspec import Struct

from pyoco_server.domain.api_keys import ApiKey, ApiKeyRecord, is_key_id, new_record, record_key, revoked
from pyoco_server.errors import InvalidRequest, NatsUnavailable
from pyoco_server.usecases.change_run import MAX_TRIES
from pyoco_server.usecases.ports import ApiKeyStore, Clock, WrongRevision


class IssuedApiKey(Struct, frozen=True, kw_only=True):
    key_id: str
    tenant_id: str
    created_at: float | None
    api_key: str
    """The only copy."""


class ListedApiKey(Struct, frozen=True, kw_only=True):
    """A key as its administrator sees it: nothing to check guesses against."""

    key_id: str
    tenant_id: str
    created_at: float | None
    revoked_at: float | None


class IssueApiKey:
    def __init__(self, keys: ApiKeyStore, clock: Clock, pepper: str) -> None:
        self._keys = keys
        self._clock = clock
        self._pepper = pepper

    async def __call__(self, tenant_id: str, key: ApiKey, salt: bytes) -> IssuedApiKey:
        """`key` and `salt` are fresh randomness. Raises InvalidRequest for a tenant that cannot be one."""
        record = new_record(key.key_id, tenant_id, key.secret, salt, self._pepper, self._clock())
        await self._keys.create(record_key(key.key_id), record)
        return IssuedApiKey(
            key_id=record.key_id,
            tenant_id=record.tenant_id,
            created_at=record.created_at,
            api_key=key.text,
        )


async def list_api_keys(keys: ApiKeyStore) -> list[ListedApiKey]:
    """Oldest first."""
    records = await keys.list_keys()
    return [_listed(record) for record in sorted(records, key=lambda one: (one.created_at or 0, one.key_id))]


async def revoke_api_key(keys: ApiKeyStore, key_id: str, clock: Clock) -> ListedApiKey:
    """Revoking again changes nothing. Raises InvalidRequest when there is no such key."""
    for _ in range(MAX_TRIES):
        stored = await keys.get(record_key(key_id)) if is_key_id(key_id) else None
        if stored is None:
            raise InvalidRequest(f"no API key has the id {key_id!r}")
        record = revoked(stored.value, clock())
        if record is stored.value:
            return _listed(record)
        try:
            await keys.update(record_key(key_id), record, stored.revision)
        except WrongRevision:
            continue
        return _listed(record)
    raise NatsUnavailable(f"API key {key_id} could not be written")


def _listed(record: ApiKeyRecord) -> ListedApiKey:
    return ListedApiKey(
        key_id=record.key_id,
        tenant_id=record.tenant_id,
        created_at=record.created_at,
        revoked_at=record.revoked_at,
    )
