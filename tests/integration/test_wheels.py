"""REQ-0025: wheels over HTTP, on a real nats-server."""

import asyncio
import hashlib
import importlib
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx2
import pytest

from pyoco_server.config import NatsBackendConfig
from pyoco_server.jetstream.wheels import WheelObjects
from pyoco_server.wiring.backends import connected
from pyoco_server.worker import PyocoNatsWorker
from support.gateway import gateway
from support.nats_server import raw_nats
from support.waiting import until
from support.wheels import a_wheel, wheel_name


async def upload(client: httpx2.AsyncClient, data: bytes, name: str = wheel_name(), **form: str) -> Any:
    return await client.post("/wheels", files={"wheel": (name, data)}, data=form)


async def test_a_wheel_is_registered_listed_downloaded_and_removed(config: NatsBackendConfig) -> None:
    data = a_wheel()
    async with gateway(config) as client:
        answer = (await upload(client, data, tags="cpu,linux")).json()
        assert answer["name"] == wheel_name()
        assert answer["size_bytes"] == len(data)
        assert answer["sha256_hex"] == hashlib.sha256(data).hexdigest()
        assert (answer["tags"], answer["bucket"]) == (["cpu", "linux"], config.wheel_object_store_bucket)
        assert (await client.get("/wheels")).json() == [answer]
        download = await client.get(f"/wheels/{wheel_name()}")
        assert (download.content, download.headers["content-type"]) == (data, "application/octet-stream")
        assert download.headers["content-disposition"] == f'attachment; filename="{wheel_name()}"'
        removed = await client.delete(f"/wheels/{wheel_name()}")
        assert removed.json() == {"name": wheel_name(), "deleted": True}
        assert (await client.get("/wheels")).json() == []


async def test_a_wheel_that_does_not_exist_is_not_found(config: NatsBackendConfig) -> None:
    """ERR-PYOCO-0023"""
    async with gateway(config) as client:
        for answer in [
            await client.get(f"/wheels/{wheel_name()}"),
            await client.delete(f"/wheels/{wheel_name()}"),
            await client.get("/wheels/nonsense"),
            await client.delete("/wheels/%3E"),
        ]:
            assert (answer.status_code, answer.json()["err_id"]) == (404, "ERR-PYOCO-0023")


async def test_only_a_newer_version_can_follow(config: NatsBackendConfig) -> None:
    """ERR-PYOCO-0022"""
    async with gateway(config) as client:
        assert (await upload(client, a_wheel(version="1.0"), wheel_name(version="1.0"))).status_code == 200
        for version in ("1.0", "0.9"):
            answer = await upload(client, a_wheel(version=version), wheel_name(version=version))
            assert (answer.status_code, answer.json()["err_id"]) == (409, "ERR-PYOCO-0022")
        assert (await upload(client, a_wheel(version="1.1"), wheel_name(version="1.1"))).status_code == 200
        assert len((await client.get("/wheels")).json()) == 2


async def test_a9_of_many_uploads_of_one_version_at_once_one_wins(config: NatsBackendConfig) -> None:
    """A9, on two gateways."""
    async with gateway(config) as one, gateway(config) as other:
        answers = await asyncio.gather(*(upload(c, a_wheel()) for c in (one, other) for _ in range(25)))
        assert sorted(answer.status_code for answer in answers) == [200, *[409] * 49]
        stored = (await one.get(f"/wheels/{wheel_name()}")).content
    assert stored == a_wheel()
    assert await chunks_in(config) == 1, "what lost left nothing behind"


async def test_a9_a_wheel_of_65000_members_is_refused_and_leaves_nothing(config: NatsBackendConfig) -> None:
    data = a_wheel(files={f"my_flows/m{number}.py": "" for number in range(65_000)})
    async with gateway(config) as client:
        answer = await upload(client, data)
        assert (answer.status_code, answer.json()["err_id"]) == (422, "ERR-PYOCO-0002")
        assert "too many members; at most 20,000" in answer.json()["detail"]
        assert (await client.get("/wheels")).json() == []
    assert await chunks_in(config) == 0


async def chunks_in(config: NatsBackendConfig) -> int:
    async with raw_nats(config.nats_url) as client:
        info = await client.jetstream().stream_info(
            f"OBJ_{config.wheel_object_store_bucket}", subjects_filter=">"
        )
        subjects = info.state.subjects or {}
        return sum(count for subject, count in subjects.items() if ".C." in subject)


@pytest.mark.parametrize(
    ("data", "name", "form", "status"),
    [
        (b"no zip", wheel_name(), {}, 422),
        (a_wheel(), "nonsense.whl", {}, 422),
        (a_wheel(), wheel_name("other"), {}, 422),
        (a_wheel(), wheel_name(), {"tags": "a.b"}, 422),
        (a_wheel(), wheel_name(), {"replace": "perhaps"}, 422),
        (b"x" * 200_000, wheel_name(), {}, 413),
    ],
)
async def test_what_cannot_be_registered_is_refused(
    config: NatsBackendConfig, data: bytes, name: str, form: dict[str, str], status: int
) -> None:
    """ERR-PYOCO-0002, PYOCO_WHEEL_MAX_BYTES"""
    async with gateway(replace(config, wheel_max_bytes=100_000)) as client:
        answer = await upload(client, data, name, **form)
        assert (answer.status_code, answer.json()["err_id"]) == (status, "ERR-PYOCO-0002")
        assert (await client.get("/wheels")).json() == []


@pytest.mark.parametrize(("over", "status"), [(0, 200), (1, 413)])
async def test_the_limit_of_a_wheel_is_exact(config: NatsBackendConfig, over: int, status: int) -> None:
    """D19: what surrounds the file in its form was added to the limit."""
    data = a_wheel()
    async with gateway(replace(config, wheel_max_bytes=len(data) - over)) as client:
        answer = await upload(client, data)
        assert answer.status_code == status
        assert status == 200 or answer.json()["err_id"] == "ERR-PYOCO-0002"


async def test_the_history_says_who_did_what_newest_first(config: NatsBackendConfig) -> None:
    async with gateway(config) as client:
        await upload(client, a_wheel(), tags="cpu")
        await client.delete(
            f"/wheels/{wheel_name()}", headers={"user-agent": "me", "x-forwarded-for": "1.2.3.4"}
        )
        events = (await client.get("/wheels/history")).json()
        assert [(e["action"], e["wheel_name"], e["tags"]) for e in events] == [
            ("delete", wheel_name(), ["cpu"]),
            ("upload", wheel_name(), ["cpu"]),
        ]
        assert events[0]["source"]["user_agent"] == "me"
        assert events[0]["source"]["x_forwarded_for"] == "1.2.3.4"
        assert (events[0]["replace"], events[1]["replace"]) == (None, True)
        assert events[1]["actor"] == {"tenant_id": None, "api_key_id": None}
        assert len((await client.get("/wheels/history?limit=1")).json()) == 1
        assert len((await client.get("/wheels/history?action=upload")).json()) == 1
        assert (await client.get(f"/wheels/history?wheel_name={wheel_name('x')}")).json() == []
        for query in ("limit=0", "limit=501", "action=move", "wheel_name=x.txt"):
            refused = await client.get(f"/wheels/history?{query}")
            assert (refused.status_code, refused.json()["err_id"]) == (422, "ERR-PYOCO-0002")


async def test_wheels_of_other_clients_of_the_object_store_are_read(
    config: NatsBackendConfig, tmp_path: Path
) -> None:
    data = a_wheel(files={"big.py": "#" + "0123456789abcdef" * 30_000})
    async with gateway(config) as http, raw_nats(config.nats_url) as client:
        store = await client.jetstream().object_store(config.wheel_object_store_bucket)
        await store.put(wheel_name(), data)
        assert (await http.get(f"/wheels/{wheel_name()}")).content == data
        assert (await http.get("/wheels")).json()[0]["tags"] == []
        newer = a_wheel(version="2.0")
        await upload(http, newer, wheel_name(version="2.0"), tags="gpu")
        read_by_others = await store.get(wheel_name(version="2.0"))
        assert read_by_others.data == newer
        assert read_by_others.info.headers == {"x-pyoco-wheel-tags": "gpu"}


async def test_a_worker_in_a_program_syncs_before_run_once(config: NatsBackendConfig, tmp_path: Path) -> None:
    """D29, REQ-0026: PYOCO_WHEEL_SYNC_ENABLED=1 did nothing there."""
    package = "lib_flows"
    settings = replace(
        config,
        wheel_sync_enabled=True,
        wheel_sync_dir=str(tmp_path / "wheels"),
        wheel_sync_interval_sec=0.05,
        worker_heartbeat_interval_sec=0.2,
    )

    def resolve(_name: str) -> Any:
        return importlib.import_module(f"{package}.flows").flow()

    def wheel(version: str) -> tuple[bytes, str]:
        task = f"from pyoco import Flow, task\n@task\ndef which(): return {version!r}\n"
        code = f"{task}def flow(): return Flow() >> which\n"
        content = a_wheel(package, version, files={f"{package}/flows.py": code})
        return content, wheel_name(package, version)

    async with gateway(settings) as client:
        assert (await upload(client, *wheel("1.0"))).status_code == 200
        worker = await PyocoNatsWorker.connect(config=settings, flow_resolver=resolve, worker_id="lib")

        async def ran() -> dict[str, Any]:
            run_id = (await client.post("/runs", json={"flow_name": "f"})).json()["run_id"]
            while await worker.run_once() != run_id:
                pass
            found: dict[str, Any] = (await client.get(f"/runs/{run_id}")).json()
            return found

        async def shown() -> list[str]:
            (record,) = (await client.get("/workers")).json()
            return [one["version"] for one in record["wheel_sync"]["installed_wheels"]]

        try:
            first = await ran()
            assert (first["result"], first["wheels"][0]["version"]) == ({"which": "1.0"}, "1.0")
            await until(shown, lambda versions: versions == ["1.0"])
            assert (await upload(client, *wheel("2.0"))).status_code == 200
            second = await until(ran, lambda run: run["result"] == {"which": "2.0"})
            assert second["wheels"][0]["version"] == "2.0"
            await until(shown, lambda versions: versions == ["2.0"])
        finally:
            await worker.close()
    assert not [path for path in sys.path if str(tmp_path) in path]


async def test_what_an_upload_left_whose_gateway_died_is_collected(config: NatsBackendConfig) -> None:
    """D16: its chunks stayed for ever."""
    data = a_wheel()
    async with gateway(config) as client, connected(config, "test", patiently=False) as connection:
        await upload(client, data)
        complete = await chunks_in(config)
        wheels = WheelObjects(connection, config.wheel_object_store_bucket)

        chunk = f"$O.{config.wheel_object_store_bucket}.C.0190aaaabbbb7ccc8dddeeeeffff0001"
        await connection.publish_acked(chunk, b"x" * 1000, {})
        assert await chunks_in(config) == complete + 1
        assert await wheels.collect(3600.0) == 0, "it may be under way"
        assert await wheels.collect(0.0) == 1
        assert await chunks_in(config) == complete
        assert (await client.get(f"/wheels/{wheel_name()}")).content == data
