"""The server's sockets: how many, whose, and what is left of them."""

import contextlib
import errno
import os
import socket
import stat
import time

import pytest

from discover.metrics import Metrics
from discover.publish.files import OwnedByOther
from discover.publish.server import (
    CannotListen,
    Health,
    LatestPublication,
    Routes,
    Server,
    TcpAddress,
    UnixAddress,
    servers_at,
)
from hvd_elastic_ext.io import http_server as serving
from tests.support.waiting import wait_until

REQUEST = b"%s /livez HTTP/1.1\r\nHost: x\r\n\r\n"


@pytest.fixture
def routes(manual_clock):
    made = Routes(LatestPublication(), vitals=Health(manual_clock), metrics=Metrics(manual_clock))
    yield made
    made.close()


@pytest.fixture
def start(routes):
    started: list[Server] = []

    def make(address):
        server = Server(address, routes)
        started.append(server)
        server.start()
        return server

    yield make
    for server in started:
        server.close()


def connected(address) -> socket.socket:
    client = socket.socket(socket.AF_UNIX if isinstance(address, UnixAddress) else socket.AF_INET)
    client.settimeout(10)
    client.connect(str(address.path) if isinstance(address, UnixAddress) else (address.host, address.port))
    return client


def ask(address, method: bytes = b"GET") -> tuple[socket.socket, bytes]:
    """Ask for /livez; return the open connection and the first of what came back."""
    client = connected(address)
    try:
        client.sendall(REQUEST % method)
        return client, client.recv(4096)
    except ConnectionError:  # sent away before the request was written
        return client, b""


@pytest.fixture
def address(request, tmp_path):
    return TcpAddress("127.0.0.1", 0) if request.param == "tcp" else UnixAddress(tmp_path / "s")


both = pytest.mark.parametrize("address", ["tcp", "unix"], indirect=True)
over_tcp = pytest.mark.parametrize("address", ["tcp"], indirect=True)


@both
def test_a_request_is_answered_and_the_connection_kept(start, address):
    client, answer = ask(start(address).address)
    with client:
        assert answer.startswith(b"HTTP/1.1 200 ")
        client.sendall(REQUEST % b"GET")
        assert client.recv(4096).startswith(b"HTTP/1.1 200 ")


@over_tcp
def test_asked_for_the_head_it_sends_no_body(start, address):
    client, answer = ask(start(address).address, b"HEAD")
    with client:
        assert answer.endswith(b"\r\n\r\n")


@both
def test_one_connection_too_many_closes_the_one_that_has_been_idle_longest(start, address, monkeypatch):
    monkeypatch.setattr("discover.publish.server.MAX_CLIENTS", 2)
    where = start(address).address
    with connected(where) as first, connected(where) as second:
        second.sendall(b"G")  # as much of a request as there will ever be
        third, answer = ask(where)
        with third:
            assert answer.startswith(b"HTTP/1.1 200 ")
            assert first.recv(1) == b""
            second.setblocking(False)
            with pytest.raises(BlockingIOError):
                second.recv(1)


@over_tcp
@pytest.mark.parametrize(
    ("hold", "polls"), [(0.0, 2), (60.0, 2), (0.0, 1)], ids=["after a second", "all of them new", "beside an idle one"]
)
def test_one_connection_too_many_is_served_and_the_longest_poll_answered(
    start, address, monkeypatch, routes, hold, polls
):
    monkeypatch.setattr("discover.publish.server.MAX_CLIENTS", 2)
    monkeypatch.setattr(serving, "SHORTEST_HOLD", hold)
    where = start(address).address
    with contextlib.ExitStack() as clients:
        first, second = None, None
        for count in (1, 2):
            first, second = second, clients.enter_context(connected(where))
            if count <= polls:
                second.sendall(b"GET /hosts?after=0 HTTP/1.1\r\nHost: x\r\n\r\n")
                wait_until(lambda taken=count: len(routes._board._waiting) == taken, what="a client to wait")
        third, answer = ask(where)
        third.close()
        assert answer.startswith(b"HTTP/1.1 200 ")
        assert first.recv(4096).startswith(b"HTTP/1.1 204 ")
        second.setblocking(False)
        with pytest.raises(BlockingIOError):
            second.recv(1)


@over_tcp
def test_a_request_that_drips_has_as_long_as_one_that_stands_still(start, address, monkeypatch):
    monkeypatch.setattr(serving, "REQUEST_S", 0.3)
    with connected(start(address).address) as client:
        client.settimeout(0.02)

        def ended() -> bool:
            try:
                client.send(b"G")
                return client.recv(1) == b""
            except TimeoutError:
                return False
            except ConnectionError:
                return True

        wait_until(ended, what="the end of the connection", timeout=10)


@over_tcp
def test_a_head_without_an_end_is_not_kept(start, address):
    with connected(start(address).address) as client, contextlib.suppress(ConnectionError):
        for _ in range(1000):
            client.sendall(b"x" * serving.MAX_HEAD)
        pytest.fail("8 MB of a head were read")


@over_tcp
def test_requests_may_come_without_carriage_returns(start, address):
    with connected(start(address).address) as client:
        for _ in range(2):
            client.sendall(b"GET /livez HTTP/1.1\nHost: x\n\n")
            assert client.recv(4096).startswith(b"HTTP/1.1 200 ")


@over_tcp
def test_of_requests_that_do_not_wait_for_answers_one_is_answered(start, address):
    with connected(start(address).address) as client:
        client.sendall(REQUEST % b"GET" * 3)
        answers = client.recv(4096)
        with contextlib.suppress(ConnectionError):  # what was not read may reset the connection
            while more := client.recv(4096):
                answers += more
        assert answers.count(b"HTTP/1.1 200 ") == 1
        assert b"Connection: close" in answers


@over_tcp
def test_while_more_than_half_of_all_connections_are_taken_each_is_for_one_request(start, address, monkeypatch):
    monkeypatch.setattr("discover.publish.server.MAX_CLIENTS", 4)
    where = start(address).address
    with connected(where), connected(where):
        client, answer = ask(where)
        with client:
            assert b"Connection: close" in answer
            assert client.recv(1) == b""


def test_out_of_descriptors_it_does_not_try_again_and_again(start, monkeypatch):
    server = start(TcpAddress("127.0.0.1", 0))
    tries: list[float] = []

    def refuse(self):
        tries.append(time.monotonic())
        raise OSError(errno.EMFILE, "too many open files")

    monkeypatch.setattr(socket.socket, "accept", refuse)
    with connected(server.address):
        wait_until(lambda: len(tries) == 4, what="some tries")
    assert tries[3] - tries[0] > 2 * serving.ROOM_TIMEOUT


def test_a_closed_server_leaves_no_socket_file_and_may_be_closed_again(routes, tmp_path):
    server = Server(UnixAddress(tmp_path / "s"), routes)
    assert stat.S_ISSOCK((tmp_path / "s").stat().st_mode)
    server.close()
    server.close()
    assert not (tmp_path / "s").exists()


def test_a_socket_file_that_is_no_longer_its_own_is_left(routes, tmp_path):
    server = Server(UnixAddress(tmp_path / "s"), routes)
    (tmp_path / "s").unlink()
    (tmp_path / "s").write_text("somebody else's")
    server.close()
    assert (tmp_path / "s").read_text() == "somebody else's"


def test_the_socket_file_is_for_its_owner_only_and_no_other_thread_notices(routes, tmp_path, monkeypatch):
    """The umask is the whole process's: a file that another thread made meanwhile would get what is meant for this."""
    monkeypatch.setattr(os, "umask", lambda mask: pytest.fail("the umask was touched"))
    server = Server(UnixAddress(tmp_path / "s"), routes)
    assert stat.S_IMODE((tmp_path / "s").stat().st_mode) == 0o600
    server.close()


def test_a_path_that_is_not_its_own_is_left_alone(routes, tmp_path):
    (tmp_path / "file").write_text("precious")
    with pytest.raises(CannotListen, match="that is not a socket"):
        Server(UnixAddress(tmp_path / "file"), routes)
    assert (tmp_path / "file").read_text() == "precious"
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(tmp_path / "s"))
        other.listen()
        with pytest.raises(OwnedByOther, match="another process already serves it"):
            Server(UnixAddress(tmp_path / "s"), routes)
    assert (tmp_path / "s").exists()


def test_several_addresses_are_served_alike(routes, tmp_path):
    servers = servers_at([UnixAddress(tmp_path / "s"), TcpAddress("127.0.0.1", 0)], routes)
    for server in servers:
        server.start()
    for server in servers:
        client, answer = ask(server.address)
        client.close()
        assert answer.startswith(b"HTTP/1.1 200 ")
        server.close()


def test_of_several_addresses_all_are_had_or_none(routes, tmp_path):
    with pytest.raises(CannotListen, match="cannot assign requested address"):
        servers_at([UnixAddress(tmp_path / "s"), TcpAddress("203.0.113.1", 0)], routes)
    assert not (tmp_path / "s").exists()
    Server(UnixAddress(tmp_path / "s"), routes).close()


def test_a_second_server_on_one_socket_file_is_refused_even_before_the_first_answers(routes, tmp_path):
    server = Server(UnixAddress(tmp_path / "s"), routes)
    with pytest.raises(OwnedByOther):
        Server(UnixAddress(tmp_path / "s"), routes)
    server.close()


@pytest.mark.parametrize(
    ("address", "why"),
    [
        (TcpAddress("127.0.0.1", 1 << 15), "address already in use"),
        (TcpAddress("203.0.113.1", 0), "cannot assign requested address"),
    ],
)
def test_an_address_that_cannot_be_had_is_one_clear_line(routes, address, why):
    with socket.socket() as other:
        if address.port:
            other.bind(("127.0.0.1", 0))
            other.listen()
            address = TcpAddress("127.0.0.1", other.getsockname()[1])
        with pytest.raises(CannotListen, match=f"{why}; name another address"):
            Server(address, routes)


def test_a_socket_in_a_directory_that_is_not_there_is_one_clear_line(routes, tmp_path):
    with pytest.raises(CannotListen, match="no such file or directory"):
        Server(UnixAddress(tmp_path / "none/s"), routes)
