"""A real nats-server that wants a login, TLS or both; keys and certificates are made for the test."""

import base64
import hashlib
import json
import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import nkeys

from pyoco_server.wiring import find_nats_server
from support.nats_server import free_port
from support.waiting import until_now

# Certificates


class Authority:
    """A private CA, made by openssl: nothing with an end date is kept in the repository."""

    def __init__(self, directory: Path, name: str = "ca") -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._directory = directory
        self.certificate = directory / f"{name}.pem"
        self._key = directory / f"{name}-key.pem"
        _openssl(
            "req", "-x509", *_NEW_KEY, "-keyout", self._key, "-out", self.certificate, *_CA, "-days", "2"
        )

    def issue(self, name: str, *, days: int = 2, passphrase: str = "") -> tuple[Path, Path]:
        """A certificate for loopback, and its key."""
        certificate, key = self._directory / f"{name}.pem", self._directory / f"{name}-key.pem"
        request, extensions = self._directory / f"{name}.csr", self._directory / f"{name}.ext"
        extensions.write_text(_LEAF)
        _openssl("req", "-new", *_NEW_KEY, "-keyout", key, "-out", request, "-subj", f"/CN={name}")
        _openssl(
            *("x509", "-req", "-in", request, "-CA", self.certificate, "-CAkey", self._key),
            *("-days", str(days), "-extfile", extensions, "-out", certificate),
        )
        if passphrase:
            _openssl("ec", "-in", key, "-aes256", "-passout", f"pass:{passphrase}", "-out", key)
        return certificate, key


_NEW_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")
_CA = (
    *("-subj", "/CN=test CA", "-addext", "basicConstraints=critical,CA:TRUE"),
    *("-addext", "keyUsage=critical,keyCertSign,cRLSign"),
)
_LEAF = "subjectAltName=DNS:localhost,IP:127.0.0.1\nauthorityKeyIdentifier=keyid\n"
"""What RFC 5280 demands: from 3.13 on, Python refuses certificates without it."""


def _openssl(*arguments: str | Path) -> None:
    subprocess.run(["openssl", *map(str, arguments)], check=True, capture_output=True)


# Keys, and tokens signed with them


class Key:
    """An nkey: of an operator, an account or a user."""

    def __init__(self, kind: int) -> None:
        self._seed = nkeys.encode_seed(os.urandom(32), kind)
        self._pair = nkeys.from_seed(bytearray(self._seed))

    @property
    def seed(self) -> str:
        return bytes(self._seed).decode()

    @property
    def public(self) -> str:
        return bytes(self._pair.public_key).decode()

    def token(self, subject: str, name: str, nats: dict[str, Any], **claims: Any) -> str:
        """A JWT about `subject`, signed by this key."""
        body = {"iat": int(time.time()), "iss": self.public, "name": name, "sub": subject, **claims}
        body["jti"] = base64.b32encode(hashlib.sha256(name.encode()).digest()).decode().rstrip("=")
        body["nats"] = {**nats, "version": 2}
        signed = f"{_coded({'typ': 'JWT', 'alg': 'ed25519-nkey'})}.{_coded(body)}"
        return f"{signed}.{_base64(self._pair.sign(signed.encode()))}"


def user_key() -> Key:
    return Key(nkeys.PREFIX_BYTE_USER)


def _coded(value: dict[str, Any]) -> str:
    return _base64(json.dumps(value).encode())


def _base64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


_LIMITS = dict.fromkeys(("subs", "data", "payload", "imports", "exports", "conn", "leaf"), -1)
_STORAGE = dict.fromkeys(("mem_storage", "disk_storage", "streams", "consumer"), -1)


@dataclass
class Operator:
    """An operator with an account for pyoco-server: what `nsc` would set up."""

    key: Key = field(default_factory=lambda: Key(nkeys.PREFIX_BYTE_OPERATOR))
    system: Key = field(default_factory=lambda: Key(nkeys.PREFIX_BYTE_ACCOUNT))
    account: Key = field(default_factory=lambda: Key(nkeys.PREFIX_BYTE_ACCOUNT))

    @property
    def settings(self) -> str:
        """For the configuration of nats-server."""
        about = {"type": "operator", "system_account": self.system.public}
        operator = self.key.token(self.key.public, "operator", about)
        return (
            f"operator: {operator}\nresolver: MEMORY\nresolver_preload: {{\n"
            f"  {self.system.public}: {self._account(self.system, 'SYS', {})}\n"
            f"  {self.account.public}: {self._account(self.account, 'PYOCO', _STORAGE)}\n}}\n"
        )

    def _account(self, key: Key, name: str, limits: dict[str, Any]) -> str:
        return self.key.token(
            key.public, name, {"type": "account", "limits": {**_LIMITS, "wildcards": True, **limits}}
        )

    def credentials(self, name: str = "user", *, valid_sec: float = 3600) -> str:
        """The content of a creds file."""
        key = user_key()
        about = {"type": "user", "subs": -1, "data": -1, "payload": -1}
        token = self.account.token(key.public, name, about, exp=int(time.time() + valid_sec))
        return (
            f"-----BEGIN NATS USER JWT-----\n{token}\n------END NATS USER JWT------\n\n"
            f"-----BEGIN USER NKEY SEED-----\n{key.seed}\n------END USER NKEY SEED------\n"
        )


# The server


def tls_settings(authority: Authority, *, verify: bool = False, first: bool = False) -> str:
    certificate, key = authority.issue("server")
    more = f"verify: true, ca_file: '{authority.certificate}', " if verify else ""
    more += "handshake_first: true" if first else ""
    return f"tls {{ cert_file: '{certificate}', key_file: '{key}', timeout: 5, {more} }}\n"


class GuardedNats:
    """With JetStream; `url` has no credentials."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._directory = directory
        self._log = directory / "nats-server.log"
        self._port = free_port()
        self.url = f"nats://127.0.0.1:{self._port}"

    def start(self, settings: str) -> None:
        self._log.unlink(missing_ok=True)
        config = self._directory / "nats-server.conf"
        config.write_text(
            f'listen: "127.0.0.1:{self._port}"\nserver_name: guarded\nlog_file: "{self._log}"\n'
            f'jetstream {{ store_dir: "{self._directory}/jetstream" }}\n{settings}'
        )
        binary = find_nats_server()
        assert binary is not None
        self._server = subprocess.Popen([binary, "-c", config])
        until_now(lambda: _is_ready(self._server, self._log))

    def stop(self) -> None:
        self._server.kill()
        self._server.wait()

    def restart(self, settings: str) -> None:
        """At the same port, with what it stored."""
        self.stop()
        self.start(settings)


@contextmanager
def guarded_nats(directory: Path, settings: str) -> Iterator[GuardedNats]:
    nats = GuardedNats(directory)
    nats.start(settings)
    try:
        yield nats
    finally:
        nats.stop()


def _is_ready(server: "subprocess.Popen[bytes]", log: Path) -> bool:
    text = log.read_text() if log.exists() else ""
    assert server.poll() is None, text
    return "Server is ready" in text
