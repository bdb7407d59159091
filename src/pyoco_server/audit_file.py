"""The audit records as lines of a file, for people with a text editor. The stream is what counts."""

import asyncio
import os
from pathlib import Path

import msgspec

from pyoco_server.domain.events.audit import AuditRecord

MODE = 0o640


class AuditFile:
    def __init__(self, path: str) -> None:
        """Empty: no file."""
        self._path = Path(path) if path else None

    async def write(self, record: AuditRecord) -> None:
        """Raises OSError. In a thread: a disk may be slow."""
        if self._path is not None:
            await asyncio.to_thread(_append, self._path, msgspec.json.encode(record) + b"\n")


def _append(path: Path, line: bytes) -> None:
    """Opened for every line, so that the file can be rotated; one write, so that lines do not mix."""
    try:
        target = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, MODE)
    except FileNotFoundError:
        path.parent.mkdir(parents=True, exist_ok=True)
        target = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, MODE)
    try:
        os.write(target, line)
    finally:
        os.close(target)
