"""Ports of alerts: definitions, deliveries, the feeds in which happenings are noticed, and the way out."""

from typing import Protocol, TypeVar

from msgspec import Struct, field

from pyoco_server.domain.alerts.channels import Channel
from pyoco_server.domain.alerts.deliveries import Cooldown, Delivery
from pyoco_server.domain.alerts.model import AlertRecord
from pyoco_server.domain.codec import decoding
from pyoco_server.domain.dead_letters import StoredLetter
from pyoco_server.domain.executions.records import LoggedCommit
from pyoco_server.domain.runs.model import RunSnapshot
from pyoco_server.domain.schedules.model import Schedule
from pyoco_server.usecases.ports.stores import Feed, FeedPosition, Store

T = TypeVar("T")


class MarkedFeed(Feed[T], Protocol[T]):
    async def end(self) -> FeedPosition:
        """The position after everything that is stored now."""
        ...


class NoticedState(Struct, frozen=True, kw_only=True):
    """How far the happenings were noticed, and what follows from them, in one write.

    A position that is missing or void costs a longer reading and nothing else: what was noticed is stored.
    """

    turn: int = 0
    """Of the noticing gateway."""
    number: int = 0
    """Of the next delivery."""
    positions: dict[str, FeedPosition] = field(default_factory=dict)
    cooldowns: dict[str, Cooldown] = field(default_factory=dict)


decode_noticed_state = decoding(NoticedState, "state of alerts")


class AlertsBackend(Protocol):
    @property
    def definitions(self) -> Store[AlertRecord]: ...
    @property
    def definition_feed(self) -> Feed[AlertRecord]: ...
    @property
    def deliveries(self) -> Store[Delivery]: ...
    @property
    def delivery_feed(self) -> Feed[Delivery]: ...
    @property
    def state(self) -> Store[NoticedState]: ...
    @property
    def runs(self) -> MarkedFeed[RunSnapshot]: ...
    @property
    def executions(self) -> MarkedFeed[LoggedCommit]: ...
    @property
    def schedules(self) -> MarkedFeed[Schedule]: ...
    @property
    def letters(self) -> MarkedFeed[StoredLetter]: ...


class Outbound(Protocol):
    """The way out of the gateway."""

    async def check_host(self, host: str, port: int) -> None:
        """Raises TargetRefused if its name has a private address now. A name without one is accepted."""
        ...

    async def send(self, channel: Channel, delivery: Delivery) -> str | None:
        """`channel`: opened and resolved.

        What went wrong; None: it was delivered. Never raises because of the receiver.
        """
        ...
