"""The file of an index: it belongs to one process, and one that may be damaged is not used.

Writes are not synced, because the index is a cache. A killed process loses none of them: the system writes
them later. A power failure may leave any mixture behind. The note beside the file, which is synced, shows
whether that can have happened: it has the boot id of the system while the file is in use, and the size and
time of the file after a clean stop.
"""

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Self

import msgspec

from pyoco_server.processes import boot_id

if sys.platform != "win32":  # where only clients run
    import fcntl

MAX_FILE_AGE_SEC = 12 * 3600
"""An older file may have missed a removal whose marker has expired."""
MAX_FILES = 8
"""Gateways with one data directory."""
_PARTS = ("", "-wal", "-shm", "-journal")


class _Note(msgspec.Struct):
    kind: str = ""
    boot: str = ""
    """Of the system in which the file is in use; empty: unknown."""
    closed: tuple[int, int] | None = None
    """Size and time of the file after a clean stop."""


class IndexFile:
    def __init__(self, path: Path, lock: int) -> None:
        self.path = path
        self._lock = lock

    @classmethod
    def taken(cls, path: Path) -> Self | None:
        """None: another process, or another gateway of this one, has it. Raises OSError."""
        lock = os.open(path.with_name(f"{path.name}.lock"), os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            return None
        return cls(path, lock)

    def is_intact(self, kind: str) -> bool:
        """Whether it is of this kind, and cannot be damaged."""
        note = self._note()
        if note.kind != kind or not self.path.exists():
            return False
        if note.closed is not None:
            return note.closed == self._size_and_time()
        return bool(note.boot) and note.boot == boot_id()

    def mark_open(self, kind: str) -> None:
        self._write(_Note(kind=kind, boot=boot_id()))

    def mark_closed(self, kind: str) -> None:
        """After the last write."""
        file = os.open(self.path, os.O_RDONLY)
        try:
            os.fsync(file)
        finally:
            os.close(file)
        self._write(_Note(kind=kind, closed=self._size_and_time()))

    def remove(self) -> None:
        """Without the lock."""
        self._write(_Note())
        for suffix in _PARTS:
            self.path.with_name(self.path.name + suffix).unlink(missing_ok=True)

    def remove_if_old(self, now: float) -> None:
        if self.path.exists() and now - self.path.stat().st_mtime > MAX_FILE_AGE_SEC:
            self.remove()

    def release(self) -> None:
        os.close(self._lock)

    def _size_and_time(self) -> tuple[int, int]:
        found = self.path.stat()
        return found.st_size, found.st_mtime_ns

    def _note(self) -> _Note:
        try:
            return msgspec.json.decode(os.pread(self._lock, 4096, 0), type=_Note)
        except msgspec.MsgspecError:  # new, or damaged itself
            return _Note()

    def _write(self, note: _Note) -> None:
        os.ftruncate(self._lock, 0)
        os.pwrite(self._lock, msgspec.json.encode(note), 0)
        os.fsync(self._lock)


def take_file(path: Path) -> IndexFile:
    """`path`, or the first of its neighbours (`runs-2.sqlite`, …) that is free. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    taken = next((file for file in map(IndexFile.taken, _slots(path)) if file is not None), None)
    if taken is None:
        raise OSError(f"all {MAX_FILES} files are in use by other gateways")
    _clean(path)
    return taken


def _slots(path: Path) -> Iterator[Path]:
    yield path
    for n in range(2, MAX_FILES + 1):
        yield path.with_stem(f"{path.stem}-{n}")


def _clean(path: Path) -> None:
    """Remove the files of gateways that are gone: nobody would use them any more."""
    for slot in _slots(path):
        file = IndexFile.taken(slot) if slot.exists() else None
        if file is not None:
            file.remove_if_old(time.time())
            file.release()
