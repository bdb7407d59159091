"""Limits and pauses as the HTTP API shows them."""

from msgspec import Struct
from msgspec.structs import asdict

from pyoco_server.domain.limits.model import FlowPause, Limit, Match, OnFull, Rate
from pyoco_server.domain.queues import Pause


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
    paused: Pause | None


LIMIT_ANSWERS: tuple[type[Struct], ...] = (
    FlowPauseView,
    LimitDeleted,
    LimitKeyView,
    LimitKeys,
    LimitList,
    LimitView,
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
    return FlowPauseView(flow=flow, paused=None if pause is None else pause.pause)
