"""Load, decide, write with the expected revision; if somebody was faster, load and decide again."""

from collections.abc import Callable
from typing import TypeVar

from pyoco_server.errors import NatsUnavailable
from pyoco_server.usecases.change_run import MAX_TRIES
from pyoco_server.usecases.ports import Revision, Store, Versioned, WrongRevision

T = TypeVar("T")


async def change_value(store: Store[T], key: str, decide: Callable[[T | None], T | None]) -> T | None:
    """The value after `decide`; None when that wanted nothing written. `decide` may be called again."""
    for _ in range(MAX_TRIES):
        current = await store.get(key)
        decision = decide(None if current is None else current.value)
        if decision is None or (current is not None and decision is current.value):
            return decision
        try:
            await write(store, key, decision, current)
        except WrongRevision:
            continue
        return decision
    raise NatsUnavailable(f"{key} could not be written: {MAX_TRIES} writes in a row were refused")


async def write(store: Store[T], key: str, value: T, current: Versioned[T] | None) -> Revision:
    """Over `current`. Raises WrongRevision."""
    if current is None:
        return await store.create(key, value)
    return await store.update(key, value, current.revision)
