"""`PyocoHttpClient.events`: sending workflow events, and managing what they start."""

from typing import Any
from urllib.parse import quote

from pyoco_server.http_client.runs import Call, given

_EVENTS = "/api/workflow-events"
_TOKEN_HEADER = "x-workflow-event-token"  # noqa: S105 - its name


class WorkflowEvents:
    """Calls about workflow events. Answers are dictionaries."""

    def __init__(self, call: Call) -> None:
        self._call = call

    def send(self, *, token: str | None = None, **fields: Any) -> dict[str, Any]:
        """Send an event: `template_id`, `event_name`, `idempotency_key`, `year`, `month`, `data` and so on.

        With an idempotency key it is retried while the server is unavailable.
        """
        return self._dict(
            "POST",
            _EVENTS,
            is_safe=bool(fields.get("idempotency_key")),
            json=given(fields),
            headers={_TOKEN_HEADER: token} if token else {},
        )

    def resume(
        self,
        *,
        execution_id: str | None = None,
        node_id: str | None = None,
        wait_key: str | None = None,
        data: Any = None,
        idempotency_key: str | None = None,
        token: str | None = None,
    ) -> dict[str, Any]:
        """Resume a waiting node with an event: pass `execution_id` and `node_id`, or a `wait_key`.

        If the node does not wait yet, the answer has `kept: True` and the node is resumed once it does.
        """
        return self.send(
            token=token,
            execution_id=execution_id,
            node_id=node_id,
            wait_key=wait_key,
            data=data,
            idempotency_key=idempotency_key,
        )

    def summary(self, ym: str, recent_limit: int | None = None) -> dict[str, Any]:
        params: dict[str, Any] = {"ym": ym}
        if recent_limit is not None:
            params["recent_limit"] = recent_limit
        return self._dict("GET", f"{_EVENTS}/summary", params=params)

    def retry_jobs(self, limit: int | None = None) -> dict[str, Any]:
        return self._dict("GET", f"{_EVENTS}/retry-jobs", params={} if limit is None else {"limit": limit})

    def drain(self, limit: int | None = None, *, force: bool = False) -> dict[str, Any]:
        body: dict[str, Any] = {"force": force} if limit is None else {"force": force, "limit": limit}
        return self._dict("POST", f"{_EVENTS}/retry-jobs/drain", is_safe=False, json=body)

    def retry_job(self, job_id: str) -> dict[str, Any]:
        return self._dict("POST", f"{_EVENTS}/retry-jobs/{_segment(job_id)}/retry", is_safe=False)

    def discard_job(self, job_id: str) -> dict[str, Any]:
        return self._dict("POST", f"{_EVENTS}/retry-jobs/{_segment(job_id)}/discard")

    def replay(self, event_id: str) -> dict[str, Any]:
        return self._dict("POST", f"{_EVENTS}/{_segment(event_id)}/replay", is_safe=False)

    def notification_settings(self) -> dict[str, Any]:
        return self._dict("GET", f"{_EVENTS}/notification-settings")

    def save_notification_settings(self, webhook_url: str) -> dict[str, Any]:
        """An empty URL removes the stored one."""
        return self._dict("POST", f"{_EVENTS}/notification-settings", json={"webhook_url": webhook_url})

    def test_notification(self) -> dict[str, Any]:
        return self._dict("POST", f"{_EVENTS}/notification-settings/test", is_safe=False)

    def list_templates(self) -> list[dict[str, Any]]:
        return self._items("/api/workflow-templates")

    def get_template(self, template_id: str) -> dict[str, Any]:
        return self._dict("GET", _template(template_id))

    def put_template(
        self, template_id: str, template: dict[str, Any], if_match: str | None = None
    ) -> dict[str, Any]:
        """`if_match`: replace only the template with this `updated_at`."""
        headers = {} if if_match is None else {"If-Match": if_match}
        return self._dict("PUT", _template(template_id), json=template, headers=headers)

    def delete_template(self, template_id: str) -> dict[str, Any]:
        return self._dict("DELETE", _template(template_id), is_safe=False)

    def start_template(self, template_id: str, **fields: Any) -> dict[str, Any]:
        """Start it manually: `idempotency_key`, `year`, `month`, `mfcloud_url`, `notes`, `data`."""
        return self._dict(
            "POST",
            f"{_template(template_id)}/start",
            is_safe=bool(fields.get("idempotency_key")),
            json=given(fields),
        )

    def list_actions(self) -> list[dict[str, Any]]:
        return self._items("/api/workflow-actions")

    def put_action(self, key: str, action: dict[str, Any]) -> dict[str, Any]:
        return self._dict("PUT", f"/api/workflow-actions/{_segment(key)}", json=action)

    def delete_action(self, key: str) -> dict[str, Any]:
        return self._dict("DELETE", f"/api/workflow-actions/{_segment(key)}", is_safe=False)

    def list_sources(self) -> list[dict[str, Any]]:
        return self._items("/api/workflow-sources")

    def put_source(self, source_id: str, source: dict[str, Any]) -> dict[str, Any]:
        return self._dict("PUT", f"/api/workflow-sources/{_segment(source_id)}", json=source)

    def delete_source(self, source_id: str) -> dict[str, Any]:
        return self._dict("DELETE", f"/api/workflow-sources/{_segment(source_id)}", is_safe=False)

    def _items(self, path: str) -> list[dict[str, Any]]:
        items: list[dict[str, Any]] = self._dict("GET", path)["items"]
        return items

    def _dict(self, method: str, path: str, **options: Any) -> dict[str, Any]:
        answer: dict[str, Any] = self._call(method, path, **options)
        return answer


def _segment(text: str) -> str:
    """Any id stays one segment of the path."""
    return quote(text, safe="")


def _template(template_id: str) -> str:
    return f"/api/workflow-templates/{_segment(template_id)}"
