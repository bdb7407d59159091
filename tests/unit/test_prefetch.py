from pyoco_server.engine.executors.pool import HORIZON_SEC, MAX_AHEAD, STALLED_SEC, WAKE_UP_SEC, Prefetch


def after(*durations: float) -> Prefetch:
    prefetch = Prefetch(lambda: 0.0)
    for seconds in durations:
        prefetch.ended(seconds)
    return prefetch


def ahead(*durations: float, capacity: int = 2) -> int:
    return after(*durations).ahead(capacity)


def test_nothing_is_claimed_ahead_before_a_flow_has_ended() -> None:
    assert ahead() == 0


def test_tiny_flows_are_claimed_ahead_as_long_as_they_start_soon() -> None:
    assert ahead(0.002) == HORIZON_SEC / 0.002 * 2
    assert ahead(0.002, capacity=4) == MAX_AHEAD
    assert ahead(0.0) == MAX_AHEAD


def test_a_run_of_a_long_flow_is_claimed_only_when_it_can_start() -> None:
    assert ahead(1.0) == 0
    assert ahead(*[0.001] * 50, 1.0) == 0


def test_nothing_is_claimed_ahead_while_no_flow_ends() -> None:
    now = 0.0
    prefetch = Prefetch(lambda: now)
    prefetch.ended(0.001)
    assert prefetch.ahead(2) == MAX_AHEAD
    now += 2 * STALLED_SEC
    assert prefetch.ahead(2) == 0
    prefetch.ended(0.001)
    assert prefetch.ahead(2) == MAX_AHEAD


def test_tiny_flows_queue_at_one_executor_and_others_do_not() -> None:
    assert after().queue_length() == 0
    assert after(WAKE_UP_SEC / 4).queue_length() == 4
    assert after(WAKE_UP_SEC * 2).queue_length() == 0
