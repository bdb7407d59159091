"""The tables of the run index."""

from pyoco_server.domain.runs.model import RunStatus
from pyoco_server.read_model.index_tables import Layout

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
"""
RUN_TABLES = Layout("runs", version=9, schema=_SCHEMA, cache_kib=48 * 1024)
