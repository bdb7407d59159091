"""The public names of the package."""

import subprocess
import sys
from importlib import import_module
from importlib.metadata import distribution

import pytest

import pyoco_server


def test_every_name_in_all_can_be_imported_and_is_listed() -> None:
    for name in pyoco_server.__all__:
        assert getattr(pyoco_server, name).__name__ == name
        assert name in dir(pyoco_server)


def test_all_names_exactly_the_lazy_exports() -> None:
    assert set(pyoco_server.__all__) == set(pyoco_server._MODULES)
    assert pyoco_server.__all__ == sorted(pyoco_server.__all__)


def test_the_names_of_the_contract_are_there() -> None:
    assert set(pyoco_server.__all__) >= {
        "NatsBackendConfig",
        "PyocoHttpClient",
        "PyocoNatsClient",
        "PyocoNatsWorker",
        "configure_logging",
        "ensure_resources",
    }


def test_a_name_that_does_not_exist_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'Nonsense'"):
        _ = pyoco_server.Nonsense


def test_a_client_does_not_pay_for_the_imports_of_the_server() -> None:
    program = (
        "import sys, pyoco_server; pyoco_server.PyocoHttpClient; "
        "print({'fastapi', 'nats', 'pyoco'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


@pytest.mark.parametrize(
    "module",
    ["pyoco_server.cli.worker", "pyoco_server.cli.client", "pyoco_server.cli.server", "pyoco_server.worker"],
)
def test_only_a_gateway_imports_the_web_framework(module: str) -> None:
    program = f"import sys, {module}; print({{'fastapi', 'pydantic', 'uvicorn'}} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


PUBLIC = [
    ("pyoco_server.config", "NatsBackendConfig"),
    ("pyoco_server.http_api", "create_app"),
    ("pyoco_server.worker", "PyocoNatsWorker"),
    ("pyoco_server.http_client", "PyocoHttpClient"),
    ("pyoco_server.admin_cli", "main"),
]


@pytest.mark.parametrize(("module", "name"), PUBLIC)
def test_the_public_paths_of_the_contract_are_there(module: str, name: str) -> None:
    assert callable(getattr(import_module(module), name))


def test_the_console_scripts_of_the_contract_are_there() -> None:
    scripts = {
        script.name for script in distribution("pyoco-server").entry_points.select(group="console_scripts")
    }
    assert scripts == {"pyoco-server", "pyoco-worker", "pyoco-client", "pyoco-server-admin"}
