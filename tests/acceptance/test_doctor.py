"""REQ-0021: `pyoco-server doctor`, on machines in all states."""

import json
import socket
from typing import Any

from pyoco_server.wiring import EmbeddedNats
from support.installation import FLOWS
from support.nats_server import free_port
from support.programs import Programs


def doctor(programs: Programs, *options: str, code: int, **environ: str) -> dict[str, Any]:
    """The findings: level by check; the worst one of each."""
    done = programs.run("pyoco-server", "doctor", "--json", *options, **environ)
    assert done.returncode == code, done.stdout + done.stderr
    found = json.loads(done.stdout)
    assert found["ok"] == (code == 0)
    order = ("OK", "WARN", "FAIL")
    by_check: dict[str, Any] = {}
    for finding in sorted(found["checks"], key=lambda one: order.index(one["level"])):
        by_check[finding["check"]] = finding
        assert (finding["advice"] is None) == (finding["level"] == "OK"), finding
    return by_check


def test_on_a_fresh_machine_nothing_is_broken(programs: Programs) -> None:
    found = doctor(programs, "--server", f"http://127.0.0.1:{free_port()}", code=0)
    for check in ("python", "packages", "disk", "settings", "nats-server"):
        assert found[check]["level"] == "OK"
    assert found["gateway"]["level"] == "WARN"
    assert "pyoco-server up" in found["gateway"]["advice"]


def test_a_running_installation_is_all_well(programs: Programs) -> None:
    port = free_port()
    command = ("pyoco-server", "up", "--port", str(port), "--durability", "fast", "--with-worker")
    with programs.started(*command) as up:
        up.says("worker ready")
        server = ("--server", f"http://127.0.0.1:{port}")
        found = doctor(programs, *server, code=0)
        assert {finding["level"] for finding in found.values()} == {"OK"}
        assert found["dashboard"]["fact"] == "part of this installation"
        assert found["workers"]["fact"] == "tag default: 1 live, queued jobs: 0"
        assert found["nats"]["fact"].endswith(up.says(r"nats://127.0.0.1:\d+")[0])
        shown = programs.run("pyoco-server", "doctor", *server)
        assert shown.stdout.splitlines()[-1] == "All checks passed."
        in_japanese = programs.run("pyoco-server", "doctor", *server, LC_ALL="ja_JP.UTF-8")
        assert in_japanese.stdout.splitlines()[-1] == "問題ありません。"
        submit = ("pyoco-client", "submit", "--flow-name", "x", "--tag", "gpu", *server)
        assert programs.run(*submit).returncode == 0
        found = doctor(programs, *server, code=1)
        assert found["workers"]["fact"] == "tag gpu: no live worker, queued jobs: 1"
        live = ("pyoco-server", "doctor", "--live", "--interval-sec", "0.5", *server)
        with programs.started(*live, "--json") as for_programs, programs.started(*live) as for_people:
            for_people.says("problems: 1; checking every 0.5 s")
            for_people.says(r"FAIL  workers  tag gpu: no live worker, queued jobs: 1")
            worker = ("pyoco-worker", "--flow-resolver", FLOWS, "--tags", "gpu", "--worker-id", "w2")
            with programs.started(*worker):
                for_people.says(r"OK    workers  no longer: tag gpu: no live worker, queued jobs: 1")
                for_programs.says('"event": "disappeared"')
        line = next(line for line in for_programs.output.splitlines() if '"appeared"' in line)
        shown = json.loads(line)
        assert (shown["check"], shown["level"]) == ("workers", "FAIL")


def test_what_is_wrong_is_told_with_what_to_do(programs: Programs) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        found = doctor(
            programs,
            *("--server", f"http://127.0.0.1:{port}", "--nats-url", f"nats://127.0.0.1:{free_port()}"),
            code=1,
        )
    assert found["nats"]["level"] == "FAIL"
    assert found["gateway"]["level"] == "FAIL"
    assert "(pid " in found["gateway"]["fact"]


def test_a_nats_of_somebody_else_is_not_looked_at(programs: Programs, own_nats: EmbeddedNats) -> None:
    server = ("--server", f"http://127.0.0.1:{free_port()}")
    assert doctor(programs, *server, code=0)["nats"]["fact"] == "not running and not configured"
    found = doctor(programs, *server, "--nats-url", own_nats.url, code=0)
    assert (found["nats"]["level"], found["streams"]["level"]) == ("OK", "WARN")
    assert "the first gateway or worker creates them" in found["streams"]["advice"]


def test_settings_that_cannot_be_used_are_all_told(programs: Programs) -> None:
    found = doctor(programs, code=1, PYOCO_LOG_FORMAT="xml")
    assert "PYOCO_LOG_FORMAT='xml'" in found["settings"]["fact"]


def test_a_terminal_that_is_not_utf8_is_no_reason_to_fail(programs: Programs) -> None:
    server = ("--server", f"http://127.0.0.1:{free_port()}")
    for locale in ("C", "ja_JP.UTF-8"):
        done = programs.run("pyoco-server", "doctor", *server, LC_ALL=locale, PYTHONIOENCODING="ascii")
        assert (done.returncode, done.stderr) == (0, "")
