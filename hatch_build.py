"""Builds the dashboard of `web/` into the package before a wheel or an sdist is packed.

Why and when: docs/decisions/0017-page-in-every-package.md
"""

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

PAGE = Path("src/pyoco_server/http_api/static/index.html")
WEB = Path("web")
NOT_BUILT_FROM = {"node_modules", "test"}
INSTALLED = WEB / "node_modules/.package-lock.json"
INSTALLED_FROM = ("package.json", "package-lock.json", ".npmrc")
NODE_LOCK = Path("requirements-node.lock")
ADVICE = """
The dashboard cannot be built: {problem}

Any of these helps:
  - install a wheel or an sdist of pyoco-server: both contain the dashboard, and neither needs Node
  - install Node with npm (its oldest version is in web/package.json), or let pip do it: without
    --no-build-isolation it installs Node for the build alone
  - make the npm registry reachable (npm config get registry), then run `make web` and try again
"""


class DashboardHook(BuildHookInterface[Any]):
    PLUGIN_NAME = "custom"

    def dependencies(self) -> list[str]:
        """Node as a build requirement, where the page has to be built and the machine has no usable Node."""
        root = Path(self.root)
        return node_requirements(root) if is_stale(root) and not has_node(root) else []

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:  # noqa: ARG002
        root = Path(self.root)
        if version == "editable" or not is_stale(root):
            return
        self.app.display_info("building the dashboard")
        problem = build(root)
        if problem:
            self.app.abort(ADVICE.format(problem=problem))


def is_stale(root: Path) -> bool:
    """Whether the page is missing, or older than its sources.

    An sdist (it has a PKG-INFO) and a copy without sources keep the page they have: their file times say
    nothing.
    """
    page = root / PAGE
    if not page.exists():
        return True
    if (root / "PKG-INFO").exists() or not (root / WEB).is_dir():
        return False
    return any(path.stat().st_mtime > page.stat().st_mtime for path in sources(root / WEB))


def sources(web: Path) -> list[Path]:
    tops = [top for top in web.iterdir() if top.name not in NOT_BUILT_FROM]
    return [path for top in tops for path in (top, *top.rglob("*")) if path.is_file()]


def needed_node(root: Path) -> tuple[int, ...]:
    """The oldest usable version, from package.json; (0,) where there are no sources."""
    try:
        engines = json.loads((root / WEB / "package.json").read_text(encoding="utf-8"))["engines"]
    except FileNotFoundError:
        return (0,)
    return tuple(map(int, engines["node"].removeprefix(">=").split(".")))


def has_node(root: Path) -> bool:
    found = re.match(r"v(\d+)\.(\d+)", _output("node", "--version"))
    return found is not None and tuple(map(int, found.groups())) >= needed_node(root) and bool(_npm_version())


def _npm_version() -> str:
    return _output("npm", "--version")


def _output(program: str, *arguments: str) -> str:
    """Empty if the program is missing or fails, as the shims of version managers do."""
    path = shutil.which(program)
    if path is None:
        return ""
    done = subprocess.run([path, *arguments], capture_output=True, text=True, check=False)  # noqa: S603
    return done.stdout if done.returncode == 0 else ""


def node_requirements(root: Path) -> list[str]:
    """Node from the package index, in the version that `make web` uses."""
    text = (root / NODE_LOCK).read_text(encoding="utf-8")
    return re.findall(r"^[\w.-]+==[\w.]+", text, re.MULTILINE)


def build(root: Path) -> str:
    """Returns the problem, or nothing."""
    web = root / WEB
    if not web.is_dir():
        return f"its sources ({WEB}/) are not here."
    if not has_node(root):
        return "there is no usable Node with npm."
    if not _is_installed(root):
        # Not `npm ci`: it requires the native parts of every other platform to be on the registry, too.
        problem = _npm(web, "install", "--no-save", "--no-audit", "--no-fund")
        if problem:
            return problem
        (root / INSTALLED).touch()
    problem = _npm(web, "run", "build")
    return problem or ("" if (root / PAGE).exists() else f"the build wrote no {PAGE}")


def _is_installed(root: Path) -> bool:
    installed = root / INSTALLED
    if not installed.exists():
        return False
    at = installed.stat().st_mtime
    return all((root / WEB / name).stat().st_mtime <= at for name in INSTALLED_FROM)


def _npm(web: Path, *arguments: str) -> str:
    npm = shutil.which("npm") or "npm"
    command = [npm, "--prefix", str(web), "--loglevel=error", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
    return "" if done.returncode == 0 else f"npm {arguments[0]} failed.\n{done.stdout}{done.stderr}"
