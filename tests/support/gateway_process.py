"""A gateway in a process of its own, and what it takes of memory."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pyoco_server.config import NatsBackendConfig
from support.installation import environment
from support.nats_server import free_port
from support.programs import Program, Programs, peak_memory_of


@dataclass(frozen=True)
class GatewayProcess:
    program: Program
    port: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def rss_mb(self) -> float:
        pages = int(Path(f"/proc/{self.program.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 1e6

    def peak_mb(self) -> float:
        """The most that it took since `forget_peak`, as the kernel counts it: no sample misses it."""
        lines = Path(f"/proc/{self.program.pid}/status").read_text().splitlines()
        found = next(line for line in lines if line.startswith("VmHWM:"))
        return int(found.split()[1]) * 1024 / 1e6

    def forget_peak(self) -> None:
        Path(f"/proc/{self.program.pid}/clear_refs").write_text("5")

    def open_files(self) -> int:
        return len(list(Path(f"/proc/{self.program.pid}/fd").iterdir()))


@contextmanager
def gateway_process(
    programs: Programs, config: NatsBackendConfig, port: int | None = None
) -> Iterator[GatewayProcess]:
    chosen = port or free_port()
    command = ("pyoco-server", "up", "--port", str(chosen))
    with programs.started(*command, **environment(config)) as program:
        program.says("gateway ready")
        program.says("Ctrl-C stops it")
        yield GatewayProcess(program, chosen)


def growth(gateway: GatewayProcess, worker: Program, work: Callable[[], None]) -> tuple[int, int]:
    """By how much the peak memory of gateway and worker grows."""
    before = peak_memory_of(gateway.program.pid), peak_memory_of(worker.pid)
    work()
    after = peak_memory_of(gateway.program.pid), peak_memory_of(worker.pid)
    return after[0] - before[0], after[1] - before[1]
