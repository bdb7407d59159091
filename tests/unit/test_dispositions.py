"""REQ-0012: what the contract says about each way a delivery can end."""

from pyoco_server.domain.runs.jobs import Ending, disposition
from support.tables import every_row

CONTRACT = {
    "completed": ("ack", None),
    "cancelled": ("ack", None),
    "execution_error": ("ack", "execution_error"),
    "flow_not_found": ("ack", "flow_not_found"),
    "invalid_job": ("term", "invalid_job"),
    "nats_unavailable": ("nak", None),
    "not_started": ("nak", None),
    "given_back": ("nak", None),
    "already_terminal": ("ack", None),
    "withdrawn": ("ack", None),
    "fenced": ("leave", None),
    "duplicate_job": ("ack", None),
    "retried": ("ack", None),
    "expired": ("ack", None),
}


def test_every_ending_has_a_row() -> None:
    assert set(CONTRACT) == set(Ending)


@every_row("ending", Ending)
def test_the_queue_action_and_the_dead_letter_of_an_ending(ending: Ending) -> None:
    found = disposition(ending)
    assert (found.action, found.dlq) == CONTRACT[ending]


@every_row("ending", Ending)
def test_only_the_dead_letters_of_execution_errors_can_be_switched_off(ending: Ending) -> None:
    action, reason = CONTRACT[ending]
    found = disposition(ending, publish_execution_error=False)
    assert (found.action, found.dlq) == (action, None if reason == "execution_error" else reason)
