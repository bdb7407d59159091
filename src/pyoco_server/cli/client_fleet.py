"""The commands about workers and figures."""

from typing import Any, Literal

from pyoco_server.cli import client_texts as texts
from pyoco_server.cli.client_output import Client, note, print_json
from pyoco_server.cli.options import Flag, Output
from pyoco_server.cli.tables import print_table

_COLUMNS = ("state", "worker_id", "tags", "current_run_id", "last_run_status", "last_seen_at", "hidden")
_EXPENDABLE = ("hidden", "last_run_status", "last_seen_at", "current_run_id", "tags")


def workers(
    *,
    scope: Literal["active", "all"] | None = None,
    state: str | None = None,
    include_hidden: Flag = False,
    limit: int | None = None,
    output: Output = "json",
    client: Client,
) -> None:
    """Print the workers.

    Parameters
    ----------
    scope
        active: those that are alive; all: those that were, too.
    state
        Only these: RUNNING, IDLE, STOPPED_GRACEFUL or DISCONNECTED.
    include_hidden
        Hidden ones, too.
    limit
        At most so many (up to 500).
    """
    found: Any = client.get_workers(scope, state, include_hidden=include_hidden or None, limit=limit)
    if output == "json":
        print_json(found)
    elif found:
        print_table(found, _COLUMNS, _EXPENDABLE)
    else:
        note(texts.NO_WORKERS())


def worker_hide(worker_id: str, *, client: Client) -> None:
    """Leave a worker out of lists.

    Parameters
    ----------
    worker_id
        The worker.
    """
    print_json(client.patch_worker_hidden(worker_id, hidden=True))


def worker_show(worker_id: str, *, client: Client) -> None:
    """Show a hidden worker again.

    Parameters
    ----------
    worker_id
        The worker.
    """
    print_json(client.patch_worker_hidden(worker_id, hidden=False))


def metrics(*, client: Client) -> None:
    """Print the server's figures, as Prometheus reads them."""
    print(client.get_metrics(), end="")


COMMANDS = {
    "workers": workers,
    "worker-hide": worker_hide,
    "worker-show": worker_show,
    "metrics": metrics,
}
