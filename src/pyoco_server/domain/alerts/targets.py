"""Where messages may be sent: public addresses over TLS, unless a setting allows others.

Whoever may define a channel decides where the gateway connects to. Without these rules that would be any
service in the gateway's own network, or the metadata service of its cloud.
"""

from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address
from urllib.parse import SplitResult, urlsplit

from msgspec import Struct

from pyoco_server.errors import TargetRefused

MAX_URL = 2_000
MAX_HOST = 253
ALLOW = "PYOCO_ALERTS_ALLOW_PRIVATE=1 allows it"
_NAT64 = (0x0064FF9B << 96, 96)
_GLOBAL_UNICAST = IPv6Network("2000::/3")
"""Whatever else IPv6 has is for one network or not assigned; what Python calls global differs by version."""
_DEFAULT_PORTS = {"https": 443, "http": 80}


class Target(Struct, frozen=True):
    """The parts of a URL. `path` includes the query."""

    scheme: str
    host: str
    port: int
    path: str

    @property
    def authority(self) -> str:
        """As in the `Host` header."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _DEFAULT_PORTS[self.scheme] else f"{host}:{self.port}"


def parse_target(url: str, *, allow_private: bool) -> Target:
    """Raises TargetRefused, without the path: it may be a secret."""
    if not 1 <= len(url) <= MAX_URL or not url.isprintable() or " " in url or "\\" in url:
        raise TargetRefused(f"url: must be an https URL of at most {MAX_URL:,} characters")
    try:
        parts = urlsplit(url)
        port, host = parts.port, (parts.hostname or "").rstrip(".")
    except ValueError as error:
        raise TargetRefused(f"url: is not valid ({error})") from error
    _check_scheme(parts, allow_private=allow_private)
    if parts.username is not None or parts.password is not None:
        raise TargetRefused("url: must not have a user or a password")
    host = check_host(host, allow_private=allow_private)
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    if not path.isascii():
        raise TargetRefused("url: its path must be ASCII; escape other characters")
    return Target(parts.scheme, host, _DEFAULT_PORTS[parts.scheme] if port is None else port, path)


def _check_scheme(parts: SplitResult, *, allow_private: bool) -> None:
    if parts.scheme == "http" and not allow_private:
        raise TargetRefused(f"url: http is not allowed, because anybody on the way could read it; {ALLOW}")
    if parts.scheme not in _DEFAULT_PORTS:
        raise TargetRefused("url: must begin with https://")


def check_host(host: str, *, allow_private: bool) -> str:
    """A name or an address, as it is looked up. Raises TargetRefused."""
    try:
        host = host if host.isascii() else host.encode("idna").decode()
    except UnicodeError as error:
        raise TargetRefused("host: is not a valid name") from error
    if not 1 <= len(host) <= MAX_HOST or "%" in host:
        raise TargetRefused("host: is missing or not valid")
    if not allow_private and _is_private_name(host):
        raise TargetRefused(f"host: {host} is private; {ALLOW}")
    return host


def _is_private_name(host: str) -> bool:
    name = host.lower()
    if name == "localhost" or name.endswith((".localhost", ".internal", ".local")):
        return True
    address = _address(host)
    return address is not None and not is_public(address)


def check_addresses(host: str, addresses: list[str], *, allow_private: bool) -> None:
    """All addresses of a name: one of them is chosen later. Raises TargetRefused."""
    private = [one for one in addresses if (found := _address(one)) is None or not is_public(found)]
    if private and not allow_private:
        raise TargetRefused(f"host: {host} has the private address {private[0]}; {ALLOW}")


def is_public(address: IPv4Address | IPv6Address) -> bool:
    """Addresses that contain another one are judged by that."""
    if isinstance(address, IPv6Address):
        inner = _inner(address)
        if inner is not None:
            return is_public(inner)
        if address not in _GLOBAL_UNICAST:
            return False
    return address.is_global and not address.is_multicast


def _inner(address: IPv6Address) -> IPv4Address | None:
    network, bits = _NAT64
    if int(address) >> (128 - bits) == network >> (128 - bits):
        return IPv4Address(int(address) & 0xFFFFFFFF)
    if int(address) >> 32 == 0:  # "IPv4-compatible", which some systems still connect to
        return IPv4Address(int(address))
    return address.ipv4_mapped or address.sixtofour or (address.teredo[1] if address.teredo else None)


def _address(text: str) -> IPv4Address | IPv6Address | None:
    try:
        return ip_address(text.partition("%")[0])
    except ValueError:
        return None
