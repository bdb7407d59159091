"""A machine of somebody who installs: an empty home, an empty directory, a fresh environment."""

import os
import shutil
import subprocess
import sys
import venv
from collections.abc import Iterable
from pathlib import Path

from support.programs import FreshPrograms
from tools.dependencies import ROOT

INSTALL_TIMEOUT_SEC = 900


def build(target: str, source: Path, directory: Path) -> Path:
    """A `wheel` or `sdist`, made on a machine that has what the build needs."""
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", target, "-d", directory],
        cwd=source,
        env={**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"},
        check=True,
        timeout=INSTALL_TIMEOUT_SEC,
    )
    return max(directory.iterdir(), key=lambda path: path.stat().st_mtime_ns)


def built_wheels(directory: Path) -> list[Path]:
    """Of the server and of the thin client."""
    return [build("wheel", source, directory) for source in (ROOT, ROOT / "client")]


class Machine:
    def __init__(self, directory: Path, cache: Path, programs: Iterable[str] | None = None) -> None:
        """`programs`: only these, beside what is installed; None: those of the machine that tests."""
        self._environment = directory / "environment"
        venv.create(self._environment, with_pip=True, symlinks=True)
        for name in ("home", "empty"):
            (directory / name).mkdir()
        self._home = directory / "home"
        rest = os.environ["PATH"] if programs is None else str(_linked(directory / "bin", programs))
        self.path = f"{self.script('')}{os.pathsep}{rest}"
        self._settings = {"HOME": str(self._home), "PATH": self.path, "PIP_CACHE_DIR": str(cache)}
        self.programs = self.programs_in(directory / "empty")

    def programs_in(self, directory: Path) -> FreshPrograms:
        """Those that are installed here, with this home."""
        found = FreshPrograms(directory, **self._settings)
        found.scripts = self.script("")
        return found

    def offer(self, wheels: Iterable[Path], directory: Path) -> None:
        """As a package index that has these versions and no others of the same projects."""
        pinned = [wheel.name.split("-")[:2] for wheel in wheels]
        constraints = directory / "constraints.txt"
        constraints.write_text("".join(f"{name}=={version}\n" for name, version in pinned))
        places = {str(wheel.parent) for wheel in wheels} | {os.environ.get("PIP_FIND_LINKS", "")}
        self._settings |= {"PIP_FIND_LINKS": " ".join(places).strip(), "PIP_CONSTRAINT": str(constraints)}
        self.programs.environ |= self._settings

    def script(self, name: str) -> Path:
        return self._environment / "bin" / name

    def install(self, *arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [self.script("python"), "-m", "pip", "install", "--verbose", *arguments],
            cwd=self.programs.directory,
            env={**self.programs.environ, **environ},
            capture_output=True,
            text=True,
            timeout=INSTALL_TIMEOUT_SEC,
            check=False,
        )


def _linked(directory: Path, programs: Iterable[str]) -> Path:
    directory.mkdir()
    for program in programs:
        found = shutil.which(program)
        assert found is not None, program
        (directory / program).symlink_to(found)
    return directory
