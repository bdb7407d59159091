"""API keys over HTTP: created, listed and revoked by administrators of their tenant; expiry and last use."""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

import httpx2
import pytest
from msgspec.structs import replace

from pyoco_server.config import NatsBackendConfig
from pyoco_server.domain.auth import USED_AGAIN_SEC, ApiKey, ApiKeyRecord, Scope, record_key, revoked
from pyoco_server.memory import open_memory_gateway_backend
from pyoco_server.usecases.auth import RecordKeyUses
from pyoco_server.usecases.ports.stores import Revision
from support.builders import RUN_ID, a_snapshot
from support.gateway import RunningGateway, memory_app, new_key, on_backend
from support.waiting import PATIENCE_SEC, until
from support.watching import stream

AUTH: dict[str, Any] = {"http_auth_mode": "api_key"}


class Clock:
    def __init__(self) -> None:
        self.now = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
async def gateway() -> AsyncIterator[RunningGateway]:
    async with memory_app(**AUTH) as running:
        running.client.headers.update(await new_key(running.backend.api_keys, "acme", "admin", Scope.ADMIN))
        yield running


async def create(gateway: RunningGateway, **body: Any) -> dict[str, Any]:
    answer = await gateway.client.post("/api-keys", json={"scopes": ["read"], **body})
    assert answer.status_code == 201, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def ask(gateway: RunningGateway, key: str, path: str = "/runs") -> httpx2.Response:
    return await gateway.client.get(path, headers={"X-API-Key": key})


async def stored(gateway: RunningGateway, key_id: str) -> ApiKeyRecord:
    found = await gateway.backend.api_keys.get(record_key(key_id))
    assert found is not None
    return found.value


async def last_use(gateway: RunningGateway, key_id: str) -> float:
    async def look() -> float | None:
        return (await stored(gateway, key_id)).last_used_at

    found = await until(look)
    assert found is not None
    return found


# Create


async def test_a_created_key_works_at_once_and_is_shown_once(gateway: RunningGateway) -> None:
    answer = await gateway.client.post("/api-keys", json={"scopes": ["submit", "read"], "description": "job"})
    assert (answer.status_code, answer.headers["cache-control"]) == (201, "no-store")
    created = answer.json()
    assert (created["tenant_id"], created["scopes"], created["description"]) == (
        "acme",
        ["read", "submit"],
        "job",
    )
    assert (await ask(gateway, created["api_key"])).status_code == 200
    secret = created["api_key"].partition(".")[2]
    for path in ("/api-keys", "/audit"):
        assert secret not in (await ask(gateway, gateway.client.headers["X-API-Key"], path)).text
    assert secret not in str(await stored(gateway, created["key_id"]))


@pytest.mark.parametrize("expires_at", [4_000_000_000, "2096-10-02T07:06:40+00:00"])
async def test_times_are_unix_seconds_or_rfc_3339(gateway: RunningGateway, expires_at: Any) -> None:
    assert (await create(gateway, expires_at=expires_at))["expires_at"] == 4_000_000_000


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"scopes": []},
        {"scopes": ["everything"]},
        {"scopes": "read"},
        {"scopes": ["read"], "tenant_id": "other"},
        {"scopes": ["read"], "tenant": "other"},
        {"scopes": ["read"], "expires_at": "tomorrow"},
        {"scopes": ["read"], "expires_at": "2020-01-01T00:00:00+00:00"},
        {"scopes": ["read"], "expires_at": "2096-01-01T00:00:00"},
        {"scopes": ["read"], "description": "x" * 501},
        {"scopes": ["read"], "description": 7},
    ],
)
async def test_a_bad_request_creates_nothing(gateway: RunningGateway, body: dict[str, Any]) -> None:
    answer = await gateway.client.post("/api-keys", json=body)
    assert answer.status_code == 422, answer.text
    assert [key["key_id"] for key in (await gateway.client.get("/api-keys")).json()["items"]] == ["admin"]


async def test_without_authentication_there_is_no_tenant_to_create_a_key_for() -> None:
    async with memory_app() as gateway:
        answer = await gateway.client.post("/api-keys", json={"scopes": ["read"]})
        assert answer.status_code == 422
        assert "pyoco-server-admin api-key create" in answer.json()["detail"]
        assert (await gateway.client.get("/api-keys")).json() == {"items": [], "next_cursor": None}


# List and revoke


async def test_keys_are_listed_in_pages_newest_first(gateway: RunningGateway) -> None:
    made = [(await create(gateway, description=str(n)))["key_id"] for n in range(5)]
    found: list[str] = []
    cursor: str | None = None
    while True:
        query: dict[str, Any] = {"limit": 2, **({"cursor": cursor} if cursor else {})}
        page = (await gateway.client.get("/api-keys", params=query)).json()
        found += [item["key_id"] for item in page["items"]]
        cursor = page["next_cursor"]
        if cursor is None:
            break
    assert sorted(found) == sorted([*made, "admin"])
    assert found[-1] == "admin", "the oldest"
    for limit in (0, 201):
        assert (await gateway.client.get(f"/api-keys?limit={limit}")).status_code == 422


async def test_a_revoked_key_is_refused_and_stays_in_the_list(gateway: RunningGateway) -> None:
    created = await create(gateway)
    answer = await gateway.client.delete(f"/api-keys/{created['key_id']}")
    assert (answer.status_code, answer.json()["revoked_at"] is None) == (200, False)
    again = await gateway.client.delete(f"/api-keys/{created['key_id']}")
    assert again.json()["revoked_at"] == answer.json()["revoked_at"]
    refused = await ask(gateway, created["api_key"])
    assert (refused.status_code, refused.json()["err_id"]) == (403, "ERR-PYOCO-0015")
    listed = {key["key_id"]: key for key in (await gateway.client.get("/api-keys")).json()["items"]}
    assert listed[created["key_id"]]["revoked_at"] is not None


async def test_a1_keys_of_another_tenant_are_missing(gateway: RunningGateway) -> None:
    """ERR-PYOCO-0061"""
    theirs = await new_key(gateway.backend.api_keys, "other", "their-admin", Scope.ADMIN)
    ours = await create(gateway)
    for key_id in (ours["key_id"], "nothing", "a.b", "*"):
        answer = await gateway.client.delete(f"/api-keys/{key_id}", headers=theirs)
        assert (answer.status_code, answer.json()["err_id"]) == (404, "ERR-PYOCO-0061")
    listed = (await gateway.client.get("/api-keys", headers=theirs)).json()["items"]
    assert [key["key_id"] for key in listed] == ["their-admin"]
    page = (await gateway.client.get("/api-keys?limit=1")).json()
    foreign = await gateway.client.get(f"/api-keys?cursor={page['next_cursor']}", headers=theirs)
    assert foreign.status_code == 422
    assert (await stored(gateway, ours["key_id"])).revoked_at is None


async def test_a_key_of_before_has_all_scopes_but_admin(gateway: RunningGateway) -> None:
    key = await new_key(gateway.backend.api_keys, "acme", "old")
    found = await gateway.backend.api_keys.get(record_key("old"))
    assert found is not None
    await gateway.backend.api_keys.update(
        record_key("old"), replace(found.value, scopes=None), found.revision
    )
    assert (await gateway.client.get("/runs", headers=key)).status_code == 200
    refused = await gateway.client.get("/audit", headers=key)
    assert (refused.status_code, refused.json()["scope"]) == (403, "admin")
    listed = {one["key_id"]: one for one in (await gateway.client.get("/api-keys")).json()["items"]}
    assert listed["old"]["scopes"] == ["read", "submit", "operate", "deploy"]


# Expiry


async def test_an_expired_key_is_refused_and_its_streams_end() -> None:
    """A17"""
    clock = Clock()
    async with (
        open_memory_gateway_backend(NatsBackendConfig(**AUTH), clock=clock, monotonic=clock) as backend,
        on_backend(backend, NatsBackendConfig(**AUTH)) as gateway,
    ):
        admin = await new_key(backend.api_keys, "acme", "admin", Scope.ADMIN)
        await backend.runs.create(RUN_ID, a_snapshot(tenant_id="acme"))
        at = datetime.fromtimestamp(clock.now + 60, UTC).isoformat()
        gateway.client.headers.update(admin)
        key = (await create(gateway, expires_at=at))["api_key"]
        assert (await ask(gateway, key)).status_code == 200
        async with (
            stream(gateway.app, f"/runs/{RUN_ID}/watch", x_api_key=key) as run,
            stream(gateway.app, "/runs/watch", x_api_key=key) as runs,
        ):
            assert await run.event() is not None
            assert await runs.event() is not None
            clock.now += 60
            async with asyncio.timeout(PATIENCE_SEC):
                await run.rest()
                await runs.rest()
        refused = await ask(gateway, key)
        assert (refused.status_code, refused.json()["err_id"]) == (403, "ERR-PYOCO-0015")


# Last use


async def test_the_first_use_is_written_at_once_and_shown(gateway: RunningGateway) -> None:
    created = await create(gateway)
    assert created["last_used_at"] is None
    assert (await ask(gateway, created["api_key"])).status_code == 200
    used_at = await last_use(gateway, created["key_id"])
    listed = {key["key_id"]: key for key in (await gateway.client.get("/api-keys")).json()["items"]}
    assert listed[created["key_id"]]["last_used_at"] == used_at


class Uses:
    """The recorder alone, with a clock of its own."""

    def __init__(self, keys: Any) -> None:
        self.clock = Clock()
        self.record = RecordKeyUses(keys, self.clock)

    async def use(self, key_id: str) -> None:
        """Until what is due is written."""
        self.record.note(key_id)
        running = asyncio.ensure_future(self.record.run())
        await asyncio.sleep(0)  # a store in memory never waits
        running.cancel()
        await asyncio.wait({running})


async def test_later_uses_are_written_once_a_minute(gateway: RunningGateway) -> None:
    uses = Uses(gateway.backend.api_keys)
    await new_key(gateway.backend.api_keys, "acme", "k")
    first = uses.clock.now
    await uses.use("k")
    assert (await stored(gateway, "k")).last_used_at == first
    uses.clock.now += USED_AGAIN_SEC - 1
    await uses.use("k")
    assert (await stored(gateway, "k")).last_used_at == first
    uses.clock.now += 1
    await uses.use("k")
    assert (await stored(gateway, "k")).last_used_at == uses.clock.now
    other = Uses(gateway.backend.api_keys)
    other.clock.now = uses.clock.now + 1
    await other.use("k")
    assert (await stored(gateway, "k")).last_used_at == uses.clock.now, "another gateway wrote it"


async def test_a_use_never_brings_a_revoked_key_back(gateway: RunningGateway) -> None:
    """It is revoked between the read and the write of the use."""
    keys = gateway.backend.api_keys
    await new_key(keys, "acme", "k")

    class RevokesMeanwhile:
        get = keys.get

        async def update(self, key: str, value: ApiKeyRecord, revision: Revision) -> Revision:
            found = await keys.get(key)
            assert found is not None
            await keys.update(key, revoked(found.value, 5.0), found.revision)
            return await keys.update(key, value, revision)

    await Uses(RevokesMeanwhile()).use("k")
    record = await stored(gateway, "k")
    assert (record.revoked_at, record.last_used_at) == (5.0, None)
    await Uses(keys).use("k")
    assert (await stored(gateway, "k")).last_used_at is None


async def test_a_guess_leaves_nothing(gateway: RunningGateway) -> None:
    created = await create(gateway)
    for guess in (ApiKey(created["key_id"], "x" * 43), ApiKey("nobody", "x" * 43)):
        assert (await ask(gateway, guess.text)).status_code == 403
    assert (await stored(gateway, created["key_id"])).last_used_at is None
