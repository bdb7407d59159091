"""`pyoco-server-admin`: keys, backup and restore, export of workflow events; JSON on stdout."""

import os
import secrets
import sys
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import cyclopts
import msgspec
from cyclopts import Parameter

from pyoco_server.cli import server_texts as texts
from pyoco_server.cli.failures import reporting_failures, run_app
from pyoco_server.cli.output import AS_JSON, NO_NATS_OPTIONS, Columns, NatsOptions, Shown
from pyoco_server.cli.terminal import add_completion, run
from pyoco_server.config import NatsBackendConfig
from pyoco_server.domain.auth import DEFAULT_SCOPES, Grant
from pyoco_server.domain.inputs import time_in_text
from pyoco_server.errors import InvalidCliInput
from pyoco_server.logs import configure_logging
from pyoco_server.processes import free_port
from pyoco_server.running_server import settings_here
from pyoco_server.wiring import EmbeddedNats, back_up, restore
from pyoco_server.wiring.worker import AdminKeys, open_admin_keys, read_export, reseal_secrets

app = cyclopts.App(
    name="pyoco-server-admin",
    help="Administer a pyoco-server through its NATS.",
)
api_key = cyclopts.App(
    name="api-key", help="Manage API keys for a gateway with PYOCO_HTTP_AUTH_MODE=api_key."
)
app.command(api_key)
secrets_app = cyclopts.App(name="secrets", help="Manage the keys that seal secrets.")
app.command(secrets_app)
events = cyclopts.App(name="events", help="Export workflow events.")
app.command(events)

_KEYS = Columns(
    ("key_id",),
    ("key_id", "tenant_id", "scopes", "created_at", "expires_at", "revoked_at", "last_used_at"),
    ("revoked_at", "expires_at", "last_used_at", "created_at"),
)
Settings = Annotated[NatsBackendConfig, Parameter(parse=False)]


@app.meta.default
def launch(
    *tokens: Annotated[str, Parameter(show=False, allow_leading_hyphen=True)],
    nats_url: str | None = None,
    access: NatsOptions = NO_NATS_OPTIONS,
) -> None:
    """Run a command.

    Parameters
    ----------
    nats_url
        NATS URL of the server (also: PYOCO_NATS_URL). Default: the server started in this directory, else
        nats://127.0.0.1:4222
    """
    command, bound, ignored = app.parse_args(tokens, exit_on_error=False, print_error=False)
    with reporting_failures():
        if "config" in ignored:
            bound.arguments["config"] = _settings(nats_url, access)
        command(*bound.args, **bound.kwargs)


@api_key.command
def create(
    tenant: str,
    *,
    scopes: str | None = None,
    expires_at: str | None = None,
    description: str | None = None,
    shown: Shown = AS_JSON,
    config: Settings,
) -> None:
    """Create an API key and print it. The key is shown only once.

    Parameters
    ----------
    tenant
        Tenant that owns the key's runs: [A-Za-z0-9_-]{1,64}.
    scopes
        What the key may do, separated by commas: read, submit, operate, deploy, admin. Default: all but
        admin.
    expires_at
        When the key stops working: RFC 3339 with an offset, or Unix seconds. Default: never.
    description
        What the key is for.
    """
    grant = _grant(scopes, expires_at, description)
    shown.one(_answer(config, lambda keys: keys.issue(tenant, grant)), "api_key")


def _grant(scopes: str | None, expires_at: str | None, description: str | None) -> Grant:
    try:
        expires = None if expires_at is None else time_in_text(expires_at)
    except ValueError as error:
        raise InvalidCliInput(f"--expires-at {expires_at}: {error}") from error
    given = DEFAULT_SCOPES if scopes is None else tuple(filter(None, map(str.strip, scopes.split(","))))
    return Grant(scopes=given, expires_at=expires, description=description)


@api_key.command(name="list")
def list_(*, shown: Shown = AS_JSON, config: Settings) -> None:
    """List all API keys, including revoked ones."""
    found = _answer(config, lambda keys: keys.list_keys())
    shown.list(found, found, _KEYS, texts.NO_API_KEYS)


@api_key.command
def revoke(key_id: str, *, shown: Shown = AS_JSON, config: Settings) -> None:
    """Revoke an API key. Gateways apply it within a second.

    Parameters
    ----------
    key_id
        Key id: the part between `pyoco_` and the dot.
    """
    shown.one(_answer(config, lambda keys: keys.revoke(key_id)), "key_id")


@secrets_app.command(name="new-key")
def new_key(*, file: Path | None = None, shown: Shown = AS_JSON) -> None:
    """Make a new key for PYOCO_SECRETS_KEY.

    Parameters
    ----------
    file
        New file for the key, which only its owner can read. Default: print the key.
    """
    key = secrets.token_urlsafe(32)
    if file is None:
        shown.one({"key": key}, "key")
        return
    try:
        with open(file, "x", opener=partial(os.open, mode=0o600)) as opened:
            opened.write(f"{key}\n")
    except OSError as error:
        raise InvalidCliInput(f"--file {file}: {error.strerror}") from error
    shown.one({"file": str(file)}, "file")


@secrets_app.command
def reseal(*, shown: Shown = AS_JSON, config: Settings) -> None:
    """Seal all secrets and channels with the first key of PYOCO_SECRETS_KEY."""
    found = run(reseal_secrets(config))
    shown.one(msgspec.to_builtins(found))
    if found.unreadable:
        sys.exit(1)


@events.command
def export(
    directory: Annotated[Path, Parameter(name=["--dir", "--directory"])],
    *,
    shown: Shown = AS_JSON,
    config: Settings,
) -> None:
    """Write receipts.json, retry_jobs.json and notification_settings.json.

    Parameters
    ----------
    directory
        Target directory; created if missing. The webhook URL is masked.
    """
    exported = run(read_export(config))
    directory.mkdir(parents=True, exist_ok=True)
    counts = {}
    for name in exported.__struct_fields__:
        values = getattr(exported, name)
        counts[name] = len(values)
        content = msgspec.json.format(msgspec.json.encode(values), indent=2)
        (directory / f"{name}.json").write_bytes(content + b"\n")
    shown.one(counts)


@app.command(name="backup")
def backup_(directory: Path, *, shown: Shown = AS_JSON, config: Settings) -> None:
    """Back up all pyoco-server data from NATS while the server runs.

    Parameters
    ----------
    directory
        Target directory; new or empty.
    """
    if directory.exists() and any(directory.iterdir()):
        raise InvalidCliInput(f"--directory {directory} is not empty; example: --directory backup-2031-05-01")
    directory.mkdir(parents=True, exist_ok=True)
    shown.one({"streams": run(back_up(config, directory))})


@app.command(name="restore")
def restore_(
    directory: Path, *, data_dir: Path | None = None, shown: Shown = AS_JSON, config: Settings
) -> None:
    """Restore a backup into a NATS without pyoco-server data.

    Parameters
    ----------
    directory
        Directory written by `backup`.
    data_dir
        For `pyoco-server up` with the embedded NATS: its data directory, .pyoco by default. The server must
        not be running.
    """
    if not directory.is_dir():
        raise InvalidCliInput(f"--directory {directory}: no such directory")
    restored = _restored(config, directory, data_dir)
    if not restored:
        raise InvalidCliInput(f"--directory {directory} contains no backup")
    shown.one({"streams": restored})


def _restored(config: NatsBackendConfig, directory: Path, data_dir: Path | None) -> dict[str, int]:
    if data_dir is None:
        return run(restore(config, directory))
    # Not on the default port: a waiting worker would connect to a half-restored server.
    with EmbeddedNats(data_dir / "nats", port=free_port("127.0.0.1")) as nats:
        return run(restore(config.with_own_nats(nats.url), directory))


def _settings(nats_url: str | None, access: NatsOptions) -> NatsBackendConfig:
    config = settings_here(nats_url=nats_url, **vars(access))
    # stdout carries the result, so only problems are logged, to stderr.
    configure_logging(service="pyoco-server:admin", level="WARNING", stream=sys.stderr)
    return config


def _answer(config: NatsBackendConfig, ask: Callable[[AdminKeys], Awaitable[Any]]) -> Any:
    async def answer() -> Any:
        async with open_admin_keys(config) as keys:
            return await ask(keys)

    return msgspec.to_builtins(run(answer()))


add_completion(app)


def main() -> None:
    run_app(app, app.meta)


if __name__ == "__main__":
    main()
