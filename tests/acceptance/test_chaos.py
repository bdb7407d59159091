"""REQ-0010: a small part of `make chaos`, in every test run; a failure names its seed."""

import pytest

from campaigns import CAMPAIGNS, Scale

SEED = 20_260_101
SMALL = Scale(acts=40, executions=10, events=10, clients=8, soak_sec=5.0, rest=1.0)


@pytest.mark.parametrize(
    ("fault", "campaign"),
    [("f3_f4_f5_f7", "everything"), ("f10", "disk-full"), ("f13", "rolling")],
)
async def test_what_was_promised_holds_under_faults(fault: str, campaign: str) -> None:
    report = await CAMPAIGNS[campaign](SEED, SMALL)
    assert report.broken == [], f"{fault}, seed {SEED}: {report.facts}"
