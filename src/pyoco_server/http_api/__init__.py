"""The HTTP edge: a route parses, calls one use case, renders. Errors are raised; one table answers them."""

from pyoco_server.http_api.app import create_app

__all__ = ["create_app"]
