"""The server's HTTP interface for Python programs."""

from pyoco_server.http_client.calls import (
    Conflict,
    InvalidRequest,
    NotAllowed,
    NotFound,
    PyocoError,
    ResultNotStored,
    RunCancelled,
    RunError,
    RunFailed,
    RunNotFound,
    RunTimedOut,
    ServerUnavailable,
)
from pyoco_server.http_client.client import AsyncPyocoHttpClient, PyocoHttpClient

__all__ = [
    "AsyncPyocoHttpClient",
    "Conflict",
    "InvalidRequest",
    "NotAllowed",
    "NotFound",
    "PyocoError",
    "PyocoHttpClient",
    "ResultNotStored",
    "RunCancelled",
    "RunError",
    "RunFailed",
    "RunNotFound",
    "RunTimedOut",
    "ServerUnavailable",
]
