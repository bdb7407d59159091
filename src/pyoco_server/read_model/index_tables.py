"""The tables of an index, in a file or in memory, and what happens when they fail."""

import sqlite3
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Concatenate, ParamSpec, TypeVar

import msgspec

from pyoco_server.errors import IndexLost
from pyoco_server.logs import get_logger
from pyoco_server.read_model.index_file import MAX_FILE_AGE_SEC, IndexFile, take_file
from pyoco_server.usecases.ports.stores import FeedPosition

log = get_logger(__name__)

_FACTS = "CREATE TABLE facts (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;"


@dataclass(frozen=True)
class Layout:
    """What an index has in its tables."""

    what: str
    version: int
    schema: str
    cache_kib: int
    """Pages in the memory of this process; the rest is in the cache of the system."""


class IndexTables:
    """`db` is another connection after `renew`."""

    def __init__(self, path: Path | None, layout: Layout, kind: str) -> None:
        """`path`: None for memory, which is also used if the file cannot be."""
        self._layout = layout
        self._kind = f"{layout.version} {kind}"
        self._file = None if path is None else self._file_at(path)
        self.db = self._open()

    def renew(self, *, in_memory: bool = False) -> None:
        """New, empty tables. `in_memory`: the file is of no use any more."""
        self.db.close()
        if in_memory and self._file is not None:
            self._file.release()
            self._file = None
        self.db = self._new()

    def close(self) -> None:
        if self._file is None:
            self.db.close()
            return
        self.db.execute("PRAGMA synchronous = FULL")  # for the copy of the log into the file
        self.db.close()
        self._file.mark_closed(self._kind)
        self._file.release()

    def _open(self) -> sqlite3.Connection:
        if self._file is None:
            return self._new()
        db = self._stored(self._file)
        return self._new() if db is None else db

    def _stored(self, file: IndexFile) -> sqlite3.Connection | None:
        """What an earlier process left, if it can be used."""
        if not file.is_intact(self._kind):
            return None
        db = self._fresh(file.path)
        if db is None:
            return None
        file.mark_open(self._kind)
        log.info(
            "continuing with the index of an earlier start",
            action="index.opened",
            index=self._layout.what,
            path=str(file.path),
        )
        return db

    def _new(self) -> sqlite3.Connection:
        if self._file is None:
            return self._with_tables(":memory:")
        path = str(self._file.path)
        try:
            self._file.remove()
            db = self._with_tables(path)
            self._file.mark_open(self._kind)
        except (OSError, sqlite3.OperationalError) as error:
            self._report_memory(path, error)
            self._file = None
            return self._new()
        log.info("rebuilding an index", action="index.new", index=self._layout.what, path=path)
        return db

    def _file_at(self, path: Path) -> IndexFile | None:
        try:
            return take_file(path)
        except OSError as error:
            self._report_memory(str(path), error)
            return None

    def _report_memory(self, path: str, error: Exception) -> None:
        log.warning(
            "an index is in memory, because its file cannot be used; the next start reads everything again",
            action="index.in_memory",
            index=self._layout.what,
            path=path,
            reason=str(error),
        )

    def _connect(self, path: str) -> sqlite3.Connection:
        db = sqlite3.connect(path)
        db.execute("PRAGMA locking_mode = EXCLUSIVE")
        # No sync, because a loss costs only a rebuild; WAL keeps the file intact after a kill.
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = OFF")
        db.execute(f"PRAGMA cache_size = -{self._layout.cache_kib}")
        return db

    def _fresh(self, path: Path) -> sqlite3.Connection | None:
        try:
            db = self._connect(str(path))
            found = db.execute("SELECT value FROM facts WHERE name = 'written_at'").fetchone()
        except sqlite3.DatabaseError as error:
            log.warning(
                "the file of an index is damaged",
                action="index.damaged",
                index=self._layout.what,
                exc_info=error,
            )
            return None
        if found is not None and time.time() - float(found[0]) < MAX_FILE_AGE_SEC:
            return db
        db.close()
        return None

    def _with_tables(self, path: str) -> sqlite3.Connection:
        db = self._connect(path)
        with db:
            db.executescript(self._layout.schema + _FACTS)
        return db


S = TypeVar("S", bound="StoredIndex")
P = ParamSpec("P")
T = TypeVar("T")


def or_lost(method: Callable[Concatenate[S, P], T]) -> Callable[Concatenate[S, P], T]:
    """A file that cannot be read or written, e.g. on a full disk: IndexLost, and the index is empty."""

    @wraps(method)
    def guarded(self: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return method(self, *args, **kwargs)
        except sqlite3.ProgrammingError:
            raise
        except sqlite3.DatabaseError as error:
            self.lose(error)
            raise IndexLost from error

    return guarded


class StoredIndex:
    """An index in such tables: one writer, one thread. `tenants`: separate lists per tenant."""

    def __init__(self, path: Path | None, layout: Layout, *, tenants: bool) -> None:
        self._what = layout.what
        self._tenants = tenants
        self._tables = IndexTables(path, layout, "tenants" if tenants else "shared")
        self._position: FeedPosition | None = None
        """Of the feed, if it has been read further than the tables are written."""
        self.is_lost = False
        try:
            self._begin()
        except sqlite3.DatabaseError as error:
            self.lose(error)
            self.is_lost = False  # nobody has read it yet

    def _begin(self) -> None:
        """With what the tables have."""
        raise NotImplementedError

    def _write_waiting(self) -> None:
        """What is not in the tables yet."""
        raise NotImplementedError

    @property
    def _db(self) -> sqlite3.Connection:
        return self._tables.db

    def _scope(self, tenant_id: str | None) -> str:
        return (tenant_id or "") if self._tenants else ""

    @property
    def position(self) -> FeedPosition | None:
        """Position of the feed; None: to be read from the beginning."""
        return None if self.is_lost else self._position or self._stored_position()

    def lose(self, error: sqlite3.DatabaseError) -> None:
        """Go on with empty tables: in a new file, or in memory if the disk is full or does not work."""
        in_memory = isinstance(error, sqlite3.OperationalError)
        log.error(
            "an index is lost and read again",
            action="index.lost",
            index=self._what,
            reason=str(error),
            place="memory" if in_memory else "file",
            **IndexLost().ids,
        )
        self._renew(in_memory=in_memory)
        self.is_lost = True

    def _renew(self, *, in_memory: bool = False) -> None:
        self._tables.renew(in_memory=in_memory)
        self._position = None
        self._begin()

    def _start_again(self) -> None:
        self._renew()
        self.is_lost = False

    def close(self) -> None:
        try:
            self._write_waiting()
            self._tables.close()
        except (OSError, sqlite3.DatabaseError) as error:
            log.warning("an index is not kept", action="index.not_kept", index=self._what, reason=str(error))

    @or_lost
    def _stored_position(self) -> FeedPosition | None:
        found = self._db.execute("SELECT value FROM facts WHERE name = 'position'").fetchone()
        return msgspec.json.decode(found[0], type=FeedPosition) if found else None

    def _write_position(self, position: FeedPosition) -> None:
        """In the transaction of the changes up to it."""
        self._db.execute(
            "INSERT OR REPLACE INTO facts VALUES ('position', ?), ('written_at', ?)",
            (msgspec.json.encode(position).decode(), str(time.time())),
        )
