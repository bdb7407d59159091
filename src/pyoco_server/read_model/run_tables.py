"""The tables of the run index, and the file that keeps them."""

import sqlite3
import time
from pathlib import Path

from pyoco_server.logs import get_logger

log = get_logger(__name__)

SCHEMA_VERSION = 6
MAX_FILE_AGE_SEC = 12 * 3600
"""An older file may have missed a removal whose marker has expired."""
_SCHEMA = """
CREATE TABLE runs (
    run_id TEXT PRIMARY KEY,
    scope TEXT NOT NULL,
    status TEXT NOT NULL,
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
CREATE INDEX unfinished ON runs (run_id, revision) WHERE status IN ('PENDING', 'RUNNING', 'CANCELLING');
CREATE INDEX waiting ON runs (scope, tag, waits_from) WHERE status = 'PENDING';
CREATE INDEX limited ON runs (run_id) WHERE limited IS NOT NULL;
CREATE INDEX by_expiry ON runs (expires_at) WHERE expires_at IS NOT NULL;
CREATE TABLE listed (
    list BLOB NOT NULL,
    status TEXT NOT NULL,
    changed_at REAL NOT NULL,
    run_id TEXT NOT NULL,
    PRIMARY KEY (list, status, changed_at, run_id)
) WITHOUT ROWID;
CREATE TABLE flows (
    scope TEXT NOT NULL,
    name TEXT NOT NULL,
    runs INTEGER NOT NULL,
    PRIMARY KEY (scope, name)
) WITHOUT ROWID;
CREATE TABLE facts (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
"""


def open_tables(path: Path | None, kind: str) -> sqlite3.Connection:
    """The index in `path` if it is of this version and kind and intact, else a new one."""
    kind = f"{SCHEMA_VERSION} {kind}"
    if path is None:
        return _new(":memory:", kind)
    path.parent.mkdir(parents=True, exist_ok=True)
    db = sqlite3.connect(path)
    if _is_usable(db, kind):
        db.execute("PRAGMA synchronous = OFF")
        return db
    db.close()
    log.info("rebuilding the run index", action="index.new", path=str(path))
    for suffix in ("", "-wal", "-shm", "-journal"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)
    return _new(str(path), kind)


def _is_usable(db: sqlite3.Connection, kind: str) -> bool:
    try:
        facts = dict(db.execute("SELECT name, value FROM facts").fetchall())
        is_fresh = time.time() - float(facts.get("written_at", 0)) < MAX_FILE_AGE_SEC
        # Writes are not synced, so a power failure may have corrupted the file.
        is_whole = db.execute("PRAGMA quick_check(1)").fetchone() == ("ok",)
        return facts.get("kind") == kind and is_fresh and is_whole
    except sqlite3.DatabaseError:
        return False


def _new(path: str, kind: str) -> sqlite3.Connection:
    db = sqlite3.connect(path)
    # No sync, because a loss costs only a rebuild; WAL keeps the file intact after a kill.
    db.execute("PRAGMA journal_mode = WAL")
    db.execute("PRAGMA synchronous = OFF")
    with db:
        db.executescript(_SCHEMA)
        db.execute("INSERT INTO facts VALUES ('kind', ?)", (kind,))
    return db
