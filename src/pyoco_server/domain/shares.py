"""Work that gateways share by hash: who takes part, and which keys are whose.

The owner of a key is computed and not stored: its shard belongs to the member whose name gives the highest
hash with it. So when a member comes or goes, only its own shards change hands.
"""

from collections.abc import Collection, Iterable, Mapping
from hashlib import blake2b
from typing import NamedTuple
from zlib import crc32

from msgspec import Struct

SHARDS = 1024
"""They cost nothing but the table of their owners. Parts of ten members are mostly even within a fifth."""


class Roster(Struct, frozen=True):
    """The members, each with the number of its last heartbeat."""

    beats: dict[str, int] = {}


class Seen(NamedTuple):
    beat: int
    since: float
    """By the clock of the observer."""


def observed(before: Mapping[str, Seen], roster: Roster, now: float) -> dict[str, Seen]:
    """When each member was seen with its heartbeat for the first time."""
    return {
        member: before[member] if member in before and before[member].beat == beat else Seen(beat, now)
        for member, beat in roster.beats.items()
    }


def silent(seen: Mapping[str, Seen], now: float, lasts_sec: float) -> set[str]:
    """Members whose heartbeat has not changed for so long."""
    return {member for member, last in seen.items() if now - last.since >= lasts_sec}


def with_beat(roster: Roster, member: str, beat: int, without: Collection[str]) -> Roster:
    return Roster({**left_of(roster, without).beats, member: beat})


def left_of(roster: Roster, without: Collection[str]) -> Roster:
    return Roster({member: beat for member, beat in roster.beats.items() if member not in without})


def shard_of(key: str) -> int:
    return crc32(key.encode()) % SHARDS


def shards_of(member: str, members: Iterable[str]) -> frozenset[int]:
    others = [other for other in members if other != member]
    return frozenset(
        shard
        for shard in range(SHARDS)
        if all(_weight(member, shard) > _weight(other, shard) for other in others)
    )


def _weight(member: str, shard: int) -> bytes:
    return blake2b(f"{member} {shard}".encode(), digest_size=8).digest()
