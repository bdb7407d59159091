"""The runs that wait, in lines: those of a line wait for the same."""

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Sequence

from msgspec import Struct

from pyoco_server.domain.limits.holders import KeyId, Order, Standing

Waiting = tuple[Order, str]
"""The order of a run, and its id."""


class Line(Struct, frozen=True, order=True):
    tenant_id: str | None
    flow_name: str
    limits: tuple[KeyId, ...]

    def __hash__(self) -> int:
        return hash((self.flow_name, self.limits))


class Plan(Struct, frozen=True):
    admissions: list[tuple[Line, list[Standing]]]
    unsure: list[str]
    """Waiting runs for which somebody took a place and did not use it."""


class WaitingLines:
    def __init__(self) -> None:
        self._lines: dict[Line, list[Waiting]] = {}
        self._of_key: dict[KeyId, set[Line]] = {}
        self._of_run: dict[str, Line] = {}

    def __contains__(self, line: Line) -> bool:
        return line in self._lines

    def __iter__(self) -> Iterator[Line]:
        return iter(list(self._lines))

    def runs(self, line: Line) -> Sequence[Waiting]:
        return self._lines[line]

    def of_key(self, of: KeyId) -> Iterable[Line]:
        return self._of_key.get(of, ())

    def of_flow(self, tenant_id: str | None, flow: str) -> list[Line]:
        return [line for line in self._lines if (line.tenant_id, line.flow_name) == (tenant_id, flow)]

    def of_tenant(self, tenant_id: str | None) -> list[Line]:
        return [line for line in self._lines if line.tenant_id == tenant_id]

    def wanted_keys(self) -> Iterable[KeyId]:
        return self._of_key

    def has(self, run_id: str) -> bool:
        return run_id in self._of_run

    def of_run(self, run_id: str) -> Line | None:
        return self._of_run.get(run_id)

    def add(self, run: Standing) -> Line:
        line = Line(run.tenant_id, run.flow_name, run.limits)
        if line not in self._lines:
            self._lines[line] = []
            for of in run.limits:
                self._of_key.setdefault(of, set()).add(line)
        insort(self._lines[line], (run.order, run.run_id))
        self._of_run[run.run_id] = line
        return line

    def remove(self, run: Standing) -> None:
        """No error if it does not wait."""
        line = self._of_run.pop(run.run_id, None)
        if line is None:
            return
        runs = self._lines[line]
        del runs[bisect_left(runs, (run.order, run.run_id))]
        if not runs:
            del self._lines[line]
            for of in line.limits:
                self._of_key[of].discard(line)
                if not self._of_key[of]:
                    del self._of_key[of]

    # Questions

    def count(self, of: KeyId) -> int:
        return sum(len(self._lines[line]) for line in self.of_key(of))

    def ahead(self, of: KeyId, run: Standing) -> int:
        """How many runs get a place of the key before this one."""
        place = (run.order, run.run_id)
        return sum(bisect_left(self._lines[line], place) for line in self.of_key(of))

    def in_order(self, of: KeyId) -> list[str]:
        """The runs that wait for a place of the key."""
        places = sorted(place for line in self.of_key(of) for place in self._lines[line])
        return [run_id for _, run_id in places]

    def total(self, tenant_id: str | None) -> int:
        """None: of all tenants (auth is off)."""
        lines = self._lines.items()
        return sum(len(runs) for line, runs in lines if tenant_id in (None, line.tenant_id))
