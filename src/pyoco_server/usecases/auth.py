"""Callers and their API keys: authentication, scopes, visibility, and when keys were used."""

import asyncio
import hmac
import math
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from weakref import WeakValueDictionary

from msgspec import Struct

from pyoco_server.domain.audit_trail import Origin
from pyoco_server.domain.auth import (
    ALL_SCOPES,
    USED_AGAIN_SEC,
    ApiKey,
    ApiKeyRecord,
    Scope,
    fingerprint,
    has_same_secret,
    new_record,
    parse,
    record_key,
    used,
    verify,
)
from pyoco_server.domain.codec import Unreadable
from pyoco_server.domain.runs.model import RunSnapshot
from pyoco_server.errors import ApiKeyRequired, InvalidApiKey, NatsUnavailable
from pyoco_server.logs import best_effort, get_logger
from pyoco_server.usecases.ports.runs import ApiKeyFeed, ApiKeyStore
from pyoco_server.usecases.ports.stores import Clock, WrongRevision

log = get_logger(__name__)


class Caller(Struct, frozen=True):
    """With auth off all callers are the same, without a tenant."""

    tenant_id: str | None = None
    api_key_id: str | None = None
    origin: Origin | None = None
    """For the audit trail; only where a request changes something."""
    scopes: frozenset[str] = ALL_SCOPES

    @property
    def name(self) -> str:
        return f"api_key:{self.api_key_id}" if self.api_key_id else "anonymous"


ANONYMOUS = Caller()
AskWho = Callable[[str | None], Awaitable[Caller]]
"""From the text of an API key to its caller, or to an error."""


def may_see(caller: Caller, snapshot: RunSnapshot) -> bool:
    """Another tenant's run is treated as missing."""
    return caller.tenant_id is None or caller.tenant_id == snapshot.tenant_id


def may_see_without_tenant(caller: Caller) -> bool:
    """Whether a caller sees what belongs to no tenant, such as an unreadable job."""
    return caller.tenant_id is None or Scope.ADMIN in caller.scopes


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
    def __init__(
        self, keys: ApiKeyStore, feed: ApiKeyFeed, pepper: str, process_key: bytes, clock: Clock
    ) -> None:
        self.uses = RecordKeyUses(keys, clock)
        self._clock = clock
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
        self.uses.note(record.key_id)
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
        if record is None or record.key_id != key_id or not record.is_valid(self._clock()):
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
        return (
            known is not None
            and has_same_secret(known.record, record)
            and hmac.compare_digest(known.fingerprint, shown)
        )

    def _remember(self, record: ApiKeyRecord, shown: bytes) -> Caller:
        known = self._verified.get(record.key_id)
        if known is None or not has_same_secret(known.record, record):
            self._verified[record.key_id] = _Verified(record, shown)
        return Caller(record.tenant_id, record.key_id, scopes=record.granted)

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
        found = await self._record(record.key_id)
        return found is not None and has_same_secret(found, record)

    async def _verify_in_thread(self, record: ApiKeyRecord, secret: str) -> bool:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, verify, record, secret, self._pepper)


# When keys were used


class RecordKeyUses:
    """Writes `last_used_at` beside the requests: the first use at once, later ones once a minute.

    By compare-and-set, so that a key that is revoked meanwhile stays revoked. A use that another gateway has
    recorded is not written again.
    """

    def __init__(self, keys: ApiKeyStore, clock: Clock) -> None:
        self._keys = keys
        self._clock = clock
        self._noted: dict[str, float] = {}
        self._waiting: set[str] = set()
        self._wake = asyncio.Event()

    def note(self, key_id: str) -> None:
        """Of a verified key, so guesses never add to what is kept here."""
        now = self._clock()
        if now - self._noted.get(key_id, -math.inf) >= USED_AGAIN_SEC:
            self._noted[key_id] = now
            self._waiting.add(key_id)
            self._wake.set()

    async def run(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._waiting:
                await self._try_to_write(self._waiting.pop())

    async def _try_to_write(self, key_id: str) -> None:
        """If it fails, a use after a minute is written."""
        either = (NatsUnavailable, Unreadable)
        with best_effort(log, "api_keys.used", NatsUnavailable, expected=either, key_id=key_id):
            await self._write(key_id)

    async def _write(self, key_id: str) -> None:
        stored = await self._keys.get(record_key(key_id))
        record = None if stored is None else used(stored.value, self._clock())
        if stored is None or record is None or record is stored.value:
            return
        try:
            await self._keys.update(record_key(key_id), record, stored.revision)
        except WrongRevision:
            log.debug("another gateway changed the record", action="api_keys.used_elsewhere", key_id=key_id)
