"""Addresses and hosts as they are written. What is refused: tests/unit/discover/test_cli.py."""

from pathlib import Path

import pytest

from discover.daemon.settings import StaticSettings
from discover.publish.server import TcpAddress, UnixAddress, parse_listen
from hvd_elastic_ext.core.errors import UsageError


@pytest.mark.parametrize(
    ("value", "address"),
    [
        ("unix:///run/x", UnixAddress(Path("/run/x"))),
        ("127.0.0.1:80", TcpAddress("127.0.0.1", 80)),
        ("0.0.0.0:0", TcpAddress("0.0.0.0", 0)),
        (":8080", TcpAddress("127.0.0.1", 8080)),
        ("[::1]:8080", TcpAddress("::1", 8080)),
    ],
)
def test_an_address_to_listen_at_is_read_with_its_port(value, address):
    assert parse_listen(value) == address


@pytest.mark.parametrize("value", ["8080", "host:x", "host:65536", "::1:80", "unix://run/x", "host:٣"])
def test_what_is_no_address_is_refused_with_the_forms_there_are(value):
    with pytest.raises(UsageError, match="write "):
        parse_listen(value)


def test_a_socket_path_longer_than_the_system_takes_is_refused():
    with pytest.raises(UsageError, match="at most 107 bytes"):
        parse_listen("unix:///" + "x" * 107)


def test_an_address_is_shown_as_a_url_would_be():
    assert str(TcpAddress("::1", 80)) == "http://[::1]:80"
    assert str(UnixAddress(Path("/run/x"))) == "unix:///run/x"


def test_bare_names_have_the_slots_given():
    assert StaticSettings.parse("a,b:2", slots=4).hosts.as_slots() == {"a": 4, "b": 2}
