"""A run as the tables of the index have it."""

import hashlib
import re
from functools import lru_cache
from typing import NamedTuple

import msgspec

from pyoco_server.domain.limits.holders import standing_of
from pyoco_server.domain.runs.listing import summary
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
    """What limits have to know of it."""

    @property
    def is_ended(self) -> bool:
        return self.status > LAST_ACTIVE

    def is_of(self, run: RunSnapshot) -> bool:
        return self.status == STATUS_CODES[run.status] and self.written_at == run.updated_at


def limited_of(run: RunSnapshot, before: Row | None) -> bytes | None:
    """A worker from another implementation drops the mark of a run; until its end the last one counts."""
    if run.limits is None and (before is None or before.limited is None):
        return None
    standing = standing_of(run, 0)
    if standing is not None:
        return msgspec.json.encode(standing)
    return None if before is None or run.status.is_terminal else before.limited


class Shown(NamedTuple):
    """Without fields that no list shows, because 500 buffered runs with large params would take gigabytes."""

    key: bytes | str
    flow_name: str
    revision: int
    expires_at: float | None
    json: bytes


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
    data = _encode(shown)
    return Waiting(
        Shown(key_of(change.key), shown.flow_name, change.revision, change.expires_at, data), row, stored
    )


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
    scope: str, flow_name: str, tag: str | None, labels: tuple[str, ...] | None, sha256: str | None
) -> bytes:
    """The names of a run's lists in one piece. Both the routing tag and the labels have lists."""
    tags = sorted({text for text in (tag, *(labels or ())) if text})
    return b"".join(
        list_name(scope, flow, one, file)
        for flow in (None, flow_name)
        for one in (None, *tags)
        for file in ((None, sha256) if sha256 else (None,))
    )


@lru_cache(maxsize=4096)
def names_in(lists: bytes) -> tuple[bytes, ...]:
    return tuple(lists[start : start + NAME_BYTES] for start in range(0, len(lists), NAME_BYTES))


def list_name(scope: str, flow: str | None, tag: str | None, sha256: str | None) -> bytes:
    """Key of a list, short because every run in it repeats it."""
    parts = msgspec.json.encode((scope, flow, tag, sha256))
    return hashlib.blake2b(parts, digest_size=NAME_BYTES).digest()
