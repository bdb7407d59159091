"""Trigger, orchestrate and run Python workflows on your own machines."""

import warnings
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyoco_server.config import NatsBackendConfig
    from pyoco_server.http_client import AsyncPyocoHttpClient, PyocoHttpClient
    from pyoco_server.logs import configure_logging
    from pyoco_server.task_helpers import artifact, current_run, log, progress, submit
    from pyoco_server.wiring import ensure_resources
    from pyoco_server.wiring.worker import PyocoNatsClient
    from pyoco_server.worker import PyocoNatsWorker


__all__ = [
    "AsyncPyocoHttpClient",
    "NatsBackendConfig",
    "PyocoHttpClient",
    "PyocoNatsClient",
    "PyocoNatsWorker",
    "artifact",
    "configure_logging",
    "current_run",
    "ensure_resources",
    "log",
    "progress",
    "submit",
]

# Imported on first use, so that a client does not import the server.
_MODULES = {
    "AsyncPyocoHttpClient": "http_client",
    "NatsBackendConfig": "config",
    "PyocoHttpClient": "http_client",
    "PyocoNatsClient": "wiring.worker",
    "PyocoNatsWorker": "worker",
    "artifact": "task_helpers",
    "configure_logging": "logs",
    "current_run": "task_helpers",
    "ensure_resources": "wiring",
    "log": "task_helpers",
    "progress": "task_helpers",
    "submit": "task_helpers",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        module = import_module(f"{__name__}.{_MODULES[name]}")
    except ModuleNotFoundError as error:
        if _is_whole(Path(__file__).parent):
            raise
        raise ImportError(f"{name} is part of pyoco-server; pyoco-client is installed here") from error
    return getattr(module, name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])


def _is_whole(package: Path) -> bool:
    """Whether this is pyoco-server, not the thin client."""
    return (package / "wiring").is_dir()


def _warn_of_two_versions(directory: Path) -> None:
    """pyoco-server and pyoco-client contain the same modules: the later one has replaced the other's."""
    try:
        names = [path.name for path in directory.iterdir()]
    except OSError:  # in an archive
        return
    ours = ("pyoco_server-", "pyoco_client-")
    found = [name[: -len(_INFO)] for name in names if name.startswith(ours) and name.endswith(_INFO)]
    if len({name.partition("-")[2] for name in found}) > 1:
        warnings.warn(
            f"{' and '.join(sorted(found))} are installed together, so their modules are mixed. Uninstall "
            "both and install one of them; pyoco-server contains the client.",
            RuntimeWarning,
            stacklevel=2,
        )


_INFO = ".dist-info"
_warn_of_two_versions(Path(__file__).parents[1])
