"""The way out of alerts: webhooks, chats and e-mail.

Names are looked up once. All addresses found are checked, and one of them is connected to, so that a second
answer of the name server cannot lead into a private network. Redirects are not followed, and proxies are not
used. A URL is a secret: it is in no error or log line, and the body of an answer is not passed on.
"""

import asyncio
import smtplib
import socket
import ssl
from collections.abc import Sequence
from datetime import UTC, datetime
from email.message import EmailMessage
from functools import cache
from typing import Any

import httpx2
import msgspec
from standardwebhooks import Webhook

from pyoco_server.domain.alerts.channels import Channel, ChannelType, MailServer, Security, target_at
from pyoco_server.domain.alerts.deliveries import Delivery
from pyoco_server.domain.alerts.messages import text_of, title_of
from pyoco_server.domain.alerts.targets import check_addresses
from pyoco_server.errors import TargetRefused

TIMEOUT_SEC = 10.0
LOOKUP_SEC = 5.0
HTTP_OK = range(200, 300)
USER_AGENT = "pyoco-server"


class MessagesOut:
    def __init__(self, *, allow_private: bool, timeout_sec: float = TIMEOUT_SEC) -> None:
        self._allow_private = allow_private
        self._timeout_sec = timeout_sec

    async def check_host(self, host: str, port: int) -> None:
        """A name that cannot be looked up now is checked when something is sent."""
        try:
            await self._look_up(host, port)
        except OSError:
            return

    async def send(self, channel: Channel, delivery: Delivery) -> str | None:
        try:
            async with asyncio.timeout(self._timeout_sec):
                if channel.mail is not None:
                    return await self._send_mail(channel.mail, delivery)
                return await self._post(channel, delivery)
        except TargetRefused as error:
            return error.detail
        except TimeoutError:
            return f"no answer within {self._timeout_sec:g} s"
        except (httpx2.HTTPError, OSError) as error:
            return _unreachable(error)

    async def _look_up(self, host: str, port: int) -> list[str]:
        """Raises OSError or TargetRefused."""
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(LOOKUP_SEC):
            found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        addresses = [str(one[4][0]) for one in found]
        check_addresses(host, addresses, allow_private=self._allow_private)
        return list(dict.fromkeys(addresses))

    # Webhooks and chats

    async def _post(self, channel: Channel, delivery: Delivery) -> str | None:
        target = target_at(channel.url or "")
        if target.scheme == "http" and not self._allow_private:
            return "http is not allowed any more; private targets are off"
        addresses = await self._look_up(target.host, target.port)
        body = _content(channel, delivery)
        headers = {
            "Host": target.authority,
            "Content-Type": "application/json",
            "User-Agent": USER_AGENT,
            **_signed(channel, delivery, body),
        }
        problem: str | None = "has no address"
        for address in addresses:
            host = f"[{address}]" if ":" in address else address
            request = httpx2.Request(
                "POST",
                f"{target.scheme}://{host}:{target.port}{target.path}",
                headers=headers,
                content=body,
                extensions={"sni_hostname": target.host},
            )
            try:
                return await _answer(request)
            except (httpx2.ConnectError, httpx2.ConnectTimeout) as error:
                problem = _unreachable(error)
        return problem

    # E-mail

    async def _send_mail(self, mail: MailServer, delivery: Delivery) -> str | None:
        addresses = await self._look_up(mail.host, mail.port)
        message = _mail_message(mail, delivery)
        return await asyncio.to_thread(_send_mail, mail, addresses, message, self._timeout_sec)


async def _answer(request: httpx2.Request) -> str | None:
    # A bare transport: a client would log the URL, follow redirects and use proxies.
    async with httpx2.AsyncHTTPTransport(verify=_tls()) as transport:
        response = await transport.handle_async_request(request)
        status = response.status_code
        await response.aclose()
    return None if status in HTTP_OK else f"answered with HTTP {status}"


def _unreachable(error: BaseException) -> str:
    """From the cause, which the libraries wrap: not with the URL, which their own texts may have."""
    causes, cause = [], error.__cause__ or error.__context__
    while cause is not None:
        causes.append(cause)
        cause = cause.__cause__ or cause.__context__
    for one in (error, *causes):
        if isinstance(one, ssl.SSLCertVerificationError):
            return f"its certificate is refused: {one.verify_message}"
    reasons = [one.strerror for one in (error, *causes) if isinstance(one, OSError) and one.strerror]
    return f"could not be reached ({reasons[-1] if reasons else type(error).__name__})"


@cache
def _tls() -> ssl.SSLContext:
    """To read the certificates takes longer than to send a message."""
    return ssl.create_default_context()


def _signed(channel: Channel, delivery: Delivery, body: bytes) -> dict[str, str]:
    """As https://www.standardwebhooks.com asks for. The time is that of the attempt."""
    if channel.type is not ChannelType.WEBHOOK or channel.secret is None:
        return {}
    now = _now()
    return {
        "webhook-id": delivery.event_id,
        "webhook-timestamp": str(int(now.timestamp())),
        "webhook-signature": Webhook(channel.secret).sign(delivery.event_id, now, body.decode()),
    }


def _content(channel: Channel, delivery: Delivery) -> bytes:
    if channel.type is ChannelType.WEBHOOK:
        return delivery.body.encode()
    return msgspec.json.encode(_for_people(channel.type, msgspec.json.decode(delivery.body)))


def _for_people(kind: ChannelType, body: dict[str, Any]) -> dict[str, Any]:
    if kind is not ChannelType.TEAMS:
        return {"text": text_of(body)}
    lines = text_of(body).splitlines()
    blocks = [{"type": "TextBlock", "text": lines[0], "weight": "Bolder", "wrap": True}]
    blocks += [{"type": "TextBlock", "text": line, "wrap": True} for line in lines[1:]]
    card = {
        "$schema": "http://adaptivecards.io/schemas/adaptive-card.json",
        "type": "AdaptiveCard",
        "version": "1.4",
        "body": blocks,
    }
    content = {"contentType": "application/vnd.microsoft.card.adaptive", "content": card}
    return {"type": "message", "attachments": [content]}


def _mail_message(mail: MailServer, delivery: Delivery) -> EmailMessage:
    """The id is that of the event, so that a second copy can be recognised."""
    body = msgspec.json.decode(delivery.body)
    message = EmailMessage()
    message["From"] = mail.sender
    message["To"] = ", ".join(mail.to)
    message["Subject"] = title_of(body)
    message["Message-ID"] = f"<{delivery.event_id}@pyoco-server>"
    message["Date"] = _now()
    message["Auto-Submitted"] = "auto-generated"
    message.set_content(text_of(body) + "\n\n" + delivery.body + "\n")
    return message


def _connected(addresses: Sequence[str], port: int, timeout: float) -> socket.socket:
    """To the first address that answers. Raises OSError."""
    for address in addresses[:-1]:
        try:
            return socket.create_connection((address, port), timeout)
        except OSError:
            continue
    return socket.create_connection((addresses[-1], port), timeout)


class _Smtp(smtplib.SMTP):
    """A connection to an address that was checked, under the name of the server."""

    addresses: Sequence[str] = ()

    def _get_socket(self, _host: str, port: int, timeout: float) -> socket.socket:
        return _connected(self.addresses, port, timeout)


class _SmtpTls(smtplib.SMTP_SSL):
    addresses: Sequence[str] = ()

    def _get_socket(self, _host: str, port: int, timeout: float) -> socket.socket:
        plain = _connected(self.addresses, port, timeout)
        return self.context.wrap_socket(plain, server_hostname=self._host)  # type: ignore[attr-defined]


def _send_mail(
    mail: MailServer, addresses: Sequence[str], message: EmailMessage, timeout_sec: float
) -> str | None:
    """In a thread."""
    try:
        with _connection(mail, timeout_sec) as server:
            server.addresses = addresses
            server._host = mail.host  # noqa: SLF001 - for the certificate; `connect` looks it up otherwise
            server.connect(mail.host, mail.port)
            if mail.security is Security.STARTTLS:
                server.starttls(context=_tls())
            if mail.username is not None:
                server.login(mail.username, mail.password or "")
            server.send_message(message)
    except smtplib.SMTPResponseException as error:
        return f"the mail server answered with {error.smtp_code}"
    except smtplib.SMTPRecipientsRefused as error:
        codes = sorted({code for code, _ in error.recipients.values()})
        return f"the mail server refused all recipients ({', '.join(map(str, codes))})"
    except smtplib.SMTPException as error:
        return f"the mail server failed ({type(error).__name__})"
    return None


def _connection(mail: MailServer, timeout_sec: float) -> Any:
    if mail.security is Security.TLS:
        return _SmtpTls(timeout=timeout_sec, context=_tls())
    return _Smtp(timeout=timeout_sec)


def _now() -> datetime:
    return datetime.now(UTC)
