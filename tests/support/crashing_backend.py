"""A backend whose process dies: after a chosen call nothing gets through any more, in either direction."""

from collections.abc import Callable
from dataclasses import replace
from inspect import iscoroutinefunction
from typing import Any

from pyoco_server.errors import NatsUnavailable
from pyoco_server.memory import MemoryGatewayBackend


class Fuse:
    """Counts the calls that change something, and blows after one of them: it was done, nobody heard."""

    def __init__(self, after: int | None = None) -> None:
        self._after = after
        self.calls: list[str] = []

    @property
    def is_blown(self) -> bool:
        return self._after is not None and len(self.calls) >= self._after

    def if_dead(self) -> None:
        if self.is_blown:
            raise NatsUnavailable("this process is dead")

    def before(self) -> None:
        """A call that changes something is about to be made."""

    def after_it(self) -> None:
        self.if_dead()


class Stumble(Fuse):
    """The process lives on, but one call has no answer. It was done, or it was not."""

    def __init__(self, at: int, *, is_done: bool) -> None:
        super().__init__()
        self._at = at
        self._is_done = is_done

    def before(self) -> None:
        if not self._is_done and len(self.calls) + 1 == self._at:
            self.calls.append("lost")
            raise NatsUnavailable("this call was lost")

    def after_it(self) -> None:
        if self._is_done and len(self.calls) == self._at:
            raise NatsUnavailable("the answer was lost")


class _Mortal:
    """A port, as the dying process sees it."""

    def __init__(self, port: Any, name: str, fuse: Fuse, counted: frozenset[str]) -> None:
        self._port = port
        self._name = name
        self._fuse = fuse
        self._counted = counted

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._port, name)
        if name in ("follow", "read"):
            return self._reading(found)
        return self._calling(found, name) if iscoroutinefunction(found) else found

    def _calling(self, call: Callable[..., Any], name: str) -> Any:
        async def called(*arguments: Any, **options: Any) -> Any:
            self._fuse.if_dead()
            if name not in self._counted:
                return await call(*arguments, **options)
            self._fuse.before()
            answer = await call(*arguments, **options)
            self._fuse.calls.append(f"{self._name}.{name}")
            self._fuse.after_it()
            return answer

        return called

    def _reading(self, read: Callable[..., Any]) -> Any:
        async def entries(*arguments: Any, **options: Any) -> Any:
            async for entry in read(*arguments, **options):
                self._fuse.if_dead()
                yield entry

        return entries


_WRITES = frozenset({"create", "update", "append", "publish"})
_PORTS = ("runs", "queue", "execution_log", "execution_cache", "claims")


def mortal(backend: MemoryGatewayBackend, fuse: Fuse) -> MemoryGatewayBackend:
    """What a gateway reports of itself is no step of the work, but ends with it, too."""
    ports: dict[str, Any] = {name: _Mortal(getattr(backend, name), name, fuse, _WRITES) for name in _PORTS}
    for name in ("leases", "rosters"):
        ports[name] = _Mortal(getattr(backend, name), name, fuse, frozenset())
    return replace(backend, **ports)
