"""The client of a connection to NATS; how it logs in and is secured: from the settings, and why it fails."""

import asyncio
import re
import ssl
from collections.abc import Callable
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, NamedTuple

from nats.aio.client import Client as LibraryClient
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

from pyoco_server.config import NATS_LOGINS, USERINFO, NatsBackendConfig, env_name
from pyoco_server.errors import ConfigError

_SEED = re.compile(r"^SU[A-Z2-7]{56}\s*$", re.MULTILINE)
_CREDS = re.compile(r"BEGIN NATS USER JWT.*" + _SEED.pattern, re.MULTILINE | re.DOTALL)
CANCEL_SEC = 0.5
_REFUSED = re.compile("authorization|authentication", re.IGNORECASE)


def without_credentials(url: str) -> str:
    """For logs: the part before the @ is a secret."""
    return USERINFO.sub(r"\1***@", url)


class RawMessage:
    """Like the library's message, with headers that are parsed when somebody reads them."""

    __slots__ = ("_headers", "_raw", "data", "reply", "subject")

    def __init__(self, subject: str, reply: str, data: bytes, raw: bytes | None) -> None:
        self.subject = subject
        self.reply = reply
        self.data = data
        self._raw = raw
        self._headers: dict[str, str] | None = None

    @property
    def headers(self) -> dict[str, str] | None:
        if self._raw is not None:
            self._headers, self._raw = _headers_in(self._raw), None
        return self._headers


def _headers_in(raw: bytes) -> dict[str, str]:
    """The first line has the status of a message from the server itself: `NATS/1.0 100 Idle Heartbeat`."""
    first, _, lines = raw.partition(b"\r\n")
    found = Client._parse_header_lines(lines)  # noqa: SLF001 - as the library calls it
    _, is_status, status = first.partition(b" ")
    if is_status:
        found["Status"], _, found["Description"] = status.decode("utf-8", "replace").strip().partition(" ")
    return found


class Client(LibraryClient):
    """Reads headers faster: the library checks every character of every name, in every message.

    And no longer reconnects once it is closed.
    """

    def __init__(self) -> None:
        super().__init__()
        self._direct: dict[int, Callable[[RawMessage], None]] = {}

    async def subscribe_directly(self, subject: str, callback: Callable[[Any], None]) -> Subscription:
        """`callback` is called where the connection is read, for streams with a million messages.

        The library has a queue and a task between the two, which cost more than the message.
        """

        async def called_by_library(message: Msg) -> None:
            callback(message)

        subscription = await self.subscribe(subject, cb=called_by_library)
        self._direct = {sid: known for sid, known in self._direct.items() if sid in self._subs}
        self._direct[subscription._id] = callback  # noqa: SLF001 - what the server sends with a message
        return subscription

    async def _process_msg(  # the arguments of the library
        self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: bytes
    ) -> None:
        direct = self._direct.get(sid) if sid in self._subs else None
        if direct is None:
            await super()._process_msg(sid, subject, reply, data, headers)
        else:
            direct(RawMessage(subject.decode(), reply.decode(), data, headers or None))

    async def close(self) -> None:
        try:
            await super().close()
        finally:
            await self._stop_reconnecting()

    async def _stop_reconnecting(self) -> None:
        """The library cancels it once, and a cancel at the moment of a refused connection is lost."""
        reconnecting = self._reconnection_task
        while reconnecting not in (None, asyncio.current_task()) and not reconnecting.done():
            reconnecting.cancel()
            await asyncio.wait({reconnecting}, timeout=CANCEL_SEC)

    @staticmethod
    def _parse_header_lines(raw: bytes) -> dict[str, str]:
        found: dict[str, str] = {}
        for line in raw.split(b"\r\n"):
            name, colon, value = line.partition(b":")
            if colon and (known := _header_name(name)) is not None:
                found[known] = value.strip().decode("utf-8", "replace")
        return found


@lru_cache(maxsize=256)
def _header_name(raw: bytes) -> str | None:
    """None: it is not valid, and its line is ignored."""
    name = raw.strip()
    return (
        name.decode("ascii") if name.isascii() and not any(map(str.isspace, name.decode("ascii"))) else None
    )


class PlainConnection(ConnectionError):
    """The server offers no TLS. The library treats it like a lost connection and tries again."""


class TlsContext(ssl.SSLContext):
    """Notes a handshake, because the library also connects to a server that offers no TLS."""

    is_used = False

    def wrap_bio(self, *arguments: Any, **options: Any) -> ssl.SSLObject:
        self.is_used = True
        return super().wrap_bio(*arguments, **options)


class Access(NamedTuple):
    """How a connection logs in and is secured. Each connection has its own."""

    login: str = "no login is set"
    """What to check when NATS rejects it."""
    options: dict[str, Any] = {}  # noqa: RUF012 - never changed
    """Of the library, without TLS."""
    tls: TlsContext | None = None
    tls_first: bool = False

    def library_options(self, url: str) -> dict[str, Any]:
        if self.tls is None:
            return self.options
        secured = {**self.options, "tls": self.tls, "tls_handshake_first": self.tls_first}
        if "password" in secured:
            # Called before the password is sent; the library reports the error and tries again.
            secured["password"] = partial(self._password, url)
        return secured

    def _password(self, url: str) -> str:
        if self.is_plain:
            raise PlainConnection(no_tls(url))
        password: str = self.options["password"]
        return password

    def begin_attempt(self) -> None:
        if self.tls is not None:
            self.tls.is_used = False

    @property
    def is_plain(self) -> bool:
        """Whether this attempt connected without the TLS that the settings require."""
        return self.tls is not None and not self.tls.is_used


NO_ACCESS = Access()


def access_of(config: NatsBackendConfig) -> Access:
    """The only place that turns settings into options of a connection.

    Raises ConfigError for a file that cannot be used, with its name and its setting.
    """
    options: dict[str, Any] = {}
    if config.nats_user:
        options = {"user": config.nats_user, "password": config.nats_password}
    elif config.nats_creds_file:
        _check_seed(config, "nats_creds_file", _CREDS)
        options = {"user_credentials": config.nats_creds_file}
    elif config.nats_nkey_seed_file:
        _check_seed(config, "nats_nkey_seed_file", _SEED)
        options = {"nkeys_seed": config.nats_nkey_seed_file}
    is_tls = config.nats_tls_ca_file or config.nats_tls_cert_file or config.nats_tls_first
    tls = _tls_context(config) if is_tls else None
    return Access(_login_of(config), options, tls, config.nats_tls_first)


def _login_of(config: NatsBackendConfig) -> str:
    if USERINFO.search(config.nats_url):
        return "check the user and password in PYOCO_NATS_URL"
    used = [env_name(name) for name in NATS_LOGINS if getattr(config, name)]
    used += ["PYOCO_NATS_PASSWORD"] if config.nats_password else []
    if used:
        return f"check {' and '.join(used)}"
    return "no login is set; set PYOCO_NATS_USER, PYOCO_NATS_CREDS_FILE or PYOCO_NATS_NKEY_SEED_FILE"


def _check_seed(config: NatsBackendConfig, name: str, pattern: re.Pattern[str]) -> None:
    if not pattern.search(_content(config, name)):
        raise _unusable(config, name, "it contains no credentials of a NATS user")


def _content(config: NatsBackendConfig, name: str) -> str:
    try:
        return Path(getattr(config, name)).read_text(errors="replace")
    except OSError as error:
        raise _unusable(config, name, error.strerror) from error


def _tls_context(config: NatsBackendConfig) -> TlsContext:
    context = TlsContext(ssl.PROTOCOL_TLS_CLIENT)
    if config.nats_tls_ca_file:
        try:
            context.load_verify_locations(cadata=_content(config, "nats_tls_ca_file"))
        except (ssl.SSLError, ValueError) as error:
            raise _unusable(config, "nats_tls_ca_file", "it contains no certificate") from error
    else:
        context.load_default_certs()
    if config.nats_tls_cert_file:
        _load_certificate(context, config)
    return context


def _load_certificate(context: TlsContext, config: NatsBackendConfig) -> None:
    for name in ("nats_tls_cert_file", "nats_tls_key_file"):
        _content(config, name)
    try:
        context.load_cert_chain(config.nats_tls_cert_file, config.nats_tls_key_file, _no_passphrase)
    except (ssl.SSLError, ValueError) as error:
        key = f"PYOCO_NATS_TLS_KEY_FILE={config.nats_tls_key_file!r}"
        reason = f"no certificate, or {key} is not its key or has a passphrase"
        raise _unusable(config, "nats_tls_cert_file", reason) from error


def _no_passphrase() -> str:
    """Instead of a question on the terminal."""
    return ""


def _unusable(config: NatsBackendConfig, name: str, reason: str | None) -> ConfigError:
    return ConfigError([f"{env_name(name)}={getattr(config, name)!r}: cannot be used ({reason})"])


# Failures


def refusal_in(error: Exception, url: str, access: Access) -> str:
    """Why NATS and this program do not accept each other; empty for other errors."""
    where = without_credentials(url)
    if isinstance(error, PlainConnection):
        return str(error)
    if isinstance(error, ssl.SSLCertVerificationError):
        return (
            f"the certificate of NATS at {where} is not trusted ({error.verify_message}): "
            "check PYOCO_NATS_TLS_CA_FILE and the host name in PYOCO_NATS_URL"
        )
    if isinstance(error, ssl.SSLError) and not isinstance(error, ssl.SSLEOFError):
        return (
            f"TLS with NATS at {where} failed ({error.reason}): check PYOCO_NATS_TLS_CERT_FILE, "
            "PYOCO_NATS_TLS_KEY_FILE and PYOCO_NATS_TLS_FIRST"
        )
    if _REFUSED.search(str(error)):
        return f"NATS at {where} rejected the credentials (authorization): {access.login}"
    return ""


def no_tls(url: str) -> str:
    where = without_credentials(url)
    return f"NATS at {where} offers no TLS: start it with TLS, or remove the PYOCO_NATS_TLS settings"
