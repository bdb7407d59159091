"""Where the gateway listens: options that a container sets by its environment."""

from ipaddress import ip_address
from typing import Annotated

from cyclopts import Parameter

Host = Annotated[str, Parameter(env_var="PYOCO_HTTP_HOST", show_env_var=False)]
Port = Annotated[int, Parameter(env_var="PYOCO_HTTP_PORT", show_env_var=False)]

WILDCARDS = frozenset({"0.0.0.0", "::", ""})  # noqa: S104 - compared with, not listened on


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach what listens there."""
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def local_url(host: str, port: int) -> str:
    """How this machine reaches what listens there."""
    name = "127.0.0.1" if host in WILDCARDS else host
    return f"http://[{name}]:{port}" if ":" in name and not name.startswith("[") else f"http://{name}:{port}"
