"""Who sent a request."""

from fastapi import Request

from pyoco_server.usecases.callers import ANONYMOUS, Caller


def caller_of(request: Request) -> Caller:
    """As the auth middleware found out; with auth off, everybody is the same."""
    caller: Caller = getattr(request.state, "caller", ANONYMOUS)
    return caller
