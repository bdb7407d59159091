"""The server's HTTP interface for Python programs."""

from pyoco_server.http_client.client import PyocoHttpClient

__all__ = ["PyocoHttpClient"]
