"""REQ-0016, REQ-0017: who is let in, how soon a change counts, and what guesses cost. In memory."""

import asyncio
import hashlib
import io
import threading
import time
from base64 import urlsafe_b64encode
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Annotated

import pytest
from fastapi import Body, FastAPI, Request
from fastapi.testclient import TestClient
from rich.console import Console
from rich.traceback import Traceback

from pyoco_server.config import NatsBackendConfig
from pyoco_server.domain.auth import (
    DEFAULT_SCOPES,
    PBKDF2,
    ApiKey,
    ApiKeyRecord,
    new_record,
    record_key,
    verify,
)
from pyoco_server.errors import ApiKeyNotFound, ApiKeyRequired, InvalidApiKey, InvalidRequest, NatsUnavailable
from pyoco_server.http_api import create_app, errors
from pyoco_server.http_api.middleware import NOBODY, PROTECTED, ApiKeyMiddleware, caller_of, is_protected
from pyoco_server.memory import open_memory_gateway_backend
from pyoco_server.memory.stores import MemoryApiKeyFeed, MemoryApiKeys
from pyoco_server.usecases import auth as module
from pyoco_server.usecases.api_keys import IssueApiKey, list_api_keys, revoke_api_key
from pyoco_server.usecases.auth import (
    AskWho,
    Authenticate,
    Caller,
)
from pyoco_server.usecases.ports.gateway import ServerBackend
from pyoco_server.usecases.ports.stores import Revision, Versioned
from pyoco_server.wiring.gateway_backend import authentication, let_everybody_in
from support.captured_logs import capture_logs
from support.tables import every_row
from support.waiting import PATIENCE_SEC

PEPPER = "pepper"
SALT = b"0123456789abcdef"
SLOW_ITERATIONS = 100_000


class CountedKeys(MemoryApiKeys):
    def __init__(self) -> None:
        super().__init__()
        self.reads = 0
        self.is_away = False

    async def get(self, key: str) -> Versioned[ApiKeyRecord] | None:
        self.reads += 1
        if self.is_away:
            raise NatsUnavailable
        return await super().get(key)


@pytest.fixture
def keys() -> CountedKeys:
    return CountedKeys()


@pytest.fixture
def feed(keys: CountedKeys) -> MemoryApiKeyFeed:
    return MemoryApiKeyFeed(keys)


@pytest.fixture
def authenticate(keys: CountedKeys, feed: MemoryApiKeyFeed) -> Authenticate:
    return Authenticate(keys, feed, PEPPER, b"p" * 32, lambda: 3.0)


def key(key_id: str = "key-1", letter: str = "s") -> ApiKey:
    return ApiKey(key_id, letter * 43)


async def issue(keys: MemoryApiKeys, key: ApiKey, tenant: str = "acme") -> str:
    issued = await IssueApiKey(keys, lambda: 1.0, PEPPER)(tenant, key, SALT)
    return issued.api_key


async def store_slow(keys: MemoryApiKeys, key: ApiKey, iterations: int = SLOW_ITERATIONS) -> str:
    hashed = hashlib.pbkdf2_hmac("sha256", (key.secret + PEPPER).encode(), SALT, iterations)
    record = ApiKeyRecord(
        key_id=key.key_id,
        tenant_id="acme",
        kdf=PBKDF2,
        iterations=iterations,
        salt_b64=urlsafe_b64encode(SALT).decode(),
        hash_b64=urlsafe_b64encode(hashed).decode(),
    )
    await keys.create(record_key(key.key_id), record)
    return key.text


async def test_a_key_tells_its_tenant(keys: CountedKeys, authenticate: Authenticate) -> None:
    text = await issue(keys, key())
    assert await authenticate(text) == Caller("acme", "key-1", scopes=frozenset(DEFAULT_SCOPES))
    assert await authenticate(text) == Caller("acme", "key-1", scopes=frozenset(DEFAULT_SCOPES))


@pytest.mark.parametrize("presented", [None, ""])
async def test_no_key_is_asked_for_one(authenticate: Authenticate, presented: str | None) -> None:
    with pytest.raises(ApiKeyRequired):
        await authenticate(presented)


@pytest.mark.parametrize(
    "presented",
    ["nonsense", "pyoco_key-1", key(letter="w").text, key("key-2").text, key().text + "x", "pyoco_\udcff.s"],
)
async def test_a2_what_is_not_the_key_is_refused(
    keys: CountedKeys, authenticate: Authenticate, presented: str
) -> None:
    right = await issue(keys, key())
    for _ in range(2):
        with pytest.raises(InvalidApiKey):
            await authenticate(presented)
    assert await authenticate(right) == Caller("acme", "key-1", scopes=frozenset(DEFAULT_SCOPES))


async def test_a_wrong_secret_is_refused_while_the_right_one_is_remembered(
    keys: CountedKeys, authenticate: Authenticate
) -> None:
    await authenticate(await issue(keys, key()))
    with pytest.raises(InvalidApiKey):
        await authenticate(key(letter="w").text)


async def test_another_pepper_refuses_every_key(keys: CountedKeys, feed: MemoryApiKeyFeed) -> None:
    text = await issue(keys, key())
    with pytest.raises(InvalidApiKey):
        await Authenticate(keys, feed, "another", b"p" * 32, lambda: 3.0)(text)


@pytest.mark.parametrize("is_current", [True, False])
async def test_a2_a_revoked_key_is_refused_although_it_was_remembered(
    keys: CountedKeys, feed: MemoryApiKeyFeed, authenticate: Authenticate, *, is_current: bool
) -> None:
    text = await issue(keys, key())
    await authenticate(text)
    await revoke_api_key(keys, "key-1", lambda: 2.0)
    feed.is_current = is_current
    with pytest.raises(InvalidApiKey):
        await authenticate(text)
    assert not authenticate._verified


async def test_a_record_that_got_another_secret_counts_at_once(
    keys: CountedKeys, authenticate: Authenticate
) -> None:
    old = await issue(keys, key())
    await authenticate(old)
    stored = await keys.get(record_key("key-1"))
    assert stored is not None
    renewed = new_record("key-1", "other", key(letter="n").secret, SALT, PEPPER, 3.0)
    await keys.update(record_key("key-1"), renewed, stored.revision)
    with pytest.raises(InvalidApiKey):
        await authenticate(old)
    assert await authenticate(key(letter="n").text) == Caller(
        "other", "key-1", scopes=frozenset(DEFAULT_SCOPES)
    )


async def test_a_record_under_the_wrong_id_lets_nobody_in(
    keys: CountedKeys, authenticate: Authenticate
) -> None:
    await keys.create(record_key("key-2"), new_record("key-1", "t", key().secret, SALT, PEPPER, 1.0))
    with pytest.raises(InvalidApiKey):
        await authenticate(key("key-2").text)


async def test_a_key_works_from_the_store_when_the_feed_is_behind(
    keys: CountedKeys, feed: MemoryApiKeyFeed, authenticate: Authenticate
) -> None:
    feed.is_current = False
    assert await authenticate(await issue(keys, key())) == Caller(
        "acme", "key-1", scopes=frozenset(DEFAULT_SCOPES)
    )


async def test_nobody_is_let_in_when_neither_feed_nor_store_can_tell(
    keys: CountedKeys, feed: MemoryApiKeyFeed, authenticate: Authenticate
) -> None:
    text = await issue(keys, key())
    await authenticate(text)
    feed.is_current, keys.is_away = False, True
    with pytest.raises(NatsUnavailable):
        await authenticate(text)


async def test_a_damaged_record_is_an_invalid_key(
    keys: CountedKeys, feed: MemoryApiKeyFeed, authenticate: Authenticate
) -> None:
    keys._values[record_key("key-1")] = (b"{not json", Revision(1))
    feed.is_current = False
    with pytest.raises(InvalidApiKey):
        await authenticate(key().text)


async def test_a2_ten_thousand_guesses_read_nothing_and_leave_nothing_behind(
    keys: CountedKeys, authenticate: Authenticate
) -> None:
    await issue(keys, key())
    for number in range(5_000):
        for guess in (ApiKey(f"k{number}", "g" * 43), ApiKey("key-1", f"{number:043}")):
            with pytest.raises(InvalidApiKey):
                await authenticate(guess.text)
    assert keys.reads == 0
    assert not authenticate._verified
    assert not authenticate._turns


async def test_a_slow_record_is_derived_once_for_many_requests(
    keys: CountedKeys, authenticate: Authenticate, monkeypatch: pytest.MonkeyPatch
) -> None:
    derived = []

    def counted(record: ApiKeyRecord, secret: str, pepper: str) -> bool:
        derived.append(threading.current_thread().name)
        return verify(record, secret, pepper)

    monkeypatch.setattr(module, "verify", counted)
    text = await store_slow(keys, key())
    callers = await asyncio.gather(*(authenticate(text) for _ in range(20)))
    assert callers == [Caller("acme", "key-1", scopes=frozenset(DEFAULT_SCOPES))] * 20
    assert derived == ["api-key_0"]
    assert not authenticate._turns


class Derivations:
    """Those of slow records: each ends when it is let go."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.has_begun = threading.Event()
        self.let_go = threading.Semaphore(0)

    def verify(self, record: ApiKeyRecord, secret: str, pepper: str) -> bool:
        self.begun.append(record.key_id)
        self.has_begun.set()
        assert self.let_go.acquire(timeout=PATIENCE_SEC)
        return verify(record, secret, pepper)


@pytest.fixture
def derivations(monkeypatch: pytest.MonkeyPatch) -> Derivations:
    found = Derivations()
    monkeypatch.setattr(module, "verify", found.verify)
    return found


async def test_guesses_at_a_slow_record_block_neither_the_loop_nor_the_holders_of_other_keys(
    keys: CountedKeys, authenticate: Authenticate, derivations: Derivations
) -> None:
    await store_slow(keys, key("attacked"))
    other = await store_slow(keys, key("other"))
    guesses = [
        asyncio.ensure_future(authenticate(ApiKey("attacked", f"{number:043}").text)) for number in range(30)
    ]
    holder = asyncio.ensure_future(authenticate(other))
    assert await asyncio.to_thread(derivations.has_begun.wait, PATIENCE_SEC)
    derivations.let_go.release(2)  # we can say that: the loop goes on meanwhile
    assert await holder == Caller("acme", "other", scopes=frozenset(DEFAULT_SCOPES))
    assert derivations.begun[:2] == ["attacked", "other"]
    derivations.let_go.release(len(guesses))
    refused = await asyncio.gather(*guesses, return_exceptions=True)
    assert {type(answer) for answer in refused} == {InvalidApiKey}


async def test_a_slow_key_that_is_revoked_while_it_is_checked_is_refused(
    keys: CountedKeys, authenticate: Authenticate, derivations: Derivations
) -> None:
    asking = asyncio.ensure_future(authenticate(await store_slow(keys, key())))
    assert await asyncio.to_thread(derivations.has_begun.wait, PATIENCE_SEC)
    await revoke_api_key(keys, "key-1", lambda: 2.0)
    derivations.let_go.release()
    with pytest.raises(InvalidApiKey):
        await asking


async def test_a_list_shows_neither_hash_nor_salt(keys: CountedKeys) -> None:
    await issue(keys, key("a"), "t1")
    await issue(keys, key("b"), "t2")
    await revoke_api_key(keys, "a", lambda: 5.0)
    listed = await list_api_keys(keys)
    assert [(one.key_id, one.tenant_id, one.revoked_at) for one in listed] == [
        ("a", "t1", 5.0),
        ("b", "t2", None),
    ]
    assert set(listed[0].__struct_fields__) == {
        *("key_id", "tenant_id", "scopes", "description"),
        *("created_at", "expires_at", "revoked_at", "last_used_at"),
    }


async def test_revoking_again_changes_nothing_and_an_unknown_key_is_an_error(keys: CountedKeys) -> None:
    await issue(keys, key())
    first = await revoke_api_key(keys, "key-1", lambda: 5.0)
    assert await revoke_api_key(keys, "key-1", lambda: 6.0) == (first.after, first.after)
    for unknown in ("key-2", "*", "a.b"):
        with pytest.raises(ApiKeyNotFound, match="API key not found"):
            await revoke_api_key(keys, unknown, lambda: 5.0)


async def test_a_key_for_an_impossible_tenant_is_not_issued(keys: CountedKeys) -> None:
    with pytest.raises(InvalidRequest, match="tenant"):
        await issue(keys, key(), "no such.tenant")
    assert await list_api_keys(keys) == []


AUTH_ON = NatsBackendConfig(http_auth_mode="api_key", auth_pepper=PEPPER)


def application(ask_who: AskWho, config: NatsBackendConfig = AUTH_ON) -> TestClient:
    app = FastAPI()
    errors.install(app)
    app.add_middleware(ApiKeyMiddleware, config=config, ask_who=lambda _request: ask_who)

    @app.post("/runs")
    async def post(request: Request, number: Annotated[int, Body(embed=True)]) -> dict[str, object]:
        assert "x-api-key" not in request.headers, "the key stays outside"
        return {"tenant": caller_of(request).tenant_id, "number": number}

    @app.get("/health")
    async def health(request: Request) -> dict[str, str | None]:
        return {"tenant": caller_of(request).tenant_id}

    return TestClient(app)


@pytest.fixture
async def ask_who(keys: CountedKeys) -> AsyncIterator[AskWho]:
    async with authentication(AUTH_ON, keys, time.time) as found:
        yield found


async def test_a2_a_stranger_hears_401_before_the_body_is_looked_at(ask_who: AskWho) -> None:
    answer = application(ask_who).post("/runs", content=b"{not json")
    assert answer.status_code == 401
    assert answer.json()["err_id"] == "ERR-PYOCO-0014"
    assert answer.json()["detail"] == "api key required"


async def test_a2_a_wrong_key_hears_403_and_is_not_logged(ask_who: AskWho) -> None:
    with capture_logs() as logs:
        answer = application(ask_who).post("/runs", content=b"{not json", headers={"X-API-Key": key().text})
    assert answer.status_code == 403
    assert answer.json()["err_id"] == "ERR-PYOCO-0015"
    assert logs
    assert key().secret not in repr(logs) + answer.text


@pytest.mark.parametrize("is_away", [True, False])
async def test_a2_a_key_is_not_shown_by_logs_that_show_the_variables_of_a_traceback(
    keys: CountedKeys, feed: MemoryApiKeyFeed, *, is_away: bool
) -> None:
    feed.is_current, keys.is_away = False, is_away
    client = application(Authenticate(keys, feed, PEPPER, b"p" * 32, lambda: 3.0))
    with capture_logs() as logs:
        answer = client.get("/runs", headers={"X-API-Key": key().text})
    assert answer.status_code == (503 if is_away else 403)
    (line,) = [line for line in logs if line["event"] == "request refused"]
    assert key().secret[:12] not in with_variables(line["exc_info"])


def with_variables(error: BaseException) -> str:
    """As some log formats show an exception: each frame with its local variables."""
    console = Console(file=io.StringIO(), width=500)
    console.print(Traceback.from_exception(type(error), error, error.__traceback__, show_locals=True))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


async def test_the_holder_of_a_key_comes_through_with_its_tenant(keys: CountedKeys, ask_who: AskWho) -> None:
    headers = {"x-api-key": await issue(keys, key())}
    client = application(ask_who)
    assert client.post("/runs", json={"number": 1}, headers=headers).json() == {"tenant": "acme", "number": 1}
    assert client.post("/runs", content=b"{not json", headers=headers).status_code == 422


async def test_a2_two_keys_in_one_request_are_refused(keys: CountedKeys, ask_who: AskWho) -> None:
    text = await issue(keys, key())
    answer = application(ask_who).post(
        "/runs", json={"number": 1}, headers=[("X-API-Key", text), ("X-API-Key", text)]
    )
    assert answer.status_code == 403


async def test_the_header_has_the_configured_name(keys: CountedKeys, ask_who: AskWho) -> None:
    text = await issue(keys, key())
    client = application(ask_who, replace(AUTH_ON, http_api_key_header="X-Our-Key"))
    assert client.post("/runs", json={"number": 1}, headers={"X-API-Key": text}).status_code == 401
    assert client.post("/runs", json={"number": 1}, headers={"X-Our-Key": text}).status_code == 200


async def test_health_needs_no_key_and_unknown_things_below_a_protected_prefix_do(ask_who: AskWho) -> None:
    client = application(ask_who)
    assert client.get("/health").json() == {"tenant": NOBODY.tenant_id}
    assert client.get("/runs/").status_code == 401
    assert client.get("/ru%6es").status_code == 401


async def test_a_mounted_gateway_is_protected_too(ask_who: AskWho) -> None:
    client = application(ask_who)
    client.app.root_path = "/pyoco"  # type: ignore[attr-defined]
    assert client.post("/pyoco/runs", json={"number": 1}).status_code == 401


async def test_unreachable_nats_is_503_for_protected_paths(keys: CountedKeys, feed: MemoryApiKeyFeed) -> None:
    feed.is_current, keys.is_away = False, True
    answer = application(Authenticate(keys, feed, "", b"p" * 32, lambda: 3.0)).post(
        "/runs", headers={"X-API-Key": key().text}
    )
    assert answer.status_code == 503
    assert answer.headers["Retry-After"]


async def test_without_authentication_everybody_is_anonymous(keys: CountedKeys) -> None:
    async with authentication(NatsBackendConfig(), keys, time.time) as found:
        assert found is let_everybody_in
        client = application(found, NatsBackendConfig())
        assert client.post("/runs", json={"number": 1}).json()["tenant"] is None
        assert client.get("/health").json() == {"tenant": None}


def test_without_authentication_nobody_is_asked() -> None:
    def nobody_there(_request: Request) -> AskWho:
        raise NatsUnavailable

    app = FastAPI()
    app.add_middleware(ApiKeyMiddleware, config=NatsBackendConfig(), ask_who=nobody_there)
    assert TestClient(app).get("/runs").status_code == 404


def test_before_nats_is_there_a_protected_path_is_503() -> None:
    def nobody_there(_request: Request) -> AskWho:
        raise NatsUnavailable("nats unavailable: not connected yet")

    app = FastAPI()
    errors.install(app)
    app.add_middleware(ApiKeyMiddleware, config=AUTH_ON, ask_who=nobody_there)
    assert TestClient(app).get("/runs").status_code == 503


async def test_a_run_of_the_gateway_belongs_to_the_tenant_of_its_key(keys: CountedKeys) -> None:
    ours = {"X-API-Key": await issue(keys, key("ours"), "ours")}
    theirs = {"X-API-Key": await issue(keys, key("theirs"), "theirs")}

    @asynccontextmanager
    async def opened() -> AsyncIterator[ServerBackend]:
        async with open_memory_gateway_backend(AUTH_ON) as backend:
            yield replace(backend, api_keys=keys)

    app = create_app(AUTH_ON, open_backend=opened)
    with TestClient(app) as client:
        assert client.post("/runs", content=b"{not json").status_code == 401
        submitted = client.post("/runs", json={"flow_name": "f"}, headers=ours).json()
        path = f"/runs/{submitted['run_id']}"
        seen = client.get(path, headers=ours).json()
        assert (seen["tenant_id"], seen["api_key_id"]) == ("ours", "ours")
        assert client.get(path, headers=theirs).status_code == 404
        assert client.get(path).status_code == 401
        assert client.get("/health").status_code == 200


@every_row("prefix", sorted(PROTECTED))
def test_a_prefix_protects_itself_and_all_below_it(prefix: str) -> None:
    assert is_protected(prefix)
    assert is_protected(f"{prefix}/x/y")
    assert not is_protected(f"{prefix}-other")


@pytest.mark.parametrize("path", ["/", "/health", "/ready", "/static/app.js", "/docs", "/openapi.json", ""])
def test_what_a_stranger_may_see(path: str) -> None:
    assert not is_protected(path)
