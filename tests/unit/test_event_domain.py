"""The pure rules of workflow events: templates, actions, requests, CloudEvents, graphs, summaries."""

from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from hypothesis import given, strategies as st

from pyoco_server.domain.events.audit import (
    MAX_OF_ADDRESS,
    MAX_RECORDED,
    AuditActor,
    AuditDetails,
    AuditRecord,
    EventStatus,
    ReasonClass,
    RefusalWindow,
    RetryAdvice,
    Summary,
    may_be_queued,
    new_record,
    reason_of,
    status_of,
)
from pyoco_server.domain.events.requests import (
    EventRequest,
    choose_key,
    cloud_key,
    content_digest,
    read_request,
)
from pyoco_server.domain.events.templates import (
    Action,
    Step,
    Template,
    TriggerKind,
    check_action,
    check_template,
    execution_input,
    is_action_key,
    needs_execution,
    to_graph,
)
from pyoco_server.errors import (
    ApiKeyRequired,
    EventFailed,
    InvalidApiKey,
    InvalidEventToken,
    InvalidRequest,
    InvalidYearMonth,
    NatsUnavailable,
    PyocoServerError,
    RequestTooLarge,
    RetryQueueFull,
    RunConflict,
    SnapshotTooLarge,
    StillStarting,
    UnsupportedAction,
    WorkflowConflict,
    WorkflowNotFound,
)
from support.builders import NOW
from support.tables import every_row

E, A, M = TriggerKind.EXTERNAL_EVENT, TriggerKind.AFTER_PREVIOUS, TriggerKind.MANUAL_START


def a_template(*kinds: TriggerKind, **changes: Any) -> Template:
    steps = tuple(
        Step(id=f"s{n}", action=f"a{n}", trigger_kind=kind) for n, kind in enumerate(kinds or (E,), 1)
    )
    template = Template(id="t", name="T", steps=steps, updated_at="")
    return msgspec.structs.replace(template, **changes)


# Templates and actions


@pytest.mark.parametrize(
    "template",
    [
        a_template(),
        a_template(E, A, A, M),
        a_template(M),
        a_template(TriggerKind.SCHEDULED, A),
        a_template(E, *[A] * 29),
        a_template(year=2026, month=12),
    ],
)
def test_templates_that_are_fine(template: Template) -> None:
    assert check_template(template) is template


@every_row(
    ("template", "problem"),
    [
        (a_template(id="a b"), "id:"),
        (a_template(id="x" * 65), "id:"),
        (a_template(name=""), "name:"),
        (a_template(name="x" * 81), "name:"),
        (a_template(year=2026), "year, month"),
        (a_template(year=1999, month=1), "year, month"),
        (a_template(year=2026, month=13), "year, month"),
        (a_template(notes="x" * 2001), "notes:"),
        (a_template(steps=()), "steps:"),
        (a_template(E, *[A] * 30), "steps:"),
        (a_template(A), "step 1 ('s1'): trigger_kind after_previous"),
        (a_template(E, E), "step 2 ('s2'): trigger_kind external_event"),
        (a_template(E, A, TriggerKind.SCHEDULED), "step 3 ('s3'): trigger_kind scheduled"),
        (a_template(steps=(Step(id="a.b", action="a", trigger_kind=E),)), "step 1 ('a.b'): id"),
        (a_template(steps=(Step(id="a", action="a b", trigger_kind=E),)), "step 1 ('a'): action"),
        (
            a_template(
                steps=(Step(id="a", action="a", trigger_kind=E), Step(id="a", action="b", trigger_kind=A))
            ),
            "same id",
        ),
    ],
)
def test_what_is_wrong_with_a_template_is_named(template: Template, problem: str) -> None:
    with pytest.raises(InvalidRequest) as raised:
        check_template(template)
    assert problem in raised.value.detail


def an_action(**changes: Any) -> Action:
    return Action(**{"key": "a", "updated_at": "", "flow_name": "f", **changes})


@every_row(
    ("action", "problem"),
    [
        (an_action(key="a b"), "key:"),
        (an_action(key="a..b"), "key:"),
        (an_action(key=".a"), "key:"),
        (an_action(key="a.>"), "key:"),
        (an_action(flow_name=None), "exactly one"),
        (an_action(graph_id="g"), "exactly one"),
        (an_action(flow_name=""), "flow_name:"),
        (an_action(flow_name="x" * 201), "flow_name:"),
        (an_action(flow_name=None, graph_id="a b"), "graph_id:"),
        (an_action(tag="a.b"), "tag:"),
    ],
)
def test_what_is_wrong_with_an_action_is_named(action: Action, problem: str) -> None:
    with pytest.raises(InvalidRequest) as raised:
        check_action(action)
    assert problem in raised.value.detail


@pytest.mark.parametrize("key", ["push", "invoice.paid", "com.example.order-created_2", "x" * 128])
def test_names_of_events_can_be_keys_of_actions(key: str) -> None:
    assert is_action_key(key)


# Keys


@given(
    st.lists(
        st.one_of(st.none(), st.text(max_size=140), st.integers(), st.booleans(), st.floats()), max_size=5
    )
)
def test_a_key_is_never_anything_but_one_of_the_candidates(candidates: list[Any]) -> None:
    chosen = choose_key(candidates)
    if chosen.key is not None:
        assert chosen.key in [str(candidate) for candidate in candidates]
        assert 1 <= len(chosen.key) <= 128
        assert all(c.isascii() and (c.isalnum() or c in "._:@-") for c in chosen.key)


def test_content_is_the_same_without_its_key() -> None:
    one, other = EventRequest(key="a", data={"x": 1, "y": 2}), EventRequest(key="b", data={"y": 2, "x": 1})
    assert content_digest(one) == content_digest(other)
    assert content_digest(one) != content_digest(EventRequest(data={"x": 1, "y": 3}))


# CloudEvents

CLOUD = {"specversion": "1.0", "type": "com.example.paid", "source": "/shop/1", "id": "A-1"}


def structured(**changes: Any) -> EventRequest:
    event = {**CLOUD, "data": {"template_id": "t", "year": 2026, "month": 2, "x": 1}, **changes}
    return read_request(
        msgspec.json.encode(event), {"content-type": "application/cloudevents+json; charset=utf-8"}
    )


def binary(body: bytes = b'{"x": 1}', **headers: str) -> EventRequest:
    named = {f"ce-{name}": value for name, value in {**CLOUD, **headers}.items()}
    return read_request(body, {"content-type": "application/json", **named})


def test_a_structured_cloud_event_is_an_event() -> None:
    found = structured()
    assert (found.event_name, found.source) == ("com.example.paid", "/shop/1")
    assert (found.template_id, found.year, found.month) == ("t", 2026, 2)
    assert found.data == {"template_id": "t", "year": 2026, "month": 2, "x": 1}
    assert found.key == cloud_key("/shop/1", "A-1")


def test_a_binary_cloud_event_is_the_same_event() -> None:
    found = binary()
    assert (found.event_name, found.source, found.data) == ("com.example.paid", "/shop/1", {"x": 1})
    assert found.key == structured().key
    assert binary(b"").data is None
    assert binary(b"[1]").data == [1]


def test_the_key_of_a_cloud_event_is_its_source_and_id_together() -> None:
    assert cloud_key("erp", "A-1") == "erp:A-1"
    assert cloud_key("/shop/1", "A-1") != cloud_key("/shop/1A", "-1")
    assert choose_key([cloud_key("https://ä/" + "x" * 200, "1")]).key is not None


@pytest.mark.parametrize(
    "changes",
    [{"specversion": "0.3"}, {"type": ""}, {"source": None}, {"id": 5}],
    ids=lambda c: next(iter(c)),
)
def test_what_a_cloud_event_lacks_is_named(changes: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest, match=next(iter(changes))):
        structured(**changes)


# Reasons: the whole table

AUTH = (ReasonClass.AUTH, RetryAdvice.RETRY_AFTER_FIX, EventStatus.REJECTED)
INFRA = (ReasonClass.INFRA, RetryAdvice.RETRY_WITH_BACKOFF, EventStatus.FAILED)
VALIDATION = (ReasonClass.VALIDATION, RetryAdvice.RETRY_AFTER_FIX, EventStatus.REJECTED)


@every_row(
    ("error", "code", "expected"),
    [
        (InvalidEventToken(), "http_401", AUTH),
        (ApiKeyRequired(), "http_401", AUTH),
        (InvalidApiKey(), "http_403", AUTH),
        (WorkflowNotFound(), "http_404", (ReasonClass.TEMPLATE_NOT_FOUND, *AUTH[1:])),
        (WorkflowConflict(), "http_409", (ReasonClass.TEMPLATE_CONFLICT, *AUTH[1:])),
        (UnsupportedAction("a"), "unsupported_action", (ReasonClass.UNSUPPORTED_ACTION, *AUTH[1:])),
        (InvalidYearMonth(), "invalid_year_month", VALIDATION),
        (InvalidRequest(), "http_422", VALIDATION),
        (RequestTooLarge(), "http_413", VALIDATION),
        (
            RunConflict(),
            "http_409",
            (ReasonClass.RUN_CONFLICT, RetryAdvice.RETRY_WITH_BACKOFF, EventStatus.REJECTED),
        ),
        (NatsUnavailable(), "http_503", INFRA),
        (RetryQueueFull(), "http_503", INFRA),
        (SnapshotTooLarge(), "http_500", INFRA),
        (EventFailed(), "exception", INFRA),
    ],
)
def test_every_failure_has_its_reason(
    error: PyocoServerError, code: str, expected: tuple[ReasonClass, RetryAdvice, EventStatus]
) -> None:
    reason = reason_of(error)
    assert (reason.reason_class, reason.retry_advice, status_of(error)) == expected
    assert reason.reason_code == code


def test_only_what_may_pass_by_itself_is_queued() -> None:
    queued = [RunConflict(), EventFailed(), SnapshotTooLarge()]
    others = [NatsUnavailable(), RetryQueueFull(), StillStarting(), InvalidRequest(), WorkflowConflict()]
    assert [may_be_queued(error) for error in queued] == [True] * 3
    assert [may_be_queued(error) for error in others] == [False] * 5


# Graphs


def test_one_step_with_a_flow_is_a_run_and_anything_else_an_execution() -> None:
    flow, graph = an_action(), an_action(flow_name=None, graph_id="g")
    assert not needs_execution(a_template(), flow)
    assert needs_execution(a_template(), graph)
    assert needs_execution(a_template(E, A), flow)


def test_steps_become_a_chain_of_tasks() -> None:
    actions = {f"a{n}": an_action(key=f"a{n}", flow_name=f"f{n}", params={"depth": n}) for n in (1, 2)}
    actions["a2"] = msgspec.structs.replace(actions["a2"], tag="gpu")
    graph = to_graph(a_template(E, A), actions, "default")
    assert (graph["id"], list(graph["nodes"])) == ("template-t", ["s1", "s2"])
    assert graph["edges"] == [{"from": "s1", "to": "s2"}]
    first, second = graph["nodes"].values()
    assert (first["type"], first["flow"], first["tag"], second["tag"]) == ("task", "f1", "default", "gpu")
    assert first["params"]["depth"] == 1
    assert first["params"]["event"] == "${input.event}"
    assert first["params"]["trigger"] == "${input.trigger}"


def test_a_later_step_that_a_person_starts_has_a_wait_before_it() -> None:
    actions = {f"a{n}": an_action(key=f"a{n}") for n in (1, 2, 3)}
    steps = (
        Step(id="s1", action="a1", trigger_kind=M),
        Step(id="s2", action="a2", trigger_kind=M, title="Book it"),
        Step(id="s2-start", action="a3", trigger_kind=A),
    )
    graph = to_graph(a_template(steps=steps), actions, "default")
    assert list(graph["nodes"]) == ["s1", "s2-start-", "s2", "s2-start"]
    assert graph["nodes"]["s2-start-"] == {"type": "wait", "prompt": "Start Book it?"}
    assert graph["edges"] == [
        {"from": "s1", "to": "s2-start-"},
        {"from": "s2-start-", "to": "s2"},
        {"from": "s2", "to": "s2-start"},
    ]


def test_the_input_of_an_execution_has_every_name_that_its_tasks_read() -> None:
    found = execution_input({"year": 2026, "month": 2, "ym": "2026-02", "trigger": {}, "depth": 3})
    assert set(found) == {"year", "month", "ym", "mfcloud_url", "notes", "event", "trigger"}
    assert (found["year"], found["event"]) == (2026, None)


# Records


@pytest.mark.parametrize(
    ("request_", "ym"),
    [
        (EventRequest(year=2024, month=3), "2024-03"),
        (EventRequest(year=2024, month=13), "2026-02"),
        (EventRequest(year=2024), "2026-02"),
        (None, "2026-02"),
    ],
)
def test_a_record_is_of_the_month_of_its_event_or_else_of_the_clock(
    request_: EventRequest | None, ym: str
) -> None:
    now = datetime(2026, 2, 28, 23, 59, 59, tzinfo=UTC).timestamp()
    record = new_record("t", "success", event_id="e", now=now, actor=AuditActor(), request=request_)
    assert (record.at, record.ym) == ("2026-02-28T23:59:59.000Z", ym)


def test_a_record_has_what_is_known_of_its_event() -> None:
    request = EventRequest(template_id="t" * 100, event_name="n", source="s", key="k")
    template = Template(id="close", name="Close", steps=(), updated_at="", year=2026, month=2)
    unresolved = new_record("t", "rejected", event_id="e", now=0.0, actor=AuditActor(), request=request)
    assert unresolved.details == AuditDetails(
        template_id="t" * 64, event_name="n", source="s", idempotency_key="k"
    )
    resolved = new_record(
        "t",
        "failed",
        event_id="e",
        now=0.0,
        actor=AuditActor(),
        request=request,
        template=template,
        reason=reason_of(EventFailed()),
        reason_text="x" * 501,
        duplicate=False,
    )
    assert resolved.ym == "2026-02"
    assert resolved.details == AuditDetails(
        template_id="close",
        template_name="Close",
        event_name="n",
        source="s",
        idempotency_key="k",
        reason="x" * 500,
        reason_class="infra",
        reason_code="exception",
        retry_advice="retry_with_backoff",
        duplicate=False,
    )


# Summaries


def a_record(number: int, status: str = "success", **details: Any) -> AuditRecord:
    return AuditRecord(
        at=f"2026-02-01T00:00:{number % 60:02d}.{number:03d}Z",
        event_id=str(number),
        ym="2026-02",
        event_type="workflow_event",
        action="a",
        status=status,
        details=AuditDetails(**details),
    )


def test_a_summary_counts_by_status_reason_and_advice() -> None:
    summary = Summary()
    for _ in range(3):
        summary.add(
            a_record(1, "rejected", duplicate=False, **msgspec.structs.asdict(reason_of(InvalidRequest())))
        )
    summary.add(a_record(2, "failed", duplicate=False, **msgspec.structs.asdict(reason_of(EventFailed()))))
    summary.add(a_record(3, "nonsense"))
    summary.add(a_record(4, "skipped", duplicate=True))
    shown = summary.shown("2026-02", 20)
    assert (shown["status"], shown["ym"], shown["event_type"]) == ("ok", "2026-02", "workflow_event")
    assert shown["total"] == 6
    assert shown["by_status"] == {"success": 0, "skipped": 1, "rejected": 3, "failed": 1, "unknown": 1}
    assert list(shown["by_reason_class"].items()) == [("validation", 3), ("infra", 1)]
    assert list(shown["by_reason_code"].items()) == [("http_422", 3), ("exception", 1)]
    assert list(shown["by_retry_advice"].items()) == [("retry_after_fix", 3), ("retry_with_backoff", 1)]
    assert shown["duplicate"] == {"true": 1, "false": 4, "unknown": 1}


def test_the_latest_records_are_shown_in_the_order_of_their_time() -> None:
    summary = Summary()
    for number in (3, 1, 2):
        summary.add(a_record(number))
    assert [recent["event_id"] for recent in summary.shown("2026-02", 2)["recent"]] == ["3", "2"]


def test_a_recent_record_has_the_fields_of_the_contract() -> None:
    summary = Summary()
    summary.add(a_record(1))
    (recent,) = summary.shown("2026-02", 20)["recent"]
    assert {
        *("at", "status", "action", "run_id", "template_id", "template_name", "event_name", "source"),
        *("idempotency_key", "reason", "reason_class", "reason_code", "retry_advice", "duplicate"),
    } <= set(recent)


def test_a_summary_does_not_grow_with_the_records() -> None:
    summary = Summary()
    for number in range(1000):
        summary.add(a_record(number))
    assert summary.total == 1000
    assert len(summary.shown("2026-02", 200)["recent"]) == 200
    assert len(summary._recent) == 200


# Refusals without credentials


def test_refusals_are_recorded_up_to_a_ceiling_and_then_counted() -> None:
    """D57"""
    window = RefusalWindow()
    admitted = [window.admits(f"10.0.0.{number % 10}", None, NOW + number / 10) for number in range(500)]
    assert sum(admitted) == MAX_RECORDED
    assert window.rest(NOW + 59) is None, "the window is not over"
    rest = window.rest(NOW + 60)
    assert rest is not None
    assert (rest.count, rest.since) == (500 - MAX_RECORDED, NOW)
    assert window.rest(NOW + 60) is None, "once"
    assert window.admits("10.0.0.1", None, NOW + 60)


def test_one_address_leaves_room_for_others() -> None:
    """D57"""
    window = RefusalWindow()
    assert sum(window.admits("10.0.0.1", None, NOW) for _ in range(1000)) == MAX_OF_ADDRESS
    assert window.admits("10.0.0.2", "acme", NOW)
    rest = window.rest(NOW, is_stopping=True)
    assert rest is not None
    assert rest.count == 1000 - MAX_OF_ADDRESS


def test_a_clock_that_is_set_back_ends_a_window() -> None:
    """D57"""
    window = RefusalWindow()
    for _ in range(100):
        window.admits("10.0.0.1", None, NOW)
    assert window.rest(NOW - 3600) is not None
    assert window.admits("10.0.0.1", None, NOW - 3600)
