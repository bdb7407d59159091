"""Decisions about alerts: what concerns one, ids, cooldowns, the ladder, order, targets."""

from typing import Any

import pytest
from msgspec.structs import replace

from pyoco_server.domain.alerts.deliveries import (
    Cooldown,
    Delivery,
    DeliveryStatus,
    delivered,
    event_id_of,
    failed,
    is_cooling,
    left_out,
    new_delivery,
    replayed,
)
from pyoco_server.domain.alerts.filters import check_filter, passes
from pyoco_server.domain.alerts.happenings import Happening, concerns, of_run
from pyoco_server.domain.alerts.messages import text_of, title_of
from pyoco_server.domain.alerts.model import Alert, AlertDefinition, AlertKind, changed, new_alert
from pyoco_server.domain.alerts.targets import check_addresses, parse_target
from pyoco_server.domain.cel.expressions import ConditionError
from pyoco_server.domain.events.retry import RetryPolicy
from pyoco_server.domain.runs.model import RunStatus
from pyoco_server.errors import TargetRefused
from pyoco_server.usecases.alerts.send import AT_ONCE, DueLanes
from support.builders import NOW, a_snapshot
from support.tables import every_row

POLICY = RetryPolicy(max_attempts=3, base_delay_seconds=10, terminal_ttl_days=1, max_jobs=10)


def an_alert(*kinds: AlertKind, **more: Any) -> Alert:
    wanted = AlertDefinition(on=kinds or (AlertKind.RUN_FAILED,), channel="ops", **more)
    return new_alert("pager", wanted, tenant_id="a", incarnation="one", now=NOW)


def a_failure(at: float = NOW + 1, **more: Any) -> Happening:
    run = a_snapshot(RunStatus.FAILED, tenant_id="a", end_time=at, **more)
    (found,) = of_run(run, None)
    return found


def a_delivery(number: int = 1, **more: Any) -> Delivery:
    made = new_delivery(an_alert(), a_failure(), suppressed=0, number=number, turn=1, now=NOW)
    return replace(made, **more)


def test_an_alert_is_about_its_tenant_its_kinds_and_what_happens_from_then_on() -> None:
    alert = an_alert()
    assert concerns(alert, a_failure())
    assert not concerns(alert, a_failure(at=NOW - 1))
    assert not concerns(alert, replace(a_failure(), tenant_id="b"))
    assert not concerns(an_alert(AlertKind.RUN_STUCK), a_failure())


def test_a_kind_that_stays_keeps_its_beginning_and_a_new_one_begins_now() -> None:
    wanted = AlertDefinition(on=(AlertKind.RUN_FAILED, AlertKind.DEAD_LETTER), channel="ops")
    later = new_alert("pager", wanted, tenant_id="a", incarnation="two", now=NOW + 9)
    after = changed(an_alert(), later)
    assert after.since == {AlertKind.RUN_FAILED: NOW, AlertKind.DEAD_LETTER: NOW + 9}
    assert after.incarnation == "one"
    assert changed(after, later) is after


def test_a_run_that_was_retried_later_is_no_news() -> None:
    """The link to its retry is one more write, long after its end."""
    run = a_snapshot(RunStatus.FAILED, end_time=NOW, retried_as="x")
    (found,) = of_run(run, NOW + 1000)
    assert found.at == NOW
    assert event_id_of(an_alert(), found) == event_id_of(an_alert(), replace(found, at=NOW + 5))


def test_a_cooldown_counts_what_it_leaves_out() -> None:
    assert not is_cooling(None, 10, NOW)
    known = Cooldown(NOW)
    assert is_cooling(known, 10, NOW + 9.9)
    assert not is_cooling(known, 10, NOW + 10)
    assert left_out(left_out(known)) == Cooldown(NOW, 2)


def test_attempts_are_on_the_ladder_of_events() -> None:
    first = failed(a_delivery(), "no", POLICY, NOW, 0.0)
    second = failed(first, "no", POLICY, NOW, 0.0)
    third = failed(second, "no", POLICY, NOW, 0.0)
    assert [one.next_at - NOW for one in (first, second)] == [10, 20]
    assert (third.status, third.attempts) == (DeliveryStatus.FAILED, 3)
    again = replayed(third, NOW + 5)
    assert (again.status, again.attempts, again.next_at) == (DeliveryStatus.PENDING, 0, NOW + 5)
    assert (again.id, again.body) == (third.id, third.body)


def test_deliveries_of_a_subject_are_sent_one_after_the_other() -> None:
    lanes = DueLanes()
    first, second = a_delivery(1, id="1", subject="run"), a_delivery(2, id="2", subject="run")
    lanes.note(second)
    lanes.note(first)
    lane, found = lanes.take(NOW) or (None, None)
    assert (found, lanes.take(NOW)) == ("1", None)
    later = failed(first, "no", POLICY, NOW, 0.0)
    lanes.note(later)
    assert lane is not None
    lanes.done(lane)
    assert lanes.take(NOW + 9) is None  # the second waits for the first
    assert (lanes.take(NOW + 10) or (None, ""))[1] == "1"
    lanes.note(delivered(later, NOW))
    lanes.done(lane)
    assert (lanes.take(NOW + 10) or (None, ""))[1] == "2"


def test_a_slow_channel_holds_up_no_other_and_is_used_again() -> None:
    lanes = DueLanes()
    for number in range(3 * AT_ONCE):
        lanes.note(a_delivery(number, id=str(number), subject=str(number)))
    taken = [lanes.take(NOW) for _ in range(AT_ONCE)]
    assert all(taken)
    assert lanes.take(NOW) is None
    lanes.note(a_delivery(99, id="other", subject="x", channel="other"))
    assert (lanes.take(NOW) or (None, ""))[1] == "other"
    sent = 0
    while taken:
        found = taken.pop()
        assert found is not None
        lanes.note(delivered(a_delivery(int(found[1]), id=found[1], subject=found[1]), NOW))
        lanes.done(found[0])
        sent += 1
        if (following := lanes.take(NOW)) is not None:
            taken.append(following)
    assert sent == 3 * AT_ONCE


def test_names_of_outside_are_no_mark_up() -> None:
    happening = a_failure(flow_name="<!channel>\n*x*", error="`rm`\r\nBcc: y")
    body = {"type": "run.failed", "timestamp": "t", "data": {"alert": "a", "suppressed": 2}}
    body["data"] |= {"flow_name": happening.flow_name, "error": happening.error}  # type: ignore[operator]
    assert "\n" not in title_of(body)
    assert "<" not in text_of(body)
    assert "suppressed before: 2" in text_of(body)


def test_a_filter_reads_type_although_cel_has_a_word_of_its_own() -> None:
    values = dict.fromkeys(("flow_name", "params", "status", "tag", "tags"))
    values |= {"params": {"type": "x"}, "type": "run.failed"}
    for expr in ('type == "run.failed"', 'params.type == "x"', '"type" != type', "type(type) == string"):
        check_filter(expr)
        assert passes(expr, values)
    with pytest.raises(ConditionError, match="type"):
        check_filter("type ==")
    with pytest.raises(ConditionError):
        check_filter("typ_ == 'x'")


@every_row(
    "address",
    [
        "127.0.0.1",
        "10.0.0.1",
        "169.254.169.254",
        "::1",
        "::ffff:10.0.0.1",
        "fe80::1%eth0",
        "::7f00:1",
        "224.0.0.1",
        "fec0::1",
        "64:ff9b:1::7f00:1",
        "::ffff:0:7f00:1",
    ],
)
def test_one_private_address_of_a_name_is_enough(address: str) -> None:
    with pytest.raises(TargetRefused, match="private"):
        check_addresses("example.com", ["93.184.216.34", address], allow_private=False)
    check_addresses("example.com", [address], allow_private=True)


def test_a_public_target_is_taken_apart() -> None:
    target = parse_target("https://Example.com:8443/a/b?c=d", allow_private=False)
    assert (target.host, target.port, target.path) == ("example.com", 8443, "/a/b?c=d")
    assert target.authority == "example.com:8443"
