"""Adapters of workflow events: files to import, the audit file, Google Chat."""

import asyncio
import os
from pathlib import Path

import httpx2
import msgspec

from pyoco_server.domain.events.audit import AuditRecord
from pyoco_server.domain.events.retry import CHAT_HOST, Delivered, path_and_query

MAX_BYTES = 256 * 1024 * 1024
MODE = 0o640
TIMEOUT_SEC = 10.0


class EventFiles:
    def __init__(self, directory: str) -> None:
        """Empty: no files."""
        self._directory = Path(directory) if directory else None

    def path(self, name: str) -> str:
        return str(self._directory / name) if self._directory else name

    async def read(self, name: str) -> bytes | None:
        if self._directory is None:
            return None
        return await asyncio.to_thread(_content, self._directory / name)


def _content(path: Path) -> bytes | None:
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        return None
    if len(data) > MAX_BYTES:
        raise OSError(f"{path}: more than {MAX_BYTES} bytes")
    return data


class AuditFile:
    """Audit records as JSON lines, to be read by hand. The stream is authoritative."""

    def __init__(self, path: str) -> None:
        """Empty: no file."""
        self._path = Path(path) if path else None

    async def write(self, record: AuditRecord) -> None:
        """Raises OSError. Runs in a thread: a disk may be slow."""
        if self._path is not None:
            await asyncio.to_thread(_append, self._path, msgspec.json.encode(record) + b"\n")


def _append(path: Path, line: bytes) -> None:
    """Opened for every line, for log rotation; one write, so that lines do not interleave."""
    try:
        target = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, MODE)
    except FileNotFoundError:
        path.parent.mkdir(parents=True, exist_ok=True)
        target = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, MODE)
    try:
        os.write(target, line)
    finally:
        os.close(target)


class GoogleChat:
    """The URL is a secret: it is in no answer, error or log line, and no redirect is followed."""

    def __init__(self, base_url: str = "", *, timeout_sec: float = TIMEOUT_SEC) -> None:
        """`base_url`: a test server instead of Google."""
        self._base_url = base_url.rstrip("/") or CHAT_HOST
        self._timeout_sec = timeout_sec

    async def send(self, webhook_url: str, text: str) -> Delivered:
        request = httpx2.Request("POST", self._base_url + path_and_query(webhook_url), json={"text": text})
        try:
            # A bare transport: a client would log the URL, follow redirects and use proxies.
            async with asyncio.timeout(self._timeout_sec), httpx2.AsyncHTTPTransport() as transport:
                response = await transport.handle_async_request(request)
                status = response.status_code
                await response.aclose()  # its body is not passed on
        except TimeoutError:
            return Delivered(False, None, f"Google Chat did not answer within {self._timeout_sec:g} s.")
        except httpx2.HTTPError as error:
            return Delivered(False, None, f"Google Chat could not be reached ({type(error).__name__}).")
        if not response.is_success:
            return Delivered(False, status, f"Google Chat answered with HTTP {status}.")
        return Delivered(True, status, "The message was sent.")
