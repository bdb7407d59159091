"""Dead letters: read backwards in windows, with holes where some were discarded."""

from pyoco_server.domain.bulk import BulkAction, BulkChunk, BulkError, BulkRecord, BulkStatus
from pyoco_server.domain.dead_letters import DeadLetter, DlqReason, LetterMark
from pyoco_server.domain.runs.logs import LogLine
from support.backends import World
from support.builders import NOW, RUN_ID


def a_letter(number: int) -> DeadLetter:
    return DeadLetter(timestamp=NOW + number, reason=DlqReason.MAX_DELIVER, error="x", run_id=RUN_ID)


async def test_letters_are_read_newest_first_with_their_tenants(world: World) -> None:
    letters = world.backend.dead_letters
    empty = await letters.before(None, 10)
    assert (empty.items, empty.start <= empty.first) == ([], True)
    assert await letters.get(1) is None
    for number in range(1, 6):
        await letters.publish(a_letter(number), "cpu", "acme" if number % 2 else None)
    newest = await letters.before(None, 2)
    assert [one.letter for one in newest.items] == [a_letter(5), a_letter(4)]
    assert [(one.tag, one.tenant_id) for one in newest.items] == [("cpu", "acme"), ("cpu", None)]
    older = await letters.before(newest.start, 10)
    assert [one.number for one in older.items] == [3, 2, 1]
    assert older.start == older.first
    found = await letters.get(3)
    assert found == older.items[0]


async def test_a_removed_letter_leaves_a_hole(world: World) -> None:
    letters = world.backend.dead_letters
    for number in range(1, 6):
        await letters.publish(a_letter(number), "cpu")
    assert [await letters.remove(number) for number in (3, 5, 3, 9)] == [True, True, False, False]
    assert [one.number for one in (await letters.before(None, 10)).items] == [4, 2, 1]
    assert [one.number for one in (await letters.before(5, 2)).items] == [4]
    assert await letters.get(3) is None
    assert await letters.count() == 3
    for number in (1, 2, 4):
        assert await letters.remove(number)
    window = await letters.before(None, 10)
    assert (window.items, window.start <= window.first) == ([], True)


async def test_marks_operations_and_items_are_stored(world: World) -> None:
    backend = world.backend
    await backend.letter_marks.create("1.5", LetterMark(RUN_ID))
    mark = await backend.letter_marks.get("1.5")
    assert mark is not None
    assert mark.value == LetterMark(RUN_ID)
    record = BulkRecord(
        id=RUN_ID,
        action=BulkAction.RETRY,
        status=BulkStatus.RUNNING,
        total=3,
        failed=1,
        created_at=NOW,
        errors=(BulkError("x", "no"),),
        max_per_sec=0.5,
    )
    await backend.bulk_operations.create(RUN_ID, record)
    stored = await backend.bulk_operations.get(RUN_ID)
    assert stored is not None
    assert stored.value == record
    chunk = BulkChunk(tuple(str(number) * 36 for number in range(1000)))
    await backend.bulk_chunks.create(f"{RUN_ID}.0", chunk)
    items = await backend.bulk_chunks.get(f"{RUN_ID}.0")
    assert items is not None
    assert items.value == chunk
    await backend.bulk_chunks.remove(f"{RUN_ID}.0", None)
    await backend.bulk_chunks.remove(f"{RUN_ID}.1", None)
    assert await backend.bulk_chunks.get(f"{RUN_ID}.0") is None


async def test_the_log_of_a_run_is_removed_alone(world: World) -> None:
    logs, other = world.backend.task_logs, RUN_ID[:-1] + "9"
    line = LogLine(attempt=1, n=1, task=None, stream="stdout", text="a", ts=NOW)
    for run_id in (RUN_ID, other):
        await logs.append(run_id, [line], f"w-{run_id}")
    await logs.remove(RUN_ID)
    await logs.remove(RUN_ID)
    assert [record async for record in logs.read(RUN_ID)] == []
    assert [record.lines async for record in logs.read(other)] == [[line]]
