"""Limits in worlds of gateways and workers that die, freeze and learn late. See `limit_world`, `seeds`."""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import pytest

from pyoco_server.domain.limits.holders import HeldPlace, KeyId
from pyoco_server.usecases.limits.admit import AdmitRuns
from pyoco_server.usecases.limits.board import LimitBoard
from support.limit_world import Gateway, simulate_limits
from support.seeds import hurt_in, is_noticed, shares


def world_of(seed: int, **options: Any) -> Any:
    """In every third world definitions change."""
    return simulate_limits(seed, is_changing=seed % 3 == 0, **options)


@pytest.mark.parametrize("share", shares(50, slow=500, long=1000, share=50))
def test_never_too_many_runs_have_a_place_and_all_of_them_end(share: range) -> None:
    hurt_in(share, world_of, "kill g", "freeze g")


class Everybody:
    """A lease that all gateways have at once."""

    is_fresh = True

    async def run(self, work: Callable[[], Awaitable[None]]) -> None:
        await work()


def give_places_at_once(gateway: Gateway) -> None:
    gateway.admit._lease = Everybody()  # type: ignore[assignment]


@pytest.mark.slow
def test_the_lease_only_saves_work() -> None:
    """Two gateways that both give places never give one twice."""
    hurt_in(range(60), partial(world_of, prepare=give_places_at_once))


def test_a_gateway_that_frees_places_it_does_not_know_is_noticed() -> None:
    """A holder counts until something that stays true says otherwise."""

    class Careless(LimitBoard):
        def is_void(self, place: HeldPlace, of: KeyId) -> bool:
            run = self.run(place.run_id)
            return run is None or not run.is_admitted

    def prepare(gateway: Gateway) -> None:
        give_places_at_once(gateway)
        gateway.board.__class__ = Careless

    assert is_noticed(partial(world_of, prepare=prepare), range(140, 150))  # few worlds show it


def test_a_gateway_that_uses_the_places_of_another_without_a_word_is_noticed() -> None:
    """Places that somebody did not use have to be voided first; else runs wait for ever."""

    class Idle(AdmitRuns):
        async def _void_places(self, run_id: str) -> None:
            """Does nothing."""

    def prepare(gateway: Gateway) -> None:
        gateway.admit.__class__ = Idle

    assert is_noticed(partial(world_of, prepare=prepare), range(150))
