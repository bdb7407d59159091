"""Commands for administrators: API keys and the audit trail."""

from typing import Any

import cyclopts

from pyoco_server.cli import client_texts as texts
from pyoco_server.cli.client_params import listed
from pyoco_server.cli.output import AS_JSON, Client, Columns, Cursor, Limit, Shown

app = cyclopts.App(name="api-keys", help="Manage the API keys of your tenant.")

_KEYS = Columns(
    ("key_id",),
    ("key_id", "scopes", "description", "created_at", "expires_at", "revoked_at", "last_used_at"),
    ("revoked_at", "expires_at", "last_used_at", "created_at", "description"),
)
_CHANGES = Columns(("id",), ("at_time", "action", "target", "by", "from"), ("from", "by"))


@app.command
def create(
    scopes: str,
    *,
    expires_at: str | None = None,
    description: str | None = None,
    shown: Shown = AS_JSON,
    client: Client,
) -> None:
    """Create an API key and print it. The key is shown only once.

    Parameters
    ----------
    scopes
        What the key may do, separated by commas: read, submit, operate, deploy, admin.
    expires_at
        When the key stops working: RFC 3339 with an offset, or Unix seconds. Default: never.
    description
        What the key is for.
    """
    wanted = listed(scopes)
    created = client.api_keys.create(wanted, expires_at=_time(expires_at), description=description)
    shown.one(created, "api_key")


@app.command(name="list")
def list_(*, cursor: Cursor = None, limit: Limit = None, shown: Shown = AS_JSON, client: Client) -> None:
    """List the API keys of your tenant, newest first, including revoked ones."""
    page = client.api_keys.list(cursor, limit)
    shown.page(page, _KEYS, texts.NO_API_KEYS)


@app.command
def revoke(key_id: str, *, shown: Shown = AS_JSON, client: Client) -> None:
    """Revoke an API key. Gateways apply it within a second.

    Parameters
    ----------
    key_id
        Key id: the part between `pyoco_` and the dot.
    """
    shown.one(client.api_keys.revoke(key_id), "key_id")


def audit(  # noqa: PLR0913 - one option per filter
    *,
    action: str | None = None,
    target: str | None = None,
    key_id: str | None = None,
    since: str | None = None,
    until: str | None = None,
    cursor: Cursor = None,
    limit: Limit = None,
    shown: Shown = AS_JSON,
    client: Client,
) -> None:
    """List changes, newest first: who changed what, when and from where.

    Parameters
    ----------
    action
        Filter by action, e.g. schedule.put.
    target
        Filter by what was changed: an id, a kind, or kind/id.
    key_id
        Filter by the API key of the author.
    since
        Changes since then: RFC 3339 with an offset, or Unix seconds.
    until
        Changes until then.
    """
    page = client.list_audit(
        action=action, target=target, key_id=key_id, since=since, until=until, cursor=cursor, limit=limit
    )
    shown.page(page, _CHANGES, texts.NO_CHANGES, [*map(_change_row, page["items"])])


def _change_row(entry: Any) -> dict[str, Any]:
    target, actor = entry["target"], entry["actor"]
    return {
        **entry,
        "at_time": entry["at"],
        "target": f"{target['kind']}/{target['id']}",
        "by": actor["api_key_id"],
        "from": entry["source"]["remote_addr"],
    }


def _time(text: str | None) -> float | str | None:
    """The server distinguishes numbers from texts; on the command line both are text."""
    return float(text) if text is not None and text.replace(".", "", 1).isdecimal() else text


COMMANDS = {"audit": audit}
