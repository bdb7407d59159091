"""The audit trail on JetStream: a damaged record hides no other."""

from pyoco_server.config import NatsBackendConfig
from support.captured_logs import capture_logs
from support.gateway import gateway
from support.nats_server import raw_nats


async def test_a_damaged_record_is_skipped_and_reported(config: NatsBackendConfig) -> None:
    body = {"target": {"flow": "f"}, "every_sec": 3600}
    async with gateway(config) as http, raw_nats(config.nats_url) as nats:
        assert (await http.put("/schedules/a", json=body)).status_code == 201
        await nats.jetstream().publish(f"{config.audit_subject_prefix}_trail.=.schedule", b"damaged")
        with capture_logs() as logged:
            answer = await http.get("/audit")
        assert [entry["target"]["id"] for entry in answer.json()["items"]] == ["a"]
        assert "audit.unreadable" in [line.get("action") for line in logged]
