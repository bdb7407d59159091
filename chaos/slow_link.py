"""A link between two network namespaces that delays every packet and loses some.

`slow_link.py <namespace> <namespace> <device> <seconds one way> <share lost> <seed>`: a tun device of that
name in each, and this process between them. Order is kept: a queue, not a lottery.
"""

import fcntl
import os
import random
import select
import struct
import sys
import time
from collections import deque

from networks import enter

_TUNSETIFF = 0x400454CA
_IFF_TUN, _IFF_NO_PI = 0x0001, 0x1000
MAX_PACKET = 65536
MAX_WAITING = 10_000


def _tun(space: str, device: str) -> int:
    enter(space)
    fd = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(fd, _TUNSETIFF, struct.pack("16sH22x", device.encode(), _IFF_TUN | _IFF_NO_PI))
    return fd


def carry(ends: tuple[int, int], delay: float, loss: float, chance: random.Random) -> None:
    other = {ends[0]: ends[1], ends[1]: ends[0]}
    waiting: deque[tuple[float, int, bytes]] = deque()
    while True:
        patience = max(0.0, waiting[0][0] - time.monotonic()) if waiting else None
        ready, _, _ = select.select(ends, (), (), patience)
        for end in ready:
            packet = os.read(end, MAX_PACKET)
            if chance.random() >= loss and len(waiting) < MAX_WAITING:
                waiting.append((time.monotonic() + delay, other[end], packet))
        while waiting and waiting[0][0] <= time.monotonic():
            _, end, packet = waiting.popleft()
            try:
                os.write(end, packet)
            except OSError:  # the device is not up yet, or full: a packet is lost, as on any link
                continue


def main() -> None:
    near, far, device, delay, loss, seed = sys.argv[1:]
    chance = random.Random(int(seed))  # noqa: S311
    carry((_tun(near, device), _tun(far, device)), float(delay), float(loss), chance)


if __name__ == "__main__":
    main()
