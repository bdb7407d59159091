"""REQ-0021: `pyoco-server up --with-nats-bootstrap`, and the three ways in which it fails."""

import os
import signal
import socket
from pathlib import Path

import pytest

from pyoco_server.cli import server
from pyoco_server.http_client import PyocoHttpClient
from support.nats_server import free_port
from support.programs import Program, Programs

UP = ("pyoco-server", "up", "--with-nats-bootstrap")


def ports(client: int | None = None, http: int | None = None) -> tuple[str, ...]:
    return (
        *("--port", str(free_port())),
        *("--nats-client-port", str(client or free_port()), "--nats-http-port", str(http or free_port())),
    )


def a_program(directory: Path, text: str) -> str:
    """A nats-bootstrap that does as it is told, first on the PATH."""
    directory.mkdir()
    (directory / "nats-bootstrap").write_text(f"#!/bin/sh\n{text}\n")
    (directory / "nats-bootstrap").chmod(0o755)
    return f"{directory}{os.pathsep}{os.environ['PATH']}"


def test_nats_comes_from_nats_bootstrap_and_goes_with_the_server(programs: Programs) -> None:
    with programs.started(*UP, *ports(), "--with-worker", "--nats-listen-host", "127.0.0.1") as up:
        url = up.says(r"HTTP +(http://[\d.:]+)")[1]
        assert "started by nats-bootstrap at nats://127.0.0.1:" in up.output
        up.says("worker ready")
        with PyocoHttpClient(url) as client:
            run_id = client.submit_run("sample", {"rows": 2})["run_id"]
            ends = [event["snapshot"]["status"] for event in client.watch_run(run_id) if "snapshot" in event]
        assert ends[-1] == "COMPLETED"
        assert up.ends_after(signal.SIGTERM) == 0
    assert programs.are_gone()
    assert (programs.directory / ".pyoco/nats-bootstrap/data").is_dir()


def test_without_the_program_it_says_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In this process: the environment of the tests has the program."""
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr("pyoco_server.cli.stack.sysconfig.get_path", lambda _: "/nowhere")
    with pytest.raises(SystemExit) as ended:
        server.app(["up", "--with-nats-bootstrap", *ports()])
    assert ended.value.code == 1
    told = capsys.readouterr().err
    assert "nats-bootstrap was not found" in told
    assert "pip install nats-bootstrap" in told


@pytest.mark.parametrize("option", ["--nats-client-port", "--nats-http-port"])
def test_a_port_that_is_taken_is_told_with_who_has_it(programs: Programs, option: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = other.getsockname()[1]
        chosen = ports(client=taken) if option == "--nats-client-port" else ports(http=taken)
        done = programs.run(*UP, *chosen)
    assert done.returncode == 1
    assert f"cannot listen on 127.0.0.1:{taken}" in done.stderr
    assert f"(pid {os.getpid()})" in done.stderr
    assert f"e.g. {option} " in done.stderr


def test_a_start_that_takes_too_long_is_given_up(programs: Programs, tmp_path: Path) -> None:
    path = a_program(tmp_path / "bin", "echo still thinking\nexec sleep 60")
    done = programs.run(*UP, *ports(), "--nats-start-timeout-sec", "0.3", PATH=path)
    assert done.returncode == 1
    assert "ERR-PYOCO-0003" in done.stderr
    assert "not ready after 0.3 s: still thinking" in done.stderr
    assert "nats-bootstrap.log" in done.stderr


def test_a_start_that_fails_says_what_was_said(programs: Programs, tmp_path: Path) -> None:
    path = a_program(tmp_path / "bin", "echo nats-server not found\nexit 2")
    done = programs.run(*UP, *ports(), PATH=path)
    assert done.returncode == 1
    assert "exited with code 2: nats-server not found" in done.stderr


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--nats-client-port", "4299"), "--nats-client-port requires --with-nats-bootstrap"),
        (
            ("--with-nats-bootstrap", "--nats-url", "nats://elsewhere:4222"),
            "but the NATS URL (--nats-url or PYOCO_NATS_URL) is nats://elsewhere:4222",
        ),
    ],
)
def test_what_contradicts_itself_is_refused(programs: Programs, options: tuple[str, ...], told: str) -> None:
    done = programs.run("pyoco-server", "up", *options)
    assert done.returncode == 1
    assert told in done.stderr


def test_it_ends_with_130_after_ctrl_c(programs: Programs) -> None:
    def interrupted(up: Program) -> int:
        up.says("Ctrl-C stops it")
        return up.ends_after(signal.SIGINT)

    with programs.started(*UP, *ports()) as up:
        assert interrupted(up) == 130
    assert programs.are_gone()
