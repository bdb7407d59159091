"""Real processes only, as a user starts them."""

import os

import pytest

CAMPAIGN = int(os.environ["PYOCO_TEST_CAMPAIGN"]) if "PYOCO_TEST_CAMPAIGN" in os.environ else None
"""Read before the tests' environment is cleared of everything that begins with PYOCO_."""


@pytest.fixture
def campaign() -> int | None:
    """How many runs a campaign has; None: as many as are right for every day."""
    return CAMPAIGN
