"""The client's own transport, against servers that hang up, dawdle, stream, or answer nonsense."""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx2
import pytest

from pyoco_server import PyocoHttpClient
from pyoco_server.http_client.connection import MAX_HEAD_BYTES, PACKET_BYTES
from pyoco_server.http_client.transport import JsonCalls, LeanTransport, transport_for
from support.waiting import PATIENCE_SEC

PROXIES = ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")


@pytest.fixture
def client() -> Iterator[httpx2.Client]:
    with httpx2.Client(transport=LeanTransport(), timeout=PATIENCE_SEC) as client:
        yield client


class Echo(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def handle(self) -> None:
        with suppress(ConnectionError):  # a client may have had enough
            super().handle()

    def do_POST(self) -> None:
        body = b"".join(self._chunks())
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("X-Connection", str(self.client_address[1]))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self) -> None:
        self.do_POST()

    def do_HEAD(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "1000")
        self.end_headers()

    def do_DELETE(self) -> None:
        """In chunks, as a server that does not know the length."""
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.send_header("X-Connection", str(self.client_address[1]))
        self.end_headers()
        self.wfile.write(b"5\r\nfirst\r\n6\r\nsecond\r\n0\r\n\r\n")

    def _chunks(self) -> Iterator[bytes]:
        if self.headers.get("Transfer-Encoding") != "chunked":
            yield self.rfile.read(int(self.headers.get("Content-Length") or 0))
            return
        while size := int(self.rfile.readline(), 16):
            yield self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def echo() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Echo)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    thread.join()
    server.server_close()


@contextmanager
def server_that(behaves: Callable[[socket.socket], None]) -> Iterator[str]:
    """Each connection is handled once and then closed."""
    listening = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        with suppress(OSError):
            while True:
                connection, _ = listening.accept()
                with connection:
                    behaves(connection)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        listening.shutdown(socket.SHUT_RDWR)
        listening.close()
        thread.join()


def test_a_connection_is_used_again(client: httpx2.Client, echo: str) -> None:
    answers = [client.post(echo, json={"n": n}) for n in range(3)] + [client.delete(echo), client.get(echo)]
    assert [answer.json() for answer in answers[:3]] == [{"n": 0}, {"n": 1}, {"n": 2}]
    assert answers[3].text == "firstsecond"
    assert len({answer.headers["x-connection"] for answer in answers}) == 1


def test_what_is_not_read_to_its_end_is_not_used_again(client: httpx2.Client, echo: str) -> None:
    with client.stream("POST", echo, content=b"x" * 1_000_000) as answer:
        first = answer.headers["x-connection"]
    assert client.post(echo).headers["x-connection"] != first


def test_head_and_a_small_body_travel_in_one_packet(client: httpx2.Client) -> None:
    seen: list[bytes] = []

    def answer(connection: socket.socket) -> None:
        seen.append(connection.recv(PACKET_BYTES))
        connection.sendall(b"HTTP/1.1 204 No Content\r\n\r\n")

    with server_that(answer) as url:
        assert client.post(url, content=b"the body").status_code == 204
    assert seen[0].endswith(b"\r\n\r\nthe body")


@pytest.mark.parametrize(
    "content", [b"x" * 3_000_000, iter([b"x" * 1_000_000] * 3)], ids=["known", "chunked"]
)
def test_large_bodies_arrive_whole(client: httpx2.Client, echo: str, content: Any) -> None:
    assert client.post(echo, content=content).content == b"x" * 3_000_000


def test_answers_without_a_body(client: httpx2.Client, echo: str) -> None:
    assert client.head(echo).content == b""
    assert client.get(echo).content == b""


def test_a_connection_that_the_server_has_closed_is_not_used_again(client: httpx2.Client) -> None:
    hung_up = threading.Semaphore(0)

    def answer_and_hang_up(connection: socket.socket) -> None:
        connection.recv(PACKET_BYTES)
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
        connection.close()
        hung_up.release()

    with server_that(answer_and_hang_up) as url:
        for _ in range(20):
            assert client.get(url).text == "ok"
            assert hung_up.acquire(timeout=PATIENCE_SEC)


def test_threads_do_not_get_each_others_answers(client: httpx2.Client, echo: str) -> None:
    wrong: list[str] = []

    def ask(name: str) -> None:
        for n in range(100):
            text = f"{name}-{n}"
            if client.post(echo, content=text.encode()).text != text:
                wrong.append(text)

    threads = [threading.Thread(target=ask, args=(f"t{n}",)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_an_answer_comes_in_pieces_as_they_are_sent(client: httpx2.Client) -> None:
    go_on = threading.Event()

    def dribble(connection: socket.socket) -> None:
        connection.recv(PACKET_BYTES)
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\ndata: 1\n\n")
        go_on.wait(PATIENCE_SEC)
        connection.sendall(b"data: 2\n\n")

    with server_that(dribble) as url, client.stream("GET", url) as answer:
        pieces = answer.iter_text()
        assert next(pieces) == "data: 1\n\n"
        go_on.set()
        assert next(pieces) == "data: 2\n\n"


def _silent(connection: socket.socket) -> None:
    connection.recv(PACKET_BYTES)
    connection.settimeout(5)
    with suppress(OSError):
        connection.recv(1)  # until the client has had enough


def _hangs_up(connection: socket.socket) -> None:
    connection.recv(PACKET_BYTES)


def _babbles(connection: socket.socket) -> None:
    connection.recv(PACKET_BYTES)
    connection.sendall(b"what?\r\n\r\n")


def _stops_halfway(connection: socket.socket) -> None:
    connection.recv(PACKET_BYTES)
    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf")


def _answers_twice(connection: socket.socket) -> None:
    connection.recv(PACKET_BYTES)
    one = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n"
    connection.sendall(one + b"first" + one + b"other")


def test_a_second_response_in_one_packet_is_nobodys(client: httpx2.Client) -> None:
    """It is neither a part of the first nor the answer to the next request."""
    with server_that(_answers_twice) as url, json_calls(url) as calls:
        for _ in range(3):
            assert client.get(url).text == "first"
            assert calls.send("GET", "/").text == "first"


def _refuses_at_once(connection: socket.socket) -> None:
    connection.recv(PACKET_BYTES)
    connection.sendall(b"HTTP/1.1 413 Content Too Large\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
    connection.shutdown(socket.SHUT_WR)
    while connection.recv(PACKET_BYTES):
        pass


def test_a_refusal_before_the_end_of_the_request_is_an_answer(client: httpx2.Client) -> None:
    with server_that(_refuses_at_once) as url:
        assert client.post(url, content=b"x" * 10_000_000).status_code == 413


def _switches_protocols(connection: socket.socket) -> None:
    connection.recv(PACKET_BYTES)
    connection.sendall(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\nhello")


def _long_head(connection: socket.socket) -> None:
    connection.recv(PACKET_BYTES)
    with suppress(OSError):  # the client has had enough
        connection.sendall(b"HTTP/1.1 200 OK\r\nX-Long: ")
        for _ in range(1000):
            connection.sendall(b"x" * MAX_HEAD_BYTES)


def _endless_hints(connection: socket.socket) -> None:
    connection.recv(PACKET_BYTES)
    with suppress(OSError):
        for _ in range(100_000):
            connection.sendall(b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n" * 100)


def _endless_trailer(connection: socket.socket) -> None:
    connection.recv(PACKET_BYTES)
    with suppress(OSError):
        connection.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\nX-Long: ")
        for _ in range(1000):
            connection.sendall(b"x" * MAX_HEAD_BYTES)


FAULTS = [
    (_silent, httpx2.ReadTimeout),
    (_hangs_up, httpx2.RemoteProtocolError),
    (_babbles, httpx2.RemoteProtocolError),
    (_stops_halfway, httpx2.RemoteProtocolError),
    (_switches_protocols, httpx2.RemoteProtocolError),
    (_long_head, httpx2.RemoteProtocolError),
    (_endless_hints, httpx2.RemoteProtocolError),
    (_endless_trailer, httpx2.RemoteProtocolError),
]


def timeout_for(error: type[Exception]) -> float:
    """Short only where the timeout is what is wanted: a busy machine is slow with the others."""
    return 0.2 if error is httpx2.ReadTimeout else PATIENCE_SEC


@pytest.mark.parametrize(("behaves", "error"), FAULTS)
def test_faults_are_httpx2s(
    client: httpx2.Client, behaves: Callable[[socket.socket], None], error: type[Exception]
) -> None:
    with server_that(behaves) as url, pytest.raises(error):
        client.get(url, timeout=timeout_for(error))


def test_nobody_listens(client: httpx2.Client) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with pytest.raises(httpx2.ConnectError):
        client.get(f"http://127.0.0.1:{port}")


SMUGGLED = [
    ("X-API-Key", "secret\r\nX-Other: b"),
    ("X-API-Key", "secret\nb"),
    ("X-API-Key", "secret\0"),
    ("X-Other: b\r\nX-API-Key", "secret"),
    ("X Other", "secret"),
    ("", "secret"),
]


@pytest.mark.parametrize(("name", "value"), SMUGGLED)
def test_nobody_smuggles_a_header(client: httpx2.Client, echo: str, name: str, value: str) -> None:
    with pytest.raises(httpx2.LocalProtocolError) as refused:
        client.get(echo, headers={name: value})
    assert "secret" not in str(refused.value)


def test_proxies_of_the_environment_are_left_to_httpx2(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in PROXIES:
        monkeypatch.delenv(name, raising=False)
    assert isinstance(transport_for("http://gateway:8000"), LeanTransport)
    monkeypatch.setenv("HTTP_PROXY", "http://proxy:3128")
    assert transport_for("http://gateway:8000") is None


# JSON calls


@contextmanager
def json_calls(url: str, timeout: float = PATIENCE_SEC, **headers: str) -> Iterator[JsonCalls]:
    transport = LeanTransport()
    with httpx2.Client(base_url=url, headers=headers, transport=transport) as client:
        yield JsonCalls(client, transport, timeout)


def test_a_json_call_is_what_httpx2_would_have_sent() -> None:
    """Of what the server can see, only the order of headers may differ."""
    seen: list[set[bytes]] = []

    def answer(connection: socket.socket) -> None:
        seen.append(set(connection.recv(PACKET_BYTES).lower().split(b"\r\n")))
        connection.sendall(b"HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n")

    given: dict[str, Any] = {"json": {"flow_name": "日本語", "n": 1.5}, "headers": {"Idempotency-Key": "a"}}
    transport = LeanTransport()
    with (
        server_that(answer) as url,
        httpx2.Client(base_url=f"{url}/below", headers={"X-API-Key": "k"}, transport=transport) as client,
    ):
        sends: list[Callable[..., httpx2.Response]] = [
            client.request,
            JsonCalls(client, transport, PATIENCE_SEC).send,
        ]
        for send in sends:
            assert send("POST", "/runs/a%2Fb", **given).status_code == 204
    assert seen[0] == seen[1]


def test_an_answer_that_is_an_error_names_its_request(echo: str) -> None:
    with json_calls(echo) as calls:
        answer = calls.send("PUT", "/runs/1")
        with pytest.raises(httpx2.HTTPStatusError) as raised:
            answer.raise_for_status()
    assert (raised.value.request.method, str(raised.value.request.url)) == ("PUT", f"{echo}/runs/1")


def test_json_calls_use_a_connection_again(echo: str) -> None:
    with json_calls(echo) as calls:
        answers = [calls.send("POST", "/", json={"n": n}) for n in range(3)]
        answers.append(calls.send("DELETE", "/"))
        assert [answer.json() for answer in answers[:3]] == [{"n": 0}, {"n": 1}, {"n": 2}]
        assert answers[3].text == "firstsecond"
        assert len({answer.headers["x-connection"] for answer in answers}) == 1


def test_json_calls_of_threads_do_not_get_each_others_answers(echo: str) -> None:
    wrong: list[object] = []

    def ask(name: str) -> None:
        for n in range(100):
            answer = calls.send("POST", "/", json=[name, n])
            if answer.json() != [name, n]:
                wrong.append(answer.json())

    with json_calls(echo) as calls:
        threads = [threading.Thread(target=ask, args=(f"t{n}",)) for n in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not wrong


WHOLE = b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\nConnection: close\r\n\r\nall of it"


def _until_the_end(connection: socket.socket) -> None:
    connection.recv(PACKET_BYTES)
    connection.sendall(b"HTTP/1.1 200 OK\r\n\r\nall of it")


def _early_hints(connection: socket.socket) -> None:
    connection.recv(PACKET_BYTES)
    connection.sendall(b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n")
    connection.sendall(WHOLE)


def _by_the_byte(connection: socket.socket) -> None:
    connection.recv(PACKET_BYTES)
    for byte in WHOLE:
        connection.sendall(bytes([byte]))


@pytest.mark.parametrize("behaves", [_until_the_end, _early_hints, _by_the_byte])
def test_a_json_call_understands(behaves: Callable[[socket.socket], None]) -> None:
    with server_that(behaves) as url, json_calls(url) as calls:
        for _ in range(3):
            answer = calls.send("GET", "/")
            assert (answer.status_code, answer.text) == (200, "all of it")
            assert "link" not in answer.headers


@pytest.mark.parametrize(("behaves", "error"), FAULTS)
def test_faults_of_json_calls_are_httpx2s(
    behaves: Callable[[socket.socket], None], error: type[Exception]
) -> None:
    with server_that(behaves) as url, json_calls(url, timeout_for(error)) as calls, pytest.raises(error):
        calls.send("GET", "/")


def test_nobody_listens_to_a_json_call() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with json_calls(f"http://127.0.0.1:{port}") as calls, pytest.raises(httpx2.ConnectError):
        calls.send("GET", "/")


def test_nobody_smuggles_a_header_or_a_second_request(echo: str) -> None:
    for name, value in SMUGGLED:
        with json_calls(echo) as calls, pytest.raises(httpx2.LocalProtocolError) as refused:
            calls.send("GET", "/", headers={name: value})
        assert "secret" not in str(refused.value)
    with json_calls(echo) as calls, pytest.raises(httpx2.LocalProtocolError):
        calls.send("GET", "/runs/a HTTP/1.1\r\n\r\nGET /other")


def test_a_connection_that_has_hung_up_is_not_used_for_a_json_call() -> None:
    hung_up = threading.Semaphore(0)

    def answer_and_hang_up(connection: socket.socket) -> None:
        connection.recv(PACKET_BYTES)
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
        connection.close()
        hung_up.release()

    with server_that(answer_and_hang_up) as url, json_calls(url) as calls:
        for _ in range(20):
            assert calls.send("GET", "/").text == "ok"
            assert hung_up.acquire(timeout=PATIENCE_SEC)


def _newer(connection: socket.socket) -> None:
    connection.recv(PACKET_BYTES)
    body = b'{"run_id": "r", "status": "PENDING", "new_in_some_version": [1]}'
    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))


def test_fields_of_newer_servers_are_kept() -> None:
    with server_that(_newer) as url, PyocoHttpClient(url) as client:
        answer = client.submit_run("chain")
    assert type(answer) is dict
    assert answer == {"run_id": "r", "status": "PENDING", "new_in_some_version": [1]}
