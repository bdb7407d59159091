"""Every port, twice: in memory and on JetStream. Whatever differs is a bug in one of them."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Any

import pytest

from support.backends import World, Worlds, jetstream_world, memory_world
from support.nats_server import delete_streams_of, unique_config


@pytest.fixture(params=["memory", "jetstream"])
async def new_world(request: pytest.FixtureRequest) -> AsyncIterator[Worlds]:
    """Opens a world with settings of the test's choice."""
    on_jetstream = request.param == "jetstream"
    url = request.getfixturevalue("nats_server").url if on_jetstream else "nats://nowhere"
    config = unique_config(url)
    async with AsyncExitStack() as resources:

        async def opened(**settings: Any) -> World:
            make = jetstream_world if on_jetstream else memory_world
            return await make(replace(config, **settings), resources)

        yield opened
    if on_jetstream:
        await delete_streams_of(config)


@pytest.fixture
async def world(new_world: Worlds) -> World:
    return await new_world()
