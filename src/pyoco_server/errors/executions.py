"""Errors of executions and their graphs."""

from http import HTTPStatus as Status

from pyoco_server.errors.entry import ErrorEntry, PyocoServerError


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
