"""Everything that is remembered of events, for files."""

from typing import Any

from msgspec import Struct

from pyoco_server.domain.events.notifications import masked
from pyoco_server.domain.events.receipts import Receipt
from pyoco_server.domain.events.retry_jobs import RetryJob
from pyoco_server.usecases.events.ports import EventsBackend


class Export(Struct, frozen=True):
    receipts: list[Receipt]
    retry_jobs: list[RetryJob]
    notification_settings: list[dict[str, Any]]


async def export_events(events: EventsBackend) -> Export:
    receipts = await events.receipts.list_values()
    jobs = await events.retry_jobs.list_values()
    settings = await events.notification_settings.list_values()
    return Export(
        receipts=sorted(receipts, key=lambda receipt: receipt.claimed_at),
        retry_jobs=sorted(jobs, key=lambda job: job.created_at),
        notification_settings=[
            {"webhook_url_masked": masked(one.webhook_url), "updated_at": one.updated_at} for one in settings
        ],
    )
