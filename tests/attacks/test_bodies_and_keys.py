"""A2, A3: what a body may not say, and what the time of an answer may not tell."""

import sys
from collections.abc import Awaitable, Callable
from functools import partial
from types import FrameType
from typing import Any

import pytest

from pyoco_server.errors import InvalidApiKey
from pyoco_server.memory.stores import MemoryApiKeys
from pyoco_server.usecases.auth import Authenticate
from support.gateway import memory_app, new_key

SECRET = "s" * 43
FORGED: dict[str, Any] = {
    "status": "COMPLETED",
    "run_id": "0190aaaa-bbbb-7ccc-8ddd-eeeeffff0009",
    "tenant_id": "other",
    "api_key_id": "key-b",
    "result": {"x": 1},
    "worker_id": "w",
    "attempt": 99,
    "submitted_at": 1.0,
    "cancel_requested_by": "somebody",
    "execution_id": "e",
    "node_id": "n",
    "workflow_yaml": "flow: {graph: a}",
    "workflow_yaml_sha256": "0" * 64,
}


@pytest.mark.parametrize("path", ["/runs", "/runs/batch"])
async def test_a3_a_client_decides_nothing_but_what_is_its_own(path: str) -> None:
    """D27: each field that is not a client's to say is refused by its name."""
    async with memory_app(http_auth_mode="api_key") as gateway:
        ours = await new_key(gateway.backend.api_keys, "acme", "key-a")
        for name, value in FORGED.items():
            body = {"flow_name": "f", name: value}
            sent = body if path == "/runs" else {"runs": [body]}
            answer = await gateway.client.post(path, headers=ours, json=sent)
            assert answer.status_code == (422 if path == "/runs" else 200)
            assert f"unknown field '{name}'" in answer.text
        assert await gateway.backend.queue.run_ids() == set()


async def test_a3_a_cancel_is_signed_by_its_key_whatever_it_says() -> None:
    async with memory_app(http_auth_mode="api_key") as gateway:
        ours = await new_key(gateway.backend.api_keys, "acme", "key-a")
        run_id = (await gateway.client.post("/runs", headers=ours, json={"flow_name": "f"})).json()["run_id"]
        cancel = f"/runs/{run_id}/cancel"
        for forged in ("requested_by", "cancel_requested_by", "status"):
            answer = await gateway.client.post(cancel, headers=ours, json={"reason": "r", forged: "boss"})
            assert answer.status_code == 422
        answer = await gateway.client.post(cancel, headers=ours, json={"reason": "r"})
    assert answer.json()["cancel_requested_by"] == "api_key:key-a"


async def steps_of(work: Callable[[], Awaitable[object]]) -> int:
    """How many calls it takes, of Python's and of C's functions: no clock, so a busy machine is no matter."""
    count = 0

    def counted(_frame: FrameType, event: str, _argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(counted)
    try:
        with pytest.raises(InvalidApiKey):
            await work()
    finally:
        sys.setprofile(None)
    return count


async def test_a2_a_refusal_takes_as_many_steps_whether_the_key_exists_or_how_near_the_guess_is() -> None:
    keys = MemoryApiKeys()
    await new_key(keys, "acme", "key-a")
    async with keys.follow_keys() as feed:
        authenticate = Authenticate(keys, feed, "pepper", b"p" * 32, lambda: 3.0)
        guesses = {
            "unknown": f"pyoco_key-z.{SECRET}",
            "wrong from the start": f"pyoco_key-a.{'x' * 43}",
            "wrong at the end": f"pyoco_key-a.{SECRET[:-1]}x",
        }
        steps = {}
        for name, guess in guesses.items():
            await steps_of(partial(authenticate, guess))  # the first may import or cache
            steps[name] = await steps_of(partial(authenticate, guess))
    assert steps["wrong from the start"] == steps["wrong at the end"]
    assert max(steps.values()) <= 1.3 * min(steps.values()), steps


async def test_a2_garbled_keys_are_refused_alike() -> None:
    async with memory_app(http_auth_mode="api_key") as gateway:
        await new_key(gateway.backend.api_keys, "acme", "key-a")
        garbled = [
            "x",
            "pyoco_",
            "pyoco_key-a",
            "pyoco_key-a.",
            f"pyoco_key-a.{'s' * 5000}",
            "Bearer x",
            "pyoco_*.x",
            "ä",
        ]
        answers = [
            await gateway.client.get("/runs", headers={b"X-API-Key": text.encode("latin-1")})
            for text in garbled
        ]
    assert {answer.status_code for answer in answers} == {403}
    assert len({answer.content for answer in answers}) == 1
