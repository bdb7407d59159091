"""The composition root: the only place that knows which adapter stands behind which port.

gateway.py          a gateway: one value with the three levels
event_level.py      its level of workflow events
worker.py           a worker: executors, wheels, `PyocoNatsWorker`; `PyocoNatsClient`; the admin command
backends.py         the ports of runs on NATS: what a worker, a client and a gateway need; NATS itself
gateway_backend.py  the ports of executions and events, and all three levels for a gateway
"""

from pyoco_server.jetstream.access import without_credentials
from pyoco_server.jetstream.admin import NatsReport
from pyoco_server.jetstream.nats_server import (
    BootstrapNats,
    EmbeddedNats,
    find_binary as find_nats_server,
    running_embedded_url,
)
from pyoco_server.wiring.backends import (
    JetStreamBackend,
    back_up,
    check_nats_access,
    ensure_resources,
    inspect_nats,
    new_api_key,
    new_run_id,
    new_salt,
    open_backend,
    open_worker_backend,
    restore,
)
from pyoco_server.wiring.gateway_backend import (
    new_audit_log,
    new_event_files,
    new_notifier,
    open_events,
    open_gateway_backend,
)
from pyoco_server.wiring.worker import ExecutorSpec, Limits, new_thread_executors, open_process_executors

__all__ = [
    "BootstrapNats",
    "EmbeddedNats",
    "ExecutorSpec",
    "JetStreamBackend",
    "Limits",
    "NatsReport",
    "back_up",
    "check_nats_access",
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
    "open_worker_backend",
    "restore",
    "running_embedded_url",
    "without_credentials",
]
