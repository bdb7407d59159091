"""A run as the tables of the index have it, and the lists that it is in."""

import hashlib
import re
from functools import lru_cache
from typing import NamedTuple

import msgspec

from pyoco_server.domain.limits.holders import standing_of
from pyoco_server.domain.runs.listing import Place, RunFilter, RunSummary, changed_at, is_beat, summary
from pyoco_server.domain.runs.model import RunSnapshot
from pyoco_server.read_model.run_tables import LAST_ACTIVE, STATUS_CODES
from pyoco_server.usecases.ports.stores import Change

_encode = msgspec.json.Encoder().encode


class Row(NamedTuple):
    """The place of a run in the lists."""

    scope: str
    status: int
    """Its code."""
    written_at: float
    changed_at: float
    lists: bytes
    tag: str
    waits_from: float
    limited: bytes | None
    """What limits need of it."""

    @property
    def is_ended(self) -> bool:
        return self.status > LAST_ACTIVE

    def is_of(self, run: RunSnapshot) -> bool:
        return self.status == STATUS_CODES[run.status] and self.written_at == run.updated_at


def row_of(run: RunSnapshot, scope: str, stored_at: float | None, before: Row | None) -> Row:
    if before is not None and is_beat(run) and before.is_of(run):
        return before  # a heartbeat does not move a run in the lists
    changed = changed_at(run, stored_at)
    return Row(
        scope,
        STATUS_CODES[run.status],
        run.updated_at,
        changed,
        lists_of(scope, run.flow_name, run.tag, run.tags, run.workflow_yaml_sha256, run.parent_run_id),
        run.tag or "",
        max(run.submitted_at or changed, run.not_before or 0.0),
        limited_of(run, before),
    )


def limited_of(run: RunSnapshot, before: Row | None) -> bytes | None:
    """A worker from another implementation drops the mark of a run; until its end the last one counts."""
    if run.limits is None and (before is None or before.limited is None):
        return None
    standing = standing_of(run, 0)
    if standing is not None:
        return msgspec.json.encode(standing)
    return None if before is None or run.status.is_terminal else before.limited


class Shown(NamedTuple):
    """Without fields that no list shows, because 500 buffered runs with large params would take gigabytes.

    Most are replaced before they are written: what only tables need is made of the last.
    """

    summary: RunSummary
    revision: int
    expires_at: float | None

    @property
    def key(self) -> bytes | str:
        return key_of(self.summary.run_id)

    @property
    def json(self) -> bytes:
        return _encode(self.summary)


class Waiting(NamedTuple):
    run: Shown | None
    """None: removed."""
    row: Row | None
    stored: Row | None
    """Its row in the table, to be replaced."""


Written = tuple[Shown, Row, Row | None]


def waiting_of(change: Change[RunSnapshot], row: Row | None, stored: Row | None) -> Waiting:
    if change.value is None or row is None:
        return Waiting(None, None, stored)
    shown = summary(change.value, change.key, row.changed_at)
    return Waiting(Shown(shown, change.revision, change.expires_at), row, stored)


def inserts(waiting: dict[str, Waiting]) -> list[Written]:
    return [
        (run, row, stored)
        for run, row, stored in waiting.values()
        if run is not None and row is not None and (stored is None or row.lists != stored.lists)
    ]


def updates(waiting: dict[str, Waiting]) -> list[Written]:
    return [
        (run, row, stored)
        for run, row, stored in waiting.values()
        if run is not None and row is not None and stored is not None and row.lists == stored.lists
    ]


STATUSES = {code: status for status, code in STATUS_CODES.items()}
_is_uuid = re.compile("[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}").fullmatch


@lru_cache(maxsize=4096)
def key_of(run_id: str) -> bytes | str:
    """16 bytes in place of 36, in the same order. An id of another form, as only others write, stays text."""
    return bytes.fromhex(run_id.replace("-", "")) if _is_uuid(run_id) else run_id


def run_id_of(key: bytes | str) -> str:
    if isinstance(key, str):
        return key
    text = key.hex()
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


class FlowName(msgspec.Struct):
    flow_name: str


NAME_BYTES = 12


@lru_cache(maxsize=4096)
def lists_of(
    scope: str,
    flow_name: str,
    tag: str | None,
    labels: tuple[str, ...] | None,
    sha256: str | None,
    parent: str | None,
) -> bytes:
    """The names of a run's lists in one piece. Both the routing tag and the labels have lists."""
    tags = sorted({text for text in (tag, *(labels or ())) if text})
    return b"".join(
        list_name(scope, flow, one, file, above)
        for flow in (None, flow_name)
        for one in (None, *tags)
        for file in ((None, sha256) if sha256 else (None,))
        for above in ((None, parent) if parent else (None,))
    )


@lru_cache(maxsize=4096)
def names_in(lists: bytes) -> tuple[bytes, ...]:
    return tuple(lists[start : start + NAME_BYTES] for start in range(0, len(lists), NAME_BYTES))


def list_name(
    scope: str, flow: str | None, tag: str | None, sha256: str | None, parent: str | None = None
) -> bytes:
    """Key of a list, short because every run in it repeats it."""
    parts = msgspec.json.encode((scope, flow, tag, sha256, parent))
    return hashlib.blake2b(parts, digest_size=NAME_BYTES).digest()


def walks_along(wanted: RunFilter, scope: str, after: Place | None) -> tuple[str, list[object]]:
    """The query along the list of each status that is wanted, and its values."""
    codes = STATUSES if wanted.status is None else [STATUS_CODES[wanted.status]]
    name = list_name(scope, wanted.flow, wanted.tag, wanted.workflow_yaml_sha256, wanted.parent_run_id)
    conditions, values = within(wanted, after)
    walk = f"SELECT changed_at, key, run FROM listed WHERE list = ? AND status = ?{conditions}"  # noqa: S608
    return " UNION ALL ".join([walk] * len(codes)), [v for code in codes for v in (name, code, *values)]


def within(wanted: RunFilter, after: Place | None) -> tuple[str, list[object]]:
    """The conditions of such a query, and their values."""
    text, values = "", list[object]()
    if wanted.updated_after is not None:
        text += " AND changed_at > ?"
        values.append(wanted.updated_after)
    if wanted.updated_before is not None:
        text += " AND changed_at < ?"
        values.append(wanted.updated_before)
    if after is not None:
        text += " AND (changed_at, key) < (?, ?)"
        values += [after.updated_at, key_of(after.run_id)]
    return text, values
