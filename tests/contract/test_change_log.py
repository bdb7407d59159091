"""The audit trail: in the order of the changes, read backwards in windows."""

from pyoco_server.domain.audit_trail import AuditEntry, ChangeAuthor, ChangeTarget, Origin
from support.backends import World


def an_entry(number: int, tenant_id: str | None = "acme") -> AuditEntry:
    return AuditEntry(
        id=f"id-{number}",
        at=1_800_000_000.0 + number,
        action="schedule.put",
        target=ChangeTarget("schedule", f"s{number}"),
        actor=ChangeAuthor(tenant_id=tenant_id, api_key_id="k"),
        source=Origin(remote_addr="127.0.0.1", user_agent="curl/8"),
        before=None,
        after={"cron": "@daily", "n": number},
    )


async def test_entries_are_read_as_they_were_written_newest_first(world: World) -> None:
    log = world.backend.change_log
    assert (await log.before(None, 10)).items == []
    for number in range(1, 6):
        await log.append(an_entry(number, "acme" if number % 2 else None))
    newest = await log.before(None, 2)
    assert [entry for _, entry in newest.items] == [an_entry(5), an_entry(4, None)]
    older = await log.before(newest.start, 10)
    assert [entry.id for _, entry in older.items] == ["id-3", "id-2", "id-1"]
    assert older.start == older.first


async def test_an_entry_that_is_sent_again_is_there_once(world: World) -> None:
    log = world.backend.change_log
    await log.append(an_entry(1))
    await log.append(an_entry(1))
    assert len((await log.before(None, 10)).items) == 1
