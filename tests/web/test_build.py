"""REQ-0020: what the dashboard is built to: small, self-contained, and part of the package."""

import gzip
import json
import os
import re
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

from pyoco_server.http_api import create_app
from pyoco_server.memory import open_memory_gateway_backend

ROOT = Path(__file__).parents[2]
MAX_GZIP_BYTES = 120_000
MAX_FIRST_GZIP_BYTES = 60_000
NAME = r"[a-zA-Z]+(?:-runtime)?-[\w-]{8}\.(?:js|css)"


def assets(built: Path) -> list[Path]:
    return [path for path in built.rglob("*") if path.is_file()]


def test_everything_together_is_small(built: Path) -> None:
    """All pages in one language: a browser never loads both."""
    sizes = {path.name: len(gzip.compress(path.read_bytes())) for path in assets(built)}
    languages = [size for name, size in sizes.items() if re.match(r"(en|ja)-", name)]
    assert len(languages) == 2
    assert sum(sizes.values()) - min(languages) < MAX_GZIP_BYTES


def test_names_carry_a_hash_and_somebody_names_them(built: Path) -> None:
    hashed = {path.name for path in (built / "assets").iterdir()}
    assert {Path(name).suffix for name in hashed} == {".js", ".css"}
    assert all(re.fullmatch(NAME, name) for name in hashed)
    assert named_in(built / "index.html", *(built / "assets").iterdir()) == hashed


def named_in(*files: Path) -> set[str]:
    return {name for path in files for name in re.findall(NAME, path.read_text())}


def test_the_page_loads_the_list_of_runs_and_the_others_when_they_are_shown(built: Path) -> None:
    """At first: what `index.html` names, and one language. The graphs and other pages are not part of it."""
    (english,) = (path.name for path in (built / "assets").glob("en-*.js"))
    at_first = {*named_in(built / "index.html"), english}
    size = sum(len(gzip.compress((built / "assets" / name).read_bytes())) for name in at_first)
    assert size < MAX_FIRST_GZIP_BYTES
    texts = "".join((built / "assets" / name).read_text() for name in at_first if name.endswith(".js"))
    assert "/runs/watch" in texts
    for path in ("/limits/{name}", "/queues/{tag}/pause", "/schedules/{schedule_id}", "/graphs/{graph_id}"):
        assert path not in texts


def test_the_page_has_nothing_inline_and_a_place_for_settings(built: Path) -> None:
    page = (built / "index.html").read_text()
    assert re.findall(r"<script(?![^>]*\bsrc=)|<style|\bstyle=|\bon\w+=", page) == []
    assert page.count('content="{}"') == 1
    assert page.count('<html lang="en"') == 1


def test_no_other_host_is_named(built: Path) -> None:
    """Names of XML vocabularies look like addresses and are none."""
    known = {"http://www.w3.org"}
    text = "".join(path.read_text() for path in assets(built))
    assert set(re.findall(r"https?://[\w.-]+", text)) - known == set()


def test_the_lock_names_no_registry() -> None:
    packages = json.loads((ROOT / "web/package-lock.json").read_text())["packages"]
    installed = {name: package for name, package in packages.items() if name}
    assert installed
    for name, package in installed.items():
        assert "resolved" not in package, name
        assert package.get("version"), name
        assert package.get("integrity"), name


def test_the_types_are_those_of_the_api(web: Path, tmp_path: Path) -> None:
    """Run `make types` when this fails."""
    document = create_app(open_backend=open_memory_gateway_backend).openapi()
    made = tmp_path / "schema.ts"
    scripts = sysconfig.get_path("scripts")
    subprocess.run(
        [web / "node_modules/.bin/openapi-typescript", "--output", made],
        input=json.dumps(document),
        text=True,
        check=True,
        capture_output=True,
        cwd=web,
        env={**os.environ, "PATH": f"{scripts}{os.pathsep}{os.environ['PATH']}"},
    )
    assert made.read_text() == (web / "src/api/schema.ts").read_text()


@pytest.fixture(scope="module")
def distributions(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("dist")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-d", out], cwd=ROOT, check=True, capture_output=True
    )
    return out


def test_the_wheel_has_the_dashboard_in_it(built: Path, distributions: Path) -> None:
    (wheel,) = distributions.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    expected = {f"pyoco_server/http_api/static/{path.relative_to(built)}" for path in assets(built)}
    assert expected <= set(names)
    assert not [name for name in names if "node_modules" in name or name.endswith((".ts", ".tsx"))]


def test_the_source_distribution_has_it_built_and_its_source(built: Path, distributions: Path) -> None:
    (archive,) = distributions.glob("*.tar.gz")
    listed = subprocess.run(["tar", "tzf", archive], check=True, capture_output=True, text=True).stdout
    assert "/src/pyoco_server/http_api/static/index.html" in listed
    assert "/web/package-lock.json" in listed
    assert "node_modules" not in listed
