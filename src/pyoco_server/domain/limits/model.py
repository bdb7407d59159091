"""Limits and pauses as they are defined, which runs they concern, and with which key."""

import hashlib
from collections.abc import Callable, Collection, Iterable
from enum import StrEnum
from functools import lru_cache
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from pyoco_server.domain.cel.expressions import (
    ConditionError,
    Expression,
    checked,
    expression,
    new_environment,
    shown,
)
from pyoco_server.domain.cel.values import ConditionFailed, Values
from pyoco_server.domain.codec import decoding
from pyoco_server.domain.executions.stored import Stored
from pyoco_server.domain.inputs import MAX_FLOW_NAME, is_tag
from pyoco_server.domain.large_values import below, written_place
from pyoco_server.domain.queues import Pause
from pyoco_server.domain.runs.jobs import Job
from pyoco_server.domain.runs.model import RunLimit, RunSnapshot
from pyoco_server.errors import InvalidRequest

__all__ = ["Definition", "FlowPause", "Limit", "Match", "OnFull", "Rate", "replace"]

MAX_RUNNING = 10_000
"""The holders of a key are one value, which every start and every end rewrites."""
MAX_KEY = 256
MAX_RATE = 1_000_000
MAX_PER_SEC = 366 * 86_400.0
MAX_DESCRIPTION = 2_000
NO_TENANT = "="
KEY_NAMES = ("flow_name", "params", "tag", "tags", "tenant_id")
_KEY_ENVIRONMENT = new_environment(KEY_NAMES)


class OnFull(StrEnum):
    """What happens to a run that finds no place."""

    QUEUE = "queue"
    REJECT = "reject"
    CANCEL_OLDEST = "cancel_oldest"
    DROP_OLDEST_WAITING = "drop_oldest_waiting"


class Rate(Struct, frozen=True, kw_only=True):
    """A bucket that holds `burst` tokens and gets `count` every `per_sec` seconds."""

    count: int
    per_sec: float
    burst: int | None = None
    """None: `count`."""

    @property
    def size(self) -> int:
        return self.count if self.burst is None else self.burst

    @property
    def interval_sec(self) -> float:
        """Between two tokens."""
        return self.per_sec / self.count


class Match(Struct, frozen=True, kw_only=True):
    """The runs that a limit concerns: those with all of these values."""

    flow: str | None = None
    tag: str | None = None
    graph: str | None = None
    tenant: str | None = None

    def concerns(self, flow: str, tags: Collection[str], tenant_id: str | None) -> bool:
        """Whether runs of the flow are among them. Those of a graph's nodes are a matter of the graph."""
        return (
            self.flow == flow
            or (self.flow is None and self.graph is None and (self.tag is None or self.tag in tags))
        ) and self.tenant in (None, tenant_id)

    def holds(self, run: Job | RunSnapshot) -> bool:
        return (
            (self.flow is None or self.flow == run.flow_name)
            and (self.tag is None or self.tag == run.tag)
            and (self.graph is None or self.graph == run.graph_id)
            and (self.tenant is None or self.tenant == run.tenant_id)
        )


class Definition(Struct, frozen=True, kw_only=True):
    match: Match
    key: str | None = None
    """CEL; runs with different values have places of their own. None: one key for all."""
    max_running: int | None = None
    """How many runs of a key may be on the queue or running."""
    rate: Rate | None = None
    """How fast runs of a key start."""
    on_full: OnFull = OnFull.QUEUE
    max_waiting: int | None = None
    """How many runs of a key may wait."""
    description: str | None = None


class Limit(Struct, frozen=True, kw_only=True, tag="limit"):
    name: str
    tenant_id: str | None
    definition: Definition
    rules: str
    """Another after every change of `match` or `key`, which sorts the waiting runs again."""
    created_at: float
    updated_at: float

    @property
    def store_key(self) -> str:
        return limit_key(self.tenant_id, self.name)


class FlowPause(Struct, frozen=True, kw_only=True, tag="flow_pause"):
    """Runs of a flow wait while it is paused."""

    flow: str
    tenant_id: str | None
    since: float
    reason: str | None = None
    until: float | None = None
    """None: until it is resumed."""

    @property
    def store_key(self) -> str:
        return pause_key(self.tenant_id, self.flow)

    @property
    def pause(self) -> Pause:
        return Pause(since=self.since, reason=self.reason, until=self.until)

    def is_over(self, now: float) -> bool:
        return self.pause.is_over(now)


LimitRecord = Limit | FlowPause
decode_limit: Callable[[bytes], LimitRecord] = decoding(LimitRecord, "limit")  # type: ignore[arg-type]


def limit_key(tenant_id: str | None, name: str) -> str:
    return f"limit.{tenant_id or NO_TENANT}.{name}"


def pause_key(tenant_id: str | None, flow: str) -> str:
    """Names of flows are any text."""
    return f"flow.{tenant_id or NO_TENANT}.{hashlib.sha256(flow.encode()).hexdigest()[:32]}"


def new_limit(name: str, definition: Definition, *, tenant_id: str | None, rules: str, now: float) -> Limit:
    """Raises InvalidRequest."""
    if not is_tag(name):
        raise InvalidRequest(f"limit {name[:80]!r} must match [A-Za-z0-9_-]{{1,64}}")
    check_definition(definition)
    return Limit(
        name=name, tenant_id=tenant_id, definition=definition, rules=rules, created_at=now, updated_at=now
    )


def changed(limit: Limit, wanted: Limit) -> Limit:
    """`limit` itself if nothing changes."""
    before, after = limit.definition, wanted.definition
    if before == after:
        return limit
    is_sorted = (before.match, before.key) == (after.match, after.key)
    return replace(wanted, created_at=limit.created_at, rules=limit.rules if is_sorted else wanted.rules)


def check_definition(wanted: Definition) -> None:
    """Raises InvalidRequest."""
    if wanted.max_running is None and wanted.rate is None:
        raise InvalidRequest("max_running, rate: a limit needs at least one of them")
    _check_number("max_running", wanted.max_running, 1, MAX_RUNNING)
    _check_number("max_waiting", wanted.max_waiting, 0, MAX_RATE)
    if wanted.rate is not None:
        _check_rate(wanted.rate)
    _check_on_full(wanted)
    if wanted.description is not None and len(wanted.description) > MAX_DESCRIPTION:
        raise InvalidRequest(f"description: at most {MAX_DESCRIPTION:,} characters are allowed")
    for name in ("flow", "tag", "graph", "tenant"):
        value = getattr(wanted.match, name)
        if value is not None and not 1 <= len(value) <= MAX_FLOW_NAME:
            raise InvalidRequest(f"match.{name}: must have 1 to {MAX_FLOW_NAME} characters")
    if wanted.key is not None:
        try:
            checked(_compiled(wanted.key))
        except ConditionError as error:
            raise InvalidRequest(f"key: {error}; it may read {', '.join(KEY_NAMES)}") from error


def _check_on_full(wanted: Definition) -> None:
    if wanted.on_full is OnFull.DROP_OLDEST_WAITING and not wanted.max_waiting:
        raise InvalidRequest("on_full: drop_oldest_waiting needs a max_waiting of at least 1")
    if wanted.on_full in (OnFull.REJECT, OnFull.CANCEL_OLDEST) and wanted.max_waiting is not None:
        raise InvalidRequest(f"max_waiting: with on_full {wanted.on_full} no run waits in line; leave it out")
    if wanted.on_full is OnFull.CANCEL_OLDEST and wanted.max_running is None:
        raise InvalidRequest("on_full: cancel_oldest needs max_running")


def _check_rate(rate: Rate) -> None:
    _check_number("rate.count", rate.count, 1, MAX_RATE)
    _check_number("rate.burst", rate.burst, 1, MAX_RATE)
    if not 0 < rate.per_sec <= MAX_PER_SEC:
        raise InvalidRequest(f"rate.per_sec: must be greater than 0 and at most {MAX_PER_SEC:.0f}")


def _check_number(name: str, value: int | None, least: int, most: int) -> None:
    if value is not None and not least <= value <= most:
        raise InvalidRequest(f"{name}: must be {least:,} to {most:,}")


# Which limits concern a run


def rules_of(limits: Iterable[Limit]) -> str:
    """Equal as long as a run of the tenant has the same limits and keys."""
    named = sorted(f"{limit.name}={limit.rules}" for limit in limits)
    return "" if not named else hashlib.sha256("\n".join(named).encode()).hexdigest()[:16]


def limits_of(run: Job | RunSnapshot, limits: Iterable[Limit]) -> tuple[RunLimit, ...]:
    """Raises InvalidRequest if a key cannot be evaluated."""
    return tuple(
        sorted(
            RunLimit(limit.name, _key(limit, run)) for limit in limits if limit.definition.match.holds(run)
        )
    )


def limits_anew(run: RunSnapshot, limits: Iterable[Limit]) -> tuple[RunLimit, ...]:
    """For a run that was accepted before: one whose key cannot be evaluated must not wait forever."""
    return tuple(sorted(found for limit in limits for found in _limit_anew(run, limit)))


def _limit_anew(run: RunSnapshot, limit: Limit) -> tuple[RunLimit, ...]:
    if not limit.definition.match.holds(run):
        return ()
    try:
        return (RunLimit(limit.name, _key(limit, run)),)
    except InvalidRequest:
        return (RunLimit(limit.name, ""),)


def _key(limit: Limit, run: Job | RunSnapshot) -> str:
    expr = limit.definition.key
    if expr is None:
        return ""
    try:
        key = _evaluated(expr, run)
    except ConditionFailed as error:
        raise InvalidRequest(
            f"limit {limit.name!r}: the key of this run cannot be evaluated: {error}"
        ) from error
    if len(key) > MAX_KEY:
        raise InvalidRequest(f"limit {limit.name!r}: the key of this run has more than {MAX_KEY} characters")
    return key


def _evaluated(expr: str, run: Job | RunSnapshot) -> str:
    """Other values than strings as JSON. Raises ConditionFailed."""
    compiled = _compiled(expr)
    stored = Stored(None, local={"params": below(run.values, "params")})
    for place in (noted for path in compiled.paths for noted in stored.noted(path)):
        raise ConditionFailed(f"{shown(expr)} reads {written_place(place)}, a large value")
    value = Values(_KEY_ENVIRONMENT, _values(run)).value(expr, compiled)
    try:
        return value if isinstance(value, str) else msgspec.json.encode(value, order="deterministic").decode()
    except (TypeError, ValueError, msgspec.MsgspecError) as error:
        raise ConditionFailed(f"{shown(expr)} gives a value that JSON cannot hold") from error


@lru_cache(maxsize=2_048)
def _compiled(expr: str) -> Expression:
    return expression(expr, _KEY_ENVIRONMENT, KEY_NAMES)


def _values(run: Job | RunSnapshot) -> dict[str, Any]:
    return {
        "flow_name": run.flow_name,
        "params": run.params or {},
        "tag": run.tag,
        "tags": list(run.tags or ()),
        "tenant_id": run.tenant_id,
    }
