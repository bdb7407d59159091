"""Bringing a worker's wheels in line with what is registered: what to install, what to drop, what to show."""

from collections.abc import Sequence
from enum import StrEnum

from msgspec import Struct

from pyoco_server.domain.wheels import Wheel, read_name


class SyncResult(StrEnum):
    DISABLED = "disabled"
    IDLE = "idle"
    """Nothing had to be done."""
    OK = "ok"
    ERROR = "error"


class InstalledWheel(Struct, frozen=True, kw_only=True):
    """A wheel that lies ready on a worker: what answers the question which code ran."""

    name: str
    package: str
    version: str
    nuid: str
    sha256_hex: str | None


class SkippedWheel(Struct, frozen=True):
    name: str
    reason: str


class WheelSync(Struct, frozen=True, kw_only=True):
    """The last sync, as the worker's record shows it."""

    enabled: bool = False
    last_result: SyncResult = SyncResult.DISABLED
    last_attempt_at: float | None = None
    last_success_at: float | None = None
    last_synced_at: float | None = None
    """When anything was changed."""
    selected_count: int = 0
    updated_count: int = 0
    removed_count: int = 0
    skipped_incompatible_count: int = 0
    selected_wheels: tuple[str, ...] = ()
    updated_wheels: tuple[str, ...] = ()
    removed_wheels: tuple[str, ...] = ()
    skipped_incompatible: tuple[SkippedWheel, ...] = ()
    installed_wheels: tuple[InstalledWheel, ...] = ()
    error: str | None = None


class Plan(Struct, frozen=True):
    install: list[Wheel]
    keep: list[InstalledWheel]
    """Of the selected ones: they are there, with the same content."""
    drop: list[InstalledWheel]


def plan(selected: Sequence[Wheel], active: Sequence[InstalledWheel]) -> Plan:
    """The content decides, not the name: a wheel that was uploaded again has another nuid."""
    wanted = {wheel.nuid for wheel in selected}
    there = {wheel.nuid for wheel in active}
    return Plan(
        install=[wheel for wheel in selected if wheel.nuid not in there],
        keep=[wheel for wheel in active if wheel.nuid in wanted],
        drop=[wheel for wheel in active if wheel.nuid not in wanted],
    )


def described(wheel: Wheel) -> InstalledWheel:
    name = read_name(wheel.name)
    return InstalledWheel(
        name=wheel.name,
        package=name.package,
        version=str(name.version),
        nuid=wheel.nuid,
        sha256_hex=wheel.sha256_hex,
    )


def after_failures(
    planned: Plan, installed: Sequence[InstalledWheel], failed: Sequence[Wheel]
) -> list[InstalledWheel]:
    """The set to run with: where a new version could not be installed, the old one stays."""
    lacking = {described(wheel).package for wheel in failed}
    rescued = [wheel for wheel in planned.drop if wheel.package in lacking]
    return sorted([*planned.keep, *installed, *rescued], key=lambda wheel: wheel.name)
