"""The server's sockets: how many, whose, and what is left of them."""

import os
import socket
import stat

import pytest

from discover.metrics import Metrics
from discover.publishing import serve
from discover.publishing.board import Board
from discover.publishing.locks import Taken
from discover.publishing.routes import Routes
from discover.publishing.serve import CannotListen, Server, servers_at
from discover.settings import TcpAddress, UnixAddress
from discover.vitals import Vitals
from tests.support.waiting import wait_until

REQUEST = b"%s /livez HTTP/1.1\r\nHost: x\r\n\r\n"


@pytest.fixture
def routes(manual_clock):
    made = Routes(Board(), vitals=Vitals(manual_clock), metrics=Metrics(manual_clock))
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


def ask(address, method: bytes = b"GET") -> tuple[socket.socket, bytes]:
    """Ask for /livez; return the open connection and the first of what came back."""
    family = socket.AF_UNIX if isinstance(address, UnixAddress) else socket.AF_INET
    client = socket.socket(family)
    client.settimeout(10)
    client.connect(str(address.path) if isinstance(address, UnixAddress) else (address.host, address.port))
    try:
        client.sendall(REQUEST % method)
        return client, client.recv(4096)
    except ConnectionError:  # sent away before the request was written
        return client, b""


@pytest.fixture
def address(request, tmp_path):
    return TcpAddress("127.0.0.1", 0) if request.param == "tcp" else UnixAddress(tmp_path / "s")


both = pytest.mark.parametrize("address", ["tcp", "unix"], indirect=True)


@both
def test_a_request_is_answered_and_the_connection_kept(start, address):
    client, answer = ask(start(address).address)
    with client:
        assert answer.startswith(b"HTTP/1.1 200 ")
        client.sendall(REQUEST % b"GET")
        assert client.recv(4096).startswith(b"HTTP/1.1 200 ")


@both
def test_asked_for_the_head_it_sends_no_body(start, address):
    client, answer = ask(start(address).address, b"HEAD")
    with client:
        assert answer.endswith(b"\r\n\r\n")


@both
def test_more_connections_than_allowed_are_sent_away_until_others_end(start, address, monkeypatch):
    monkeypatch.setattr(serve, "MAX_CLIENTS", 2)
    where = start(address).address
    first, second = ask(where)[0], ask(where)[0]
    third, answer = ask(where)
    assert answer == b"" or answer.startswith(b"HTTP/1.1 503 ")
    for client in (first, second, third):
        client.close()

    def served() -> bool:
        client, answer = ask(where)
        client.close()
        return answer.startswith(b"HTTP/1.1 200 ")

    wait_until(served, what="a free place")


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
    with pytest.raises(Taken):
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
