"""What pyproject.toml requires and what the locks pin.

`python -m tools.dependencies` prints the oldest versions that are allowed, for `make test-lowest`.
"""

import re
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import NormalizedName, canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parents[1]
LOCKS = {
    "requirements.lock": (),
    "requirements-dev.lock": ("dev",),
    "requirements-docs.lock": ("docs",),
    "requirements-node.lock": ("node",),
}
"""Each lock and its dependency groups; all but Node's also pin the dependencies of the package."""
LINTERS = {"import-linter", "mypy", "ruff"}
"""Of the group `dev`, but of no test; they may require newer versions than the package does."""
_PIN = re.compile(r"^(?P<name>[\w.-]+)==(?P<version>[^\s;\\]+)", re.MULTILINE)


def project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def declared() -> list[Requirement]:
    """The dependencies of the package."""
    return [Requirement(text) for text in project()["project"]["dependencies"]]


def in_extras() -> list[Requirement]:
    """Those of the extras, which the tests need, too."""
    extras: dict[str, list[str]] = project()["project"]["optional-dependencies"]
    return [Requirement(text) for texts in extras.values() for text in texts]


def in_group(group: str) -> list[Requirement]:
    return [Requirement(text) for text in project()["dependency-groups"][group]]


def pinned(lock: str) -> dict[NormalizedName, Version]:
    found = _PIN.finditer((ROOT / lock).read_text())
    return {canonicalize_name(pin["name"]): Version(pin["version"]) for pin in found}


def unpinned(lock: str) -> list[str]:
    """The requirements that a lock does not meet: it was not written anew after a change."""
    pins = pinned(lock)
    wanted = [] if lock == "requirements-node.lock" else declared()
    wanted += [requirement for group in LOCKS[lock] for requirement in in_group(group)]
    wanted += in_extras() if lock == "requirements-dev.lock" else []
    return [str(requirement) for requirement in wanted if not _is_met(requirement, pins)]


def _is_met(requirement: Requirement, pins: dict[NormalizedName, Version]) -> bool:
    version = pins.get(canonicalize_name(requirement.name))
    return version is not None and requirement.specifier.contains(version, prereleases=True)


def lower_bound(requirement: Requirement) -> str:
    (bound,) = [one.version for one in requirement.specifier if one.operator in (">=", "==")]
    return bound


def lowest() -> Iterable[str]:
    """Every dependency at its lower bound, which must therefore exist; the tools of the tests as locked."""
    for requirement in [*declared(), *in_extras()]:
        marker = f"; {requirement.marker}" if requirement.marker else ""
        yield f"{requirement.name}=={lower_bound(requirement)}{marker}"
    pins = pinned("requirements-dev.lock")
    for tool in in_group("dev"):
        if tool.name in LINTERS:
            continue
        yield f"{tool.name}=={pins[canonicalize_name(tool.name)]}"


if __name__ == "__main__":
    print("\n".join(lowest()))
