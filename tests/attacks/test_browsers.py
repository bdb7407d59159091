"""A6: a page of somebody else, open in the browser of somebody who can reach the gateway, gets nothing done.

A gateway on a developer's machine has no keys: what the browser may send there, any page could make it send.
"""

import re
from typing import Any

import pytest
from starlette.routing import Route

from pyoco_server.cli.stack import for_this_machine
from pyoco_server.config import NatsBackendConfig
from pyoco_server.http_api.pages import SANDBOX_PATH
from support.builders import RUN_ID, a_snapshot
from support.gateway import memory_app, new_key
from support.wheels import a_wheel, wheel_name

OURS = "http://gateway"
RUN = {"flow_name": "f"}
FOREIGN_PAGES: list[dict[str, str]] = [
    {"Origin": "https://evil.example"},
    {"Origin": "http://gateway.evil.example"},
    {"Origin": "http://gateway:81"},
    {"Origin": "null"},
    {"Sec-Fetch-Site": "cross-site"},
    {"Sec-Fetch-Site": "same-site", "Origin": OURS},
]
OWN_PAGES: list[dict[str, str]] = [
    {},
    {"Origin": OURS},
    {"Origin": OURS, "Sec-Fetch-Site": "same-origin"},
    {"Sec-Fetch-Site": "none"},
]


@pytest.mark.parametrize("page", FOREIGN_PAGES)
async def test_a6_a_foreign_page_can_change_nothing(page: dict[str, str]) -> None:
    """ERR-PYOCO-0002: the requests that a browser sends without asking the gateway first."""
    async with memory_app() as gateway:
        await gateway.backend.runs.create(RUN_ID, a_snapshot())
        wheel: Any = {"wheel": (wheel_name(), a_wheel())}
        answers = [
            await gateway.client.post("/runs", headers={**page, "Content-Type": "text/plain"}, json=RUN),
            await gateway.client.post("/wheels", headers=page, files=wheel),
            await gateway.client.post(f"/runs/{RUN_ID}/cancel", headers=page),
        ]
        assert [(answer.status_code, answer.json()["err_id"]) for answer in answers] == [
            (403, "ERR-PYOCO-0002")
        ] * 3
        assert await gateway.backend.queue.run_ids() == set()
        assert (await gateway.client.get(f"/runs/{RUN_ID}")).json()["status"] == "PENDING"
        assert (await gateway.client.get("/wheels")).json() == []


@pytest.mark.parametrize("page", OWN_PAGES)
async def test_a6_programs_and_the_gateways_own_page_can(page: dict[str, str]) -> None:
    async with memory_app() as gateway:
        assert (await gateway.client.post("/runs", headers=page, json=RUN)).status_code == 200


async def test_a6_no_answer_is_readable_for_other_origins_nor_in_a_frame() -> None:
    async with memory_app() as gateway:
        page = {"Origin": "https://evil.example"}
        for method in ("GET", "OPTIONS"):
            answer = await gateway.client.request(
                method, "/runs", headers={**page, "Access-Control-Request-Method": "POST"}
            )
            assert not [name for name in answer.headers if name.startswith("access-control-")]
        policy = (await gateway.client.get("/")).headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy


async def test_a6_the_page_has_no_inline_script() -> None:
    async with memory_app() as gateway:
        text = (await gateway.client.get("/")).text.lower()
    assert "<script>" not in text
    assert "onclick=" not in text
    assert "javascript:" not in text


async def test_a6_what_belongs_to_a_tenant_is_kept_by_no_cache() -> None:
    async with memory_app(http_auth_mode="api_key") as gateway:
        ours = await new_key(gateway.backend.api_keys, "acme", "key-a")
        await gateway.backend.runs.create(RUN_ID, a_snapshot(tenant_id="acme"))
        for path in ("/runs", f"/runs/{RUN_ID}", f"/runs/{RUN_ID}/logs", "/metrics", "/wheels", "/runs/none"):
            answer = await gateway.client.get(path, headers=ours)
            assert answer.headers["cache-control"] == "no-store", path
            assert answer.headers["x-content-type-options"] == "nosniff", path
        refused = await gateway.client.get("/runs")
        assert (refused.status_code, refused.headers["cache-control"]) == (401, "no-store")
        assert (await gateway.client.get("/static/app.js")).headers["x-content-type-options"] == "nosniff"


# A name that is made to point here (DNS rebinding) makes a foreign page look like our own.


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8000", "127.0.0.1.evil.example", "", "[::2]"])
async def test_a6_on_a_machine_of_its_own_the_gateway_answers_to_its_own_names_only(host: str) -> None:
    config = for_this_machine(NatsBackendConfig(), "127.0.0.1")
    async with memory_app(allowed_hosts=config.allowed_hosts) as gateway:
        answer = await gateway.client.get("/runs", headers={"Host": host})
        assert (answer.status_code, answer.json()["err_id"]) == (403, "ERR-PYOCO-0002")
        assert "PYOCO_ALLOWED_HOSTS" in answer.json()["detail"]
        assert (await gateway.client.get("/health", headers={"Host": host})).status_code == 200


@pytest.mark.parametrize("host", ["127.0.0.1:8000", "localhost", "LOCALHOST:1", "[::1]:8000"])
async def test_a6_its_own_names_are_those_of_this_machine(host: str) -> None:
    config = for_this_machine(NatsBackendConfig(), "127.0.0.1")
    async with memory_app(allowed_hosts=config.allowed_hosts) as gateway:
        assert (await gateway.client.get("/runs", headers={"Host": host})).status_code == 200


@pytest.mark.parametrize(
    ("listens_on", "own"),
    [
        ("127.0.0.1", "localhost:8000"),
        ("127.0.0.2", "127.0.0.2:8000"),
        ("127.1", "127.0.0.1"),
        ("LOCALHOST", "Localhost:8000"),
        ("localhost", "localhost.:8000"),
        ("::1", "[::1]:8000"),
        ("[::1]", "[::1]"),
        ("::ffff:127.0.0.1", "127.0.0.1"),
    ],
)
async def test_a18_every_way_to_spell_loopback_is_guarded(listens_on: str, own: str) -> None:
    """D55: the guard was off for `--host ::1`, `127.0.0.2` and `LOCALHOST`."""
    config = for_this_machine(NatsBackendConfig(), listens_on)
    async with memory_app(allowed_hosts=config.allowed_hosts) as gateway:
        assert (await gateway.client.get("/runs", headers={"Host": own})).status_code == 200
        assert (await gateway.client.get("/runs", headers={"Host": "evil.example"})).status_code == 403


@pytest.mark.parametrize(
    ("settings", "listens_on"),
    [
        ({}, "192.0.2.1"),
        ({}, "0.0.0.0"),  # noqa: S104
        ({}, "::"),
        ({"http_auth_mode": "api_key"}, "127.0.0.1"),
        ({"allowed_hosts": "a,b"}, "127.0.0.1"),
    ],
)
def test_a6_elsewhere_the_operator_says_which_names(settings: dict[str, Any], listens_on: str) -> None:
    config = NatsBackendConfig(**settings)
    assert for_this_machine(config, listens_on) == config


async def test_a6_no_page_loads_anything_from_another_host() -> None:
    """Whatever the application answers as a page, documented or not."""
    async with memory_app() as gateway:
        documented = gateway.app.openapi()["paths"]
        paths = [route.path for route in gateway.app.router.routes if isinstance(route, Route)]
        answers = {path: await gateway.client.get(path) for path in paths if path not in documented}
        pages = {
            path: answer
            for path, answer in answers.items()
            if answer.headers["content-type"].startswith("text/html")
        }
        assert set(pages) == {"/", "/docs", SANDBOX_PATH}
        for path, answer in pages.items():
            assert re.findall(r"""(?:src|href|action|url)\s*[=(]\s*["']?(?:\w+:)?//""", answer.text) == [], (
                path
            )
            policy = answer.headers["content-security-policy"]
            if path == SANDBOX_PATH:  # of no origin; it shows what a task has saved, with its styles
                assert policy.startswith("sandbox allow-scripts; ")
                policy = policy.removeprefix("sandbox allow-scripts; ").replace(
                    "style-src 'unsafe-inline'", ""
                )
            assert policy.startswith("default-src 'none'; "), path
            assert "http" not in policy, path
            assert "unsafe" not in policy, path


async def test_a6_the_page_about_the_api_lists_every_call() -> None:
    async with memory_app() as gateway:
        page = (await gateway.client.get("/docs")).text
        for path, methods in gateway.app.openapi()["paths"].items():
            for method in methods:
                row = f"<code>{method.upper()}</code></td><td><code>{path}</code>"
                assert row in page
