"""GitHub's public example payloads, of every kind of event, as signed webhooks with filters.

They come from the npm package @octokit/webhooks-examples and stay outside the tree. A sample for every day:
test_events_world.py.
"""

import json
import os
import shutil
import subprocess
import tarfile
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest

from support.events import (
    SECRET,
    SOURCES,
    TEMPLATES,
    URL,
    from_github,
    put,
    records,
    run_params,
    without_month,
)
from support.gateway import memory_app

pytestmark = pytest.mark.long

PACKAGE = "@octokit/webhooks-examples"
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "pyoco-server-tests"
LEAST = 274
"""There are more in each release."""
PASSING = "event_name != '' && (!has(event.action) || event.action != '') && source == 'gh'"


@pytest.fixture(scope="module")
def examples() -> list[tuple[str, dict[str, Any]]]:
    index = CACHE / "package" / "api.github.com" / "index.json"
    if not index.exists():
        download()
    kinds = json.loads(index.read_bytes())
    return [(kind["name"], payload) for kind in kinds for payload in kind["examples"]]


def download() -> None:
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("needs npm")
    CACHE.mkdir(parents=True, exist_ok=True)
    packed = subprocess.run(
        [npm, "pack", PACKAGE, "--json"], cwd=CACHE, capture_output=True, timeout=300, check=False
    )
    if packed.returncode != 0:
        pytest.skip(f"needs an npm registry with {PACKAGE}")
    with tarfile.open(CACHE / json.loads(packed.stdout)[0]["filename"]) as archive:
        archive.extractall(CACHE, filter="data")


async def test_every_example_payload_starts_its_template_or_is_a_ping(
    examples: list[tuple[str, dict[str, Any]]],
) -> None:
    assert len(examples) >= LEAST
    outcomes: Counter[str] = Counter()
    async with memory_app() as gateway:
        http = gateway.client
        await put(http, f"{SOURCES}/gh", {"kind": "github", "secrets": [SECRET]})
        for event in {event for event, _ in examples}:
            await put(http, f"/api/workflow-actions/{event}", {"flow_name": "flow"})
            await put(http, f"{TEMPLATES}/{event}", without_month(event, when=PASSING))
        for number, (event, payload) in enumerate(examples):
            body = msgspec.json.encode({**payload, "example": number})
            answer = await http.post(f"{URL}?signature_source=gh", **from_github(body, event))
            found = answer.json()
            assert answer.status_code == 200, (event, answer.text)
            outcomes[found.get("reason_code", "started")] += 1
            if event == "ping":
                assert (found["triggered"], found["reason_code"]) == (False, "ping")
            else:
                assert found["triggered"] is True, (event, answer.text)
                assert (await run_params(gateway, found["run_id"]))["event"] == msgspec.json.decode(body)
        assert len(records(gateway)) == len(examples), "each is audited"
    assert outcomes.total() == len(examples)
    assert set(outcomes) == {"started", "ping"}


async def test_every_example_payload_can_be_filtered_out(examples: list[tuple[str, dict[str, Any]]]) -> None:
    """By a value that it has, and by one that it lacks."""
    async with memory_app() as gateway:
        http = gateway.client
        await put(http, f"{SOURCES}/gh", {"kind": "github", "secrets": [SECRET], "template_id": "one"})
        await put(http, "/api/workflow-actions/any", {"flow_name": "flow"})
        for when in ("event.sender.login == ''", "event.no_such_member == 1"):
            await put(http, f"{TEMPLATES}/one", without_month("any", when=when))
            for event, payload in examples:
                body = msgspec.json.encode(payload)
                answer = await http.post(f"{URL}?signature_source=gh", **from_github(body, event))
                expected = "ping" if event == "ping" else "filtered"
                assert (answer.status_code, answer.json()["reason_code"]) == (200, expected), answer.text
