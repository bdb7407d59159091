"""F9: one clock for all gateways, however far their own are apart."""

import asyncio

import pytest

from pyoco_server.errors import NatsUnavailable
from pyoco_server.usecases.coordination import MEASURE_SEC, SAMPLES, SharedClock
from pyoco_server.usecases.ports.stores import ServerTime
from support import virtual_time

EPOCH = 1_700_000_000.0
SKEW_SEC = -300.0


class Host:
    """Its wall clock is five minutes behind, and may jump."""

    def __init__(self) -> None:
        self.skew = SKEW_SEC

    def time(self) -> float:
        return EPOCH + self.skew + asyncio.get_running_loop().time()

    def monotonic(self) -> float:
        return asyncio.get_running_loop().time() + 77.0


class Server:
    """Its answers travel so long there, and so long back."""

    def __init__(self, *travels: tuple[float, float]) -> None:
        self.travels = list(travels)
        self.ahead = 0.0

    async def now(self) -> float:
        there, back = self.travels.pop(0) if self.travels else (0.0, 0.0)
        await asyncio.sleep(there)
        shown = real() + self.ahead
        await asyncio.sleep(back)
        return shown


class Silent:
    async def now(self) -> float:
        raise NatsUnavailable("nats unavailable")


def real() -> float:
    return EPOCH + asyncio.get_running_loop().time()


def a_clock(server: ServerTime, host: Host | None = None) -> SharedClock:
    own = host or Host()
    return SharedClock(server, wall=own.time, monotonic=own.monotonic)


def test_until_it_is_measured_it_is_the_hosts() -> None:
    async def main() -> float:
        return a_clock(Silent())() - real()

    assert virtual_time.run(main()) == pytest.approx(SKEW_SEC, abs=0.01)


def test_the_quickest_of_its_answers_counts() -> None:
    async def main() -> float:
        clock = a_clock(Server((4.0, 0.0), (0.01, 0.01), (0.0, 3.0)))
        await clock.measure()
        return clock() - real()

    assert virtual_time.run(main()) == pytest.approx(0.0, abs=0.02)


def test_answers_that_took_too_long_change_nothing() -> None:
    async def main() -> float:
        server = Server()
        clock = a_clock(server)
        await clock.measure()
        server.travels = [(5.0, 0.0), (25.0, 1.0), (0.0, 9.0)]
        with pytest.raises(NatsUnavailable):
            await clock.measure()
        return clock() - real()

    assert virtual_time.run(main()) == pytest.approx(0.0, abs=0.02)


def test_a_jump_of_the_hosts_clock_changes_nothing() -> None:
    async def main() -> float:
        host = Host()
        clock = a_clock(Server(), host)
        await clock.measure()
        host.skew = 4_000.0
        return clock() - real()

    assert virtual_time.run(main()) == pytest.approx(0.0, abs=0.02)


def test_it_follows_the_servers_and_outlives_its_silence() -> None:
    async def main() -> float:
        server = Server()
        clock = a_clock(server)
        await clock.measure()
        server.ahead, clock._server = 20.0, Silent()
        following = asyncio.ensure_future(clock.run())
        await asyncio.sleep(MEASURE_SEC + 1.0)
        clock._server = server
        await asyncio.sleep(MEASURE_SEC + 1.0)
        assert not following.done()
        following.cancel()
        return clock() - real()

    assert SAMPLES > 1
    assert virtual_time.run(main()) == pytest.approx(20.0, abs=0.02)
