"""docs/reference/metrics.md: what `/metrics` of a running gateway has."""

import asyncio
from collections.abc import Iterable
from typing import NamedTuple

import httpx2
from prometheus_client.parser import text_string_to_metric_families

from pyoco_server.config import NatsBackendConfig
from pyoco_server.domain.fleet import WorkerFigures, WorkerRecord, WorkerState
from pyoco_server.http_api import create_app
from pyoco_server.http_api.worker_metrics import worker_text
from pyoco_server.memory import open_memory_gateway_backend
from tools.reference.tables import code, table

_HEAD = """# Metrics

Every gateway serves its metrics at `GET /metrics`, for Prometheus. With API keys enabled, a key is required
and the runs of its tenant are counted. Metrics *by this gateway*, watchers and HTTP are per gateway: sum
them. All others cover all runs and are the same on every gateway: take the maximum. No label has unbounded
values such as a run, a flow, a path or a key. Up to 100 tags have series of their own (those with workers
or a pause first), the others are `(other)`; the series of a tag end when its queue has been empty for an
hour. On Linux there are also the usual `process_*` metrics: CPU, memory, open files, start time.

The three names that end in `_total` without being counters are those of earlier versions, without a type;
`pyoco_runs`, `pyoco_workers_alive` and `pyoco_dead_letters` are the same figures.

"""


class Family(NamedTuple):
    name: str
    kind: str
    labels: tuple[str, ...]
    meaning: str

    @property
    def series(self) -> set[str]:
        """The names under which Prometheus stores it."""
        if self.kind == "histogram":
            return {f"{self.name}_{part}" for part in ("bucket", "count", "sum")}
        return {self.name}


_WORKERS = """
## Workers

A worker with `--http-port` (`PYOCO_WORKER_HTTP_PORT`) serves its own at `GET /metrics`, beside
`pyoco_build_info` and `process_*`. Every gateway has them as of the last heartbeat, at
`GET /workers/{worker_id}/metrics`.

"""
_A_WORKER = WorkerRecord(
    worker_id="w",
    instance_id="i",
    state=WorkerState.IDLE,
    tags=(),
    last_seen_at=0,
    last_heartbeat_at=0,
    slots=1,
    figures=WorkerFigures(ended={"COMPLETED": 1}, cpu_sec=0.0, memory_bytes=0),
)
_COLUMNS = ("metric", "type", "labels", "meaning")


def page(_current: str) -> str:
    of_workers = _families(worker_text(_A_WORKER).decode(), {})
    return (
        _HEAD
        + table(_COLUMNS, map(_row, asyncio.run(families())))
        + _WORKERS
        + table(_COLUMNS, map(_row, of_workers))
    )


async def families() -> list[Family]:
    config = NatsBackendConfig()
    app = create_app(config, open_backend=lambda: open_memory_gateway_backend(config))
    transport = httpx2.ASGITransport(app)
    async with (
        app.router.lifespan_context(app),
        httpx2.AsyncClient(transport=transport, base_url="http://gateway") as client,
    ):
        text = await _figures(client)
        labels = _labels(app.state.gateway.metrics.registry._names_to_collectors)  # noqa: SLF001
    return list(_families(text, labels))


async def _figures(client: httpx2.AsyncClient) -> str:
    while (await client.get("/ready")).is_error:  # noqa: ASYNC110 - there is no event for it outside
        await asyncio.sleep(0)
    return (await client.get("/metrics")).raise_for_status().text


def _labels(collectors: dict[str, object]) -> dict[str, tuple[str, ...]]:
    """A histogram that has seen nothing shows no labels; its collector knows them."""
    return {name: tuple(getattr(collector, "_labelnames", ())) for name, collector in collectors.items()}


def _families(text: str, labels: dict[str, tuple[str, ...]]) -> Iterable[Family]:
    for family in text_string_to_metric_families(text):
        if family.name.startswith("process_"):  # only where there is /proc
            continue
        name = f"{family.name}_total" if family.type == "counter" else family.name
        shown = tuple(sorted({label for sample in family.samples for label in sample.labels} - {"le"}))
        yield Family(name, family.type, labels.get(family.name) or shown, family.documentation)


def _row(family: Family) -> tuple[str, ...]:
    return code(family.name), family.kind, ", ".join(map(code, family.labels)) or "–", family.meaning
