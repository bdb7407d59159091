"""Network namespaces: places that can be cut off, and links that are slow and lose packets.

The campaign itself moves into the namespace in the middle (the hub) and reaches every place from there; the
network of the machine is not touched. What is cut is silent: packets go nowhere, and nobody is told.
"""

import ctypes
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from pyoco_server.processes import start_child, stop_child

HUB_ADDRESS = "10.77.0.254"
NEEDS = "needs root, iproute2 and /dev/net/tun"
_CLONE_NEWNET = 0x40000000
_libc = ctypes.CDLL(None, use_errno=True)
ONE_WAY_SEC = 0.1
LOSS = 0.01


class NoNamespaces(Exception):
    """This machine, or this user, cannot make any."""


class Network:
    def __init__(self, tag: str) -> None:
        self.hub = f"{tag}-hub"
        self._tag = tag
        self._places: dict[str, int] = {}
        self._links: list[subprocess.Popen[bytes]] = []

    def make_hub(self) -> None:
        _ip("netns", "add", self.hub)
        _ip("-n", self.hub, "link", "set", "lo", "up")
        _ip("-n", self.hub, "link", "add", "bridge", "type", "bridge")
        _ip("-n", self.hub, "addr", "add", f"{HUB_ADDRESS}/24", "dev", "bridge")
        _ip("-n", self.hub, "link", "set", "bridge", "up")

    def add_place(self, name: str) -> str:
        """A namespace on the hub's bridge; its address."""
        space = self._add_space(name)
        number = self._places[name]
        _ip(
            "-n",
            self.hub,
            "link",
            "add",
            f"to-{number}",
            "type",
            "veth",
            "peer",
            "name",
            "eth0",
            "netns",
            space,
        )
        _ip("-n", self.hub, "link", "set", f"to-{number}", "master", "bridge", "up")
        _ip("-n", space, "addr", "add", f"10.77.0.{number}/24", "dev", "eth0")
        _ip("-n", space, "link", "set", "eth0", "up")
        return f"10.77.0.{number}"

    def add_far_place(self, name: str, seed: int) -> None:
        """A namespace behind a slow link: what is sent arrives later, in order, or never."""
        space = self._add_space(name)
        number = self._places[name]
        near, far = f"10.78.{number}.1", f"10.78.{number}.2"
        script = Path(__file__).with_name("slow_link.py")
        figures = (str(ONE_WAY_SEC), str(LOSS), str(seed))
        self._links.append(start_child([sys.executable, script, self.hub, space, f"far-{number}", *figures]))
        for where, device, mine, other in (
            (self.hub, f"far-{number}", near, far),
            (space, f"far-{number}", far, near),
        ):
            _wait_for_device(where, device)
            _ip("-n", where, "addr", "add", mine, "peer", other, "dev", device)
            _ip("-n", where, "link", "set", device, "up")
        _ip("-n", space, "route", "add", f"{HUB_ADDRESS}/32", "dev", f"far-{number}")

    def within(self, name: str) -> Sequence[str]:
        """In front of a command that is to run there."""
        return ("ip", "netns", "exec", f"{self._tag}-{name}")

    def cut(self, name: str) -> None:
        _ip("-n", self.hub, "link", "set", f"to-{self._places[name]}", "down")

    def heal(self, name: str) -> None:
        _ip("-n", self.hub, "link", "set", f"to-{self._places[name]}", "up")

    def _add_space(self, name: str) -> str:
        space = f"{self._tag}-{name}"
        _ip("netns", "add", space)
        self._places[name] = len(self._places) + 1
        _ip("-n", space, "link", "set", "lo", "up")
        return space

    def remove(self) -> None:
        for link in self._links:
            stop_child(link)
        for name in (self.hub, *(f"{self._tag}-{place}" for place in self._places)):
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)


def _ip(*arguments: str) -> None:
    done = subprocess.run(["ip", *arguments], check=False, capture_output=True, text=True)
    if done.returncode:
        raise NoNamespaces(f"ip {' '.join(arguments)}: {done.stderr.strip()}")


def _wait_for_device(space: str, device: str) -> None:
    for _ in range(200):
        shown = subprocess.run(
            ["ip", "-n", space, "link", "show", device],
            check=False,
            capture_output=True,
        )
        if not shown.returncode:
            return
        time.sleep(0.05)
    raise NoNamespaces(f"{device} did not appear")


def enter(space: str) -> None:
    """This thread, and every process and thread that it starts from now on."""
    with open(f"/run/netns/{space}", "rb") as file:  # noqa: PTH123
        _set(file.fileno())


def _set(fd: int) -> None:
    if _libc.setns(fd, _CLONE_NEWNET):
        raise NoNamespaces(os.strerror(ctypes.get_errno()))


@contextmanager
def network() -> Iterator[Network]:
    """With the campaign in its hub. Raises NoNamespaces."""
    if os.geteuid() or not shutil.which("ip") or not Path("/dev/net/tun").exists():
        raise NoNamespaces(NEEDS)
    made = Network(f"pyoco{os.getpid()}")
    with open("/proc/self/ns/net", "rb") as home:  # noqa: PTH123
        try:
            made.make_hub()
            enter(made.hub)
            yield made
        finally:
            _set(home.fileno())
            made.remove()
