"""The files of an earlier workflow server, read once."""

import asyncio
from pathlib import Path

MAX_BYTES = 256 * 1024 * 1024


class EventFiles:
    def __init__(self, directory: str) -> None:
        """Empty: there are none."""
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
        raise OSError(f"{path} has more than {MAX_BYTES} bytes")
    return data
