"""Trigger, orchestrate and run Python workflows on your own machines."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyoco_server.config import NatsBackendConfig
    from pyoco_server.http_client import PyocoHttpClient
    from pyoco_server.logs import configure_logging
    from pyoco_server.wiring import ensure_resources
    from pyoco_server.wiring.client import PyocoNatsClient
    from pyoco_server.worker import PyocoNatsWorker


__all__ = [
    "NatsBackendConfig",
    "PyocoHttpClient",
    "PyocoNatsClient",
    "PyocoNatsWorker",
    "configure_logging",
    "ensure_resources",
]

# Imported on first use, so that a client does not import the server.
_MODULES = {
    "NatsBackendConfig": "config",
    "PyocoHttpClient": "http_client",
    "PyocoNatsClient": "wiring.client",
    "PyocoNatsWorker": "worker",
    "configure_logging": "logs",
    "ensure_resources": "wiring",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
