"""The distribution `pyoco-client`: what it contains, what it needs, and what an import costs."""

import ast
import inspect
import json
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cyclopts
import pytest

import pyoco_client
import pyoco_server
from pyoco_server.cli.client import app
from support.tables import every_row

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src"
PROJECT = tomllib.loads((ROOT / "client" / "pyproject.toml").read_text())
SERVER = tomllib.loads((ROOT / "pyproject.toml").read_text())
ONLY_POSIX = {"crypt", "fcntl", "grp", "nis", "posix", "pty", "pwd", "resource", "syslog", "termios", "tty"}
"""Modules that Windows lacks."""
NOT_TAKEN = ("TYPE_CHECKING", "sys.platform != 'win32'")


def file_of(module: str) -> Path | None:
    path = SOURCE / Path(*module.split("."))
    found = [file for file in (path.with_suffix(".py"), path / "__init__.py") if file.is_file()]
    return found[0] if found else None


def run_time_imports(tree: ast.AST) -> Iterator[ast.Import | ast.ImportFrom]:
    """All of them, those in functions too, without those for types or for other platforms alone."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) in (
            "TYPE_CHECKING",
            "sys.platform != 'win32'",
        ):
            continue
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield node
        yield from run_time_imports(node)


def imported_by(file: Path) -> set[str]:
    names: set[str] = set()
    for node in run_time_imports(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        else:
            assert node.module is not None, f"{file}: relative import"
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return names


def with_packages(module: str) -> Iterator[str]:
    parts = module.split(".")
    for count in range(1, len(parts) + 1):
        yield ".".join(parts[:count])


def closure(*modules: str) -> set[Path]:
    """The files of this package that are imported, sooner or later."""
    waiting = {part for module in modules for part in with_packages(module)}
    files: set[Path] = set()
    while waiting:
        file = file_of(waiting.pop())
        if file is not None and file not in files:
            files.add(file)
            waiting |= {part for name in imported_by(file) for part in with_packages(name)}
    return files


CONTENT = closure("pyoco_server.http_client", "pyoco_server.cli.client", "pyoco_server.task_helpers")
"""With the helpers of tasks: flows are also tested where only the client is installed."""
DATA = {"pyoco_server/py.typed", "pyoco_server/cli/help.ja.json"}


def test_the_wheel_contains_what_the_client_imports_and_nothing_else() -> None:
    listed: dict[str, str] = PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["force-include"]
    wanted = {file.relative_to(SOURCE).as_posix() for file in CONTENT} | DATA
    assert set(listed.values()) == wanted
    assert all(source == f"../src/{target}" for source, target in listed.items())


def test_no_part_of_the_server_is_in_it() -> None:
    rooms = {file.relative_to(SOURCE / "pyoco_server").parts[0] for file in CONTENT}
    assert not rooms & {"http_api", "jetstream", "engine", "worker", "wiring", "usecases", "read_model"}


def test_the_client_runs_on_windows() -> None:
    for file in CONTENT:
        assert not imported_by(file) & ONLY_POSIX, file


def test_its_packages_have_the_bounds_of_the_server() -> None:
    project = PROJECT["project"]
    assert {*project["dependencies"], *project["optional-dependencies"]["terminal"]} <= set(
        SERVER["project"]["dependencies"]
    )
    assert (ROOT / "client" / "LICENSE").read_text() == (ROOT / "LICENSE").read_text()


# Imports


def modules_after(program: str) -> set[str]:
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; {program}; import json; print(json.dumps(sorted(sys.modules)))"],
        capture_output=True,
        text=True,
        check=True,
    )
    return set(json.loads(done.stdout))


def test_importing_the_client_imports_neither_a_server_nor_an_http_library() -> None:
    """The time depends on what is imported; `bench/client_import.py` measures it."""
    heavy = {"fastapi", "pydantic", "nats", "pyoco", "httpx2", "httptools", "msgspec", "asyncio", "ssl"}
    assert not modules_after("import pyoco_server.http_client") & heavy
    assert not modules_after("from pyoco_server import PyocoHttpClient, AsyncPyocoHttpClient") & heavy


# Two distributions


@pytest.mark.parametrize(
    ("installed", "warned"),
    [
        (["pyoco_server-1.0.dist-info"], []),
        (["pyoco_server-1.0.dist-info", "pyoco_client-1.0.dist-info", "other-2.0.dist-info"], []),
        (
            ["pyoco_server-1.0.dist-info", "pyoco_client-1.1.dist-info"],
            ["pyoco_client-1.1 and pyoco_server-1.0"],
        ),
    ],
)
def test_two_versions_side_by_side_are_a_warning(
    tmp_path: Path, recwarn: pytest.WarningsRecorder, installed: list[str], warned: list[str]
) -> None:
    for name in installed:
        (tmp_path / name).mkdir()
    pyoco_server._warn_of_two_versions(tmp_path)
    assert [str(warning.message).partition(" are ")[0] for warning in recwarn] == warned


def test_a_name_of_the_server_says_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(pyoco_server._MODULES, "PyocoNatsWorker", "no_such_module")
    with pytest.raises(ModuleNotFoundError, match="no_such_module"):
        _ = pyoco_server.PyocoNatsWorker
    monkeypatch.setattr(pyoco_server, "_is_whole", lambda _: False)
    with pytest.raises(ImportError, match="PyocoNatsWorker is part of pyoco-server"):
        _ = pyoco_server.PyocoNatsWorker


# The command


def commands_of(app: cyclopts.App, prefix: str = "") -> Iterator[str]:
    for name in app:
        if not name.startswith("-"):
            inner = [*commands_of(app[name], f"{prefix}{name} ")]
            yield from inner or [f"{prefix}{name}"]


def test_the_thin_command_has_all_commands() -> None:
    assert set(pyoco_client.COMMANDS) == set(commands_of(app))


@every_row("name", pyoco_client.COMMANDS)
def test_a_command_has_the_same_options_in_both(name: str) -> None:
    command: Any = app
    for word in name.split():
        command = command[word]
    arguments = [argument for argument in command.assemble_argument_collection() if argument.parse]
    known = {
        option for argument in arguments for option in argument.names if argument.show and option[0] == "-"
    }
    ours = [option for option in pyoco_client.COMMANDS[name].options if not option.is_rest]
    assert {f"--{option.name}" for option in ours} | {
        option.short for option in ours if option.short
    } == known
    places = [a.name for a in arguments if a.field_info.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD]
    assert [f"--{option.name}" for option in ours if option.has_place] == places
    required = {argument.name for argument in arguments if argument.required}
    assert {f"--{option.name}" for option in ours if option.is_required} == required


@pytest.mark.parametrize(
    "arguments", [[], ["nothing"], ["submit"], ["submit", "--flow-name", "a", "--params", "[1]"]]
)
def test_wrong_arguments_end_with_1_and_the_id_of_the_error(
    capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    assert pyoco_client.run(arguments) == 1
    assert "ERR-PYOCO-0018" in capsys.readouterr().err
    assert pyoco_client.run([*arguments, "--output", "json"]) == 1
    assert json.loads(capsys.readouterr().err)["error"]["err_id"] == "ERR-PYOCO-0018"


def test_a_run_id_has_a_name_or_none(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["get", "a", "--records"], ["get", "--records", "--run-id", "a"]):
        assert pyoco_client.parser().parse_args(arguments).run_id == "a"
    for arguments in (["cancel", "a"], ["cancel", "--run-id", "a"]):
        assert pyoco_client.parser().parse_args(arguments).run_id == "a"
    assert pyoco_client.run(["get"]) == 1
    assert "RUN_ID is missing" in capsys.readouterr().err
