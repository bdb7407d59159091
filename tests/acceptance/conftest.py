"""Real processes only, as a user starts them."""

import os

import pytest

from support.machine import Machine, built_wheels

CAMPAIGN = int(os.environ["PYOCO_TEST_CAMPAIGN"]) if "PYOCO_TEST_CAMPAIGN" in os.environ else None
"""Read before the tests' environment is cleared of everything that begins with PYOCO_."""


@pytest.fixture
def campaign() -> int | None:
    """How many runs a campaign has; None: as many as are right for every day."""
    return CAMPAIGN


@pytest.fixture(scope="session")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Machine:
    """Has installed the wheel, as the tutorial begins, and nothing else."""
    directory = tmp_path_factory.mktemp("reader")
    machine = Machine(directory, tmp_path_factory.getbasetemp() / "pip-cache")
    machine.offer(built_wheels(directory / "dist"), directory)
    done = machine.install("pyoco-server")
    assert done.returncode == 0, done.stdout + done.stderr
    return machine
