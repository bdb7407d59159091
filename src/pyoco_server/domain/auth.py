"""API keys: their text, their scopes, their stored record, and verification.

Other server implementations share the records, so the fields and the meaning of `pbkdf2_hmac_sha256` are
fixed. docs/decisions/0003-api-key-hashing.md explains why new records are hashed differently.
"""

import binascii
import hashlib
import hmac
import re
from base64 import b64decode, urlsafe_b64encode
from collections.abc import Iterable
from enum import StrEnum

from msgspec import Struct
from msgspec.structs import replace

from pyoco_server.domain.inputs import nearest
from pyoco_server.errors import InvalidRequest

PBKDF2 = "pbkdf2_hmac_sha256"
HMAC = "hmac_sha256"
MAX_ITERATIONS = 5_000_000
"""Limit for stored records, so that a record cannot occupy a CPU."""

MAX_DESCRIPTION = 500
USED_AGAIN_SEC = 60.0
"""How old `last_used_at` may be before a use is written again."""

_KEY_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")
_TENANT_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")
_KEY_TEXT = re.compile(r"pyoco_([A-Za-z0-9_-]{1,64})\.([A-Za-z0-9_-]{16,256})")


class Scope(StrEnum):
    """What a key may do. Each is independent of the others."""

    READ = "read"
    SUBMIT = "submit"
    OPERATE = "operate"
    DEPLOY = "deploy"
    ADMIN = "admin"


ALL_SCOPES = frozenset(Scope)
DEFAULT_SCOPES = (Scope.READ, Scope.SUBMIT, Scope.OPERATE, Scope.DEPLOY)
"""Of records without scopes, which older versions and other implementations write."""


class Grant(Struct, frozen=True, kw_only=True):
    """What is set when a key is created. `check_grant` checks it."""

    scopes: tuple[str, ...] = DEFAULT_SCOPES
    expires_at: float | None = None
    description: str | None = None


def check_grant(grant: Grant, now: float) -> Grant:
    """With every scope once, in the order of `Scope`. Raises InvalidRequest."""
    if grant.expires_at is not None and grant.expires_at <= now:
        raise InvalidRequest("expires_at: must be in the future")
    if grant.description is not None and len(grant.description) > MAX_DESCRIPTION:
        raise InvalidRequest(f"description: at most {MAX_DESCRIPTION} characters")
    return replace(grant, scopes=_known_scopes(grant.scopes))


def _known_scopes(names: Iterable[str]) -> tuple[Scope, ...]:
    wanted, known = set(names), [scope.value for scope in Scope]
    for name in sorted(wanted.difference(known)):
        hint = nearest(name, known)
        raise InvalidRequest(f"scopes: unknown scope {name[:64]!r}{hint}; known: {', '.join(known)}")
    if not wanted:
        raise InvalidRequest(f"scopes: at least one of {', '.join(known)}")
    return tuple(scope for scope in Scope if scope in wanted)


class ApiKey(Struct, frozen=True):
    """A key with its secret, which is never stored or logged."""

    key_id: str
    secret: str

    def __repr__(self) -> str:
        return f"ApiKey({self.key_id!r}, ***)"

    @property
    def text(self) -> str:
        return f"pyoco_{self.key_id}.{self.secret}"


class ApiKeyRecord(Struct, frozen=True, kw_only=True):
    """The stored record of a key."""

    key_id: str
    tenant_id: str
    kdf: str
    iterations: int
    salt_b64: str
    hash_b64: str
    created_at: float | None = None
    revoked_at: float | None = None
    scopes: tuple[str, ...] | None = None
    expires_at: float | None = None
    description: str | None = None
    last_used_at: float | None = None
    """Up to `USED_AGAIN_SEC` old."""

    @property
    def is_revoked(self) -> bool:
        return self.revoked_at is not None

    def is_valid(self, now: float) -> bool:
        return self.revoked_at is None and (self.expires_at is None or now < self.expires_at)

    @property
    def granted(self) -> frozenset[str]:
        """A scope that this version does not know grants nothing."""
        return frozenset(DEFAULT_SCOPES if self.scopes is None else self.scopes) & ALL_SCOPES

    @property
    def is_slow(self) -> bool:
        """Whether verification takes milliseconds instead of microseconds."""
        return self.kdf == PBKDF2


def parse(text: str) -> ApiKey | None:
    """The key in a header value; None if invalid."""
    found = _KEY_TEXT.fullmatch(text)
    return ApiKey(found[1], found[2]) if found else None


def is_key_id(text: str) -> bool:
    return _KEY_ID.fullmatch(text) is not None


def require_tenant_id(text: str) -> str:
    if _TENANT_ID.fullmatch(text) is None:
        raise InvalidRequest(f"tenant {text!r} must match [A-Za-z0-9_-]{{1,64}}")
    return text


def record_key(key_id: str) -> str:
    """The bucket key of a record."""
    return f"api_keys.{key_id}"


def new_record(
    key_id: str,
    tenant_id: str,
    secret: str,
    salt: bytes,
    pepper: str,
    now: float,
    *,
    grant: Grant | None = None,
) -> ApiKeyRecord:
    """Without a grant: with all scopes but admin. Raises InvalidRequest."""
    given = check_grant(grant or Grant(), now)
    return ApiKeyRecord(
        key_id=key_id,
        tenant_id=require_tenant_id(tenant_id),
        kdf=HMAC,
        iterations=1,
        salt_b64=_to_base64(salt),
        hash_b64=_to_base64(_hmac(secret, salt, pepper)),
        created_at=now,
        scopes=given.scopes,
        expires_at=given.expires_at,
        description=given.description,
    )


def revoked(record: ApiKeyRecord, now: float) -> ApiKeyRecord:
    """Revoked once: the first time is kept."""
    return record if record.is_revoked else replace(record, revoked_at=now)


def used(record: ApiKeyRecord, now: float) -> ApiKeyRecord:
    """The same record if a use is recorded already, or if the key is not valid any more."""
    is_recent = record.last_used_at is not None and now - record.last_used_at < USED_AGAIN_SEC
    return record if is_recent or not record.is_valid(now) else replace(record, last_used_at=now)


def has_same_secret(record: ApiKeyRecord, other: ApiKeyRecord) -> bool:
    """Whether what one verifies, the other verifies too."""
    return record is other or _verifier(record) == _verifier(other)


def _verifier(record: ApiKeyRecord) -> tuple[object, ...]:
    return (record.key_id, record.kdf, record.iterations, record.salt_b64, record.hash_b64)


def verify(record: ApiKeyRecord, secret: str, pepper: str) -> bool:
    """Whether the secret matches the record, compared in constant time."""
    salt, expected = _from_base64(record.salt_b64), _from_base64(record.hash_b64)
    if salt is None or not expected:
        return False
    found = _hash(record, secret, salt, pepper)
    return found is not None and hmac.compare_digest(found, expected)


def fingerprint(secret: str, process_key: bytes) -> bytes:
    """A keyed digest for caching, useless without `process_key`."""
    return hashlib.blake2b(secret.encode(), key=process_key, digest_size=32).digest()


def _hash(record: ApiKeyRecord, secret: str, salt: bytes, pepper: str) -> bytes | None:
    """The hash by the record's algorithm; None if unsupported."""
    if record.kdf == HMAC:
        return _hmac(secret, salt, pepper)
    if record.kdf == PBKDF2 and 1 <= record.iterations <= MAX_ITERATIONS:
        return hashlib.pbkdf2_hmac("sha256", _bytes(secret + pepper), salt, record.iterations)
    return None


def _hmac(secret: str, salt: bytes, pepper: str) -> bytes:
    # HMAC pads short keys with zeros; hashing first keeps peppers distinct.
    return hmac.digest(hashlib.sha256(salt + _bytes(pepper)).digest(), secret.encode(), "sha256")


def _bytes(text: str) -> bytes:
    """A pepper comes from the environment, whose bytes need not be UTF-8."""
    return text.encode("utf-8", errors="surrogateescape")


def _to_base64(data: bytes) -> str:
    return urlsafe_b64encode(data).decode().rstrip("=")


def _from_base64(text: str) -> bytes | None:
    """Either alphabet, padded or not; None if invalid."""
    plain = text.rstrip("=").replace("-", "+").replace("_", "/")
    try:
        return b64decode(plain + "=" * (-len(plain) % 4), validate=True)
    except (binascii.Error, ValueError):
        return None


# As shown to administrators


class ListedApiKey(Struct, frozen=True, kw_only=True):
    """A key as shown to administrators, without its hash."""

    key_id: str
    tenant_id: str
    scopes: list[str]
    description: str | None
    created_at: float | None
    expires_at: float | None
    revoked_at: float | None
    last_used_at: float | None
    """Up to a minute old."""


class IssuedApiKey(ListedApiKey, frozen=True, kw_only=True):
    api_key: str
    """The only copy."""


class ApiKeyPage(Struct, frozen=True):
    """Newest first."""

    items: list[ListedApiKey]
    next_cursor: str | None


API_KEY_ANSWERS = (ListedApiKey, IssuedApiKey, ApiKeyPage)


def listed(record: ApiKeyRecord) -> ListedApiKey:
    return ListedApiKey(
        key_id=record.key_id,
        tenant_id=record.tenant_id,
        scopes=[scope.value for scope in Scope if scope in record.granted],
        description=record.description,
        created_at=record.created_at,
        expires_at=record.expires_at,
        revoked_at=record.revoked_at,
        last_used_at=record.last_used_at,
    )
