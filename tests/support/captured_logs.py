"""What was logged, as dictionaries."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class _Collector(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.lines: list[dict[str, Any]] = []

    def emit(self, record: logging.LogRecord) -> None:
        fields = getattr(record, "pyoco_fields", {})
        line = {"event": record.getMessage(), "log_level": record.levelname.lower(), **fields}
        if record.exc_info:
            line["exc_info"] = record.exc_info[1]
        self.lines.append(line)


@contextmanager
def capture_logs() -> Iterator[list[dict[str, Any]]]:
    """Every line that is logged in the block."""
    collector, root = _Collector(), logging.getLogger()
    level = root.level
    root.addHandler(collector)
    root.setLevel(logging.DEBUG)
    try:
        yield collector.lines
    finally:
        root.removeHandler(collector)
        root.setLevel(level)
