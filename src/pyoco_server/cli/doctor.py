"""`pyoco-server doctor`: what is there, what is missing, what to do."""

import time
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from pyoco_server.cli import doctor_texts as texts
from pyoco_server.cli.client_output import print_json
from pyoco_server.cli.doctor_installation import check_clocks, check_gateway, check_streams, check_workers
from pyoco_server.cli.doctor_machine import (
    bad_settings,
    check_disk,
    check_nats_server,
    check_packages,
    check_python,
    check_settings,
)
from pyoco_server.cli.failures import FAILED
from pyoco_server.cli.findings import Finding
from pyoco_server.cli.loop import run
from pyoco_server.config import NatsBackendConfig, is_set
from pyoco_server.errors import ConfigError, IncompatibleNats, NatsUnauthorized, NatsUnavailable
from pyoco_server.running_server import running_server
from pyoco_server.wiring import NatsReport, inspect_nats, running_embedded_url, without_credentials

_COLOURS = {"OK": "green", "WARN": "yellow", "FAIL": "bold red"}


def examine(server: str, nats_url: str | None, data_dir: Path) -> list[Finding]:
    """Everything, from the ground up."""
    ground = [check_python(), check_packages(), check_disk(data_dir)]
    try:
        found = running_server(data_dir)
        embedded = running_embedded_url(data_dir / "nats") if found is None else found.nats_url
        url_is_given = nats_url is not None or is_set("nats_url")
        config = NatsBackendConfig.from_env(nats_url=nats_url if url_is_given else embedded)
    except ConfigError as error:
        return [*ground, *bad_settings(error), check_gateway(server)]
    ground += [*check_settings(), check_nats_server(is_needed=not url_is_given)]
    if not url_is_given and embedded is None:  # whoever is at the default port is none of ours
        nats = Finding("nats", "WARN", texts.NATS_NOT_STARTED(), texts.NATS_NOT_STARTED_ADVICE())
        return [*ground, nats, check_gateway(server)]
    report, nats = _ask_nats(config)
    if report is None:
        return [*ground, nats, check_gateway(server)]
    return [
        *ground,
        nats,
        *check_streams(report),
        *check_clocks(report),
        check_gateway(server),
        *check_workers(report, config.default_tag, time.time(), config.worker_disconnect_timeout_sec),
    ]


def _ask_nats(config: NatsBackendConfig) -> tuple[NatsReport | None, Finding]:
    url = without_credentials(config.nats_url)
    try:
        report = run(inspect_nats(config))
    except NatsUnauthorized:
        return None, Finding("nats", "FAIL", texts.NATS_REFUSES(url=url), texts.NATS_REFUSES_ADVICE())
    except (NatsUnavailable, IncompatibleNats) as error:
        return None, Finding("nats", "FAIL", texts.NATS_SILENT(reason=error), texts.NATS_SILENT_ADVICE())
    return report, Finding("nats", "OK", texts.NATS(version=f"nats-server {report.version}", url=url))


def show(findings: list[Finding], *, as_json: bool) -> int:
    """The exit code: 1 if something has to be fixed."""
    failures = sum(finding.level == "FAIL" for finding in findings)
    if as_json:
        print_json({"ok": not failures, "checks": [finding.as_json() for finding in findings]})
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
        table.add_row(Text(finding.level, _COLOURS[finding.level]), Text(finding.check), Text(finding.fact))
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
