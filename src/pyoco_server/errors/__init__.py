"""The error catalogue, under the ids of the contract.

One exception class per row. The row holds the ids, the HTTP status and the texts for users and operators.
Routes raise these errors, workers log them.
"""

from pyoco_server.errors.alerts import (
    AlertNotFound as AlertNotFound,
    ChannelInUse as ChannelInUse,
    ChannelNotFound as ChannelNotFound,
    DeliveryFailed as DeliveryFailed,
    DeliveryNotFound as DeliveryNotFound,
    TargetRefused as TargetRefused,
)
from pyoco_server.errors.entry import (
    ConfigError as ConfigError,
    ErrorEntry as ErrorEntry,
    IncompatibleNats as IncompatibleNats,
    PyocoServerError as PyocoServerError,
    entries as entries,
)
from pyoco_server.errors.events import (
    AuditNotWritten as AuditNotWritten,
    EventFailed as EventFailed,
    InvalidEventToken as InvalidEventToken,
    InvalidYearMonth as InvalidYearMonth,
    NotificationFailed as NotificationFailed,
    OutcomeUnknown as OutcomeUnknown,
    RetryQueueFull as RetryQueueFull,
    RunConflict as RunConflict,
    StillStarting as StillStarting,
    UnsupportedAction as UnsupportedAction,
    WebhookNotConfigured as WebhookNotConfigured,
    WorkflowConflict as WorkflowConflict,
    WorkflowNotFound as WorkflowNotFound,
)
from pyoco_server.errors.executions import (
    CommandRejected as CommandRejected,
    ExecutionNotFound as ExecutionNotFound,
    GraphNotFound as GraphNotFound,
    IdempotencyConflict as IdempotencyConflict,
    NodeNotFound as NodeNotFound,
)
from pyoco_server.errors.requests import (
    ApiKeyNotFound as ApiKeyNotFound,
    ApiKeyRequired as ApiKeyRequired,
    BadRequest as BadRequest,
    BodyTooSlow as BodyTooSlow,
    ForeignRequest as ForeignRequest,
    GatewayOverloaded as GatewayOverloaded,
    GatewayUnreachable as GatewayUnreachable,
    IndexLost as IndexLost,
    InvalidApiKey as InvalidApiKey,
    InvalidCliInput as InvalidCliInput,
    InvalidListQuery as InvalidListQuery,
    InvalidRequest as InvalidRequest,
    LoggingFailed as LoggingFailed,
    MissingScope as MissingScope,
    NatsUnauthorized as NatsUnauthorized,
    NatsUnavailable as NatsUnavailable,
    NobodyAnswers as NobodyAnswers,
    NotCountedYet as NotCountedYet,
    RequestTooLarge as RequestTooLarge,
    TimersUnsupported as TimersUnsupported,
    UnexpectedError as UnexpectedError,
    UnsupportedMediaType as UnsupportedMediaType,
    UntrustedCertificate as UntrustedCertificate,
)
from pyoco_server.errors.runs import (
    ArtifactNotFound as ArtifactNotFound,
    BulkNotFound as BulkNotFound,
    CancelTimedOut as CancelTimedOut,
    DeadLetterNotFound as DeadLetterNotFound,
    DlqPublishFailed as DlqPublishFailed,
    ExecutionFailed as ExecutionFailed,
    FlowNotFound as FlowNotFound,
    InvalidJob as InvalidJob,
    InvalidWorkersRequest as InvalidWorkersRequest,
    LimitNotFound as LimitNotFound,
    LimitReached as LimitReached,
    NotDeletable as NotDeletable,
    NotRedrivable as NotRedrivable,
    OrphanRunSuspected as OrphanRunSuspected,
    ProgressNotSent as ProgressNotSent,
    RunNotFound as RunNotFound,
    RunNotRetriable as RunNotRetriable,
    ScheduleNotFound as ScheduleNotFound,
    SnapshotTooLarge as SnapshotTooLarge,
    TerminalNotRecorded as TerminalNotRecorded,
    ValueNotFound as ValueNotFound,
    WheelNotFound as WheelNotFound,
    WheelSyncFailed as WheelSyncFailed,
    WheelVersionConflict as WheelVersionConflict,
    WorkerNotFound as WorkerNotFound,
    WorkflowTooLarge as WorkflowTooLarge,
)
from pyoco_server.errors.secrets import (
    SecretNotFound as SecretNotFound,
    SecretsKeyMissing as SecretsKeyMissing,
    Unresolvable as Unresolvable,
    VariableNotFound as VariableNotFound,
)
