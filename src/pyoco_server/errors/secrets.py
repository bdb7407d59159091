"""Errors of secrets and variables."""

from http import HTTPStatus as Status

from pyoco_server.errors.entry import ErrorEntry, PyocoServerError


class SecretNotFound(PyocoServerError):
    entry = ErrorEntry(
        80, "secret not found", "シークレットが見つかりません", "Secret not found", Status.NOT_FOUND
    )


class VariableNotFound(PyocoServerError):
    entry = ErrorEntry(
        81, "variable not found", "変数が見つかりません", "Variable not found", Status.NOT_FOUND
    )


class SecretsKeyMissing(PyocoServerError):
    entry = ErrorEntry(
        82,
        "PYOCO_SECRETS_KEY is not set",
        "シークレットの暗号鍵（PYOCO_SECRETS_KEY）が設定されていません",
        "The key that seals secrets (PYOCO_SECRETS_KEY) is not set",
        Status.SERVICE_UNAVAILABLE,
    )


class Unresolvable(PyocoServerError):
    """Params name a secret or variable that is unknown, cannot be opened, or that a worker is too old for."""

    entry = ErrorEntry(
        83,
        "secret or variable cannot be resolved",
        "シークレットまたは変数を解決できません",
        "A secret or variable cannot be resolved",
        Status.UNPROCESSABLE_ENTITY,
    )
