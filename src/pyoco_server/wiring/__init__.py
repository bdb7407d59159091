"""The composition root: the only place that knows which adapter stands behind which port.

runs.py           runs, workers, wheels, keys: what a worker, a client and a gateway need
executions.py     graphs and their executions
events.py         workflow events
gateway.py        the three levels together
executors.py      what carries out flows
nats_server.py    NATS: started here, looked at, saved and restored
connecting.py     connections to it, and buckets on them
ids.py            ids, keys, salts
"""

from pyoco_server.wiring.backends import (
    JetStreamBackend,
    new_api_key,
    new_run_id,
    new_salt,
    open_backend,
    open_wheels,
    open_worker_backend,
)
from pyoco_server.wiring.executors import ExecutorSpec, Limits, new_thread_executors, open_process_executors
from pyoco_server.wiring.gateway_backend import (
    new_audit_log,
    new_event_files,
    new_notifier,
    open_events,
    open_gateway_backend,
)
from pyoco_server.wiring.nats_server import (
    BootstrapNats,
    Durability,
    EmbeddedNats,
    NatsReport,
    back_up,
    ensure_resources,
    find_nats_server,
    inspect_nats,
    restore,
    running_embedded_url,
    without_credentials,
)

__all__ = [
    "BootstrapNats",
    "Durability",
    "EmbeddedNats",
    "ExecutorSpec",
    "JetStreamBackend",
    "Limits",
    "NatsReport",
    "back_up",
    "ensure_resources",
    "find_nats_server",
    "inspect_nats",
    "new_api_key",
    "new_audit_log",
    "new_event_files",
    "new_notifier",
    "new_run_id",
    "new_salt",
    "new_thread_executors",
    "open_backend",
    "open_events",
    "open_gateway_backend",
    "open_process_executors",
    "open_wheels",
    "open_worker_backend",
    "restore",
    "running_embedded_url",
    "without_credentials",
]
