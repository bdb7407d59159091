"""Limits and pauses as the HTTP API shows them."""

from msgspec import UNSET, Struct, UnsetType
from msgspec.structs import asdict

from pyoco_server.domain.limits.model import FlowPause, Limit, Match, OnFull, Rate


class PausedFlow(Struct, frozen=True):
    """A flow whose runs wait. Times are Unix seconds; `until` null: until it is resumed."""

    flow: str
    reason: str | None
    since: float
    until: float | None


class WaitingFor(Struct, frozen=True, kw_only=True):
    """Why a run waits: a limit, the run's key in it and its position (1 is next), or a paused flow."""

    limit: str | UnsetType = UNSET
    key: str | UnsetType = UNSET
    position: int | UnsetType = UNSET
    paused: PausedFlow | UnsetType = UNSET


class LimitView(Struct, frozen=True, kw_only=True):
    """A limit. `admitted`: how many runs it let through."""

    name: str
    match: Match
    key: str | None
    max_running: int | None
    rate: Rate | None
    on_full: OnFull
    max_waiting: int | None
    description: str | None
    holders: int
    waiting: int
    admitted: int
    created_at: float
    updated_at: float


class LimitList(Struct, frozen=True):
    items: list[LimitView]
    next_cursor: str | None


class LimitKeyView(Struct, frozen=True, kw_only=True):
    key: str
    holders: int
    waiting: int


class LimitKeys(Struct, frozen=True):
    items: list[LimitKeyView]
    next_cursor: str | None


class LimitDeleted(Struct, frozen=True):
    name: str
    deleted: bool


class FlowPauseView(Struct, frozen=True, kw_only=True):
    """`paused`: null if the flow is not paused."""

    flow: str
    paused: PausedFlow | None


LIMIT_ANSWERS: tuple[type[Struct], ...] = (
    FlowPauseView,
    LimitDeleted,
    LimitKeyView,
    LimitKeys,
    LimitList,
    LimitView,
    PausedFlow,
    WaitingFor,
)


def limit_view(limit: Limit, *, holders: int, waiting: int, admitted: int) -> LimitView:
    return LimitView(
        name=limit.name,
        **asdict(limit.definition),
        holders=holders,
        waiting=waiting,
        admitted=admitted,
        created_at=limit.created_at,
        updated_at=limit.updated_at,
    )


def pause_view(flow: str, pause: FlowPause | None) -> FlowPauseView:
    if pause is None:
        return FlowPauseView(flow=flow, paused=None)
    return FlowPauseView(flow=flow, paused=PausedFlow(pause.flow, pause.reason, pause.since, pause.until))
