"""Errors of workflow events."""

from http import HTTPStatus as Status

from pyoco_server.errors.entry import ErrorEntry, PyocoServerError
from pyoco_server.errors.requests import BadRequest, NatsUnavailable


class InvalidEventToken(PyocoServerError):
    entry = ErrorEntry(
        41,
        "Invalid workflow event token.",
        "ワークフローイベントの認証に失敗しました",
        "The workflow event's token or signature is not valid",
        Status.UNAUTHORIZED,
    )


class WorkflowNotFound(PyocoServerError):
    """A template, an action, a source, a retry job or an event."""

    entry = ErrorEntry(
        42,
        "Workflow template not found.",
        "ワークフローの定義が見つかりません",
        "The workflow's template, action, source, job or event was not found",
        Status.NOT_FOUND,
    )


class WorkflowConflict(PyocoServerError):
    """The request conflicts with the current state."""

    entry = ErrorEntry(
        43,
        "workflow conflict",
        "ワークフローの状態と競合しました",
        "The request conflicts with the workflow's state",
        Status.CONFLICT,
    )


class UnsupportedAction(WorkflowConflict):
    def __init__(self, action: str = "...") -> None:
        super().__init__(f"external_event action is not executable in MVP: {action}")


class RunConflict(WorkflowConflict):
    """The action runs one at a time, and a run is active."""


class StillStarting(WorkflowConflict):
    """The first event with this key has not started its run yet; retry in a second."""


class OutcomeUnknown(WorkflowConflict):
    """An interrupted attempt may have started a run that has expired since."""


class InvalidYearMonth(BadRequest):
    def __init__(self) -> None:
        super().__init__("Workflow event requires valid year/month.")


class WebhookNotConfigured(BadRequest):
    def __init__(self) -> None:
        super().__init__("Google Chat webhook is not configured.")


class RetryQueueFull(NatsUnavailable):
    """Nothing was queued; the sender has to retry."""


class EventFailed(PyocoServerError):
    entry = ErrorEntry(
        44,
        "the workflow event could not be handled",
        "ワークフローイベントの処理に失敗しました",
        "The workflow event could not be handled",
        Status.INTERNAL_SERVER_ERROR,
    )


class NotificationFailed(PyocoServerError):
    entry = ErrorEntry(
        45,
        "notification not sent",
        "通知の送信に失敗しました（best-effort）",
        "The notification could not be sent (best effort)",
    )


class AuditNotWritten(PyocoServerError):
    entry = ErrorEntry(
        46,
        "audit record not written",
        "監査ログの書き込みに失敗しました（best-effort）",
        "The audit record could not be written (best effort)",
    )
