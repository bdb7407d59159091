"""What `make dist` refuses to hand over, and what `make audit` makes of its reports."""

import hashlib
import io
import json
import re
import tarfile
import zipfile
from collections.abc import Iterable
from contextlib import chdir
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hatchling.build import prepare_metadata_for_build_wheel

from tools.audit import is_acceptable, npm_findings, python_findings, shown
from tools.dependencies import ROOT
from tools.distribution import (
    OTHERS,
    PAGE,
    REGISTRIES,
    private_texts,
    problems,
    strip_registries,
    write_checksums,
)

PRIVATE = ["/home/somebody/", "packages.example"]
INDEX = b'<script src="/static/assets/index-1.js"></script>'


@cache
def metadata_text() -> str:
    """As hatchling writes it."""
    with chdir(ROOT), TemporaryDirectory() as directory:
        written = Path(directory, prepare_metadata_for_build_wheel(directory), "METADATA")
        return written.read_text()


def wheel_files() -> dict[str, bytes]:
    return {
        PAGE: INDEX,
        "pyoco_server/http_api/static/assets/index-1.js": b"",
        "pyoco_server-1.dist-info/licenses/LICENSE": b"MIT",
        "pyoco_server-1.dist-info/METADATA": metadata_text().encode(),
    }


def sdist_files() -> dict[str, bytes]:
    return {
        f"src/{PAGE}": INDEX,
        "src/pyoco_server/http_api/static/assets/index-1.js": b"",
        "LICENSE": b"MIT",
        "PKG-INFO": metadata_text().encode(),
    }


CLIENT = {"pyoco_server/http_client/client.py": b"", "pyoco_client-1.dist-info/licenses/LICENSE": b"MIT"}


def made(
    directory: Path, wheel: dict[str, bytes], sdist: dict[str, bytes], client: dict[str, bytes] = CLIENT
) -> Path:
    for distribution, files in (("pyoco_server", wheel), ("pyoco_client", client)):
        with zipfile.ZipFile(directory / f"{distribution}-1-py3-none-any.whl", "w") as archive:
            for name, content in files.items():
                archive.writestr(name, content)
    with tarfile.open(directory / "pyoco_server-1.tar.gz", "w:gz") as tar:
        for name, content in sdist.items():
            member = tarfile.TarInfo(f"pyoco_server-1/{name}")
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    for name in OTHERS:
        (directory / name).write_text("{}")
    return directory


def found(directory: Path, private: Iterable[str] = PRIVATE) -> str:
    return "\n".join(problems(directory, private))


def test_what_is_complete_passes(tmp_path: Path) -> None:
    assert found(made(tmp_path, wheel_files(), sdist_files())) == ""


@pytest.mark.parametrize("kind", ["whl", "tar.gz"])
@pytest.mark.parametrize(
    ("without", "expected"),
    [
        ("index.html", "no dashboard"),
        ("index-1.js", "the dashboard lacks assets/index-1.js"),
        ("LICENSE", "no LICENSE"),
    ],
)
def test_what_is_missing_is_found(tmp_path: Path, kind: str, without: str, expected: str) -> None:
    files = {"whl": wheel_files(), "tar.gz": sdist_files()}
    files[kind] = {name: content for name, content in files[kind].items() if not name.endswith(without)}
    assert re.fullmatch(rf"\S+\.{kind}: {expected}.*", found(made(tmp_path, files["whl"], files["tar.gz"])))


@pytest.mark.parametrize("name", ["tests/unit/test_x.py", "web/node_modules/preact/index.js", "tools/x.py"])
def test_what_is_for_developers_alone_is_found(tmp_path: Path, name: str) -> None:
    assert f"{name} does not belong into it" in found(
        made(tmp_path, wheel_files(), {**sdist_files(), name: b""})
    )


def test_a_client_with_parts_of_the_server_or_without_a_licence_is_found(tmp_path: Path) -> None:
    client = {"pyoco_server/wiring/gateway.py": b"import nats"}
    problems_found = found(made(tmp_path, wheel_files(), sdist_files(), client))
    assert "pyoco_server/wiring/gateway.py is a part of the server" in problems_found
    assert "pyoco_client-1-py3-none-any.whl: no LICENSE" in problems_found


@pytest.mark.parametrize("text", ["see /home/somebody/work", "from https://packages.example/simple"])
def test_names_of_the_machine_and_of_its_registries_are_found(tmp_path: Path, text: str) -> None:
    wheel = {**wheel_files(), "pyoco_server/x.py": text.encode()}
    directory = made(tmp_path, wheel, sdist_files())
    assert "pyoco_server/x.py contains" in found(directory)
    (directory / "openapi.json").write_text(text)
    assert "openapi.json contains" in found(directory)


def test_metadata_that_differs_from_pyproject_toml_is_found(tmp_path: Path) -> None:
    info = metadata_text().replace("Requires-Python: >=3.11", "Requires-Python: >=3.9")
    sdist = {**sdist_files(), "PKG-INFO": info.replace("; extra == 'otel'", "", 1).encode()}
    problems = found(made(tmp_path, wheel_files(), sdist))
    assert "Requires-Python: '>=3.9', not '>=3.11'" in problems
    assert problems.count("Requires-Dist: opentelemetry-exporter-otlp-proto-http<2,>=1.34") == 2


def test_a_wheel_alone_is_not_a_release(tmp_path: Path) -> None:
    directory = made(tmp_path, wheel_files(), sdist_files())
    (directory / "openapi.ts").unlink()
    assert found(directory) == "openapi.ts is missing"
    next(directory.glob("*.tar.gz")).unlink()
    assert "one of each is expected" in found(directory)


def test_this_checkout_and_the_usual_registries_are_private() -> None:
    texts = private_texts()
    assert texts >= {*REGISTRIES}
    assert f"{Path(__file__).parents[2]}/" in texts
    assert not [text for text in texts if len(text) < 4]


def test_an_sbom_keeps_its_packages_and_not_where_they_came_from(tmp_path: Path) -> None:
    site = {"type": "website", "url": "https://preactjs.example"}
    download = {"type": "distribution", "url": "https://packages.example/a"}
    document = {
        "metadata": {"tools": {"components": [{"name": "tool", "externalReferences": [download]}]}},
        "components": [{"name": "a", "purl": "pkg:npm/a@1", "externalReferences": [download, site]}],
    }
    path = tmp_path / "sbom.cdx.json"
    path.write_text(json.dumps(document))
    strip_registries(path)
    assert "packages.example" not in path.read_text()
    assert json.loads(path.read_text())["components"] == [
        {"name": "a", "purl": "pkg:npm/a@1", "externalReferences": [site]}
    ]


def test_checksums_are_those_of_sha256sum(tmp_path: Path) -> None:
    (tmp_path / "b").write_bytes(b"2")
    (tmp_path / "a").write_bytes(b"1")
    write_checksums(tmp_path)
    write_checksums(tmp_path)  # not of itself
    expected = [f"{hashlib.sha256(text).hexdigest()}  {name}" for name, text in (("a", b"1"), ("b", b"2"))]
    assert (tmp_path / "SHA256SUMS").read_text().splitlines() == expected


# Audit

VULNERABLE = {
    "dependencies": [
        {"name": "x", "version": "1", "vulns": [{"id": "PYSEC-1", "fix_versions": ["2"]}]},
        {"name": "y", "version": "1", "vulns": []},
    ]
}


def test_vulnerabilities_are_a_failure_with_their_fix() -> None:
    findings = python_findings(VULNERABLE)
    assert findings == ["x 1: PYSEC-1, fixed in ['2']"]
    assert not is_acceptable(findings, required=False)
    assert shown("lock", findings) == "lock: 1 known vulnerabilities\n  x 1: PYSEC-1, fixed in ['2']"
    npm = npm_findings({"vulnerabilities": {"z": {"range": "<3", "severity": "high"}}})
    assert npm == ["z <3: high"]


def test_no_vulnerabilities_are_a_success() -> None:
    assert python_findings({"dependencies": [{"name": "y", "version": "1", "vulns": []}]}) == []
    assert npm_findings({"vulnerabilities": {}}) == []
    assert is_acceptable([], required=True)


@pytest.mark.parametrize("report", [None, {}, [], {"error": {"code": "ENOTFOUND"}}])
def test_no_report_is_said_and_a_failure_only_where_it_is_required(report: Any) -> None:
    for findings in (python_findings(report), npm_findings(report)):
        assert findings is None
        assert "NOT CHECKED" in shown("lock", findings)
        assert is_acceptable(findings, required=False)
        assert not is_acceptable(findings, required=True)
