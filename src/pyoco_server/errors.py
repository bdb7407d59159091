"""The error catalogue, under the ids of the contract.

One exception class per row. The row holds the ids, the HTTP status and the texts for users and operators.
Routes raise these errors, workers log them.
"""

from dataclasses import dataclass
from functools import cache
from http import HTTPStatus as Status
from typing import ClassVar


@dataclass(frozen=True, slots=True)
class ErrorEntry:
    number: int
    detail: str
    ja: str
    en: str
    status: Status | None = None
    """HTTP status; None for errors that appear only in logs and on the command line."""

    @property
    def err_id(self) -> str:
        return f"ERR-PYOCO-{self.number:04d}"

    @property
    def msg_id(self) -> str:
        return f"MSG-PYOCO-{self.number:04d}"

    def message(self, language: str) -> str:
        return self.ja if language == "ja" else self.en


class PyocoServerError(Exception):
    """Base of all errors of this package that have an id."""

    entry: ClassVar[ErrorEntry]
    own_status: ClassVar[Status | None] = None
    """Instead of that of the entry."""

    def __init__(self, detail: str | None = None) -> None:
        super().__init__(detail or self.entry.detail)

    @property
    def detail(self) -> str:
        return str(self)

    @property
    def status(self) -> Status:
        return self.own_status or self.entry.status or Status.INTERNAL_SERVER_ERROR

    @property
    def ids(self) -> dict[str, str]:
        """The two ids as log fields."""
        return {"err_id": self.entry.err_id, "msg_id": self.entry.msg_id}


@cache
def entries() -> dict[str, ErrorEntry]:
    return {kind.entry.msg_id: kind.entry for kind in PyocoServerError.__subclasses__()}


class GatewayUnreachable(PyocoServerError):
    entry = ErrorEntry(1, "gateway unreachable", "稼働確認に失敗しました", "The gateway could not be reached")


class UntrustedCertificate(GatewayUnreachable):
    """The server's certificate is not trusted."""


class InvalidRequest(PyocoServerError):
    entry = ErrorEntry(
        2, "invalid request", "リクエストが不正です", "The request is not valid", Status.UNPROCESSABLE_ENTITY
    )


class RequestTooLarge(InvalidRequest):
    """An invalid request with status 413."""

    own_status = Status.REQUEST_ENTITY_TOO_LARGE


class BodyTooSlow(InvalidRequest):
    """An invalid request with status 408."""

    own_status = Status.REQUEST_TIMEOUT


class ForeignRequest(InvalidRequest):
    """An invalid request with status 403: a browser sent it on behalf of a foreign page."""

    own_status = Status.FORBIDDEN


class NatsUnavailable(PyocoServerError):
    entry = ErrorEntry(
        3, "nats unavailable", "NATSが利用できません", "NATS is not available", Status.SERVICE_UNAVAILABLE
    )


class NobodyAnswers(NatsUnavailable):
    """The server has no responder for the request: no JetStream, or no such stream."""


class NatsUnauthorized(NatsUnavailable):
    """The server rejected the credentials."""


class GatewayOverloaded(NatsUnavailable):
    """The gateway has reached its load limit. The id and status are those of the contract."""


class OrphanRunSuspected(PyocoServerError):
    entry = ErrorEntry(
        4,
        "an orphan run may be left behind",
        "孤児runが残っている可能性があります（best-effort cleanup失敗）",
        "An orphan run may be left behind (best-effort cleanup failed)",
    )


class RunNotFound(PyocoServerError):
    entry = ErrorEntry(5, "run not found", "runが見つかりません", "The run was not found", Status.NOT_FOUND)


class FlowNotFound(PyocoServerError):
    entry = ErrorEntry(6, "flow not found", "flowが見つかりません", "The flow was not found")
    own_status = Status.NOT_FOUND


class ExecutionFailed(PyocoServerError):
    entry = ErrorEntry(7, "execution failed", "実行に失敗しました", "The execution failed")


class TerminalNotRecorded(PyocoServerError):
    entry = ErrorEntry(
        8,
        "terminal state not recorded",
        "terminal状態の記録に失敗しました",
        "The terminal state could not be recorded",
    )


class ProgressNotSent(PyocoServerError):
    entry = ErrorEntry(
        9,
        "in_progress ack not sent",
        "in_progress ACK の送信に失敗しました",
        "The in_progress ack could not be sent",
    )


class SnapshotTooLarge(PyocoServerError):
    entry = ErrorEntry(
        10, "snapshot too large", "スナップショットが大きすぎます", "The run's snapshot is too large"
    )


class DlqPublishFailed(PyocoServerError):
    entry = ErrorEntry(
        11,
        "dlq publish failed",
        "DLQへのpublishに失敗しました（best-effort）",
        "Publishing to the DLQ failed (best effort)",
    )


class InvalidJob(PyocoServerError):
    entry = ErrorEntry(12, "invalid job", "不正なジョブを受信しました", "An invalid job was received")


class LoggingFailed(PyocoServerError):
    entry = ErrorEntry(
        13, "logging failed", "ログ出力に失敗しました（best-effort）", "Writing the log failed (best effort)"
    )


class ApiKeyRequired(PyocoServerError):
    entry = ErrorEntry(
        14, "api key required", "API key が必要です", "An API key is required", Status.UNAUTHORIZED
    )


class InvalidApiKey(PyocoServerError):
    entry = ErrorEntry(
        15, "invalid api key", "API key が無効です", "The API key is not valid", Status.FORBIDDEN
    )


class WorkflowTooLarge(PyocoServerError):
    entry = ErrorEntry(
        16,
        "workflow file too large",
        "ワークフローファイルが大きすぎます",
        "The workflow file is too large",
        Status.REQUEST_ENTITY_TOO_LARGE,
    )


class InvalidListQuery(PyocoServerError):
    entry = ErrorEntry(
        17,
        "invalid list query",
        "一覧クエリが不正です",
        "The list query is not valid",
        Status.UNPROCESSABLE_ENTITY,
    )


class InvalidCliInput(PyocoServerError):
    entry = ErrorEntry(
        18,
        "invalid arguments",
        "CLI引数が不正です（入力形式を確認してください）",
        "The arguments are not valid (check the input format)",
    )


class InvalidWorkersRequest(PyocoServerError):
    entry = ErrorEntry(
        19,
        "invalid workers request",
        "workersリクエストが不正です",
        "The workers request is not valid",
        Status.UNPROCESSABLE_ENTITY,
    )


class WorkerNotFound(PyocoServerError):
    entry = ErrorEntry(
        20, "worker not found", "workerが見つかりません", "The worker was not found", Status.NOT_FOUND
    )


class CancelTimedOut(PyocoServerError):
    entry = ErrorEntry(
        21,
        "cancel timed out",
        "cancel要求がタイムアウトしました（best-effort）",
        "The cancel request timed out (best effort)",
    )


class WheelVersionConflict(PyocoServerError):
    entry = ErrorEntry(
        22,
        "wheel version conflict",
        "wheelバージョンが不正です（同一/過去バージョンは不可）",
        "The wheel's version is not valid (the same or an older version is refused)",
        Status.CONFLICT,
    )


class WheelNotFound(PyocoServerError):
    entry = ErrorEntry(
        23, "wheel not found", "wheelが見つかりません", "The wheel was not found", Status.NOT_FOUND
    )


class WheelSyncFailed(PyocoServerError):
    entry = ErrorEntry(
        24,
        "wheel sync failed",
        "wheel同期に失敗しました（best-effort）",
        "Syncing wheels failed (best effort)",
    )


class ExecutionNotFound(PyocoServerError):
    entry = ErrorEntry(
        31,
        "execution not found",
        "executionが見つかりません",
        "The execution was not found",
        Status.NOT_FOUND,
    )


class NodeNotFound(PyocoServerError):
    entry = ErrorEntry(
        32, "node not found", "nodeが見つかりません", "The node was not found", Status.NOT_FOUND
    )


class CommandRejected(PyocoServerError):
    """A guard refused a command; `code` identifies the guard."""

    entry = ErrorEntry(
        33,
        "command rejected",
        "コマンドは受理されませんでした（状態を確認してください）",
        "The command was not accepted (check the execution's state)",
        Status.CONFLICT,
    )

    def __init__(self, detail: str | None = None, code: str = "REJECTED") -> None:
        super().__init__(detail)
        self.code = code


class IdempotencyConflict(CommandRejected):
    """An `Idempotency-Key` was reused with a different request."""

    def __init__(self) -> None:
        super().__init__("this Idempotency-Key was used with another request", "IDEMPOTENCY_KEY_REUSED")


class GraphNotFound(PyocoServerError):
    entry = ErrorEntry(
        34, "graph not found", "graphが見つかりません", "The graph was not found", Status.NOT_FOUND
    )


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


class BadRequest(InvalidRequest):
    """An invalid request with status 400 and a text of the contract."""

    own_status = Status.BAD_REQUEST


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


class TimersUnsupported(PyocoServerError):
    entry = ErrorEntry(
        47,
        "a newer NATS server is required",
        "この機能には新しい NATS サーバーが必要です",
        "This requires a newer NATS server",
        Status.NOT_IMPLEMENTED,
    )


class ScheduleNotFound(PyocoServerError):
    entry = ErrorEntry(
        48, "schedule not found", "スケジュールが見つかりません", "Schedule not found", Status.NOT_FOUND
    )


class RunNotRetriable(PyocoServerError):
    entry = ErrorEntry(
        51, "run not retriable", "runを再実行できません", "The run cannot be retried", Status.CONFLICT
    )


class LimitNotFound(PyocoServerError):
    entry = ErrorEntry(52, "limit not found", "リミットが見つかりません", "Limit not found", Status.NOT_FOUND)


class LimitReached(PyocoServerError):
    retry_after_sec = 1
    entry = ErrorEntry(
        53,
        "limit reached",
        "リミットに達しています（しばらくしてから再送してください）",
        "A limit is reached (try again later)",
        Status.TOO_MANY_REQUESTS,
    )


class ConfigError(Exception):
    """Invalid settings. The text lists each key and value; the program does not start."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


class IncompatibleNats(Exception):
    """A NATS server or stream that the product cannot use; a retry would not help."""
