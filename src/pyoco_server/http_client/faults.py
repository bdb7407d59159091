"""What goes wrong with a connection, as httpx2 calls it."""

import http.client
from collections.abc import Iterator
from contextlib import contextmanager

import httpx2


@contextmanager
def translated(too_slow: type[httpx2.TransportError], failed: type[httpx2.TransportError]) -> Iterator[None]:
    try:
        yield
    except (TimeoutError, BlockingIOError) as error:  # by Python's clock, or by the kernel's
        raise too_slow("timed out") from error
    except http.client.HTTPException as error:
        raise httpx2.RemoteProtocolError(str(error) or type(error).__name__) from error
    except OSError as error:
        raise failed(str(error)) from error
