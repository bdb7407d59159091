"""A call: its errors, its retries, and how one implementation serves both clients.

The calls are coroutines. `AsyncPyocoHttpClient` is awaited in an event loop. `PyocoHttpClient` carries out
the same coroutines in the calling thread, where nothing suspends them. Importing this module imports no HTTP
library; the sessions in `transport` do.
"""

import os
import sys
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, aclosing
from functools import cache, wraps
from typing import TYPE_CHECKING, Any, ClassVar, Concatenate, NoReturn, ParamSpec, Protocol, TypeVar
from urllib.parse import quote

if TYPE_CHECKING:
    import httpx2

    from pyoco_server import errors
    from pyoco_server.http_client.answers import Run

P = ParamSpec("P")
T = TypeVar("T")
Answer = dict[str, Any]

# Errors


class PyocoError(Exception):
    """Base of all errors of the clients."""

    status: int | None = None
    """HTTP status; None if no response was received."""
    err_id: str | None = None
    """Id in the server's error catalogue."""
    detail: Any = None
    advice: str | None = None
    """What to do about it."""
    run_id: str | None = None
    """The run, if the error concerns one that was submitted."""

    _kind: ClassVar["type[PyocoError]"]

    def __init_subclass__(cls) -> None:
        cls._kind = cls

    def __init__(self, message: str, **fields: Any) -> None:
        # Not `super()`: the next class may be one of httpx, whose arguments differ.
        Exception.__init__(self, message)
        vars(self).update(fields)

    def __reduce__(self) -> tuple[Any, ...]:
        """For other processes: without the response, and without the classes that are added when raised."""
        fields = {name: value for name, value in vars(self).items() if name not in ("response", "_request")}
        return _restored, (self._kind, str(self), fields)


PyocoError._kind = PyocoError  # noqa: SLF001 - its own


class RequestRefused(PyocoError):
    """A response with an error status. Also an `httpx2.HTTPStatusError`, and httpx's if httpx is imported."""

    advice = "Look for the error in the log of the server"
    response: "httpx2.Response"
    request: "httpx2.Request"


class InvalidRequest(PyocoError):
    """The request is not valid."""

    advice = "Correct the request and try again"


class NotAllowed(PyocoError):
    """The API key or token is missing or invalid, or does not allow this."""

    advice = "Use an API key that allows it"


class NotFound(PyocoError):
    """No such run, worker, wheel, graph, execution or definition."""

    advice = "Check the name or id; what was deleted or has expired is not found"


class RunNotFound(NotFound):
    """No such run."""

    advice = "Check the run id; a run is removed when its retention is over"


class Conflict(PyocoError):
    """The request conflicts with the current state."""

    advice = "Read the current state before you try again"


class ServerUnavailable(PyocoError):
    """No server was reached, or it is briefly unavailable. Unreachable servers have no `status`."""

    advice = "Try again in a moment; if it lasts, see GET /ready and the log of the server"


class RunError(PyocoError):
    """Base of the errors about the outcome of a run."""

    run_id: str
    run: "Run"
    """The last state of the run."""


class RunFailed(RunError):
    """The run ended FAILED; `detail` is its error."""


class RunCancelled(RunError):
    """The run ended CANCELLED; `detail` is the reason."""

    advice = "Submit it again if it was cancelled by mistake"


class ResultNotStored(RunError):
    """The run ended COMPLETED, but its result was too large to be stored."""


class RunTimedOut(RunError, TimeoutError):
    """The run has not ended within the timeout. It goes on."""


RUN_NOT_FOUND = "ERR-PYOCO-0005"
_UNAVAILABLE = frozenset({429, 502, 503, 504})
_KINDS: dict[int, type[PyocoError]] = {
    401: NotAllowed,
    403: NotAllowed,
    404: NotFound,
    409: Conflict,
    412: Conflict,
    **dict.fromkeys(_UNAVAILABLE, ServerUnavailable),
}


def raise_refused(response: "httpx2.Response") -> NoReturn:
    """`response` has been read."""
    answer = _answer(response)
    status, detail, err_id = response.status_code, answer.get("detail"), answer.get("err_id")
    shown = f"{status} {response.reason_phrase}".strip()
    kind = RunNotFound if err_id == RUN_NOT_FOUND else _KINDS.get(status) or _other(status)
    raise also(kind, RequestRefused, *_status_errors())(
        f"{shown} for {response.request.method} {response.request.url}"
        + (f": {text_of(detail)}" if detail else ""),
        status=status,
        err_id=err_id,
        detail=detail,
        response=response,
        _request=response.request,
    )


def text_of(detail: Any) -> str:
    """A `detail`: a text, or the problems of a body with their locations."""
    if not isinstance(detail, list):
        return str(detail)
    return "; ".join(_problem(one) if isinstance(one, dict) else str(one) for one in detail)


def _problem(item: Answer) -> str:
    place = ".".join(map(str, item.get("loc", [])[1:]))
    problem = str(item.get("msg", ""))
    return f"{place}: {problem}" if place else problem


def _other(status: int) -> type[PyocoError]:
    return InvalidRequest if 400 <= status < 500 else RequestRefused  # noqa: PLR2004 - the client's errors


def _status_errors() -> list[type[Exception]]:
    """Older programs catch these errors of httpx and httpx2."""
    libraries = (sys.modules.get(name) for name in ("httpx2", "httpx"))
    return [library.HTTPStatusError for library in libraries if library is not None]


def also(kind: type[PyocoError], *others: type[BaseException]) -> type[PyocoError]:
    """`kind` as a subclass of others, too, so that what catches those goes on working."""
    kinds = (kind, *(other for other in others if not issubclass(kind, other)))
    if kinds not in _combinations:
        combined: Any = type(kind.__name__, kinds, {"__module__": kind.__module__})
        combined._kind = kind  # noqa: SLF001 - its own
        _combinations[kinds] = combined
    return _combinations[kinds]


_combinations: dict[tuple[type[BaseException], ...], type[PyocoError]] = {}


def _restored(kind: type[PyocoError], message: str, fields: dict[str, Any]) -> PyocoError:
    return kind(message, **fields)


def _answer(response: "httpx2.Response") -> dict[str, Any]:
    try:
        answer = response.json()
    except ValueError:
        return {}
    return answer if isinstance(answer, dict) else {}


def is_passing(error: Exception) -> bool:
    """Whether the server may be available again soon."""
    from pyoco_server.errors import UntrustedCertificate  # noqa: PLC0415 - only after a failure

    if isinstance(error, UntrustedCertificate):
        return False
    is_servers = isinstance(error, PyocoError) and (error.status or 0) >= 500  # noqa: PLR2004
    return is_servers or isinstance(error, ServerUnavailable)


# Requests

TRIES = 4
FIRST_PAUSE_SEC = 0.2
MAX_PAUSE_SEC = 2.0
RECONNECT_PAUSE_SEC = 0.5
MAX_SENT_BYTES = 64 * 1024 * 1024
"""An upper bound for all calls; the server has a limit for each."""


class ServerSentEvent(Protocol):
    @property
    def event(self) -> str: ...
    @property
    def id(self) -> str: ...
    def json(self) -> Any: ...


class Session(Protocol):
    """Connections to one server. Failures to connect, send or receive raise `ServerUnavailable`."""

    async def send(self, method: str, path: str, **options: Any) -> "httpx2.Response":
        """`options` are those of `httpx2.Client.request`."""

    def receive(
        self, path: str, **options: Any
    ) -> AbstractAsyncContextManager[AsyncGenerator[ServerSentEvent, None]]: ...

    def download(self, path: str) -> AbstractAsyncContextManager[AsyncGenerator[bytes, None]]: ...

    async def sleep(self, seconds: float) -> None: ...

    async def blocking(self, function: Callable[[], T]) -> T:
        """Reads or writes a file."""

    async def close(self) -> None: ...


class Calls:
    """Calls on a session. Idempotent calls are retried while the server is unavailable."""

    def __init__(self, session: Session) -> None:
        self._session = session

    async def _call(self, method: str, path: str, *, is_safe: bool = True, **options: Any) -> Any:
        return (await self._send(method, path, is_safe=is_safe, **options)).json()

    async def _dict(self, method: str, path: str, *, is_safe: bool = True, **options: Any) -> Answer:
        answer: Answer = await self._call(method, path, is_safe=is_safe, **options)
        return answer

    async def _send(
        self, method: str, path: str, *, is_safe: bool = True, **options: Any
    ) -> "httpx2.Response":
        if "json" in options:
            options["json"] = sendable(options["json"])
        for left in range(TRIES - 1 if is_safe else 0, -1, -1):
            pause = min(MAX_PAUSE_SEC, FIRST_PAUSE_SEC * 2 ** (TRIES - 1 - left))
            try:
                response = await self._session.send(method, path, **options)
            except ServerUnavailable:
                if not left:
                    raise
            else:
                if not left or response.status_code not in _UNAVAILABLE:
                    break
                pause = _retry_after(response) or pause
            await self._session.sleep(pause)
        if not response.is_success:
            raise_refused(response)
        return response

    async def _reconnecting(
        self,
        connect: Callable[[], AsyncGenerator[T, None]],
        is_last: Callable[[T], bool],
        has_ended: Callable[[], Awaitable[bool]],
        *,
        deadline: float | None = None,
        has_begun: bool = False,
    ) -> AsyncGenerator[T, None]:
        """Events until the last one. A broken connection is opened again.

        `has_begun`: also if the server is unavailable at first.
        """
        while deadline is None or time.monotonic() < deadline:
            try:
                async with aclosing(connect()) as events:
                    async for event in events:
                        has_begun = True
                        yield event
                        if is_last(event):
                            return
                if await has_ended():
                    return
            except PyocoError as error:
                if not is_passing(error) or (error.status is not None and not has_begun):
                    raise
                left = RECONNECT_PAUSE_SEC if deadline is None else deadline - time.monotonic()
                await self._session.sleep(max(0.0, min(RECONNECT_PAUSE_SEC, left)))


def _retry_after(response: "httpx2.Response") -> float | None:
    text = response.headers.get("retry-after", "")
    return min(float(text), MAX_PAUSE_SEC) if text.isdigit() else None


def sendable(value: Any) -> Any:
    """`value` as JSON can hold it. Raises `InvalidRequest`."""
    from_caller, refused = _rule_of_values()
    try:
        return from_caller(value, "", MAX_SENT_BYTES)
    except refused as error:
        raise also(InvalidRequest, type(error))(
            str(error),
            status=int(error.status),
            err_id=error.entry.err_id,
            detail=str(error),
        ) from error


@cache
def _rule_of_values() -> "tuple[Callable[[Any, str, int], Any], type[errors.InvalidRequest]]":
    """Imported with the first request, so that importing a client stays cheap."""
    from pyoco_server.domain.values import from_caller  # noqa: PLC0415
    from pyoco_server.errors import InvalidRequest as Refused  # noqa: PLC0415

    return from_caller, Refused


def given(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def segment(text: str) -> str:
    """Any id stays one segment of the path."""
    return quote(text, safe="")


def new_key() -> str:
    """An idempotency key that nobody else uses."""
    return os.urandom(16).hex()


# The blocking client: the same coroutines, carried out in the calling thread


def finished(coroutine: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine on a session that blocks, so that the first step is the last."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    coroutine.close()
    raise RuntimeError("a call of the blocking client was suspended")


def blocking(
    function: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[Any, P], T]:
    """The method of a blocking client for one of its `_calls`."""

    @wraps(function)
    def call(client: Any, /, *args: P.args, **options: P.kwargs) -> T:
        return finished(function(client._calls, *args, **options))  # noqa: SLF001 - of the client

    return call


def blocking_iterator(
    function: Callable[Concatenate[Any, P], AsyncGenerator[T, None]],
) -> Callable[Concatenate[Any, P], Iterator[T]]:
    @wraps(function)
    def call(client: Any, /, *args: P.args, **options: P.kwargs) -> Iterator[T]:
        values = function(client._calls, *args, **options)  # noqa: SLF001 - of the client
        try:
            while True:
                try:
                    value = finished(_next(values))
                except StopAsyncIteration:
                    return
                yield value
        finally:
            finished(_closed(values))

    return call


async def _next(values: AsyncGenerator[T, None]) -> T:
    return await anext(values)


async def _closed(values: AsyncGenerator[Any, None]) -> None:
    await values.aclose()
