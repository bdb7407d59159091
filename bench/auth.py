"""What an API key adds to a request: GET /runs/{id} at a gateway with auth and at one without, in turns."""

import argparse
import asyncio
import time

import httpx2

from gateways import HOST, gateway_process, milliseconds, nats_for_a_while
from load import get, hammer
from page import Figures, Goal, show, table
from pyoco_server.config import NatsBackendConfig
from pyoco_server.usecases.api_keys import IssueApiKey
from pyoco_server.wiring import new_api_key, new_salt, open_backend

GOAL = 1.2


async def new_key(config: NatsBackendConfig) -> str:
    async with open_backend(config, "bench") as backend:
        issue = IssueApiKey(backend.api_keys, time.time, "")
        return (await issue("acme", new_api_key(), new_salt())).api_key


def submit(port: int, **headers: str) -> str:
    answer = httpx2.post(f"http://{HOST}:{port}/runs", json={"flow_name": "f"}, headers=headers)
    run_id: str = answer.json()["run_id"]
    return run_id


async def ask_both(without: int, with_auth: int, key: str, times: int) -> tuple[list[float], list[float]]:
    open_request = get(f"/runs/{submit(without)}")
    keyed_request = get(f"/runs/{submit(with_auth, **{'X-API-Key': key})}", f"x-api-key: {key}")
    taken: tuple[list[float], list[float]] = ([], [])
    for _ in range(10):
        taken[0].extend(await hammer(HOST, without, open_request, connections=1, total=times))
        taken[1].extend(await hammer(HOST, with_auth, keyed_request, connections=1, total=times))
    return taken


def measure(times: int) -> Figures:
    with nats_for_a_while() as server:
        config = NatsBackendConfig(nats_url=server.url)
        protected = NatsBackendConfig(nats_url=server.url, http_auth_mode="api_key")
        key = asyncio.run(new_key(config))
        with gateway_process(config) as without, gateway_process(protected, "http_auth_mode") as with_auth:
            plain, keyed = asyncio.run(ask_both(without.port, with_auth.port, key, times))
    rows = [
        (name, f"{milliseconds(taken):.2f} ms", f"{milliseconds(taken, 0.99):.2f} ms")
        for name, taken in (("without API keys", plain), ("with API keys", keyed))
    ]
    ratio = milliseconds(keyed) / milliseconds(plain)
    goal = Goal(
        "`GET /runs/{id}` with API keys against without", f"≤ {GOAL} ×", f"{ratio:.2f} ×", ratio <= GOAL
    )
    return Figures(table(("`GET /runs/{id}`", "p50", "p99"), rows), [goal])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=int, default=200)
    show(measure(parser.parse_args().times))


if __name__ == "__main__":
    main()
