"""What `pyoco-server doctor` looks at in an installation: NATS, a gateway, the workers."""

from collections import Counter
from urllib.parse import urlsplit

import httpx2

from pyoco_server.cli import doctor_texts as texts
from pyoco_server.cli.findings import Finding
from pyoco_server.cli.language import Message
from pyoco_server.cli.ports import holder_of
from pyoco_server.domain.workers import ALIVE, WorkerRecord, WorkerState, observed_state
from pyoco_server.free_ports import free_port
from pyoco_server.wiring import NatsReport

CLOCK_WARN_SEC = 2.0
"""Less than the time between two heartbeats: what is judged by clocks is still judged right."""
HTTP_PATIENCE_SEC = 5.0
MAX_NAMES = 5
LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})


def check_streams(report: NatsReport) -> list[Finding]:
    found = []
    missing = [stream.name for stream in report.streams if stream.state == "missing"]
    if missing:
        told = texts.STREAMS_MISSING(names=_some(missing))
        found.append(Finding("streams", "WARN", told, texts.STREAMS_MISSING_ADVICE()))
    for stream in report.streams:
        fact = texts.STREAM_DIFFERENT(
            name=stream.name, purpose=stream.purpose, differences=stream.differences
        )
        if stream.state == "different":
            found.append(Finding("streams", "WARN", fact, texts.STREAM_DIFFERENT_ADVICE()))
        elif stream.state == "unusable":
            found.append(Finding("streams", "FAIL", fact, texts.STREAM_UNUSABLE_ADVICE()))
    return found or [Finding("streams", "OK", texts.STREAMS(count=len(report.streams)))]


def check_clocks(report: NatsReport) -> list[Finding]:
    clocks: list[tuple[Message, float]] = [
        (texts.THIS_MACHINE(), -report.clock_ahead_sec),
        *(
            (texts.WORKER_NAMED(worker_id=worker.record.worker_id), worker.clock_ahead_sec)
            for worker in report.workers
        ),
    ]
    wrong = [
        Finding("clock", "WARN", texts.CLOCK_OFF(whose=whose, seconds=f"{ahead:+.1f}"), texts.CLOCK_ADVICE())
        for whose, ahead in clocks
        if abs(ahead) > CLOCK_WARN_SEC
    ]
    return wrong or [Finding("clock", "OK", texts.CLOCK(seconds=f"{CLOCK_WARN_SEC:g}"))]


def _silent_for(report: NatsReport, now: float) -> list[tuple[WorkerRecord, float]]:
    """By the clock of NATS: those of the workers and of this machine may be wrong."""
    now_there = now + report.clock_ahead_sec
    return [
        (worker.record, now_there - (worker.record.last_seen_at - worker.clock_ahead_sec))
        for worker in report.workers
    ]


def check_workers(
    report: NatsReport, default_tag: str, now: float, disconnect_timeout: float
) -> list[Finding]:
    states = {
        record.worker_id: observed_state(record, silent_for, disconnect_timeout)
        for record, silent_for in _silent_for(report, now)
    }
    alive = Counter(
        tag
        for worker in report.workers
        if states[worker.record.worker_id] in ALIVE
        for tag in set(worker.record.tags)
    )
    tags = sorted({*alive, *(tag for tag, count in report.waiting.items() if count), default_tag})
    found = [_workers_of(tag, alive[tag], report.waiting.get(tag, 0)) for tag in tags]
    lost = [worker_id for worker_id, state in states.items() if state is WorkerState.DISCONNECTED]
    if lost:
        told = texts.WORKERS_LOST(names=_some(lost))
        found.append(Finding("workers", "WARN", told, texts.WORKERS_LOST_ADVICE()))
    return found


def _workers_of(tag: str, count: int, waiting: int) -> Finding:
    if count:
        return Finding("workers", "OK", texts.WORKERS(tag=tag, count=count, waiting=waiting))
    advice = texts.NO_WORKERS_ADVICE(tag=tag)
    if waiting:
        return Finding("workers", "FAIL", texts.NO_WORKERS_FOR_JOBS(tag=tag, waiting=waiting), advice)
    return Finding("workers", "WARN", texts.NO_WORKERS(tag=tag), advice)


def check_gateway(url: str) -> Finding:
    try:
        answer = httpx2.get(f"{url}/ready", timeout=HTTP_PATIENCE_SEC)
        facts = answer.json()
        nats, read_model = facts["nats"], facts["read_model"]
    except (httpx2.TransportError, httpx2.InvalidURL):
        return _no_gateway(url, is_http=False)
    except (ValueError, KeyError, TypeError):  # it speaks HTTP, and not as a gateway does
        return _no_gateway(url, is_http=True)
    if answer.is_success:
        return Finding("gateway", "OK", texts.GATEWAY(url=url))
    told = texts.GATEWAY_NOT_READY(url=url, nats=nats, read_model=read_model)
    return Finding("gateway", "FAIL", told, texts.GATEWAY_NOT_READY_ADVICE())


def _no_gateway(url: str, *, is_http: bool) -> Finding:
    address = urlsplit(url)
    holder = holder_of(address.port or 80) if address.hostname in LOOPBACK else None
    if not is_http and holder is None:
        return Finding("gateway", "WARN", texts.GATEWAY_ABSENT(url=url), texts.GATEWAY_ABSENT_ADVICE())
    told = texts.GATEWAY_OTHER(url=url, holder=holder or url)
    return Finding("gateway", "FAIL", told, texts.GATEWAY_OTHER_ADVICE(free=free_port("127.0.0.1")))


def _some(names: list[str]) -> str:
    """A list that is long tells nobody more."""
    more = f", … ({len(names)})" if len(names) > MAX_NAMES else ""
    return ", ".join(names[:MAX_NAMES]) + more
