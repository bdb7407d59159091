"""`pyoco-server doctor`: checks of this machine and of an installation, with advice."""

import os
import platform
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from importlib import metadata
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

import httpx2
from packaging.requirements import Requirement
from rich.console import Console
from rich.table import Table
from rich.text import Text

from pyoco_server.cli import Message, server_texts as texts
from pyoco_server.cli.failures import FAILED
from pyoco_server.cli.http_server import holder_of
from pyoco_server.cli.output import print_json
from pyoco_server.cli.terminal import run
from pyoco_server.config import ENV_PREFIX, NatsBackendConfig, env_file, is_set, setting_names, texts_of
from pyoco_server.domain.fleet import ALIVE, WorkerRecord, WorkerState, observed_state
from pyoco_server.errors import ConfigError, IncompatibleNats, NatsUnauthorized, NatsUnavailable
from pyoco_server.http_api.pages import BUILT, is_built
from pyoco_server.processes import free_port
from pyoco_server.running_server import running_server
from pyoco_server.wiring import (
    NatsReport,
    check_nats_access,
    find_nats_server,
    inspect_nats,
    running_embedded_url,
    without_credentials,
)

Level = Literal["OK", "WARN", "FAIL"]
MEGABYTE = 1_000_000


@dataclass(frozen=True)
class Finding:
    check: str
    level: Level
    fact: Message
    advice: Message | None = None
    storage: tuple[dict[str, Any], ...] = ()
    """Streams and buckets with their bytes, the largest first."""
    subject: str | None = None
    """What it is about, if the text has figures that change."""

    @property
    def key(self) -> tuple[str, str]:
        """The same for the same problem, however often it is found."""
        return self.check, self.fact.en if self.subject is None else self.subject

    def as_json(self) -> dict[str, Any]:
        """Always in English."""
        advice = None if self.advice is None else self.advice.en
        return {"check": self.check, "level": self.level, "fact": self.fact.en, "advice": advice}


# Checks of this machine; they need no running server.

OLDEST_PYTHON = (3, 11)
DISK_WARN_BYTES = 1024**3
DISK_FAIL_BYTES = 100 * 1024**2
NATS_SERVER_TIMEOUT_SEC = 10.0


def check_python() -> Finding:
    fact = texts.PYTHON(version=platform.python_version(), platform=sys.platform)
    if sys.version_info >= OLDEST_PYTHON and sys.platform != "win32":
        return Finding("python", "OK", fact)
    return Finding("python", "FAIL", fact, texts.PYTHON_UNSUPPORTED())


def check_packages() -> Finding:
    """Whether the installed packages still meet the requirements of pyoco-server."""
    needed = [Requirement(text) for text in metadata.requires("pyoco-server") or []]
    applying = [wanted for wanted in needed if wanted.marker is None or wanted.marker.evaluate({"extra": ""})]
    problems = [problem for wanted in applying if (problem := _misfit(wanted))]
    if problems:
        fact = texts.PACKAGES_WRONG(problems="; ".join(problems))
        return Finding("packages", "FAIL", fact, texts.PACKAGES_ADVICE())
    own, pyoco = metadata.version("pyoco-server"), metadata.version("pyoco")
    return Finding("packages", "OK", texts.PACKAGES(own=own, pyoco=pyoco))


def _misfit(wanted: Requirement) -> str:
    try:
        installed = metadata.version(wanted.name)
    except metadata.PackageNotFoundError:
        return f"{wanted.name}: not installed, {wanted.specifier} needed"
    fits = wanted.specifier.contains(installed, prereleases=True)
    return "" if fits else f"{wanted.name} {installed}: {wanted.specifier} needed"


COMMAND_VARIABLES = frozenset(
    {
        "PYOCO_API_KEY",
        "PYOCO_API_KEY_FILE",
        "PYOCO_DISCOVERY_MODULES",  # of pyoco
        "PYOCO_HTTP_HOST",
        "PYOCO_HTTP_PORT",
        "PYOCO_SERVER_URL",
    }
)
"""Variables that commands read instead of an option; the others are settings."""


def unknown_names(environ: Mapping[str, str]) -> list[str]:
    """Variables with our prefix that are not settings, mostly typos."""
    known = {*setting_names(), *COMMAND_VARIABLES}
    return sorted(name for name in texts_of(environ) if name.startswith(ENV_PREFIX) and name not in known)


def check_page(built: Path = BUILT) -> Finding:
    if is_built(built):
        return Finding("dashboard", "OK", texts.PAGE())
    return Finding("dashboard", "WARN", texts.PAGE_MISSING(), texts.PAGE_MISSING_ADVICE())


def bad_settings(error: ConfigError) -> list[Finding]:
    return [
        Finding("settings", "FAIL", texts.SETTING_WRONG(problem=problem), texts.SETTING_ADVICE())
        for problem in error.problems
    ]


def check_settings(environ: Mapping[str, str] = os.environ) -> list[Finding]:
    """Valid settings may still contain misspelled names."""
    unknown = [_unknown(name) for name in unknown_names(environ)]
    path = env_file(environ)
    file = texts.NO_ENV_FILE() if path is None else texts.ENV_FILE(path=path)
    count = sum(name.startswith(ENV_PREFIX) for name in environ)
    return [*unknown, Finding("settings", "OK", texts.SETTINGS(count=count, file=file))]


def _unknown(name: str) -> Finding:
    meant = get_close_matches(name, [*setting_names(), *COMMAND_VARIABLES], n=1)
    advice = texts.SETTING_MEANT(name=meant[0]) if meant else texts.SETTING_REMOVE()
    return Finding("settings", "WARN", texts.SETTING_UNKNOWN(name=name), advice)


def check_disk(directory: Path) -> Finding:
    """Free space for the data directory of NATS, which may not exist yet."""
    existing = next(path for path in (directory.absolute(), *directory.absolute().parents) if path.exists())
    if not os.access(existing, os.W_OK):
        return Finding("disk", "FAIL", texts.DISK_READ_ONLY(path=existing), texts.DISK_READ_ONLY_ADVICE())
    free = shutil.disk_usage(existing).free
    fact = texts.DISK(free=f"{free / 1024**3:.1f} GiB", path=directory)
    if free >= DISK_WARN_BYTES:
        return Finding("disk", "OK", fact)
    level: Level = "FAIL" if free < DISK_FAIL_BYTES else "WARN"
    return Finding("disk", level, fact, texts.DISK_LOW(), subject="free")


def check_nats_server(*, is_needed: bool) -> Finding:
    """The nats-server program; required only for the embedded NATS."""
    path = find_nats_server()
    bad: Level = "FAIL" if is_needed else "WARN"
    if path is None:
        return Finding("nats-server", bad, texts.NO_NATS_SERVER(), texts.NO_NATS_SERVER_ADVICE())
    try:
        version = subprocess.run(  # noqa: S603 - the program of the package
            [path, "--version"], capture_output=True, text=True, timeout=NATS_SERVER_TIMEOUT_SEC, check=True
        ).stdout.strip()
    except (OSError, subprocess.SubprocessError) as error:
        fact = texts.NATS_SERVER_BROKEN(path=path, reason=error)
        return Finding("nats-server", bad, fact, texts.NO_NATS_SERVER_ADVICE())
    return Finding("nats-server", "OK", texts.NATS_SERVER(version=version, path=path))


# Checks of an installation: NATS, the gateway, the workers.

CLOCK_WARN_SEC = 2.0
"""Less than the heartbeat interval, so that a smaller offset does not change a worker's state."""
HTTP_TIMEOUT_SEC = 5.0
MAX_NAMES = 5
LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})


def check_streams(report: NatsReport) -> list[Finding]:
    found = []
    missing = [stream.name for stream in report.streams if stream.state == "missing"]
    if missing:
        fact = texts.STREAMS_MISSING(names=_some(missing))
        found.append(Finding("streams", "WARN", fact, texts.STREAMS_MISSING_ADVICE()))
    for stream in report.streams:
        fact = texts.STREAM_DIFFERENT(
            name=stream.name, purpose=stream.purpose, differences=stream.differences
        )
        if stream.state == "different":
            found.append(Finding("streams", "WARN", fact, texts.STREAM_DIFFERENT_ADVICE()))
        elif stream.state == "unusable":
            found.append(Finding("streams", "FAIL", fact, texts.STREAM_UNUSABLE_ADVICE()))
    return found or [Finding("streams", "OK", texts.STREAMS(count=len(report.streams)))]


def check_storage(report: NatsReport) -> Finding:
    found = [stream for stream in report.streams if stream.state != "missing"]
    streams = sorted(found, key=lambda stream: -stream.bytes)
    sizes = tuple({"name": stream.name, "bytes": stream.bytes} for stream in streams)
    most = ", ".join(f"{stream.name} {stream.bytes / MEGABYTE:,.1f} MB" for stream in streams[:3])
    total = sum(stream.bytes for stream in streams) / MEGABYTE
    return Finding("storage", "OK", texts.STORAGE(total=f"{total:,.1f}", most=most or "-"), storage=sizes)


def check_clocks(report: NatsReport) -> list[Finding]:
    clocks: list[tuple[Message, float]] = [
        (texts.THIS_MACHINE(), -report.clock_ahead_sec),
        *(
            (texts.WORKER_NAMED(worker_id=worker.record.worker_id), worker.clock_ahead_sec)
            for worker in report.workers
        ),
    ]
    wrong = [
        Finding(
            "clock",
            "WARN",
            texts.CLOCK_OFF(whose=whose, seconds=f"{ahead:+.1f}"),
            texts.CLOCK_ADVICE(),
            subject=whose.en,
        )
        for whose, ahead in clocks
        if abs(ahead) > CLOCK_WARN_SEC
    ]
    return wrong or [Finding("clock", "OK", texts.CLOCK(seconds=f"{CLOCK_WARN_SEC:g}"))]


def _heartbeat_ages(report: NatsReport, now: float) -> list[tuple[WorkerRecord, float]]:
    """By the clock of NATS, because the clocks of workers and of this machine may be wrong."""
    nats_now = now + report.clock_ahead_sec
    return [
        (worker.record, nats_now - (worker.record.last_seen_at - worker.clock_ahead_sec))
        for worker in report.workers
    ]


def check_workers(
    report: NatsReport, default_tag: str, now: float, disconnect_timeout: float
) -> list[Finding]:
    states = {
        record.worker_id: observed_state(record, silent_for, disconnect_timeout)
        for record, silent_for in _heartbeat_ages(report, now)
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
        fact = texts.WORKERS_LOST(names=_some(lost))
        found.append(Finding("workers", "WARN", fact, texts.WORKERS_LOST_ADVICE()))
    return found


def _workers_of(tag: str, count: int, waiting: int) -> Finding:
    if count:
        return Finding("workers", "OK", texts.WORKERS(tag=tag, count=count, waiting=waiting))
    advice = texts.NO_WORKERS_ADVICE(tag=tag)
    if waiting:
        fact = texts.NO_WORKERS_FOR_JOBS(tag=tag, waiting=waiting)
        return Finding("workers", "FAIL", fact, advice, subject=tag)
    return Finding("workers", "WARN", texts.NO_WORKERS(tag=tag), advice, subject=tag)


def check_gateway(url: str) -> Finding:
    try:
        answer = httpx2.get(f"{url}/ready", timeout=HTTP_TIMEOUT_SEC)
        facts = answer.json()
        nats, read_model = facts["nats"], facts["read_model"]
    except (httpx2.TransportError, httpx2.InvalidURL):
        return _no_gateway(url, is_http=False)
    except (ValueError, KeyError, TypeError):  # an HTTP server, but not a gateway
        return _no_gateway(url, is_http=True)
    if answer.is_success:
        return Finding("gateway", "OK", texts.GATEWAY(url=url))
    for what in ("runs", "executions"):
        if facts.get(f"{what}_total"):
            read_model += f" ({what}: {facts[f'{what}_read']:,} / {facts[f'{what}_total']:,})"
    fact = texts.GATEWAY_NOT_READY(url=url, nats=nats, read_model=read_model)
    return Finding("gateway", "FAIL", fact, texts.GATEWAY_NOT_READY_ADVICE(), subject=url)


def _no_gateway(url: str, *, is_http: bool) -> Finding:
    address = urlsplit(url)
    holder = holder_of(address.port or 80) if address.hostname in LOOPBACK else None
    if not is_http and holder is None:
        return Finding("gateway", "WARN", texts.GATEWAY_ABSENT(url=url), texts.GATEWAY_ABSENT_ADVICE())
    fact = texts.GATEWAY_OTHER(url=url, holder=holder or url)
    return Finding("gateway", "FAIL", fact, texts.GATEWAY_OTHER_ADVICE(free=free_port("127.0.0.1")))


def _some(names: list[str]) -> str:
    """The first names, and the total if there are more."""
    more = f", … ({len(names)})" if len(names) > MAX_NAMES else ""
    return ", ".join(names[:MAX_NAMES]) + more


# The command

COLOURS = {"OK": "green", "WARN": "yellow", "FAIL": "bold red"}


def check_installed() -> list[Finding]:
    """What does not change while a program runs."""
    return [check_python(), check_packages(), check_page()]


def examine(server: str, options: Mapping[str, Any], data_dir: Path) -> list[Finding]:
    """All other checks, starting with this machine. `options`: settings of the command line."""
    local = [check_disk(data_dir)]
    try:
        found = running_server(data_dir)
        embedded = running_embedded_url(data_dir / "nats") if found is None else found.nats_url
        url_is_given = options["nats_url"] is not None or is_set("nats_url")
        found_url = {} if url_is_given else {"nats_url": embedded}
        config = NatsBackendConfig.from_env(**{**options, **found_url})
        check_nats_access(config)
    except ConfigError as error:
        return [*local, *bad_settings(error), check_gateway(server)]
    local += [*check_settings(), check_nats_server(is_needed=not url_is_given)]
    if not url_is_given and embedded is None:  # a server at the default port would not be ours
        nats = Finding("nats", "WARN", texts.NATS_NOT_STARTED(), texts.NATS_NOT_STARTED_ADVICE())
        return [*local, nats, check_gateway(server)]
    report, nats = _ask_nats(config)
    if report is None:
        return [*local, nats, check_gateway(server)]
    return [
        *local,
        nats,
        *check_streams(report),
        check_storage(report),
        *check_clocks(report),
        check_gateway(server),
        *check_workers(report, config.default_tag, time.time(), config.worker_disconnect_timeout_sec),
    ]


def _ask_nats(config: NatsBackendConfig) -> tuple[NatsReport | None, Finding]:
    url = without_credentials(config.nats_url)
    try:
        report = run(inspect_nats(config))
    except NatsUnauthorized as error:
        return None, Finding("nats", "FAIL", texts.NATS_REFUSES(reason=error), texts.NATS_REFUSES_ADVICE())
    except (NatsUnavailable, IncompatibleNats) as error:
        return None, Finding("nats", "FAIL", texts.NATS_SILENT(reason=error), texts.NATS_SILENT_ADVICE())
    return report, Finding("nats", "OK", texts.NATS(version=f"nats-server {report.version}", url=url))


def show(findings: list[Finding], *, as_json: bool, problems_only: bool = False) -> int:
    """Print the findings; exit code 1 if a check failed."""
    failures = sum(finding.level == "FAIL" for finding in findings)
    if problems_only:
        findings = [finding for finding in findings if finding.level != "OK"]
    if as_json:
        checks = [finding.as_json() for finding in findings]
        storage = [one for finding in findings for one in finding.storage]
        print_json({"ok": not failures, "checks": checks, "storage": storage})
    elif problems_only:
        _print(findings)
    else:
        _print(findings)
        _print_verdict(failures, sum(finding.level == "WARN" for finding in findings))
    return FAILED if failures else 0


def _print(findings: list[Finding]) -> None:
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for finding in findings:
        table.add_row(Text(finding.level, COLOURS[finding.level]), Text(finding.check), Text(finding.fact))
        if finding.advice:
            table.add_row("", "", Text(f"→ {finding.advice}", "bold"))
    Console(highlight=False).print(table)


def _print_verdict(failures: int, warnings: int) -> None:
    if failures:
        print(texts.NOT_WELL(failures=failures))
    elif warnings:
        print(texts.WELL_WITH_WARNINGS(warnings=warnings))
    else:
        print(texts.ALL_WELL())
