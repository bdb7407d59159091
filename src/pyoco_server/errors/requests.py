"""Errors of any request: the connection, the body, the key, NATS."""

from http import HTTPStatus as Status

from pyoco_server.errors.entry import ErrorEntry, PyocoServerError


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


class UnsupportedMediaType(InvalidRequest):
    """An invalid request with status 415."""

    own_status = Status.UNSUPPORTED_MEDIA_TYPE


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


class UnexpectedError(PyocoServerError):
    """A fault of the server itself; its log has the traceback."""

    entry = ErrorEntry(
        91,
        "unexpected error",
        "サーバー内部で予期しないエラーが発生しました",
        "An unexpected error occurred in the server",
        Status.INTERNAL_SERVER_ERROR,
    )


class NobodyAnswers(NatsUnavailable):
    """The server has no responder for the request: no JetStream, or no such stream."""


class IndexLost(NatsUnavailable):
    """The list of runs is read again from NATS."""

    def __init__(self) -> None:
        super().__init__("the gateway is reading the list of runs again; try again in a moment")


class NotCountedYet(NatsUnavailable):
    """The run ended a moment ago, or the statistics are being built."""

    def __init__(self) -> None:
        super().__init__("the end of the run is not in the statistics yet; try again in a moment")


class NatsUnauthorized(NatsUnavailable):
    """The server rejected the credentials."""


class GatewayOverloaded(NatsUnavailable):
    """The gateway has reached its load limit. The id and status are those of the contract."""


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


class BadRequest(InvalidRequest):
    """An invalid request with status 400 and a text of the contract."""

    own_status = Status.BAD_REQUEST


class MissingScope(PyocoServerError):
    """The key is valid, but not for this operation; `scope` is the one that it lacks."""

    entry = ErrorEntry(
        60,
        "missing scope",
        "API key のスコープが不足しています",
        "The API key lacks the scope for this operation",
        Status.FORBIDDEN,
    )

    def __init__(self, scope: str = "...") -> None:
        super().__init__(f"the API key lacks the scope {scope!r}")
        self.scope = scope


class ApiKeyNotFound(PyocoServerError):
    entry = ErrorEntry(
        61, "API key not found", "API key が見つかりません", "The API key was not found", Status.NOT_FOUND
    )


class TimersUnsupported(PyocoServerError):
    entry = ErrorEntry(
        47,
        "a newer NATS server is required",
        "この機能には新しい NATS サーバーが必要です",
        "This requires a newer NATS server",
        Status.NOT_IMPLEMENTED,
    )
