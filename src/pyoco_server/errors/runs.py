"""Errors of runs and of what they need: flows, workers, wheels, schedules, limits; dead letters and bulk."""

from http import HTTPStatus as Status

from pyoco_server.errors.entry import ErrorEntry, PyocoServerError


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


class WorkflowTooLarge(PyocoServerError):
    entry = ErrorEntry(
        16,
        "workflow file too large",
        "ワークフローファイルが大きすぎます",
        "The workflow file is too large",
        Status.REQUEST_ENTITY_TOO_LARGE,
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


class ArtifactNotFound(PyocoServerError):
    entry = ErrorEntry(
        90,
        "artifact not found",
        "アーティファクトが見つかりません",
        "The artifact was not found",
        Status.NOT_FOUND,
    )


class ValueNotFound(PyocoServerError):
    entry = ErrorEntry(
        88, "value not found", "値が見つかりません", "The value was not found", Status.NOT_FOUND
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


class DeadLetterNotFound(PyocoServerError):
    entry = ErrorEntry(
        70, "dead letter not found", "デッドレターが見つかりません", "Dead letter not found", Status.NOT_FOUND
    )


class NotRedrivable(PyocoServerError):
    entry = ErrorEntry(
        71,
        "dead letter cannot be redriven",
        "デッドレターからrunを再投入できません",
        "The dead letter cannot be redriven",
        Status.CONFLICT,
    )


class BulkNotFound(PyocoServerError):
    entry = ErrorEntry(
        72,
        "bulk operation not found",
        "一括操作が見つかりません",
        "Bulk operation not found",
        Status.NOT_FOUND,
    )


class NotDeletable(PyocoServerError):
    """A run or an execution that has not ended, an execution that is not archived, a worker that is alive."""

    entry = ErrorEntry(
        73, "cannot be deleted now", "現在は削除できません", "It cannot be deleted now", Status.CONFLICT
    )
