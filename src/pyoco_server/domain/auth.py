"""API keys: their text, their stored record, and verification.

Other server implementations share the records, so the fields and the meaning of `pbkdf2_hmac_sha256` are
fixed. docs/decisions/0003-api-key-hashing.md explains why new records are hashed differently.
"""

import binascii
import hashlib
import hmac
import re
from base64 import b64decode, urlsafe_b64encode

from msgspec import Struct
from msgspec.structs import replace

from pyoco_server.errors import InvalidRequest

PBKDF2 = "pbkdf2_hmac_sha256"
HMAC = "hmac_sha256"
MAX_ITERATIONS = 5_000_000
"""Limit for stored records, so that a record cannot occupy a CPU."""

_KEY_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")
_TENANT_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")
_KEY_TEXT = re.compile(r"pyoco_([A-Za-z0-9_-]{1,64})\.([A-Za-z0-9_-]{16,256})")


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

    @property
    def is_revoked(self) -> bool:
        return self.revoked_at is not None

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
    key_id: str, tenant_id: str, secret: str, salt: bytes, pepper: str, now: float
) -> ApiKeyRecord:
    return ApiKeyRecord(
        key_id=key_id,
        tenant_id=require_tenant_id(tenant_id),
        kdf=HMAC,
        iterations=1,
        salt_b64=_to_base64(salt),
        hash_b64=_to_base64(_hmac(secret, salt, pepper)),
        created_at=now,
    )


def revoked(record: ApiKeyRecord, now: float) -> ApiKeyRecord:
    """Revoked once: the first time is kept."""
    return record if record.is_revoked else replace(record, revoked_at=now)


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
