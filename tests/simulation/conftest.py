import logging
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def _quietly() -> Iterator[None]:
    """Worlds log what goes wrong in them, and much does."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)
