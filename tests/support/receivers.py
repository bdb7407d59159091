"""Receivers of alerts: a real HTTP server that checks signatures, and a real mail server."""

import json
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from email import message_from_bytes
from email.message import EmailMessage
from email.policy import default
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from aiosmtpd.controller import Controller
from aiosmtpd.smtp import AuthResult
from standardwebhooks import Webhook, WebhookVerificationError

from support.nats_server import free_port


@dataclass
class Received:
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def event_id(self) -> str:
        return self.headers["webhook-id"]

    @property
    def json(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.body)
        return found

    @property
    def data(self) -> dict[str, Any]:
        found: dict[str, Any] = self.json["data"]
        return found


@dataclass
class HttpReceiver:
    """`refuses`: how many of the next messages it answers with 503."""

    messages: list[Received] = field(default_factory=list)
    secret: str = ""
    """Checks each message when it comes: a signature is valid for five minutes."""
    refuses: int = 0
    unsigned: int = 0
    location: str = ""
    port: int = 0
    attempts: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/hooks/s3cret?key=t0ken"

    async def has(self, wanted: set[str]) -> bool:
        return wanted <= {one.event_id for one in list(self.messages)}

    def verified(self, secret: str) -> list[dict[str, Any]]:
        """All messages, each checked with the public library, as its readers do it."""
        webhook = Webhook(secret)
        return [webhook.verify(one.body, one.headers) for one in list(self.messages)]

    def receive(self, message: Received) -> int:
        with self.lock:
            self.attempts += 1
            if self.location:
                return 302
            if self.refuses > 0:
                self.refuses -= 1
                return 503
            if self.secret and not self._is_signed(message):
                self.unsigned += 1
            self.messages.append(message)
            return 204

    def _is_signed(self, message: Received) -> bool:
        try:
            Webhook(self.secret).verify(message.body, message.headers)
        except WebhookVerificationError:
            return False
        return True


Certificate = tuple[Path, Path]
"""And its key."""


def _speaking_tls(certificate: Certificate) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(*certificate)
    return context


@contextmanager
def http_receiver(
    receiver: HttpReceiver | None = None, certificate: Certificate | None = None
) -> Iterator[HttpReceiver]:
    """Under the port that it had before, if it had one. With a certificate it speaks https."""
    found = receiver or HttpReceiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            headers = {name.lower(): value for name, value in self.headers.items()}
            self.send_response(found.receive(Received(self.path, headers, body)))
            if found.location:
                self.send_header("Location", found.location)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_args: Any) -> None:
            """Quiet."""

    class Server(ThreadingHTTPServer):
        request_queue_size = 128

    server = Server(("127.0.0.1", found.port), Handler)
    if certificate is not None:
        server.socket = _speaking_tls(certificate).wrap_socket(
            server.socket, server_side=True, do_handshake_on_connect=False
        )
    found.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield found
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class MailSink:
    """Keeps what it is sent."""

    def __init__(self) -> None:
        self.mails: list[EmailMessage] = []

    async def handle_DATA(self, _server: Any, _session: Any, envelope: Any) -> str:  # noqa: N802 - of aiosmtpd
        parsed = message_from_bytes(envelope.content, policy=default)
        assert isinstance(parsed, EmailMessage)
        self.mails.append(parsed)
        return "250 kept"


LOGIN = ("pyoco", "hunter2-of-the-mail-server")


def _is_login(_server: Any, _session: Any, _envelope: Any, _mechanism: str, given: Any) -> AuthResult:
    is_right = (given.login.decode(), given.password.decode()) == LOGIN
    return AuthResult(success=is_right, handled=is_right)


@contextmanager
def mail_server(
    security: str = "none", certificate: Certificate | None = None
) -> Iterator[tuple[MailSink, int]]:
    """A mail server and its port. With `starttls` or `tls` it wants `LOGIN`, over an encrypted connection."""
    sink, options = MailSink(), dict[str, Any]()
    if certificate is not None:
        tls = _speaking_tls(certificate)
        options = {"authenticator": _is_login}
        if security == "tls":
            # The whole connection is encrypted, which this library does not take for TLS.
            options |= {"ssl_context": tls, "auth_require_tls": False}
        else:
            options |= {"tls_context": tls, "require_starttls": True, "auth_required": True}
    controller = Controller(sink, hostname="127.0.0.1", port=free_port(), **options)
    controller.start()
    try:
        yield sink, controller.port
    finally:
        controller.stop()
