"""Large values pass by the memory of worker and gateway, and leave nothing behind on their way."""

import hashlib
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from pyoco_server.http_client import PyocoHttpClient
from pyoco_server.wiring import EmbeddedNats
from pyoco_server.worker.values import LOCK
from support.gateway_process import gateway_process, growth
from support.installation import FLOWS, Lab, environment
from support.nats_server import delete_streams_of, unique_config
from support.programs import Programs
from support.waiting import until_now

MB = 1_000_000
GROWS_BY = 64 * MB
Labs = Callable[..., Awaitable[Lab]]


@pytest.fixture
def directories(programs: Programs, tmp_path: Path) -> Callable[[], list[Path]]:
    """Of the workers of this test."""
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    programs.environ["TMPDIR"] = str(temporary)
    return lambda: list(temporary.glob("pyoco-values-*"))


def text_of(size: int) -> bytes:
    return json.dumps("".join(f"{n:09d} " for n in range(size // 10))).encode()


def run_and_read(client: PyocoHttpClient, size: int, path: Path) -> None:
    run_id = client.submit_run("bulky", {"size": size})["run_id"]
    run = until_now(lambda: client.get_run(run_id), lambda run: run["end_time"] is not None)
    assert (run["status"], run["warnings"]) == ("COMPLETED", [])
    reference = run["result"]["give"]
    saved = client.download_value(reference, path)
    expected = text_of(size)
    assert reference["size"] == len(expected) == saved.stat().st_size
    assert reference["$ref"] == f"sha256:{hashlib.sha256(expected).hexdigest()}"
    assert saved.read_bytes() == expected


@pytest.mark.parametrize("size", [8 * MB, pytest.param(50 * MB, marks=pytest.mark.long)])
async def test_a_large_result_passes_by_the_memory_of_worker_and_gateway(
    nats_server: EmbeddedNats,
    programs: Programs,
    directories: Callable[[], list[Path]],
    tmp_path: Path,
    size: int,
) -> None:
    config = unique_config(nats_server.url)
    options = ("--flow-resolver", FLOWS, "--worker-id", "w1", "--concurrency", "1")
    with (
        gateway_process(programs, config) as gateway,
        programs.started("pyoco-worker", *options, **environment(config)) as worker,
        PyocoHttpClient(gateway.url) as client,
    ):
        worker.says("worker ready")
        run_and_read(client, MB // 10, tmp_path / "warm")
        grown = growth(gateway, worker, lambda: run_and_read(client, size, tmp_path / "value"))
        print(f"{size / MB:.0f} MB: gateway +{grown[0] / MB:.1f} MB, worker +{grown[1] / MB:.1f} MB")  # noqa: T201
        assert max(grown) < min(GROWS_BY, size)
        assert [file.name for directory in directories() for file in directory.iterdir()] == [LOCK]
    await delete_streams_of(config)


THREE_NODES: dict[str, Any] = {
    "nodes": {
        "a": {"type": "task", "flow": "bulky", "params": {"size": "${input.size}"}},
        "b": {"type": "task", "flow": "passing", "params": {"text": "${nodes.a.output.give}", "mark": "b"}},
        "c": {
            "type": "task",
            "flow": "passing",
            "params": {"text": "${nodes.b.output.hand_on}", "mark": "c"},
        },
    },
    "edges": [{"from": "a", "to": "b"}, {"from": "b", "to": "c"}],
}


def execute_and_read(client: PyocoHttpClient, size: int, path: Path) -> None:
    execution_id = client.executions.create("three", {"size": size})["execution_id"]
    made = until_now(
        lambda: client.executions.get(execution_id), lambda execution: execution["status"] != "ACTIVE"
    )
    assert made["status"] == "COMPLETED", made["error"]
    expected = b'"cb' + text_of(size)[1:]
    if size > MB:
        reference = made["result"]["c"]["hand_on"]
        assert made["values"] == [["result", "c", "hand_on"]]
        assert client.download_value(reference, path).read_bytes() == expected


def submit_and_read(client: PyocoHttpClient, size: int, path: Path) -> None:
    text = json.loads(text_of(size))
    run_id = client.submit_run("passing", {"text": text, "mark": "b"})["run_id"]
    run = until_now(lambda: client.get_run(run_id), lambda run: run["end_time"] is not None)
    assert run["status"] == "COMPLETED", run["error"]
    if size > MB:
        assert run["values"][0] == ["params", "text"]
        saved = client.download_value(run["result"]["hand_on"], path)
        assert saved.read_bytes() == b'"b' + text_of(size)[1:]


WAYS = {"nodes": execute_and_read, "params": submit_and_read}


@pytest.mark.parametrize("way", ["nodes", "params"])
@pytest.mark.parametrize("size", [8 * MB, pytest.param(50 * MB, marks=pytest.mark.long)])
async def test_a_large_value_passes_by_the_memory_between_nodes_and_into_params(
    nats_server: EmbeddedNats,
    programs: Programs,
    directories: Callable[[], list[Path]],
    tmp_path: Path,
    size: int,
    way: str,
) -> None:
    config = unique_config(nats_server.url)
    options = ("--flow-resolver", FLOWS, "--worker-id", "w1", "--concurrency", "1")
    with (
        gateway_process(programs, config) as gateway,
        programs.started("pyoco-worker", *options, **environment(config)) as worker,
        PyocoHttpClient(gateway.url) as client,
    ):
        worker.says("worker ready")
        client.put_graph("three", THREE_NODES)
        WAYS[way](client, MB // 100, tmp_path / "warm")
        grown = growth(gateway, worker, lambda: WAYS[way](client, size, tmp_path / "value"))
        print(f"{size / MB:.0f} MB: gateway +{grown[0] / MB:.1f} MB, worker +{grown[1] / MB:.1f} MB")  # noqa: T201
        assert max(grown) < min(GROWS_BY, size)
        assert [file.name for directory in directories() for file in directory.iterdir()] == [LOCK]
    await delete_streams_of(config)


async def test_what_a_killed_worker_left_on_disk_is_removed_by_the_next(
    labs: Labs, directories: Callable[[], list[Path]]
) -> None:
    lab = await labs()
    async with lab.worker() as worker:
        (directory,) = directories()
        (directory / "left").write_bytes(b"x")
        async with lab.worker("w3"):
            assert directory.exists(), "its worker lives"
        lab.programs.kill(worker.pid)
        until_now(lambda: worker.has_ended)
    assert directory.exists()
    async with lab.worker("w2"):
        assert not directory.exists()
