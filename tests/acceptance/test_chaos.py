"""REQ-0010: a small part of `make chaos`; a failure names its seed."""

from pathlib import Path

import pytest

from campaigns import CAMPAIGNS, Scale
from support.programs import proc

SEED = 20_260_101
SMALL = Scale(acts=40, executions=10, events=10, clients=8, soak_sec=5.0, rest=1.0)


@pytest.mark.parametrize(
    ("fault", "campaign"),
    [
        ("f3_f4_f5_f7", "everything"),
        pytest.param("f10", "disk-full", marks=pytest.mark.slow),
        pytest.param("f13", "rolling", marks=pytest.mark.slow),
    ],
)
async def test_what_was_promised_holds_under_faults(fault: str, campaign: str) -> None:
    proc()  # the campaigns observe their members
    report = await CAMPAIGNS[campaign](SEED, SMALL)
    assert report.broken == [], f"{fault}, seed {SEED}: {report.facts}"
    assert [*Path.cwd().iterdir()] == [], "every member writes into the campaign's directory"
