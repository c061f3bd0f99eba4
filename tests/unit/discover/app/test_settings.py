"""What the daemon can be asked to do, and what is refused with which words."""

from pathlib import Path

import pytest

from discover.app.settings import FileSettings, Outputs, Settings, StaticSettings
from discover.publishing.addresses import TcpAddress, UnixAddress, parse_listen
from hvd_elastic_ext.core.errors import BadHosts, UsageError

STATIC = StaticSettings.parse("a:1")


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
def test_an_address_is_read(value, address):
    assert parse_listen(value) == address


@pytest.mark.parametrize(
    "value", ["", "8080", "host:", "host:x", "host:65536", "host:-1", "::1:80", "unix://run/x", "unix:x", "host:٣"]
)
def test_what_is_no_address_is_refused_with_the_forms_there_are(value):
    with pytest.raises(UsageError, match="write "):
        parse_listen(value)


def test_a_socket_path_longer_than_the_system_takes_is_refused():
    with pytest.raises(UsageError, match="at most 107 bytes"):
        parse_listen("unix:///" + "x" * 107)


def test_an_address_is_shown_as_a_url_would_be():
    assert str(TcpAddress("::1", 80)) == "http://[::1]:80"
    assert str(UnixAddress(Path("/run/x"))) == "unix:///run/x"


@pytest.mark.parametrize("slots", [0, -1, 4097])
def test_slots_out_of_range_are_refused(slots):
    with pytest.raises(UsageError, match="from 1 to 4096"):
        FileSettings(watch=Path("/h"), slots=slots)
    with pytest.raises(UsageError, match="from 1 to 4096"):
        StaticSettings.parse("a", slots=slots)


def test_bare_names_have_the_slots_given():
    assert StaticSettings.parse("a,b:2", slots=4).hosts.as_slots() == {"a": 4, "b": 2}


@pytest.mark.parametrize("hosts", ["a:0", "a:x", "a", "a:1,a:1", "a:1,", "-oProxyCommand=x:1", "::1:1", "a :1"])
def test_bad_hosts_name_the_option(hosts):
    with pytest.raises(BadHosts, match=r"^--hosts: "):
        StaticSettings.parse(hosts)


def test_a_script_needs_a_hosts_file():
    with pytest.raises(UsageError, match="--hosts-file"):
        Outputs(script=Path("/s"))


def test_a_script_over_its_own_hosts_file_is_refused():
    with pytest.raises(UsageError, match="both name"):
        Outputs(script=Path("/s"), hosts_file=Path("/s"))


def test_a_daemon_that_publishes_nowhere_is_refused():
    with pytest.raises(UsageError, match="nowhere to publish"):
        Settings(source=STATIC, outputs=Outputs())


def test_a_configmap_needs_a_cluster():
    with pytest.raises(UsageError, match="--configmap does not go with --source static"):
        Settings(source=STATIC, outputs=Outputs(configmap="digits-hosts"))


@pytest.mark.parametrize("name", ["../secrets/x", "Digits", "-x", "x" * 254, "a b", "a\n"])
def test_a_configmap_has_a_name_that_an_object_may_have(name):
    with pytest.raises(UsageError, match="--configmap"):
        Outputs(configmap=name)


def test_one_look_serves_nobody():
    with pytest.raises(UsageError, match="--once does not serve HTTP"):
        Settings(source=STATIC, outputs=Outputs(listen=(parse_listen(":0"),)), once=True)


def test_one_address_is_served_once():
    with pytest.raises(UsageError, match=r"--listen http://127\.0\.0\.1:80 is given twice"):
        Outputs(listen=(parse_listen(":80"), parse_listen("unix:///s"), parse_listen("127.0.0.1:80")))


def test_writing_to_the_watched_file_is_refused():
    with pytest.raises(UsageError, match="also written"):
        Settings(source=FileSettings(watch=Path("/h")), outputs=Outputs(hosts_file=Path("/h")))
