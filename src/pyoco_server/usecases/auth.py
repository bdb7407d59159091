"""Callers and their API keys: authentication, visibility, and management of keys."""

import asyncio
import hmac
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from weakref import WeakValueDictionary

from msgspec import Struct

from pyoco_server.domain.audit_trail import Origin
from pyoco_server.domain.auth import (
    ApiKey,
    ApiKeyRecord,
    fingerprint,
    is_key_id,
    new_record,
    parse,
    record_key,
    revoked,
    verify,
)
from pyoco_server.domain.codec import Unreadable
from pyoco_server.domain.runs.model import RunSnapshot
from pyoco_server.errors import ApiKeyRequired, InvalidApiKey, InvalidRequest, NatsUnavailable
from pyoco_server.usecases.consistency import MAX_TRIES
from pyoco_server.usecases.ports.runs import ApiKeyFeed, ApiKeyStore
from pyoco_server.usecases.ports.stores import Clock, WrongRevision


class Caller(Struct, frozen=True):
    """With auth off all callers are the same, without a tenant."""

    tenant_id: str | None = None
    api_key_id: str | None = None
    origin: Origin | None = None
    """For the audit trail; only where a request changes something."""

    @property
    def name(self) -> str:
        return f"api_key:{self.api_key_id}" if self.api_key_id else "anonymous"


ANONYMOUS = Caller()
AskWho = Callable[[str | None], Awaitable[Caller]]
"""From the text of an API key to its caller, or to an error."""


def may_see(caller: Caller, snapshot: RunSnapshot) -> bool:
    """Another tenant's run is treated as missing."""
    return caller.tenant_id is None or caller.tenant_id == snapshot.tenant_id


# Authentication: from the text of an API key to its tenant.
#
# Records come from the feed, which holds all of them in memory: a guess costs no read of the store, and a
# change (a new or revoked key) takes effect as soon as the feed receives it. If the feed may be more than a
# second behind, the store is read; if that fails, access is denied.
#
# A verified secret is cached as a fingerprint, together with its record. It is derived again when the record
# changes.


class _Verified(Struct, frozen=True):
    record: ApiKeyRecord
    fingerprint: bytes


class Authenticate:
    def __init__(self, keys: ApiKeyStore, feed: ApiKeyFeed, pepper: str, process_key: bytes) -> None:
        self._keys = keys
        self._feed = feed
        self._pepper = pepper
        self._process_key = process_key
        self._decoy = new_record("decoy", "decoy", process_key.hex(), process_key, pepper, 0.0)
        # One per existing and used key, so guesses never add to it.
        self._verified: dict[str, _Verified] = {}
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        # A single thread, so that any number of guesses does not block the event loop.
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="api-key")

    async def __call__(self, presented: str | None) -> Caller:
        """Raises ApiKeyRequired, InvalidApiKey, or NatsUnavailable if the key cannot be checked."""
        if not presented:
            raise ApiKeyRequired
        key = parse(presented)
        if key is None:
            raise InvalidApiKey
        record = await self._record(key.key_id)
        if record is None:
            # Takes as long as a wrong secret, so that the response time does not reveal which ids exist.
            verify(self._decoy, key.secret, self._pepper)
            raise InvalidApiKey
        shown = fingerprint(key.secret, self._process_key)
        if not (self._is_remembered(record, shown) or await self._is_right(key, record, shown)):
            raise InvalidApiKey
        return self._remember(record, shown)

    async def is_still_allowed(self, caller: Caller) -> bool:
        """Whether the key of an authenticated caller is still valid. Raises NatsUnavailable."""
        if caller.api_key_id is None:
            return True
        record = await self._record(caller.api_key_id)
        return record is not None and record.tenant_id == caller.tenant_id

    async def _record(self, key_id: str) -> ApiKeyRecord | None:
        """The record of a valid key."""
        record = self._feed.known(key_id) if self._feed.is_current else await self._stored(key_id)
        if record is None or record.is_revoked or record.key_id != key_id:
            self._verified.pop(key_id, None)
            return None
        return record

    async def _stored(self, key_id: str) -> ApiKeyRecord | None:
        try:
            stored = await self._keys.get(record_key(key_id))
        except Unreadable:
            return None  # nothing can be verified against it; the feed logs it
        return stored.value if stored else None

    def _is_remembered(self, record: ApiKeyRecord, shown: bytes) -> bool:
        known = self._verified.get(record.key_id)
        return known is not None and known.record == record and hmac.compare_digest(known.fingerprint, shown)

    def _remember(self, record: ApiKeyRecord, shown: bytes) -> Caller:
        known = self._verified.get(record.key_id)
        if known is None or known.record != record:
            self._verified[record.key_id] = _Verified(record, shown)
        return Caller(record.tenant_id, record.key_id)

    async def _is_right(self, key: ApiKey, record: ApiKeyRecord, shown: bytes) -> bool:
        if not record.is_slow:
            return verify(record, key.secret, self._pepper)
        # One at a time per key, so that guesses at one key do not delay others.
        async with self._turns.setdefault(key.key_id, asyncio.Lock()):
            if self._is_remembered(record, shown):
                return True
            return (
                await self._is_still(record)
                and await self._verify_in_thread(record, key.secret)
                and await self._is_still(record)
            )

    async def _is_still(self, record: ApiKeyRecord) -> bool:
        """A key can be revoked while its secret is being derived."""
        return await self._record(record.key_id) == record

    async def _verify_in_thread(self, record: ApiKeyRecord, secret: str) -> bool:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, verify, record, secret, self._pepper)


# Management of API keys. Only the response to issuing a key contains its secret.


class IssuedApiKey(Struct, frozen=True, kw_only=True):
    key_id: str
    tenant_id: str
    created_at: float | None
    api_key: str
    """The only copy."""


class ListedApiKey(Struct, frozen=True, kw_only=True):
    """A key as shown to administrators, without its hash."""

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
        """`key` and `salt` are fresh random values. Raises InvalidRequest for an invalid tenant."""
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
    """Idempotent. Raises InvalidRequest for an unknown key."""
    for _ in range(MAX_TRIES):
        stored = await keys.get(record_key(key_id)) if is_key_id(key_id) else None
        if stored is None:
            raise InvalidRequest(f"API key not found: {key_id!r}")
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
