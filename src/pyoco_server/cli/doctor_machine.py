"""What `pyoco-server doctor` looks at on this machine: nothing has to run for it."""

import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Mapping
from difflib import get_close_matches
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement

from pyoco_server.cli import doctor_texts as texts
from pyoco_server.cli.findings import Finding, Level
from pyoco_server.config import COMMAND_VARIABLES, ENV_PREFIX, env_file, setting_names, unknown_names
from pyoco_server.errors import ConfigError
from pyoco_server.wiring import find_nats_server

OLDEST_PYTHON = (3, 11)
DISK_WARN_BYTES = 1024**3
DISK_FAIL_BYTES = 100 * 1024**2
NATS_SERVER_PATIENCE_SEC = 10.0


def check_python() -> Finding:
    fact = texts.PYTHON(version=platform.python_version(), platform=sys.platform)
    if sys.version_info >= OLDEST_PYTHON and sys.platform != "win32":
        return Finding("python", "OK", fact)
    return Finding("python", "FAIL", fact, texts.PYTHON_UNSUPPORTED())


def check_packages() -> Finding:
    """Whether what is installed now is what was needed when we were installed."""
    needed = [Requirement(text) for text in metadata.requires("pyoco-server") or []]
    applying = [wanted for wanted in needed if wanted.marker is None or wanted.marker.evaluate({"extra": ""})]
    problems = [problem for wanted in applying if (problem := _misfit(wanted))]
    if problems:
        told = texts.PACKAGES_WRONG(problems="; ".join(problems))
        return Finding("packages", "FAIL", told, texts.PACKAGES_ADVICE())
    own, pyoco = metadata.version("pyoco-server"), metadata.version("pyoco")
    return Finding("packages", "OK", texts.PACKAGES(own=own, pyoco=pyoco))


def _misfit(wanted: Requirement) -> str:
    try:
        installed = metadata.version(wanted.name)
    except metadata.PackageNotFoundError:
        return f"{wanted.name}: not installed, {wanted.specifier} needed"
    fits = wanted.specifier.contains(installed, prereleases=True)
    return "" if fits else f"{wanted.name} {installed}: {wanted.specifier} needed"


def bad_settings(error: ConfigError) -> list[Finding]:
    return [
        Finding("settings", "FAIL", texts.SETTING_WRONG(problem=problem), texts.SETTING_ADVICE())
        for problem in error.problems
    ]


def check_settings(environ: Mapping[str, str] = os.environ) -> list[Finding]:
    """Settings that can be used may still not be those that somebody meant."""
    unknown = [_unknown(name) for name in unknown_names(environ)]
    path = env_file(environ)
    file = texts.NO_ENV_FILE() if path is None else texts.ENV_FILE(path=path)
    count = sum(name.startswith(ENV_PREFIX) for name in environ)
    return [*unknown, Finding("settings", "OK", texts.SETTINGS(count=count, file=file))]


def _unknown(name: str) -> Finding:
    meant = get_close_matches(name, [*setting_names(), *COMMAND_VARIABLES], n=1)
    advice = texts.SETTING_MEANT(name=meant[0]) if meant else texts.SETTING_REMOVE()
    return Finding("settings", "WARN", texts.SETTING_UNKNOWN(name=name), advice)


def check_disk(directory: Path) -> Finding:
    """Of the directory where NATS keeps its data, or will."""
    there = next(path for path in (directory.absolute(), *directory.absolute().parents) if path.exists())
    if not os.access(there, os.W_OK):
        return Finding("disk", "FAIL", texts.DISK_READ_ONLY(path=there), texts.DISK_READ_ONLY_ADVICE())
    free = shutil.disk_usage(there).free
    fact = texts.DISK(free=f"{free / 1024**3:.1f} GiB", path=directory)
    if free >= DISK_WARN_BYTES:
        return Finding("disk", "OK", fact)
    return Finding("disk", "FAIL" if free < DISK_FAIL_BYTES else "WARN", fact, texts.DISK_LOW())


def check_nats_server(*, is_needed: bool) -> Finding:
    """The program; whoever has a NATS elsewhere can do without."""
    path = find_nats_server()
    bad: Level = "FAIL" if is_needed else "WARN"
    if path is None:
        return Finding("nats-server", bad, texts.NO_NATS_SERVER(), texts.NO_NATS_SERVER_ADVICE())
    try:
        version = subprocess.run(  # noqa: S603 - the program of the package
            [path, "--version"], capture_output=True, text=True, timeout=NATS_SERVER_PATIENCE_SEC, check=True
        ).stdout.strip()
    except (OSError, subprocess.SubprocessError) as error:
        told = texts.NATS_SERVER_BROKEN(path=path, reason=error)
        return Finding("nats-server", bad, told, texts.NO_NATS_SERVER_ADVICE())
    return Finding("nats-server", "OK", texts.NATS_SERVER(version=version, path=path))
