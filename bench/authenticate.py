"""What authentication costs a request: a remembered key, wrong ones, and the first use of a record."""

import asyncio
import hashlib
import os
import time
from base64 import urlsafe_b64encode
from collections.abc import Awaitable, Callable

from pyoco_server.domain.auth import ApiKey, ApiKeyRecord, new_record, record_key, verify
from pyoco_server.errors import InvalidApiKey
from pyoco_server.memory.stores import MemoryApiKeys
from pyoco_server.usecases.auth import Authenticate

KEY = ApiKey("0123456789abcdef01234567", "s" * 43)
SALT = os.urandom(16)
ITERATIONS = 200_000
TIMES = 50_000


class InMemory:
    """A feed with the records as objects, as the real one has them."""

    is_current = True

    def __init__(self, *records: ApiKeyRecord) -> None:
        self._records = {record.key_id: record for record in records}

    def known(self, key_id: str) -> ApiKeyRecord | None:
        return self._records.get(key_id)


async def microseconds(call: Callable[[], Awaitable[object]], times: int) -> float:
    began = time.perf_counter()
    for _ in range(times):
        await call()
    return (time.perf_counter() - began) / times * 1e6


async def main() -> None:
    fast = new_record(KEY.key_id, "acme", KEY.secret, SALT, "", 0.0)
    keys = MemoryApiKeys()
    await keys.create(record_key(KEY.key_id), fast)
    authenticate = Authenticate(keys, InMemory(fast), "", os.urandom(32), time.time)

    async def refused(text: str) -> None:
        try:
            await authenticate(text)
        except InvalidApiKey:
            return
        raise AssertionError(text)

    async def first_use() -> None:
        verify(fast, KEY.secret, "")

    async def first_use_slow() -> None:
        hashed = hashlib.pbkdf2_hmac("sha256", KEY.secret.encode(), SALT, ITERATIONS)
        urlsafe_b64encode(hashed)

    await authenticate(KEY.text)
    rows = {
        "remembered key": await microseconds(lambda: authenticate(KEY.text), TIMES),
        "wrong secret": await microseconds(lambda: refused(KEY.text[:-1] + "x"), TIMES),
        "unknown key": await microseconds(lambda: refused(f"pyoco_unknown.{KEY.secret}"), TIMES),
        "first use, hmac_sha256": await microseconds(first_use, TIMES),
        "first use, pbkdf2_hmac_sha256": await microseconds(first_use_slow, 5),
    }
    for name, cost in rows.items():
        print(f"{name:<32} {cost:>10.1f} µs")


if __name__ == "__main__":
    asyncio.run(main())
