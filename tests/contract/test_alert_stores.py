"""What alerts store, and the feeds in which happenings are noticed."""

import asyncio

from pyoco_server.domain.alerts.channels import Channel, ChannelType
from pyoco_server.domain.alerts.deliveries import Cooldown, Delivery, DeliveryStatus
from pyoco_server.domain.dead_letters import DeadLetter, DlqReason
from pyoco_server.usecases.ports.alerts import NoticedState
from pyoco_server.usecases.ports.stores import FeedPosition, Revision
from support.backends import World
from support.builders import NOW, RUN_ID, a_snapshot


async def test_definitions_deliveries_and_the_state_come_back_as_they_were(world: World) -> None:
    alerts = world.backend.alerts
    channel = Channel(
        name="ops", tenant_id=None, type=ChannelType.SLACK, created_at=NOW, updated_at=NOW, url="https://x/y"
    )
    await alerts.definitions.create(channel.store_key, channel)
    stored = await alerts.definitions.get(channel.store_key)
    assert stored is not None
    assert stored.value == channel
    delivery = Delivery(
        id=RUN_ID,
        tenant_id="a",
        alert="pager",
        channel="ops",
        event_id="e",
        type="run.failed",
        status=DeliveryStatus.PENDING,
        subject="s",
        number=1,
        turn=1,
        created_at=NOW,
        body='{"type": "run.failed"}',
    )
    await alerts.deliveries.create(RUN_ID, delivery)
    found = await alerts.deliveries.get(RUN_ID)
    assert found is not None
    assert found.value == delivery
    state = NoticedState(
        turn=2, positions={"runs": FeedPosition("now", Revision(3))}, cooldowns={"k": Cooldown(NOW, 4)}
    )
    await alerts.state.create("alerts-noticed", state)
    kept = await alerts.state.get("alerts-noticed")
    assert kept is not None
    assert kept.value == state


async def test_a_feed_goes_on_from_the_end_that_it_had(world: World) -> None:
    backend = world.backend
    await backend.runs.create(RUN_ID, a_snapshot())
    end = await backend.alerts.runs.end()
    later = RUN_ID[:-1] + "9"
    await backend.runs.create(later, a_snapshot(run_id=later))
    async with asyncio.timeout(30):
        async for batch in backend.alerts.runs.follow(end):
            if batch.changes:
                break
    assert [change.key for change in batch.changes] == [later]
    assert not batch.is_reset


async def test_dead_letters_are_a_feed_with_their_tenants(world: World) -> None:
    backend = world.backend
    letter = DeadLetter(timestamp=NOW, reason=DlqReason.MAX_DELIVER, error="no")
    await backend.dead_letters.publish(letter, "cpu", "a")
    end = await backend.alerts.letters.end()
    await backend.dead_letters.publish(letter, "gpu", "b")
    for position, wanted in ((None, [("cpu", "a", 1), ("gpu", "b", 2)]), (end, [("gpu", "b", 2)])):
        found: list[tuple[str, str | None, int]] = []
        async with asyncio.timeout(30):
            async for batch in backend.alerts.letters.follow(position):
                values = [change.value for change in batch.changes if change.value is not None]
                found += [(one.tag, one.tenant_id, one.number) for one in values]
                if len(found) >= len(wanted):
                    break
        assert found == wanted
