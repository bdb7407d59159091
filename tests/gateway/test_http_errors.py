"""One table answers every error: status, ids and language."""

from collections.abc import Iterator

import pytest
from fastapi import FastAPI

from pyoco_server import errors
from pyoco_server.domain.codec import Unreadable
from pyoco_server.errors import PyocoServerError
from pyoco_server.http_api import errors as error_table
from pyoco_server.http_api.errors import preferred_language
from support.captured_logs import capture_logs
from support.gateway import running
from support.tables import every_row


def _kinds(base: type[PyocoServerError] = PyocoServerError) -> Iterator[type[PyocoServerError]]:
    for kind in base.__subclasses__():
        if kind.__module__.startswith(f"{errors.__name__}."):
            yield kind
        yield from _kinds(kind)


def app_that_raises(error: Exception) -> FastAPI:
    app = FastAPI()
    error_table.install(app)

    @app.get("/")
    async def raises() -> None:
        raise error

    return app


@pytest.mark.parametrize("kind", list(_kinds()), ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("language", ["ja", "en"])
async def test_every_error_is_answered_with_its_status_ids_and_text(
    kind: type[PyocoServerError], language: str
) -> None:
    async with running(app_that_raises(kind())) as client:
        answer = await client.get("/", headers={"Accept-Language": language})
    assert answer.status_code == kind().status
    more = {name: getattr(kind(), name) for name in ("code", "scope") if hasattr(kind(), name)}
    assert answer.json() == {
        **more,
        "detail": kind().detail,
        "err_id": kind.entry.err_id,
        "msg_id": kind.entry.msg_id,
        "message": getattr(kind.entry, language),
    }
    assert ("retry-after" in answer.headers) is (answer.status_code in (429, 503))


async def test_the_detail_is_the_cause_that_was_given() -> None:
    async with running(app_that_raises(errors.NatsUnavailable("nats unavailable: TimeoutError"))) as client:
        answer = await client.get("/")
    assert answer.json()["detail"] == "nats unavailable: TimeoutError"


async def test_a_fault_of_the_server_is_a_500_with_an_id_and_a_line_in_the_log() -> None:
    with capture_logs() as lines:
        async with running(app_that_raises(KeyError("oops"))) as client:
            answer = await client.get("/", headers={"Accept-Language": "ja"})
    assert answer.status_code == 500
    body = answer.json()
    assert body["err_id"] == "ERR-PYOCO-0091"
    assert body["detail"] == "KeyError; the log of the gateway has the details"
    assert body["message"] == "サーバー内部で予期しないエラーが発生しました"
    assert [line["err_id"] for line in lines if line.get("action") == "http.failed"] == ["ERR-PYOCO-0091"]


async def test_damaged_data_is_a_503_that_says_so() -> None:
    async with running(app_that_raises(Unreadable("run snapshot: broken"))) as client:
        answer = await client.get("/")
    assert answer.status_code == 503
    assert answer.json()["err_id"] == "ERR-PYOCO-0003"
    assert answer.json()["detail"] == "stored data is unreadable: run snapshot: broken"


@every_row(
    ("header", "expected"),
    [
        ("", "en"),
        ("ja", "ja"),
        ("ja-JP,ja;q=0.9,en;q=0.8", "ja"),
        ("en-US,en;q=0.9,ja;q=0.8", "en"),
        ("ja;q=0.4, en;q=0.5", "en"),
        ("fr, ja;q=0.1", "ja"),
        ("fr", "en"),
        ("*", "en"),
        ("ja;q=0", "en"),
        ("ja;q=nonsense, en;q=0.1", "en"),
        (" JA ", "ja"),
        (";;,,q=", "en"),
    ],
)
def test_the_language_is_the_one_the_client_prefers(header: str, expected: str) -> None:
    assert preferred_language(header) == expected
