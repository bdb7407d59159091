"""API keys on a real nats-server: issued by command, revoked on every gateway, and what guesses cost."""

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from nats.aio.msg import Msg

from pyoco_server.config import NatsBackendConfig
from pyoco_server.domain.auth import DEFAULT_SCOPES, ApiKey, IssuedApiKey, record_key
from pyoco_server.errors import InvalidApiKey, NatsUnavailable
from pyoco_server.jetstream.auth import CURRENT_SEC, JetStreamApiKeyFeed
from pyoco_server.jetstream.connection import NatsConnection
from pyoco_server.usecases.api_keys import IssueApiKey, list_api_keys, revoke_api_key
from pyoco_server.usecases.auth import (
    Authenticate,
    Caller,
)
from pyoco_server.wiring import EmbeddedNats, JetStreamBackend, new_api_key, new_salt, open_backend
from support.gateway import gateway as http_gateway
from support.nats_server import free_port, patient_timeout_sec
from support.waiting import PATIENCE_SEC, until

PROMISE_SEC = 1.0


def holder_of(key_id: str) -> Caller:
    return Caller("acme", key_id, scopes=frozenset(DEFAULT_SCOPES))


@pytest.fixture(scope="module")
def nats(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedNats]:
    with EmbeddedNats(tmp_path_factory.mktemp("nats"), durability="fast", port=free_port()) as server:
        yield server


@pytest.fixture
def config(nats: EmbeddedNats) -> NatsBackendConfig:
    return NatsBackendConfig(
        nats_url=nats.url, auth_kv_bucket=f"auth_{uuid4().hex}", jetstream_timeout_sec=patient_timeout_sec()
    )


@pytest.fixture
async def backend(config: NatsBackendConfig) -> AsyncIterator[JetStreamBackend]:
    async with open_backend(config, name="test") as opened:
        yield opened


class Gateway:
    """What one gateway has of authentication, on its own connection."""

    def __init__(self, backend: JetStreamBackend, feed: JetStreamApiKeyFeed) -> None:
        self.backend = backend
        self.feed = feed
        self.authenticate = Authenticate(backend.api_keys, feed, "", os.urandom(32), time.time)

    async def is_refused(self, text: str) -> bool:
        try:
            await self.authenticate(text)
        except InvalidApiKey:
            return True
        return False

    async def accepts(self, issued: IssuedApiKey) -> None:
        """Soon after it was issued, that is."""

        async def look() -> bool:
            return not await self.is_refused(issued.api_key)

        await until(look)

    async def refuses(self, text: str) -> None:
        """Soon after it was revoked, that is."""
        await until(lambda: self.is_refused(text))


@asynccontextmanager
async def gateway(config: NatsBackendConfig) -> AsyncIterator[Gateway]:
    async with open_backend(config, name="gateway") as backend, backend.api_keys.follow_keys() as feed:
        found = Gateway(backend, feed)
        await until_current(found)
        yield found


async def until_current(gateway: Gateway) -> None:
    deadline = time.perf_counter() + PATIENCE_SEC
    while not gateway.feed.is_current:
        assert time.perf_counter() < deadline, "the feed did not catch up"
        await asyncio.sleep(0.01)


async def issue(backend: JetStreamBackend, tenant: str = "acme") -> IssuedApiKey:
    return await IssueApiKey(backend.api_keys, time.time, "")(tenant, new_api_key(), new_salt())


def admin(
    config: NatsBackendConfig, *arguments: str, directory: Path, **environment: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "pyoco_server.admin_cli", "--nats-url", config.nats_url, *arguments],
        env={**os.environ, "PYOCO_AUTH_KV_BUCKET": config.auth_kv_bucket, **environment},
        cwd=directory,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def answer(done: subprocess.CompletedProcess[str]) -> Any:
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


async def test_a_key_of_the_command_line_works_until_it_is_revoked_there(
    config: NatsBackendConfig, tmp_path: Path
) -> None:
    async with gateway(config) as one:
        created = answer(
            await asyncio.to_thread(
                admin, config, "api-key", "create", "--tenant", "acme", directory=tmp_path
            )
        )
        assert created["scopes"] == ["read", "submit", "operate", "deploy"]
        assert await one.authenticate(created["api_key"]) == Caller(
            "acme", created["key_id"], scopes=frozenset(DEFAULT_SCOPES)
        )

        listed = answer(await asyncio.to_thread(admin, config, "api-key", "list", directory=tmp_path))
        assert listed == [{name: value for name, value in created.items() if name != "api_key"}]

        revoked = answer(
            await asyncio.to_thread(
                admin, config, "api-key", "revoke", "--key-id", created["key_id"], directory=tmp_path
            )
        )
        assert revoked["revoked_at"] >= created["created_at"]
        again = answer(
            await asyncio.to_thread(
                admin, config, "api-key", "revoke", "--key-id", created["key_id"], directory=tmp_path
            )
        )
        assert again == revoked
        await one.refuses(created["api_key"])


@pytest.mark.slow
def test_the_command_line_fails_with_one_and_says_why(config: NatsBackendConfig, tmp_path: Path) -> None:
    for arguments, reason in [
        (("api-key", "revoke", "--key-id", "unknown"), "API key not found: 'unknown'"),
        (("api-key", "create", "--tenant", "a.b"), "tenant 'a.b' must match"),
        (("api-key", "create"), "--tenant"),
        (("api-key", "create", "--tenant", "a", "--scopes", "read,all"), "unknown scope 'all'"),
        (("api-key", "create", "--tenant", "a", "--expires-at", "soon"), "--expires-at soon"),
        (("api-key", "create", "--tenant", "a", "--expires-at", "1000"), "must be in the future"),
    ]:
        done = admin(config, *arguments, directory=tmp_path)
        assert (done.returncode, done.stdout) == (1, "")
        assert reason in done.stderr


async def test_a_key_of_the_command_line_has_its_scopes_and_is_in_the_audit_trail(
    config: NatsBackendConfig, tmp_path: Path
) -> None:
    options = ("--scopes", "admin, read", "--expires-at", "4000000000", "--description", "first")
    created = answer(
        await asyncio.to_thread(
            admin, config, "api-key", "create", "--tenant", "acme", *options, directory=tmp_path
        )
    )
    assert (created["scopes"], created["expires_at"]) == (["read", "admin"], 4_000_000_000)
    async with http_gateway(replace(config, http_auth_mode="api_key")) as http:
        http.headers["X-API-Key"] = created["api_key"]
        query = {"target": f"api_key/{created['key_id']}"}
        (entry,) = (await http.get("/audit", params=query)).json()["items"]
        assert (entry["action"], entry["source"]["user_agent"]) == ("api_key.create", "pyoco-server-admin")
        assert created["api_key"] not in str(entry)

        async def last_used_at() -> float | None:
            listed = (await http.get("/api-keys")).json()["items"]
            found: dict[str, float | None] = {key["key_id"]: key["last_used_at"] for key in listed}
            return found[created["key_id"]]

        assert await until(last_used_at) is not None
        revoked = await http.delete(f"/api-keys/{created['key_id']}")
        assert revoked.status_code == 200
        refused = await until(lambda: http.get("/api-keys"), lambda found: found.status_code == 403)
        assert refused.json()["err_id"] == "ERR-PYOCO-0015"


def test_an_empty_bucket_is_an_empty_list(config: NatsBackendConfig, tmp_path: Path) -> None:
    assert answer(admin(config, "api-key", "list", directory=tmp_path)) == []


def test_the_command_line_without_nats_says_so(tmp_path: Path) -> None:
    nowhere = NatsBackendConfig(nats_url=f"nats://user:hidden@127.0.0.1:{free_port()}")
    done = admin(nowhere, "api-key", "list", directory=tmp_path)
    assert done.returncode == 1
    assert "ERR-PYOCO-0003" in done.stderr
    assert "hidden" not in done.stderr


async def test_a_revoked_key_is_refused_within_a_second_on_every_gateway(
    config: NatsBackendConfig, backend: JetStreamBackend
) -> None:
    async with AsyncExitStack() as stack:
        gateways = [await stack.enter_async_context(gateway(config)) for _ in range(2)]
        issued = await issue(backend)
        for one in gateways:
            await one.accepts(issued)
            assert await one.authenticate(issued.api_key) == Caller(
                "acme", issued.key_id, scopes=frozenset(DEFAULT_SCOPES)
            )
        await revoke_api_key(backend.api_keys, issued.key_id, time.time)
        for one in gateways:
            await one.refuses(issued.api_key)


async def test_a_revoked_key_is_refused_although_the_word_of_it_was_lost_and_nothing_follows(
    config: NatsBackendConfig, backend: JetStreamBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with gateway(config) as one:
        issued = await issue(backend)
        await one.accepts(issued)
        arrived = one.feed._arrived
        lost: list[str] = []

        def losing_the_first(message: Msg) -> None:
            if lost:
                arrived(message)
            else:
                lost.append(message.subject)

        monkeypatch.setattr(one.feed._consumer, "_on_message", losing_the_first)
        await revoke_api_key(backend.api_keys, issued.key_id, time.time)
        await one.refuses(issued.api_key)
        assert lost == [f"$KV.{config.auth_kv_bucket}.{record_key(issued.key_id)}"]


async def test_a_revoked_key_is_refused_within_a_second_although_the_feed_fell_silent(
    config: NatsBackendConfig, backend: JetStreamBackend
) -> None:
    assert CURRENT_SEC < PROMISE_SEC
    async with gateway(config) as one:
        issued = await issue(backend)
        await one.accepts(issued)
        subscription = one.feed._consumer._subscription
        assert subscription is not None
        await subscription.unsubscribe()
        await revoke_api_key(backend.api_keys, issued.key_id, time.time)
        await one.refuses(issued.api_key)


async def test_a_new_key_is_accepted_within_a_second_although_it_was_refused_before(
    config: NatsBackendConfig, backend: JetStreamBackend
) -> None:
    async with gateway(config) as one:
        key = new_api_key()
        assert await one.is_refused(key.text)
        await one.accepts(await IssueApiKey(backend.api_keys, time.time, "")("acme", key, new_salt()))


async def test_a_removed_record_refuses_its_key(config: NatsBackendConfig, backend: JetStreamBackend) -> None:
    async with gateway(config) as one:
        issued = await issue(backend)
        await one.accepts(issued)
        await backend.api_keys.remove(record_key(issued.key_id), None)
        await one.refuses(issued.api_key)
    assert await list_api_keys(backend.api_keys) == []


async def test_ten_thousand_guesses_ask_nats_nothing(
    config: NatsBackendConfig, backend: JetStreamBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with gateway(config) as one:
        issued = await issue(backend)
        await one.accepts(issued)
        asked: list[str] = []
        request = NatsConnection.request

        async def counted(self: NatsConnection, subject: str, *arguments: Any, **options: Any) -> Any:
            asked.append(subject)
            return await request(self, subject, *arguments, **options)

        monkeypatch.setattr(NatsConnection, "request", counted)
        for number in range(5_000):
            assert await one.is_refused(ApiKey(f"k{number}", "g" * 43).text)
            assert await one.is_refused(ApiKey(issued.key_id, f"{number:043}").text)
            if number % 100 == 0:
                await asyncio.sleep(0)  # as between requests: the feed has to hear its heartbeats
        assert len(asked) < 100, "only while the machine stood still and the feed was not trusted"
        assert set(one.authenticate._verified) == {issued.key_id}
        assert len(one.feed._records) == 1
        assert await one.authenticate(issued.api_key) == Caller(
            "acme", issued.key_id, scopes=frozenset(DEFAULT_SCOPES)
        )


async def test_all_of_many_keys_are_listed_and_known(
    config: NatsBackendConfig, backend: JetStreamBackend
) -> None:
    issued = [
        one
        for start in range(0, 2_500, 100)  # each must be answered in time, also on a busy machine
        for one in await asyncio.gather(*(issue(backend, f"t{start + n}") for n in range(100)))
    ]
    listed = await list_api_keys(backend.api_keys)
    assert {one.key_id for one in listed} == {one.key_id for one in issued}
    async with gateway(config) as one:
        assert not await one.is_refused(issued[0].api_key)
        assert not await one.is_refused(issued[-1].api_key)


async def test_a_damaged_record_hides_no_other(config: NatsBackendConfig, backend: JetStreamBackend) -> None:
    await backend.connection.publish_acked(f"$KV.{config.auth_kv_bucket}.api_keys.bad", b"{not json", {})
    issued = await issue(backend)
    assert [one.key_id for one in await list_api_keys(backend.api_keys)] == [issued.key_id]
    async with gateway(config) as one:
        assert await one.is_refused(ApiKey("bad", "s" * 43).text)
        assert not await one.is_refused(issued.api_key)


async def test_the_feed_comes_back_after_its_consumer_was_deleted(
    config: NatsBackendConfig, backend: JetStreamBackend
) -> None:
    async with gateway(config) as one:
        issued = await issue(backend)
        await backend.connection.api(f"CONSUMER.DELETE.KV_{config.auth_kv_bucket}.{one.feed._name}")
        await one.accepts(issued)
        await until_current(one)
        assert one.feed.known(issued.key_id) is not None
        await revoke_api_key(backend.api_keys, issued.key_id, time.time)
        await one.refuses(issued.api_key)


async def test_without_nats_nobody_is_let_in_and_with_it_everything_is_as_before(tmp_path: Path) -> None:
    with EmbeddedNats(tmp_path / "own", durability="fast", port=free_port()) as own:
        config = NatsBackendConfig(nats_url=own.url)
        async with gateway(config) as one:
            kept, withdrawn = await issue(one.backend), await issue(one.backend)
            await one.accepts(kept)
            await one.accepts(withdrawn)
            await asyncio.to_thread(own.stop)
            await asyncio.sleep(PROMISE_SEC)
            with pytest.raises(NatsUnavailable):
                await one.authenticate(kept.api_key)

            await asyncio.to_thread(own.start)
            async with open_backend(config, name="admin") as admin_backend:
                await revoke_api_key(admin_backend.api_keys, withdrawn.key_id, time.time)
            await until_current(one)
            assert await one.authenticate(kept.api_key) == Caller(
                "acme", kept.key_id, scopes=frozenset(DEFAULT_SCOPES)
            )
            await one.refuses(withdrawn.api_key)


async def test_a_closed_feed_leaves_no_consumer_behind(
    config: NatsBackendConfig, backend: JetStreamBackend
) -> None:
    async with gateway(config):
        pass
    await list_api_keys(backend.api_keys)
    names = await backend.connection.api(f"CONSUMER.NAMES.KV_{config.auth_kv_bucket}")
    assert not names["consumers"]
