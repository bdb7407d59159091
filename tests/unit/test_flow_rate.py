from pyoco_server.worker.prefetch import HORIZON_SEC, MAX_AHEAD, STUCK_SEC, PrefetchRate


def after(*durations: float, capacity: int = 2) -> int:
    rate = PrefetchRate(capacity, lambda: 0.0)
    for seconds in durations:
        rate.took(seconds)
    return rate.ahead(in_hand=capacity)


def test_nothing_is_claimed_ahead_before_anything_is_known() -> None:
    assert after() == 0


def test_tiny_flows_are_claimed_ahead_as_far_as_they_start_soon() -> None:
    assert after(0.002) == HORIZON_SEC / 0.002 * 2
    assert after(0.002, capacity=4) == MAX_AHEAD
    assert after(0.0) == MAX_AHEAD


def test_a_run_of_a_long_flow_is_claimed_only_when_it_can_start() -> None:
    assert after(1.0) == 0
    assert after(*[0.001] * 50, 1.0) == 0


def test_nothing_is_claimed_ahead_while_what_is_in_hand_does_not_end() -> None:
    now = 0.0
    rate = PrefetchRate(2, lambda: now)
    rate.took(0.001)
    assert rate.ahead(in_hand=2) == MAX_AHEAD
    now += 2 * STUCK_SEC
    assert rate.ahead(in_hand=2) == 0
    assert rate.ahead(in_hand=0) == MAX_AHEAD, "nothing is in the way"
    rate.took(0.001)
    assert rate.ahead(in_hand=2) == MAX_AHEAD
