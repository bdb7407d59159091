"""D40: when the dashboard is built into a package, and what is said when it cannot be."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import hatch_build
from hatch_build import DashboardHook, has_node, is_stale, node_requirements
from tools.dependencies import ROOT, pinned

OLD, NEW = 1_000_000_000, 1_000_000_100


def write(path: Path, at: int, text: str = "") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    os.utime(path, (at, at))


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A checkout whose page was built after its sources were written."""
    root = tmp_path / "checkout"
    write(root / "web/src/main.tsx", OLD)
    write(root / "web/package.json", OLD, (ROOT / "web/package.json").read_text())
    write(root / "web/node_modules/preact/index.js", NEW + 1)
    write(root / "web/test/main.test.ts", NEW + 1)
    write(root / "requirements-node.lock", OLD, (ROOT / "requirements-node.lock").read_text())
    write(root / hatch_build.PAGE, NEW)
    return root


def test_a_page_newer_than_its_sources_stays(tree: Path) -> None:
    """What is installed or tested is not what it is built from."""
    assert not is_stale(tree)


def test_a_page_that_is_older_or_missing_is_built(tree: Path) -> None:
    write(tree / "web/src/main.tsx", NEW + 1)
    assert is_stale(tree)
    (tree / hatch_build.PAGE).unlink()
    assert is_stale(tree)


@pytest.mark.parametrize("change", ["sdist", "no sources"])
def test_an_sdist_and_a_copy_without_sources_keep_their_page(tree: Path, change: str) -> None:
    write(tree / "web/src/main.tsx", NEW + 1)
    if change == "sdist":
        write(tree / "PKG-INFO", OLD)
    else:
        shutil.rmtree(tree / "web")
    assert not is_stale(tree)
    (tree / hatch_build.PAGE).unlink()
    assert is_stale(tree)


# Node


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Gives the machine these programs and no others."""
    directory = tmp_path / "bin"
    directory.mkdir()
    monkeypatch.setenv("PATH", str(directory))

    def have(**scripts: str) -> None:
        for name, script in scripts.items():
            (directory / name).write_text(f"#!/bin/sh\n{script}\n")
            (directory / name).chmod(0o755)

    return have


@pytest.mark.parametrize(
    ("node", "npm", "usable"),
    [
        ("echo v20.19.0", "echo 10.8.2", True),
        ("echo v24.1.0", "echo 11.0.0", True),
        ("echo v20.18.3", "echo 10.8.2", False),
        ("echo v18.20.0", "echo 10.8.2", False),
        ("echo v24.1.0", "exit 1", False),
        ("echo no version is selected; exit 127", "echo 10.8.2", False),
    ],
)
def test_node_is_used_from_the_version_on_that_package_json_names(
    tree: Path, programs: Callable[..., None], node: str, npm: str, *, usable: bool
) -> None:
    programs(node=node, npm=npm)
    assert has_node(tree) == usable


def hook(root: Path, told: list[str]) -> DashboardHook:
    def abort(text: str) -> None:
        told.append(text)
        raise SystemExit(1)

    app: Any = SimpleNamespace(display_info=told.append, abort=abort)
    unused: Any = None
    return DashboardHook(str(root), {}, unused, unused, "", "wheel", app)


def test_node_is_a_build_requirement_only_where_it_is_needed(
    tree: Path, programs: Callable[..., None]
) -> None:
    assert hook(tree, []).dependencies() == []  # nothing to build
    (tree / hatch_build.PAGE).unlink()
    pins = {f"{name}=={version}" for name, version in pinned("requirements-node.lock").items()}
    assert set(hook(tree, []).dependencies()) == pins
    assert set(node_requirements(tree)) == pins
    programs(node="echo v24.1.0", npm="echo 11.0.0")
    assert hook(tree, []).dependencies() == []


def test_an_editable_install_builds_nothing(tree: Path, programs: Callable[..., None]) -> None:
    (tree / hatch_build.PAGE).unlink()
    told: list[str] = []
    hook(tree, told).initialize("editable", {})
    assert told == []


@pytest.mark.parametrize(
    ("npm", "reason"),
    [
        (None, "there is no usable Node with npm"),
        ('case "$*" in *install*) echo E503 registry >&2; exit 1;; esac; echo 11.0.0', "E503 registry"),
        ('case "$*" in *run*) echo syntax error; exit 1;; esac; mkdir -p web/node_modules', "syntax error"),
    ],
)
def test_a_page_that_cannot_be_built_stops_the_build_with_reason_and_advice(
    tree: Path,
    programs: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
    npm: str | None,
    reason: str,
) -> None:
    (tree / hatch_build.PAGE).unlink()
    if npm is not None:
        programs(node="echo v24.1.0", npm=f"{npm}; echo 11.0.0")
    told: list[str] = []
    with pytest.raises(SystemExit):
        hook(tree, told).initialize("standard", {})
    assert reason in told[-1]
    assert "an sdist of pyoco-server" in told[-1]


def test_without_sources_and_page_nothing_is_packed(tree: Path) -> None:
    (tree / hatch_build.PAGE).unlink()
    shutil.rmtree(tree / "web")
    told: list[str] = []
    with pytest.raises(SystemExit):
        hook(tree, told).initialize("standard", {})
    assert "web/) are not here" in told[-1]
