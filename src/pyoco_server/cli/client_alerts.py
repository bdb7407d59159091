"""Commands for alerts, channels and deliveries."""

from pathlib import Path
from typing import Annotated, Literal

import cyclopts
from cyclopts import Parameter

from pyoco_server.cli import client_texts as texts
from pyoco_server.cli.client_params import put_definition
from pyoco_server.cli.output import AS_JSON, Client, Columns, Cursor, Limit, Shown

alerts_app = cyclopts.App(name="alerts", help="Send messages when something happens.")
channels_app = cyclopts.App(name="channels", help="Where the messages of alerts go: webhooks, chats, e-mail.")
deliveries_app = cyclopts.App(name="deliveries", help="What became of the messages of alerts.")

_ALERTS = Columns(("name",), ("name", "on", "channel", "filter", "cooldown_sec"), ("cooldown_sec", "filter"))
_CHANNELS = Columns(("name",), ("name", "type", "host"))
_DELIVERIES = Columns(
    ("id",), ("id", "type", "alert", "channel", "status", "attempts", "last_error"), ("channel", "attempts")
)
AlertName = Annotated[str, Parameter(help="Alert name.")]
ChannelName = Annotated[str, Parameter(help="Channel name.")]
DeliveryId = Annotated[str, Parameter(help="Id of the delivery.")]


@alerts_app.command(name="put")
def put_alert(file: Path, *, name: str | None = None, shown: Shown = AS_JSON, client: Client) -> None:
    """Create or change an alert from a file.

    Parameters
    ----------
    file
        Alert definition, YAML or JSON.
    name
        Alert name. Default: the name in the file, else the file name without extension.
    """
    shown.one(put_definition(client.alerts.put, file, "on", texts.NO_KINDS, name), "name")


@alerts_app.command(name="list")
def list_alerts(*, cursor: Cursor = None, limit: Limit = 50, shown: Shown = AS_JSON, client: Client) -> None:
    """List alerts, newest first."""
    page = client.alerts.list(cursor, limit)
    shown.page(page, _ALERTS, texts.NO_ALERTS, [dict(one) for one in page["items"]])


@alerts_app.command(name="show")
def show_alert(name: AlertName, *, shown: Shown = AS_JSON, client: Client) -> None:
    """Print an alert."""
    shown.one(client.alerts.get(name), "name")


@alerts_app.command(name="delete")
def delete_alert(name: AlertName, *, shown: Shown = AS_JSON, client: Client) -> None:
    """Delete an alert. Messages on their way are still delivered."""
    shown.one(client.alerts.delete(name), "name")


@channels_app.command(name="put")
def put_channel(file: Path, *, name: str | None = None, shown: Shown = AS_JSON, client: Client) -> None:
    """Create or change a channel from a file. A generated secret is printed, once.

    Parameters
    ----------
    file
        Channel definition, YAML or JSON.
    name
        Channel name. Default: the name in the file, else the file name without extension.
    """
    shown.one(put_definition(client.channels.put, file, "type", texts.NO_TYPE, name), "name")


@channels_app.command(name="list")
def list_channels(
    *, cursor: Cursor = None, limit: Limit = 50, shown: Shown = AS_JSON, client: Client
) -> None:
    """List channels, newest first."""
    page = client.channels.list(cursor, limit)
    shown.page(page, _CHANNELS, texts.NO_CHANNELS, [dict(one) for one in page["items"]])


@channels_app.command(name="show")
def show_channel(name: ChannelName, *, shown: Shown = AS_JSON, client: Client) -> None:
    """Print a channel, without its secrets."""
    shown.one(client.channels.get(name), "name")


@channels_app.command(name="delete")
def delete_channel(name: ChannelName, *, shown: Shown = AS_JSON, client: Client) -> None:
    """Delete a channel that no alert uses."""
    shown.one(client.channels.delete(name), "name")


@deliveries_app.command(name="list")
def list_deliveries(
    *,
    alert: str | None = None,
    channel: str | None = None,
    status: Literal["PENDING", "DELIVERED", "FAILED"] | None = None,
    cursor: Cursor = None,
    limit: Limit = 50,
    shown: Shown = AS_JSON,
    client: Client,
) -> None:
    """List deliveries, newest first.

    Parameters
    ----------
    alert
        Filter by alert.
    channel
        Filter by channel.
    status
        Filter by status.
    """
    page = client.deliveries.list(alert=alert, channel=channel, status=status, cursor=cursor, limit=limit)
    shown.page(page, _DELIVERIES, texts.NO_DELIVERIES, [dict(one) for one in page["items"]])


@deliveries_app.command(name="show")
def show_delivery(delivery_id: DeliveryId, *, shown: Shown = AS_JSON, client: Client) -> None:
    """Print a delivery, with what is sent."""
    shown.one(client.deliveries.get(delivery_id), "id")


@deliveries_app.command(name="replay")
def replay_delivery(delivery_id: DeliveryId, *, shown: Shown = AS_JSON, client: Client) -> None:
    """Send a delivery again, with the same id and body."""
    shown.one(client.deliveries.replay(delivery_id), "id")
