"""Manage API keys: create, list, revoke. Only the response to creating a key contains its secret."""

from collections.abc import Callable
from typing import Any, NamedTuple

from msgspec.structs import asdict, astuple, replace

from pyoco_server.domain.audit_trail import MASK, ChangeTarget
from pyoco_server.domain.auth import (
    ApiKey,
    ApiKeyPage,
    ApiKeyRecord,
    Grant,
    IssuedApiKey,
    ListedApiKey,
    is_key_id,
    listed,
    new_record,
    record_key,
    revoked,
)
from pyoco_server.domain.runs.listing import Place, cursor_at, digest_of, place_of
from pyoco_server.errors import ApiKeyNotFound, InvalidRequest, NatsUnavailable
from pyoco_server.logs import get_logger
from pyoco_server.usecases.audit_trail import AuditTrail
from pyoco_server.usecases.auth import ANONYMOUS, Caller
from pyoco_server.usecases.consistency import MAX_TRIES
from pyoco_server.usecases.ports.runs import ApiKeyStore
from pyoco_server.usecases.ports.stores import Clock, WrongRevision

log = get_logger(__name__)

NO_TENANT = (
    "a key belongs to a tenant, and without authentication there is none; "
    "create it with: pyoco-server-admin api-key create --tenant TENANT"
)


class IssueApiKey:
    def __init__(self, keys: ApiKeyStore, clock: Clock, pepper: str) -> None:
        self._keys = keys
        self._clock = clock
        self._pepper = pepper

    async def __call__(
        self, tenant_id: str, key: ApiKey, salt: bytes, grant: Grant | None = None
    ) -> IssuedApiKey:
        """`key` and `salt` are fresh random values. Raises InvalidRequest."""
        record = new_record(key.key_id, tenant_id, key.secret, salt, self._pepper, self._clock(), grant=grant)
        await self._keys.create(record_key(key.key_id), record)
        return IssuedApiKey(**asdict(listed(record)), api_key=key.text)


class Revoked(NamedTuple):
    before: ListedApiKey
    after: ListedApiKey


async def revoke_api_key(keys: ApiKeyStore, key_id: str, clock: Clock, caller: Caller = ANONYMOUS) -> Revoked:
    """No error if it is revoked already. It stays in the list. Raises ApiKeyNotFound."""
    for _ in range(MAX_TRIES):
        stored = await keys.get(record_key(key_id)) if is_key_id(key_id) else None
        if stored is None or not _is_of(caller, stored.value):
            raise ApiKeyNotFound(f"API key not found: {key_id[:64]!r}")
        record = revoked(stored.value, clock())
        if record is not stored.value:
            try:
                await keys.update(record_key(key_id), record, stored.revision)
            except WrongRevision:
                continue
        return Revoked(listed(stored.value), listed(record))
    raise NatsUnavailable(f"API key {key_id} could not be written")


class ManageApiKeys:
    """Of the caller's tenant; a caller without a tenant manages those of all. Changes are recorded."""

    def __init__(
        self,
        keys: ApiKeyStore,
        clock: Clock,
        issue: IssueApiKey,
        trail: AuditTrail,
        new_key: Callable[[], tuple[ApiKey, bytes]],
    ) -> None:
        """`new_key`: a fresh random key and a salt for its hash."""
        self._new_key = new_key
        self._keys = keys
        self._clock = clock
        self._issue = issue
        self._trail = trail

    async def create(self, tenant_id: str | None, grant: Grant, caller: Caller) -> IssuedApiKey:
        """Raises InvalidRequest."""
        if tenant_id is None:
            raise InvalidRequest(NO_TENANT)
        key, salt = self._new_key()
        issued = await self._issue(tenant_id, key, salt, grant)
        log.info("API key created", action="api_key.created", key_id=key.key_id, by=caller.name)
        await self._record(caller, "api_key.create", None, {**asdict(issued), "api_key": MASK})
        return issued

    async def revoke(self, key_id: str, caller: Caller) -> ListedApiKey:
        """Raises ApiKeyNotFound."""
        before, after = await revoke_api_key(self._keys, key_id, self._clock, caller)
        if before != after:
            log.info("API key revoked", action="api_key.revoked", key_id=key_id, by=caller.name)
            await self._record(caller, "api_key.revoke", asdict(before), asdict(after))
        return after

    async def _record(
        self, caller: Caller, action: str, before: dict[str, Any] | None, after: dict[str, Any]
    ) -> None:
        """Under the tenant of the key, so that its administrators see what the command line did."""
        author = replace(caller, tenant_id=after["tenant_id"])
        await self._trail.record(author, action, ChangeTarget("api_key", after["key_id"]), before, after)

    async def page(self, cursor: str | None, limit: int, caller: Caller) -> ApiKeyPage:
        """Newest first."""
        of = digest_of("api keys", caller.tenant_id)
        start = None if cursor is None else astuple(place_of(cursor, of))
        found = {_place(one): one for one in await self._keys.list_keys() if _is_of(caller, one)}
        places = sorted((place for place in found if start is None or place < start), reverse=True)
        next_cursor = cursor_at(Place(*places[limit - 1]), of) if len(places) > limit else None
        return ApiKeyPage([listed(found[place]) for place in places[:limit]], next_cursor)


async def list_api_keys(keys: ApiKeyStore) -> list[ListedApiKey]:
    """Of all tenants, oldest first."""
    return [listed(record) for record in sorted(await keys.list_keys(), key=_place)]


def _place(record: ApiKeyRecord) -> tuple[float, str]:
    return (record.created_at or 0.0, record.key_id)


def _is_of(caller: Caller, record: ApiKeyRecord) -> bool:
    return caller.tenant_id in (None, record.tenant_id)
