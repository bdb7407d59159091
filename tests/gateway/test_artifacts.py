"""Artifacts: from the task that saves them to the client that reads them."""

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyoco import Flow, task

from pyoco_server import artifact
from pyoco_server.config import NatsBackendConfig
from pyoco_server.domain.artifacts import BINARY, MAX_ARTIFACTS, RunArtifact, problem_with, refusal_of
from pyoco_server.domain.large_values import owned_as_artifact
from pyoco_server.http_client import NotFound, PyocoHttpClient
from pyoco_server.testing import LocalServer
from support.builders import NOW, RUN_ID, a_snapshot
from support.gateway import memory_app, new_key
from support.tables import every_row

HTML = "<script>alert(1)</script>ä".encode()


@task
def report(directory: str) -> None:
    artifact.save("report.html", HTML)
    path = Path(directory) / "rows.csv"
    path.write_bytes(b"a,b\n" * 100_000)
    artifact.save("Zeilen & mehr.csv", path, type="text/csv; charset=utf-8")
    artifact.save("report.html", HTML + b"2")


@task
def saves(name: str, size: int, media_type: str | None = None) -> str:
    try:
        artifact.save(name, b"x" * size, type=media_type)
    except (RuntimeError, ValueError, OSError) as error:
        return f"{type(error).__name__}: {error}"
    return "saved"


@task
def saves_file(path: str) -> str:
    try:
        artifact.save("a", path)
    except OSError as error:
        return type(error).__name__
    return "saved"


@task
def fails() -> None:
    artifact.save("trace.txt", b"what led to it")
    raise ValueError("no")


FLOWS = [
    Flow(name="report") >> report,
    Flow(name="saves") >> saves,
    Flow(name="saves_file") >> saves_file,
    Flow(name="fails") >> fails,
]


@pytest.fixture(scope="module")
def server() -> Iterator[LocalServer]:
    quota: dict[str, Any] = {
        "artifacts_max_bytes_per_run": 2_000_000,
        "artifacts_max_bytes_per_tenant": 3_000_000,
    }
    with LocalServer(FLOWS, config=NatsBackendConfig(**quota)) as running:
        yield running


@pytest.fixture(scope="module")
def client(server: LocalServer) -> PyocoHttpClient:
    return server.client


def ended(client: PyocoHttpClient, flow: str, **params: Any) -> Any:
    run_id = client.submit_run(flow, params)["run_id"]
    *_, last = client.watch_run(run_id)
    return client.get_run(last["run_id"])


def test_what_a_task_saves_is_listed_and_read(client: PyocoHttpClient, tmp_path: Path) -> None:
    run = ended(client, "report", directory=str(tmp_path))
    (tmp_path / "rows.csv").unlink()
    items = client.list_artifacts(run["run_id"])["items"]
    assert items == run["artifacts"]
    csv = b"a,b\n" * 100_000
    assert [(one["name"], one["size"], one["type"], one["task"]) for one in items] == [
        ("Zeilen & mehr.csv", len(csv), "text/csv; charset=utf-8", "report"),
        ("report.html", len(HTML) + 1, "text/html", "report"),
    ]
    assert items[0]["sha256"] == hashlib.sha256(csv).hexdigest()
    assert client.get_artifact(run["run_id"], "report.html") == HTML + b"2"
    saved = client.download_artifact(run["run_id"], "Zeilen & mehr.csv", tmp_path / "saved")
    assert saved.read_bytes() == csv
    with pytest.raises(NotFound):
        client.get_artifact(run["run_id"], "other")


def test_a_failed_run_keeps_what_it_has_saved(client: PyocoHttpClient) -> None:
    run = ended(client, "fails")
    assert run["status"] == "FAILED"
    assert client.get_artifact(run["run_id"], "trace.txt") == b"what led to it"


@every_row(
    ("params", "outcome"),
    [
        (
            {"name": "../up", "size": 1},
            "ValueError: artifact.save: '../up' cannot be the name of",
        ),
        ({"name": "a\nb", "size": 1}, "ValueError: artifact.save: 'a\\nb' cannot be the name"),
        (
            {"name": "", "size": 1},
            "ValueError: artifact.save: the name of an artifact has 1 to 128",
        ),
        ({"name": "a", "size": 1, "media_type": "text/html\nX: y"}, "is not a media type"),
        (
            {"name": "a", "size": 2_000_001},
            "RuntimeError: artifact.save('a'): artifact 'a' has 2,000,001",
        ),
        ({"name": "a", "size": 2_000_000}, "saved"),
        ({"name": "b", "size": 1_900_000}, "(PYOCO_ARTIFACTS_MAX_BYTES_PER_TENANT)"),
    ],
)
def test_what_cannot_be_saved_raises_in_the_task(
    client: PyocoHttpClient, params: dict[str, Any], outcome: str
) -> None:
    if params["size"] == 1_900_000:
        ended(client, "saves", name="first", size=2_000_000)
    assert outcome in ended(client, "saves", **params)["result"]["saves"]


def test_only_files_can_be_saved(client: PyocoHttpClient, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    found = [
        ended(client, "saves_file", path=str(path))["result"]["saves_file"]
        for path in (tmp_path / "missing", tmp_path, tmp_path / "pipe")
    ]
    assert found == ["FileNotFoundError", "OSError", "OSError"]


def saved(name: str, size: int) -> RunArtifact:
    return RunArtifact(name, size, "text/plain", name, "t", NOW)


@every_row(
    ("others", "new", "of_tenant", "is_refused"),
    [
        ([("a", 60)], ("b", 40), 60, False),
        ([("a", 60)], ("b", 41), 60, True),
        ([("a", 60)], ("a", 100), 60, False),
        ([], ("a", 100), 901, True),
        ([(str(n), 0) for n in range(MAX_ARTIFACTS)], ("a", 0), 0, True),
        ([(str(n), 0) for n in range(MAX_ARTIFACTS)], ("7", 0), 0, False),
    ],
)
def test_quotas(
    others: list[tuple[str, int]], new: tuple[str, int], of_tenant: int, *, is_refused: bool
) -> None:
    refusal = refusal_of([saved(*one) for one in others], saved(*new), 100, of_tenant, 1000)
    assert (refusal is not None) is is_refused


def test_names() -> None:
    for name in ("a", "ä b.html", ".hidden", "x" * 128):
        assert problem_with(name, BINARY) is None
    for name in ("", ".", "..", "a/b", "a\\b", " a", "a\x00", "a\u2028", "\ud800", "x" * 129):
        assert problem_with(name, BINARY) is not None


async def test_content_is_sent_so_that_no_browser_runs_it() -> None:
    async with memory_app(http_auth_mode="api_key") as gateway:

        async def pieces() -> Any:
            yield HTML

        owner = owned_as_artifact(RUN_ID)
        value = await gateway.backend.values.put("acme", owner, BINARY, pieces())
        item = RunArtifact("r ü.html", len(HTML), "text/html", value.sha256, "t", NOW)
        await gateway.backend.runs.create(RUN_ID, a_snapshot(tenant_id="acme", artifacts=(item,)))
        headers = await new_key(gateway.backend.api_keys, "acme", "key-1", "read")
        path = f"/runs/{RUN_ID}/artifacts/r%20%C3%BC.html"
        answer = await gateway.client.get(path, headers=headers)
        assert (answer.status_code, answer.content) == (200, HTML)
        assert answer.headers["Content-Disposition"] == "attachment; filename*=UTF-8''r%20%C3%BC.html"
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        assert answer.headers["Content-Security-Policy"].startswith("sandbox; default-src 'none'")
        inline = await gateway.client.get(path, headers=headers, params={"inline": "true"})
        assert inline.headers["Content-Disposition"].startswith("inline; ")
        assert inline.headers["Content-Security-Policy"] == answer.headers["Content-Security-Policy"]
        assert inline.headers["Content-Type"] == "text/html; charset=utf-8"
        part = await gateway.client.get(path, headers=headers | {"Range": "bytes=1-6"})
        assert (part.status_code, part.content) == (206, HTML[1:7])
        beyond = await gateway.client.get(path, headers=headers | {"Range": "bytes=99-"})
        assert beyond.status_code == 416
        by_hash = await gateway.client.get(f"/values/{value.sha256}", headers=headers)
        assert by_hash.headers["Content-Type"] == BINARY, "not as a page"
        for who in (
            await new_key(gateway.backend.api_keys, "other", "key-2"),
            await new_key(gateway.backend.api_keys, "acme", "key-3", "submit"),
        ):
            for one in (path, f"/runs/{RUN_ID}/artifacts"):
                status = (await gateway.client.get(one, headers=who)).status_code
                assert status == (404 if "key-2" in who["X-API-Key"] else 403)


def test_outside_of_a_run_nothing_is_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    artifact.save("a", b"x")
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ValueError, match=r"'a/b' cannot be the name"):
        artifact.save("a/b", b"x")
