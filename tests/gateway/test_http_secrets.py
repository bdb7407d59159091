"""Secrets and variables over HTTP."""

import base64
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import msgspec
import pytest

from pyoco_server.config import NatsBackendConfig
from pyoco_server.domain.fleet import KEPT_TASKS
from pyoco_server.errors import ConfigError
from support.builders import a_worker
from support.captured_logs import capture_logs
from support.gateway import RunningGateway, memory_app, new_key, on_backend
from support.waiting import until


def a_key(letter: str) -> str:
    return base64.urlsafe_b64encode(letter.encode() * 32).decode()


VALUE = "correct-horse-battery"
FAR_AHEAD = 2e9
NAMES_IT = {"flow_name": "f", "params": {"password": "${secrets.db}"}}


@pytest.fixture
async def gateway() -> AsyncIterator[RunningGateway]:
    async with memory_app(secrets_key=a_key("k")) as running:
        yield running


async def put(gateway: RunningGateway, path: str, value: Any, status: int = 201) -> dict[str, Any]:
    answer = await gateway.client.put(path, json={"value": value})
    assert answer.status_code == status, answer.text
    shown: dict[str, Any] = answer.json()
    return shown


async def test_the_value_of_a_secret_never_comes_back(gateway: RunningGateway) -> None:
    with capture_logs() as logged:
        new = await put(gateway, "/secrets/db", VALUE)
        changed = await put(gateway, "/secrets/db", VALUE, 200)
    assert new.keys() == {"name", "created_at", "updated_at"}
    assert changed["created_at"] == new["created_at"]
    one = (await gateway.client.get("/secrets/db")).json()
    assert (await gateway.client.get("/secrets")).json() == {"items": [one], "next_cursor": None}
    assert one == changed
    stored = await gateway.backend.secrets.get("=.db")
    assert stored is not None
    texts = (str(logged), str(stored), (await gateway.client.get("/audit")).text)
    assert not any(VALUE in text for text in texts)
    deleted = await gateway.client.delete("/secrets/db")
    assert deleted.json() == {"name": "db", "deleted": True}
    for method in ("GET", "DELETE"):
        gone = await gateway.client.request(method, "/secrets/db")
        assert (gone.status_code, gone.json()["err_id"]) == (404, "ERR-PYOCO-0080")


async def test_a_variable_is_any_json_value(gateway: RunningGateway) -> None:
    for value in ("text", 5, None, [1, {"a": "${secrets.x}"}], ""):
        status = 201 if value == "text" else 200
        assert (await put(gateway, "/variables/v", value, status))["value"] == value
        assert (await gateway.client.get("/variables/v")).json()["value"] == value
    assert [one["name"] for one in (await gateway.client.get("/variables")).json()["items"]] == ["v"]
    assert (await gateway.client.delete("/variables/v")).status_code == 200
    missing = await gateway.client.get("/variables/v")
    assert (missing.status_code, missing.json()["err_id"]) == (404, "ERR-PYOCO-0081")


@pytest.mark.parametrize("noun", ["secrets", "variables"])
async def test_lists_are_paged_newest_first(gateway: RunningGateway, noun: str) -> None:
    for name in "abcde":
        await put(gateway, f"/{noun}/{name}", "v")
    names, cursor = [], None
    while True:
        query = {"limit": 2, **({} if cursor is None else {"cursor": cursor})}
        page = (await gateway.client.get(f"/{noun}", params=query)).json()
        names += [one["name"] for one in page["items"]]
        cursor = page["next_cursor"]
        if cursor is None:
            break
    assert sorted(names) == list("abcde")
    times = [(await gateway.client.get(f"/{noun}/{name}")).json()["created_at"] for name in names]
    assert times == sorted(times, reverse=True)
    for limit in (0, 201):
        assert (await gateway.client.get(f"/{noun}?limit={limit}")).status_code == 422


@pytest.mark.parametrize(
    "body",
    [{}, {"value": ""}, {"value": 5}, {"value": None}, {"value": "x" * 32_769}, {"value": VALUE, "more": 1}],
)
async def test_a_bad_secret_is_refused_without_its_value(gateway: RunningGateway, body: Any) -> None:
    answer = await gateway.client.put("/secrets/db", json=body)
    assert answer.status_code == 422, answer.text
    assert VALUE not in answer.text
    assert "xxxx" not in answer.text


@pytest.mark.parametrize("noun", ["secrets", "variables"])
async def test_a_bad_name_is_refused(gateway: RunningGateway, noun: str) -> None:
    for name in ("a.b", "a b", "x" * 65, "ä"):
        answer = await gateway.client.put(f"/{noun}/{name}", json={"value": "v"})
        assert answer.status_code == 422, name
        assert (await gateway.client.get(f"/{noun}/{name}")).status_code == 404


async def test_without_a_key_secrets_are_refused_with_the_name_of_the_setting() -> None:
    """ERR-PYOCO-0082"""
    async with memory_app() as gateway:
        answer = await gateway.client.put("/secrets/db", json={"value": VALUE})
        assert (answer.status_code, answer.json()["err_id"]) == (503, "ERR-PYOCO-0082")
        assert "PYOCO_SECRETS_KEY" in answer.json()["detail"]
        assert (await gateway.client.get("/secrets")).json()["items"] == []
        await put(gateway, "/variables/v", 1)


async def test_the_first_key_seals_and_all_open(gateway: RunningGateway) -> None:
    """ERR-PYOCO-0083"""
    await put(gateway, "/secrets/db", VALUE)

    async def submitted(keys: str) -> httpx2.Response:
        async with on_backend(gateway.backend, NatsBackendConfig(secrets_key=keys)) as other:
            return await other.client.post("/runs", json=NAMES_IT)

    assert (await submitted(f"{a_key('n')},{a_key('k')}")).status_code == 200
    refused = await submitted(a_key("n"))
    assert (refused.status_code, refused.json()["err_id"]) == (422, "ERR-PYOCO-0083")
    assert "secret 'db' cannot be opened" in refused.json()["detail"]
    assert (await submitted("")).status_code == 200, "only the worker can know"


async def test_a_sealed_value_opens_under_its_own_name_only(gateway: RunningGateway) -> None:
    """Whoever may write to NATS cannot exchange secrets."""
    await put(gateway, "/secrets/db", VALUE)
    stored = await gateway.backend.secrets.get("=.db")
    assert stored is not None
    await gateway.backend.secrets.create("=.other", msgspec.structs.replace(stored.value, name="other"))
    answer = await gateway.client.post("/runs", json={"flow_name": "f", "params": {"a": "${secrets.other}"}})
    assert "secret 'other' cannot be opened" in answer.json()["detail"]


async def test_a_tag_with_an_older_worker_gets_no_run_that_it_would_run_with_the_text(
    gateway: RunningGateway,
) -> None:
    await put(gateway, "/secrets/db", VALUE)
    older = a_worker(worker_id="old", features=(KEPT_TASKS,), last_seen_at=FAR_AHEAD)
    await gateway.backend.workers.create("old", older)

    async def answered() -> httpx2.Response:
        return await gateway.client.post("/runs", json=NAMES_IT)

    answer = await until(answered, lambda found: found.status_code == 422)
    assert "too old to resolve secrets and variables have the tag 'default': old" in answer.json()["detail"]


async def test_a_malformed_reference_is_refused_alone_in_a_batch(gateway: RunningGateway) -> None:
    runs = [{"flow_name": "f", "params": {"a": text}} for text in ("${vars.}", "$${vars.}", "${secrets.no}")]
    results = (await gateway.client.post("/runs/batch", json={"runs": runs})).json()["results"]
    assert [result.get("http_status") for result in results] == [422, None, 422]


async def test_another_tenants_secret_is_answered_like_a_missing_one() -> None:
    async with memory_app(http_auth_mode="api_key", secrets_key=a_key("k")) as gateway:
        keys = gateway.backend.api_keys
        ours, theirs = await new_key(keys, "acme", "a"), await new_key(keys, "other", "b")
        for noun in ("secrets", "variables"):
            body = {"value": VALUE}
            made = await gateway.client.put(f"/{noun}/db", json=body, headers=ours)
            assert made.status_code == 201
            for method in ("GET", "DELETE"):
                foreign = await gateway.client.request(method, f"/{noun}/db", headers=theirs)
                assert foreign.status_code == 404
            listed = await gateway.client.get(f"/{noun}", headers=theirs)
            assert listed.json()["items"] == []
            assert (await gateway.client.get(f"/{noun}/db", headers=ours)).status_code == 200
        named = {"flow_name": "f", "params": {"a": "${secrets.db}"}}
        assert (await gateway.client.post("/runs", json=named, headers=theirs)).status_code == 422
        assert (await gateway.client.post("/runs", json=named, headers=ours)).status_code == 200


@pytest.mark.parametrize(
    "keys", ["short", a_key("k")[:-4], f"{a_key('k')},", f"{a_key('k')},bad", "ä" * 43, "*" * 43]
)
def test_a_bad_key_stops_the_start_and_is_not_printed(keys: str) -> None:
    with pytest.raises(ConfigError) as error:
        NatsBackendConfig.from_env({"PYOCO_SECRETS_KEY": keys, "PYOCO_LOAD_DOTENV": "0"})
    assert "PYOCO_SECRETS_KEY=***" in str(error.value)
    assert keys not in str(error.value)


def test_keys_are_accepted_with_and_without_padding() -> None:
    padded = a_key("k")
    config = NatsBackendConfig(secrets_key=f" {padded} ,{padded.rstrip('=')}")
    assert config.secrets_keys == (b"k" * 32, b"k" * 32)
    assert padded not in repr(config)
