"""Why an event started nothing, in words that programs can act on."""

from enum import StrEnum
from http import HTTPStatus

from msgspec import Struct

from pyoco_server.errors import (
    ApiKeyRequired,
    EventFailed,
    InvalidApiKey,
    InvalidEventToken,
    InvalidYearMonth,
    NatsUnavailable,
    OutcomeUnknown,
    PyocoServerError,
    RetryQueueFull,
    RunConflict,
    StillStarting,
    UnsupportedAction,
    WorkflowConflict,
    WorkflowNotFound,
)


class ReasonClass(StrEnum):
    AUTH = "auth"
    VALIDATION = "validation"
    TEMPLATE_NOT_FOUND = "template_not_found"
    TEMPLATE_CONFLICT = "template_conflict"
    RUN_CONFLICT = "run_conflict"
    UNSUPPORTED_ACTION = "unsupported_action"
    INFRA = "infra"
    DUPLICATE = "duplicate"


class RetryAdvice(StrEnum):
    DO_NOT_RETRY = "do_not_retry"
    RETRY_AFTER_FIX = "retry_after_fix"
    RETRY_WITH_BACKOFF = "retry_with_backoff"


class EventStatus(StrEnum):
    SUCCESS = "success"
    SKIPPED = "skipped"
    REJECTED = "rejected"
    FAILED = "failed"


class Reason(Struct, frozen=True):
    reason_class: ReasonClass
    reason_code: str
    retry_advice: RetryAdvice


DUPLICATE = Reason(ReasonClass.DUPLICATE, "duplicate_idempotency_key", RetryAdvice.DO_NOT_RETRY)

_CLASSES: list[tuple[type[PyocoServerError], ReasonClass, RetryAdvice]] = [
    (InvalidEventToken, ReasonClass.AUTH, RetryAdvice.RETRY_AFTER_FIX),
    (ApiKeyRequired, ReasonClass.AUTH, RetryAdvice.RETRY_AFTER_FIX),
    (InvalidApiKey, ReasonClass.AUTH, RetryAdvice.RETRY_AFTER_FIX),
    (WorkflowNotFound, ReasonClass.TEMPLATE_NOT_FOUND, RetryAdvice.RETRY_AFTER_FIX),
    (UnsupportedAction, ReasonClass.UNSUPPORTED_ACTION, RetryAdvice.RETRY_AFTER_FIX),
    (RunConflict, ReasonClass.RUN_CONFLICT, RetryAdvice.RETRY_WITH_BACKOFF),
    (StillStarting, ReasonClass.DUPLICATE, RetryAdvice.RETRY_WITH_BACKOFF),
    (OutcomeUnknown, ReasonClass.DUPLICATE, RetryAdvice.DO_NOT_RETRY),
    (WorkflowConflict, ReasonClass.TEMPLATE_CONFLICT, RetryAdvice.RETRY_AFTER_FIX),
]
"""The first that fits."""


def reason_of(error: PyocoServerError) -> Reason:
    for kind, reason_class, advice in _CLASSES:
        if isinstance(error, kind):
            return Reason(reason_class, _code(error), advice)
    if error.status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        return Reason(ReasonClass.INFRA, _code(error), RetryAdvice.RETRY_WITH_BACKOFF)
    return Reason(ReasonClass.VALIDATION, _code(error), RetryAdvice.RETRY_AFTER_FIX)


def _code(error: PyocoServerError) -> str:
    if isinstance(error, InvalidYearMonth):
        return "invalid_year_month"
    if isinstance(error, UnsupportedAction):
        return "unsupported_action"
    if isinstance(error, OutcomeUnknown):
        return "outcome_unknown"
    if isinstance(error, EventFailed):
        return "exception"
    return f"http_{int(error.status)}"


def status_of(error: PyocoServerError) -> EventStatus:
    is_ours = error.status >= HTTPStatus.INTERNAL_SERVER_ERROR
    return EventStatus.FAILED if is_ours else EventStatus.REJECTED


def may_be_queued(error: PyocoServerError) -> bool:
    """Not without NATS: the queue lives there, too. Nor an event that is being started right now."""
    if isinstance(error, (NatsUnavailable, StillStarting, RetryQueueFull)):
        return False
    return reason_of(error).retry_advice is RetryAdvice.RETRY_WITH_BACKOFF
