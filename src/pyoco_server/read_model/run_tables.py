"""The tables of the run index, in a file or in memory."""

import sqlite3
import time
from pathlib import Path

from pyoco_server.domain.runs.model import RunStatus
from pyoco_server.logs import get_logger
from pyoco_server.read_model.index_file import MAX_FILE_AGE_SEC, IndexFile, take_file

log = get_logger(__name__)

SCHEMA_VERSION = 9
STATUS_CODES = {
    RunStatus.PENDING: 1,
    RunStatus.RUNNING: 2,
    RunStatus.CANCELLING: 3,
    RunStatus.COMPLETED: 4,
    RunStatus.FAILED: 5,
    RunStatus.CANCELLED: 6,
}
"""Short, because each list repeats it."""
LAST_ACTIVE = STATUS_CODES[RunStatus.CANCELLING]
CACHE_KIB = 48 * 1024
"""Pages in the memory of this process; the rest is in the cache of the system."""
_SCHEMA = """
CREATE TABLE runs (
    id INTEGER PRIMARY KEY,
    key NOT NULL UNIQUE,
    scope TEXT NOT NULL,
    status INTEGER NOT NULL,
    written_at REAL NOT NULL,
    changed_at REAL NOT NULL,
    lists BLOB NOT NULL,
    tag TEXT NOT NULL,
    waits_from REAL NOT NULL,
    limited BLOB,
    revision INTEGER NOT NULL,
    expires_at REAL,
    summary BLOB NOT NULL
);
CREATE INDEX unfinished ON runs (status, revision, key) WHERE status <= 3;
CREATE INDEX waiting ON runs (scope, tag, waits_from) WHERE status = 1;
CREATE INDEX limited ON runs (id) WHERE limited IS NOT NULL;
CREATE INDEX by_expiry ON runs (expires_at) WHERE expires_at IS NOT NULL;
CREATE TABLE listed (
    list BLOB NOT NULL,
    status INTEGER NOT NULL,
    changed_at REAL NOT NULL,
    key NOT NULL,
    run INTEGER NOT NULL,
    PRIMARY KEY (list, status, changed_at, key)
) WITHOUT ROWID;
CREATE TABLE steps (start INTEGER PRIMARY KEY);
CREATE TABLE tallies (
    scope TEXT NOT NULL,
    tag TEXT NOT NULL,
    status INTEGER NOT NULL,
    runs INTEGER NOT NULL,
    PRIMARY KEY (scope, tag, status)
) WITHOUT ROWID;
CREATE TABLE flows (
    scope TEXT NOT NULL,
    name TEXT NOT NULL,
    runs INTEGER NOT NULL,
    PRIMARY KEY (scope, name)
) WITHOUT ROWID;
CREATE TABLE facts (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
"""


class RunTables:
    """`db` is another connection after `renew`."""

    def __init__(self, path: Path | None, kind: str) -> None:
        """`path`: None for memory, which is also used if the file cannot be."""
        self._kind = f"{SCHEMA_VERSION} {kind}"
        self._file = None if path is None else _file_at(path)
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
        db = _fresh(file.path)
        if db is None:
            return None
        file.mark_open(self._kind)
        log.info(
            "continuing with the run index of an earlier start", action="index.opened", path=str(file.path)
        )
        return db

    def _new(self) -> sqlite3.Connection:
        if self._file is None:
            return _with_tables(_connect(":memory:"))
        path = str(self._file.path)
        try:
            self._file.remove()
            db = _with_tables(_connect(path))
            self._file.mark_open(self._kind)
        except (OSError, sqlite3.OperationalError) as error:
            _report_memory(path, error)
            self._file = None
            return self._new()
        log.info("rebuilding the run index", action="index.new", path=path)
        return db


def _file_at(path: Path) -> IndexFile | None:
    try:
        return take_file(path)
    except OSError as error:
        _report_memory(str(path), error)
        return None


def _report_memory(path: str, error: Exception) -> None:
    log.warning(
        "the run index is in memory, because its file cannot be used; the next start reads all runs again",
        action="index.in_memory",
        path=path,
        reason=str(error),
    )


def _connect(path: str) -> sqlite3.Connection:
    db = sqlite3.connect(path)
    db.execute("PRAGMA locking_mode = EXCLUSIVE")
    # No sync, because a loss costs only a rebuild; WAL keeps the file intact after a kill.
    db.execute("PRAGMA journal_mode = WAL")
    db.execute("PRAGMA synchronous = OFF")
    db.execute(f"PRAGMA cache_size = -{CACHE_KIB}")
    return db


def _fresh(path: Path) -> sqlite3.Connection | None:
    try:
        db = _connect(str(path))
        found = db.execute("SELECT value FROM facts WHERE name = 'written_at'").fetchone()
    except sqlite3.DatabaseError as error:
        log.warning("the file of the run index is damaged", action="index.damaged", exc_info=error)
        return None
    if found is not None and time.time() - float(found[0]) < MAX_FILE_AGE_SEC:
        return db
    db.close()
    return None


def _with_tables(db: sqlite3.Connection) -> sqlite3.Connection:
    with db:
        db.executescript(_SCHEMA)
    return db
