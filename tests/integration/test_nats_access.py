"""D46: connections to a NATS with logins and TLS, as operators have it; each on a real nats-server."""

import asyncio
import gc
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from nats.aio.msg import Msg

from pyoco_server import NatsBackendConfig, PyocoNatsClient
from pyoco_server.errors import ConfigError, NatsUnauthorized, NatsUnavailable
from pyoco_server.jetstream.access import access_of
from pyoco_server.jetstream.connection import NatsConnection
from support.captured_logs import capture_logs
from support.nats_access import Authority, Operator, guarded_nats, tls_settings, user_key
from support.programs import proc
from support.waiting import until

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")
"""The library leaves the sockets of refused attempts to the garbage collector."""


@pytest.fixture(autouse=True)
def _collect_garbage() -> Iterator[None]:
    yield
    gc.collect()


PASSWORD = "authorization { user: me, password: s3cret }\n"  # noqa: S105
LOGIN: dict[str, Any] = {"nats_user": "me", "nats_password": "s3cret"}


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("stranger"))


def certificate(issuer: Authority) -> dict[str, Any]:
    cert, key = issuer.issue("client")
    return {"nats_tls_cert_file": str(cert), "nats_tls_key_file": str(key)}


def trusting(issuer: Authority) -> dict[str, Any]:
    return {"nats_tls_ca_file": str(issuer.certificate)}


def connection_to(config: NatsBackendConfig) -> NatsConnection:
    return NatsConnection(config.nats_url, "test", access=access_of(config))


async def accepted(url: str, **settings: Any) -> None:
    """The whole way: log in, make every stream, submit."""
    client = await PyocoNatsClient.connect(NatsBackendConfig(nats_url=url, **settings))
    try:
        run_id = await client.submit_run("flow")
        assert (await client.get_run(run_id))["status"] == "PENDING"
    finally:
        await client.close()


async def refusal(url: str, **settings: Any) -> str:
    """The one line that a program shows."""

    async def refused() -> NatsUnauthorized | None:
        try:
            client = await PyocoNatsClient.connect(NatsBackendConfig(nats_url=url, **settings))
        except NatsUnauthorized as error:
            return error
        except NatsUnavailable:  # INFO came before the handshake began: both ends wait for the other
            return None
        await client.close()
        raise AssertionError("it was accepted")

    raised = await until(refused)
    assert raised is not None
    detail = raised.detail
    assert url in detail
    assert "\n" not in detail
    assert "s3cret" not in detail
    return detail


# Logins


async def test_a_user_and_a_password(tmp_path: Path) -> None:
    with guarded_nats(tmp_path, PASSWORD) as nats:
        await accepted(nats.url, **LOGIN)
        wrong = await refusal(nats.url, nats_user="me", nats_password="s3cret-not")  # noqa: S106
        assert "check PYOCO_NATS_USER and PYOCO_NATS_PASSWORD" in wrong
        assert "set PYOCO_NATS_USER, PYOCO_NATS_CREDS_FILE or" in await refusal(nats.url)


async def test_an_nkey(tmp_path: Path) -> None:
    mine, other = user_key(), user_key()
    (tmp_path / "mine").write_text(f"{mine.seed}\n")
    (tmp_path / "other").write_text(other.seed)
    with guarded_nats(
        tmp_path / "nats", f"authorization {{ users: [ {{ nkey: {mine.public} }} ] }}\n"
    ) as nats:
        await accepted(nats.url, nats_nkey_seed_file=str(tmp_path / "mine"))
        wrong = await refusal(nats.url, nats_nkey_seed_file=str(tmp_path / "other"))
        assert wrong.endswith("check PYOCO_NATS_NKEY_SEED_FILE")
        assert other.seed not in wrong


async def test_credentials_of_an_operators_user(tmp_path: Path) -> None:
    """JWTs of an operator, an account and a user, as nsc makes them."""
    operator, creds = Operator(), tmp_path / "user.creds"
    with guarded_nats(tmp_path / "nats", operator.settings) as nats:
        creds.write_text(operator.credentials())
        await accepted(nats.url, nats_creds_file=str(creds))
        for wrong in (operator.credentials(valid_sec=-60), Operator().credentials()):
            creds.write_text(wrong)
            line = await refusal(nats.url, nats_creds_file=str(creds))
            assert line.endswith("check PYOCO_NATS_CREDS_FILE")


# TLS


async def test_a_private_ca_and_a_password_over_it(
    tmp_path: Path, authority: Authority, stranger: Authority
) -> None:
    with guarded_nats(tmp_path, PASSWORD + tls_settings(authority)) as nats:
        await accepted(nats.url, **LOGIN, **trusting(authority))
        for settings in (trusting(stranger), {}):
            line = await refusal(nats.url, **LOGIN, **settings)
            assert "is not trusted (unable to get local issuer certificate)" in line
            assert "PYOCO_NATS_TLS_CA_FILE" in line
        assert "rejected the credentials" in await refusal(nats.url, **trusting(authority))


async def test_client_certificates(tmp_path: Path, authority: Authority, stranger: Authority) -> None:
    with guarded_nats(tmp_path, tls_settings(authority, verify=True)) as nats:
        await accepted(nats.url, **trusting(authority), **certificate(authority))
        for settings in ({}, certificate(stranger)):
            line = await refusal(nats.url, **trusting(authority), **settings)
            assert "check PYOCO_NATS_TLS_CERT_FILE, PYOCO_NATS_TLS_KEY_FILE" in line


async def test_tls_from_the_first_byte(tmp_path: Path, authority: Authority) -> None:
    with guarded_nats(tmp_path / "first", tls_settings(authority, first=True)) as nats:
        await accepted(nats.url, **trusting(authority), nats_tls_first=True)
    with guarded_nats(tmp_path / "later", tls_settings(authority)) as nats:
        line = await refusal(nats.url, **trusting(authority), nats_tls_first=True)
        assert "PYOCO_NATS_TLS_FIRST" in line


@pytest.mark.parametrize("login", [{}, LOGIN], ids=["anybody", "password"])
async def test_a_server_without_tls_is_refused_when_the_settings_ask_for_it(
    tmp_path: Path, authority: Authority, login: dict[str, Any]
) -> None:
    with guarded_nats(tmp_path, PASSWORD if login else "") as nats:
        assert "offers no TLS" in await refusal(nats.url, **trusting(authority), **login)


# What lasts, and what comes back


class Listener:
    """A connection with a subscription, which must survive whatever happens to it."""

    def __init__(self, connection: NatsConnection) -> None:
        self.connection = connection
        self.received: asyncio.Queue[bytes] = asyncio.Queue()
        self.reconnected = asyncio.Event()
        connection.on_reconnect(self.reconnected.set)

    async def listen(self) -> None:
        self.subscription = await self.connection.subscribe("here", self._receive)

    async def _receive(self, message: Msg) -> None:
        await self.received.put(message.data)

    async def hears(self, url: str, **settings: Any) -> None:
        """From another connection: our own messages are not sent back."""
        await until(self._is_connected)
        async with opened(NatsBackendConfig(nats_url=url, **settings)) as other:
            while self.received.empty():
                await other.publish("here", b"hello")
                await asyncio.sleep(0.01)
        assert await self.received.get() == b"hello"

    async def _is_connected(self) -> bool:
        return self.connection.is_connected


@asynccontextmanager
async def opened(config: NatsBackendConfig, *, patiently: bool = True) -> AsyncIterator[NatsConnection]:
    connection = connection_to(config)
    await connection.open(patiently=patiently)
    try:
        yield connection
    finally:
        await connection.close()


def refusals(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    assert [line for line in lines if line["log_level"] != "debug" and "exc_info" in line] == []
    return [line for line in lines if line.get("action") == "nats.unauthorized"]


async def until_refused(lines: list[dict[str, Any]], count: int) -> None:
    async def seen() -> int:
        return len(refusals(lines))

    await until(seen, lambda found: found >= count)


@pytest.mark.parametrize("cause", ["login", "tls"])
async def test_who_is_refused_at_the_start_tries_less_and_less_often_and_gets_in_at_last(
    tmp_path: Path, authority: Authority, stranger: Authority, cause: str
) -> None:
    """The library stops trying after a failed handshake."""
    right, wrong = {
        "login": (PASSWORD, PASSWORD.replace("s3cret", "other")),
        "tls": (tls_settings(authority), tls_settings(stranger)),
    }[cause]
    settings = LOGIN if cause == "login" else trusting(authority)
    with guarded_nats(tmp_path, wrong) as nats, capture_logs() as lines:
        config = NatsBackendConfig(nats_url=nats.url, **settings)
        connection = connection_to(config)
        opening = asyncio.ensure_future(connection.open(patiently=True))
        await until_refused(lines, 2)
        assert [line["pause_sec"] for line in refusals(lines)[:2]] == [1.0, 2.0]
        assert {line["err_id"] for line in refusals(lines)} == {"ERR-PYOCO-0003"}
        nats.restart(right)
        await opening
        await connection.close()
    assert "s3cret" not in str(lines)


async def test_who_is_refused_later_tries_less_and_less_often_and_gets_in_at_last(tmp_path: Path) -> None:
    with guarded_nats(tmp_path, PASSWORD) as nats, capture_logs() as lines:
        async with opened(NatsBackendConfig(nats_url=nats.url, **LOGIN)) as connection:
            listener = Listener(connection)
            await listener.listen()
            nats.restart(PASSWORD.replace("s3cret", "other"))
            await until_refused(lines, 2)
            assert [line["pause_sec"] for line in refusals(lines)[:2]] == [1.0, 2.0]
            nats.restart(PASSWORD)
            await listener.reconnected.wait()
            await listener.hears(nats.url, **LOGIN)


@pytest.mark.parametrize("login", [{}, LOGIN], ids=["anybody", "password"])
async def test_a_server_that_comes_back_without_tls_is_refused(
    tmp_path: Path, authority: Authority, login: dict[str, Any]
) -> None:
    users = PASSWORD if login else ""
    with guarded_nats(tmp_path, users + tls_settings(authority)) as nats, capture_logs() as lines:
        settings = {**login, **trusting(authority)}
        async with opened(NatsBackendConfig(nats_url=nats.url, **settings)) as connection:
            listener = Listener(connection)
            await listener.listen()
            nats.restart(users)
            await until_refused(lines, 2)
            assert not connection.is_connected
            assert not listener.reconnected.is_set()
            assert "offers no TLS" in refusals(lines)[0]["reason"]
            nats.restart(users + tls_settings(authority))
            await listener.reconnected.wait()
            await listener.hears(nats.url, **settings)


async def test_expired_credentials_are_read_again_when_they_are_renewed(tmp_path: Path) -> None:
    """The library closes the connection for good."""
    operator, creds = Operator(), tmp_path / "user.creds"
    with guarded_nats(tmp_path / "nats", operator.settings) as nats, capture_logs() as lines:
        creds.write_text(operator.credentials(valid_sec=3))
        async with opened(NatsBackendConfig(nats_url=nats.url, nats_creds_file=str(creds))) as connection:
            listener = Listener(connection)
            await listener.listen()
            await until_refused(lines, 1)
            assert not connection.is_connected
            creds.write_text(operator.credentials())
            await listener.reconnected.wait()
            await listener.hears(nats.url, nats_creds_file=str(creds))


def open_sockets() -> list[Path]:
    files = [path for path in proc("self/fd").iterdir() if path.is_symlink()]
    return [path for path in files if str(path.readlink()).startswith("socket:")]


async def test_attempts_that_fail_leave_no_sockets_behind(tmp_path: Path, authority: Authority) -> None:
    with guarded_nats(tmp_path, tls_settings(authority)) as nats:
        connection = connection_to(NatsBackendConfig(nats_url=nats.url))
        for _ in range(3):
            with pytest.raises(NatsUnauthorized):
                await connection.open()

        async def sockets() -> int:
            return len(await asyncio.to_thread(open_sockets))

        before = await sockets()
        for _ in range(20):
            with pytest.raises(NatsUnauthorized):
                await connection.open()
        await until(sockets, lambda found: found <= before)


# Files


@pytest.mark.parametrize(
    "name",
    ["nats_creds_file", "nats_nkey_seed_file", "nats_tls_ca_file", "nats_tls_cert_file", "nats_tls_key_file"],
)
@pytest.mark.parametrize("content", [None, "nothing of use\n"], ids=["missing", "garbage"])
def test_a_file_that_cannot_be_used_is_named_with_its_setting(
    tmp_path: Path, authority: Authority, name: str, content: str | None
) -> None:
    file = tmp_path / "file"
    if content is not None:
        file.write_text(content)
    pair = certificate(authority) if name in ("nats_tls_cert_file", "nats_tls_key_file") else {}
    with pytest.raises(ConfigError) as raised:
        access_of(NatsBackendConfig(**{**pair, name: str(file)}))
    (problem,) = raised.value.problems
    assert f"PYOCO_{name.upper()}={str(file)!r}" in problem
    assert content is not None or "No such file or directory" in problem


def test_a_key_with_a_passphrase_is_refused_without_a_question(tmp_path: Path) -> None:
    cert, key = Authority(tmp_path).issue("client", passphrase="s3cret")  # noqa: S106
    with pytest.raises(ConfigError, match="has a passphrase"):
        access_of(NatsBackendConfig(nats_tls_cert_file=str(cert), nats_tls_key_file=str(key)))
