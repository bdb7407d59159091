"""Google Chat notifications: allowed webhook URLs, their masked form, and the message texts."""

import re
from urllib.parse import parse_qsl

from msgspec import Struct

from pyoco_server.domain.events.retry import RetryJob
from pyoco_server.errors import InvalidRequest

HOST = "https://chat.googleapis.com"
FORM = f"{HOST}/v1/spaces/.../messages?key=...&token=..."
MAX_URL = 2000
_URL = re.compile(
    r"https://chat\.googleapis\.com(/v1/spaces/([A-Za-z0-9_-]{1,100})/messages\?([A-Za-z0-9_%&=.~+-]{1,1500}))"
)
"""The whole URL, so that a client has no host, port, user info or escape to interpret."""
_SHOWN_CHARACTERS = 4


class NotificationSettings(Struct, frozen=True, kw_only=True):
    webhook_url: str
    updated_at: str

    def __repr__(self) -> str:
        return "NotificationSettings(***)"


class Delivered(Struct, frozen=True):
    """Result of sending a message."""

    is_sent: bool
    http_status: int | None
    message: str


def check_webhook_url(text: str) -> str:
    """Raises InvalidRequest, without the URL: it is a secret."""
    if not is_webhook_url(text):
        raise InvalidRequest(f"webhook_url: must have the form {FORM}")
    return text


def is_webhook_url(text: str) -> bool:
    match = _URL.fullmatch(text) if len(text) <= MAX_URL else None
    if match is None:
        return False
    names = [name for name, value in parse_qsl(match[3], keep_blank_values=True) if value]
    return names.count("key") == 1 and names.count("token") == 1


def path_and_query(url: str) -> str:
    match = _URL.fullmatch(url)
    if match is None:
        raise InvalidRequest(f"webhook_url: must have the form {FORM}")
    return match[1]


def masked(url: str | None) -> str:
    match = _URL.fullmatch(url or "")
    if match is None or not is_webhook_url(match[0]):
        return ""
    return f"{HOST}/v1/spaces/{match[2][:_SHOWN_CHARACTERS]}***/messages?key=***&token=***"


TEST_TEXT = "pyoco-server: test of the notification settings."


def escalation_text(job: RetryJob) -> str:
    lines = [
        "pyoco-server: a workflow event needs manual action",
        f"template: {_line(job.template_name)} ({job.template_id})",
        f"action: {job.action}",
        f"event: {_line(job.event_name or '-')}   source: {_line(job.source or '-')}",
        f"idempotency_key: {job.idempotency_key}",
        f"attempts: {job.attempts} of {job.max_attempts}",
        f"reason: {job.last_reason_class}/{job.last_reason_code}: {_line(job.last_error or '-')}",
        f"job: {job.id}",
    ]
    return "\n".join(lines)


def _line(text: str) -> str:
    """Names come from outside: no links, mentions or extra lines."""
    return "".join(c if c.isprintable() and c not in "<>*_`~" else " " for c in text)[:200]
