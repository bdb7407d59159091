"""REQ-0021: the shell completes commands and options of every program."""

import shutil
import subprocess
from functools import cache
from pathlib import Path
from typing import get_args

import cyclopts
import pytest

from pyoco_server import admin_cli
from pyoco_server.cli import client, server, worker
from pyoco_server.cli.terminal import Shell
from support.programs import Programs
from support.waiting import PATIENCE_SEC

APPS = (server.app, worker.app, client.app, admin_cli.app)

BASH = """
source {script}
COMP_WORDS=({words}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))
_{function}
printf '%s\\n' "${{COMPREPLY[@]}}"
"""


@cache
def script_of(program: str, directory: Path) -> Path:
    """As the program prints it."""
    done = Programs(directory).run(program, "--show-completion", "bash")
    assert done.returncode == 0, done.stderr
    path = directory / f"{program}.bash"
    path.write_text(done.stdout)
    return path


@pytest.fixture(scope="module")
def scripts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("scripts")


def completed(scripts: Path, *words: str) -> set[str]:
    """What bash offers for the last word."""
    quoted = " ".join(f"'{word}'" for word in words)
    script = BASH.format(
        script=script_of(words[0], scripts), words=quoted, function=words[0].replace("-", "_")
    )
    done = subprocess.run(
        ["bash", "-c", script], capture_output=True, text=True, timeout=PATIENCE_SEC, check=True
    )
    assert done.stderr == ""
    return {word.strip() for word in done.stdout.splitlines()}


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (("pyoco-server", "d"), {"demo", "doctor"}),
        pytest.param(("pyoco-server", "up", "--nats-h"), {"--nats-http-port"}, marks=pytest.mark.slow),
        pytest.param(("pyoco-worker", "--flow"), {"--flow-resolver", "--flows"}, marks=pytest.mark.slow),
        pytest.param(
            ("pyoco-client", "wheel-"),
            {"wheel-delete", "wheel-history", "wheel-upload"},
            marks=pytest.mark.slow,
        ),
        (("pyoco-client", "list-vnext", "--u"), {"--updated-after", "--updated-before"}),
        (("pyoco-client", "--server", "x", "list", "--output", ""), {"json", "table"}),
        pytest.param(("pyoco-server-admin", "api-key", "re"), {"revoke"}, marks=pytest.mark.slow),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else None,
)
def test_bash_completes(scripts: Path, words: tuple[str, ...], offered: set[str]) -> None:
    assert completed(scripts, *words) == offered


@pytest.mark.slow
@pytest.mark.parametrize("shell", get_args(Shell))
@pytest.mark.parametrize("app", APPS, ids=lambda app: app.name[0])
def test_every_program_has_a_script_for_every_shell(app: cyclopts.App, shell: Shell) -> None:
    script = app.generate_completion(shell=shell)
    assert app.name[0] in script
    if shutil.which(shell):
        subprocess.run([shell, "-n"], input=script, text=True, check=True)


def test_it_can_be_installed(programs: Programs) -> None:
    home = programs.directory
    done = programs.run("pyoco-client", "--install-completion", "--shell", "bash", HOME=str(home))
    assert done.returncode == 0, done.stderr
    installed = [path for path in home.rglob("*") if path.is_file() and "pyoco-client" in path.read_text()]
    assert installed


def test_an_unknown_shell_is_refused(programs: Programs) -> None:
    done = programs.run("pyoco-client", "--show-completion", "tcsh")
    assert (done.returncode, "bash" in done.stderr) == (1, True)
