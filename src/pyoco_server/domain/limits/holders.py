"""The holders of a limit's key: one value, changed by compare-and-set only.

A holder is a run in one of its tries, with the revision of its snapshot when it got the place. It counts
until a fact voids it that stays true for ever: the run has ended, it waits in a later try, or its snapshot
was written again while it waited. So a gateway that decides on an old picture may leave a place empty for a
moment, but never gives away one that is taken.
"""

import hashlib
from collections.abc import Callable, Iterable, Sequence
from math import floor

from msgspec import Struct
from msgspec.structs import replace

from pyoco_server.domain.codec import decoding
from pyoco_server.domain.limits.model import NO_TENANT, Definition, Rate
from pyoco_server.domain.runs.model import Priority, RunSnapshot, RunStatus

__all__ = ["HeldPlace", "Holders", "KeyId", "replace"]

EPSILON_SEC = 1e-5
"""Of a clock that counts microseconds."""


class KeyId(Struct, frozen=True, order=True):
    """A key of a limit."""

    tenant_id: str | None
    limit: str
    key: str

    def __hash__(self) -> int:  # once per lookup, and there are many
        return hash((self.limit, self.key))

    @property
    def store_key(self) -> str:
        """Keys are any text."""
        digest = hashlib.sha256(self.key.encode()).hexdigest()[:32]
        return f"{self.tenant_id or NO_TENANT}.{self.limit}.{digest}"


class HeldPlace(Struct, frozen=True, array_like=True):
    run_id: str
    try_number: int
    revision: int
    """Of the snapshot for which the place was taken."""


class Holders(Struct, frozen=True, kw_only=True):
    limit: str
    key: str
    tenant_id: str | None = None
    places: tuple[HeldPlace, ...] = ()
    full_at: float = 0.0
    """When the bucket of a rate is full again."""
    admitted: int = 0
    """Places given since the record exists."""
    version: int = 0
    """Revision of the definition by which it was changed last."""
    updated_at: float = 0.0

    @property
    def id(self) -> KeyId:
        return KeyId(self.tenant_id, self.limit, self.key)


decode_holders = decoding(Holders, "holders of a limit")


def new_holders(of: KeyId) -> Holders:
    return Holders(limit=of.limit, key=of.key, tenant_id=of.tenant_id)


def give_places(
    record: Holders,
    definition: Definition,
    wanted: Sequence[HeldPlace],
    is_void: Callable[[HeldPlace], bool],
    adopted: Iterable[HeldPlace],
    now: float,
) -> tuple[Holders, list[HeldPlace]]:
    """The record after as many of `wanted` as fit got a place, in order, and which.

    `adopted`: runs that were admitted when the limit was another one.
    """
    held = living(record, is_void, adopted)
    free = [place for place in wanted if place.run_id not in held]
    given = free[: room(definition, len(held), record.full_at, now)]
    kept = (*held.values(), *given) if definition.max_running is not None else ()
    full_at = record.full_at
    if definition.rate is not None:
        full_at = max(full_at, now) + len(given) * definition.rate.interval_sec
    changed = replace(
        record, places=kept, full_at=full_at, admitted=record.admitted + len(given), updated_at=now
    )
    return changed, given


def living(
    record: Holders, is_void: Callable[[HeldPlace], bool], adopted: Iterable[HeldPlace]
) -> dict[str, HeldPlace]:
    """The holders that count, by run."""
    held = {place.run_id: place for place in record.places if not is_void(place)}
    for place in adopted:
        held.setdefault(place.run_id, place)
    return held


def without(record: Holders, places: Iterable[HeldPlace]) -> Holders:
    """Without places that the caller took itself and will not use."""
    unused = set(places)
    return replace(record, places=tuple(place for place in record.places if place not in unused))


def room(definition: Definition, held: int, full_at: float, now: float) -> int:
    """How many runs can be admitted now."""
    places = 1 << 30 if definition.max_running is None else definition.max_running - held
    return max(0, min(places, tokens(definition.rate, full_at, now)))


def tokens(rate: Rate | None, full_at: float, now: float) -> int:
    if rate is None:
        return 1 << 30
    missing = max(0.0, full_at - now) / rate.interval_sec
    return max(0, floor(rate.size - missing + EPSILON_SEC / rate.interval_sec))


def next_token_at(rate: Rate, full_at: float) -> float:
    """When the bucket has a token again."""
    return full_at - (rate.size - 1) * rate.interval_sec


# A run as limits see it

Order = tuple[int, float, str]


class Standing(Struct, frozen=True, kw_only=True, gc=False):
    """A run that waits for its place or has one. Kept in memory for each, so it is small."""

    run_id: str
    revision: int
    flow_name: str
    tenant_id: str | None
    limits: tuple[KeyId, ...]
    rules: str | None
    order: Order
    try_number: int
    not_before: float | None
    is_waiting: bool
    is_admitted: bool
    """Neither: it is cancelled while it waits."""
    is_cancelled: bool = False
    is_queued: bool = False
    """It is admitted, and no worker has started it."""

    @property
    def place(self) -> HeldPlace:
        return HeldPlace(self.run_id, self.try_number, self.revision)


_RANKS = {Priority.HIGH: 0, Priority.NORMAL: 1, Priority.LOW: 2}


def waiting_order(run: RunSnapshot) -> Order:
    """Runs get their places in this order: priority before age."""
    return (_RANKS[run.priority], run.submitted_at or 0.0, run.run_id)


def standing_of(run: RunSnapshot, revision: int) -> Standing | None:
    """None: the run has ended, or no limit concerns it."""
    if run.limits is None or run.status.is_terminal:
        return None
    return Standing(
        run_id=run.run_id,
        revision=revision,
        flow_name=run.flow_name,
        tenant_id=run.tenant_id,
        limits=tuple(KeyId(run.tenant_id, one.limit, one.key) for one in run.limits),
        rules=run.limit_rules,
        order=waiting_order(run),
        try_number=run.try_number,
        not_before=run.not_before,
        is_waiting=run.status is RunStatus.PENDING and run.is_held,
        is_admitted=not run.is_held,
        is_cancelled=run.status is RunStatus.CANCELLING,
        is_queued=run.status is RunStatus.PENDING and not run.is_held,
    )


def is_void(place: HeldPlace, of: KeyId, run: Standing, *, is_sorted: bool) -> bool:
    """Whether the run certainly does not hold this place. `run` may be old: what it shows stays true.

    `is_sorted`: its limits are those of the current definitions.
    """
    if is_sorted and of not in run.limits:
        return True
    if place.try_number != run.try_number:
        return place.try_number < run.try_number
    return not run.is_admitted and place.revision < run.revision


def same_place(known: Standing, run: Standing) -> bool:
    """Whether only what does not move a run has changed."""
    return not (known.is_waiting or run.is_waiting) and (
        known.limits, known.rules, known.is_admitted, known.try_number
    ) == (run.limits, run.rules, run.is_admitted, run.try_number)  # fmt: skip
