"""A gateway that dies between any two steps of a POST: the repeat never starts a second run."""

from contextlib import suppress

import pytest

from pyoco_server.config import NatsBackendConfig
from pyoco_server.domain.events.receipts import ReceiptState
from pyoco_server.memory import open_memory_gateway_backend
from support.crashes import Fuse, FusedBackend, Killed
from support.events import FakeClock, on_memory, post, prepare

CONFIG = NatsBackendConfig(audit_log_path="")


async def calls_of_a_post() -> int:
    """How many steps there are to die at."""
    async with open_memory_gateway_backend(CONFIG) as backend:
        await prepare(on_memory(backend, CONFIG, FakeClock()), concurrency="one")
        fuse = Fuse(10_000, is_done=True)
        answer = await post(on_memory(FusedBackend(backend, fuse), CONFIG, FakeClock()))
        assert answer.started is not None
        return 10_000 - fuse.left


@pytest.mark.parametrize("is_done", [False, True], ids=["before the step", "after the step"])
async def test_a_repeat_after_any_crash_starts_the_same_run(is_done: bool) -> None:  # noqa: FBT001
    steps = await calls_of_a_post()
    assert steps >= 8
    for step in range(steps):
        async with open_memory_gateway_backend(CONFIG) as backend:
            clock = FakeClock()
            await prepare(on_memory(backend, CONFIG, clock), concurrency="one")
            with pytest.raises(Killed):
                await post(on_memory(FusedBackend(backend, Fuse(step, is_done=is_done)), CONFIG, clock))
            claimed = {receipt.run_id for receipt in await backend.events.receipts.list_values()}
            clock.advance(6)  # longer than a living gateway would leave a claim alone
            answer = await post(on_memory(backend, CONFIG, clock))
            assert answer.started is not None, f"step {step}"
            run_id = answer.started.run_id
            assert claimed <= {run_id}, f"step {step}: the run of the claim"
            assert set(backend.runs._values) == {run_id}, f"step {step}: one run"
            taken = list(iter(lambda: backend.queue.take(["pyoco.work.default"]), None))
            assert {delivery.job().run_id for delivery in taken} == {run_id}, f"step {step}: its job is there"
            (receipt,) = await backend.events.receipts.list_values()
            assert receipt.state is ReceiptState.ACCEPTED


async def test_a_claim_that_was_left_behind_is_not_taken_over_at_once() -> None:
    async with open_memory_gateway_backend(CONFIG) as backend:
        clock = FakeClock()
        await prepare(on_memory(backend, CONFIG, clock), concurrency="allow")
        for step in range(20):
            try:
                await post(on_memory(FusedBackend(backend, Fuse(step, is_done=True)), CONFIG, clock))
            except Killed:
                if await backend.events.receipts.count():
                    break
        (receipt,) = await backend.events.receipts.list_values()
        assert receipt.state is ReceiptState.STARTING
        clock.advance(4.9)
        early = await post(on_memory(backend, CONFIG, clock, repeat_patience_sec=0.0))
        assert early.error is not None
        assert early.error.status == 409
        clock.advance(0.2)
        late = await post(on_memory(backend, CONFIG, clock, repeat_patience_sec=0.0))
        assert late.started is not None
        assert (late.started.run_id, late.started.is_duplicate) == (receipt.run_id, False)


async def test_a_receipt_that_has_expired_starts_a_new_run() -> None:
    async with open_memory_gateway_backend(CONFIG) as backend:
        clock = FakeClock()
        lab = on_memory(backend, CONFIG, clock)
        await prepare(lab, concurrency="allow")
        first = await post(lab)
        clock.advance(90 * 86_400)
        assert first.started is not None
        again = await post(lab)
        assert again.started is not None
        assert again.started.is_duplicate
        clock.advance(1)
        new = await post(lab)
        assert new.started is not None
        assert (new.started.is_duplicate, new.started.run_id != first.started.run_id) == (False, True)


async def test_a_key_whose_run_has_expired_does_not_start_it_again() -> None:
    """D13: a gateway dies between start and receipt; the run ends and expires; then the event is repeated."""
    config = NatsBackendConfig(audit_log_path="", runs_retention_sec=60)
    steps = await calls_of_a_post()
    met = 0
    for step in range(steps):
        async with open_memory_gateway_backend(config) as backend:
            clock = FakeClock()
            await prepare(on_memory(backend, config, clock), concurrency="allow")
            with suppress(Killed):
                await post(on_memory(FusedBackend(backend, Fuse(step, is_done=True)), config, clock))
            receipts = await backend.events.receipts.list_values()
            if not backend.runs._values or receipts[0].state is ReceiptState.ACCEPTED:
                continue
            met += 1
            clock.advance(61)
            backend.runs._values.clear()  # it has ended, and the store has forgotten it
            for _ in range(2):
                answer = await post(on_memory(backend, config, clock))
                assert answer.error is not None
                assert answer.error.status == 409
                assert receipts[0].run_id in answer.error.detail
                assert answer.reason is not None
                assert (answer.reason.reason_code, answer.reason.retry_advice) == (
                    "outcome_unknown",
                    "do_not_retry",
                )
            assert not backend.runs._values
    assert met


async def test_a_try_that_surely_started_nothing_may_be_repeated_at_any_time() -> None:
    """D13: its run cannot have expired, because there was none."""
    config = NatsBackendConfig(audit_log_path="", runs_retention_sec=60)
    async with open_memory_gateway_backend(config) as backend:
        clock = FakeClock()
        lab = on_memory(backend, config, clock)
        await prepare(lab, concurrency="one")
        await post(lab, "first")
        for _ in range(2):
            refused = await post(lab, "second")
            assert refused.error is not None
            assert refused.error.status == 409
            clock.advance(61)
        backend.runs._values.clear()
        answer = await post(lab, "second")
        assert answer.started is not None


async def test_no_more_receipts_are_kept_than_were_asked_for() -> None:
    config = NatsBackendConfig(audit_log_path="", workflow_event_max_receipts=2)
    async with open_memory_gateway_backend(config) as backend:
        lab = on_memory(backend, config, FakeClock())
        await prepare(lab, concurrency="allow")
        for key in ("a", "b", "c"):
            await post(lab, key)
        kept = [receipt.idempotency_key for receipt in await backend.events.receipts.list_values()]
        assert kept == ["b", "c"]
        again = await post(lab, "a")
        assert again.started is not None
        assert again.started.is_duplicate is False
