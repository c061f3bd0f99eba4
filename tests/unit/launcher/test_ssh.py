"""The one command line by which hosts are reached."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hvd_elastic_ext.launcher.ssh import Ssh


def test_the_host_stands_behind_the_end_of_options_and_words_are_quoted() -> None:
    command = Ssh(Path("/a b"), port=2222, identity_file="key").command("h1", ["python", "-c", "print('x y')"])
    assert command[0] == "ssh"
    end = command.index("--")
    assert command[end + 1] == "h1"
    assert command[end + 2 :] == ["cd '/a b' 2>/dev/null; exec python -c 'print('\"'\"'x y'\"'\"')'"]
    assert command[end - 4 : end] == ["-p", "2222", "-i", "key"]


def test_ssh_never_asks_and_gives_up() -> None:
    options = Ssh(Path("/"), connect_timeout_s=7).command("h1", ["true"])
    assert {"-oBatchMode=yes", "-oConnectTimeout=7", "-oServerAliveInterval=5"} <= set(options)
    assert "-p" not in options
    assert "-i" not in options


@given(st.text(max_size=20).map(lambda tail: "-" + tail))
def test_nothing_that_looks_like_an_option_is_taken_for_a_host(name: str) -> None:
    with pytest.raises(ValueError, match=r"option|characters|ASCII"):
        Ssh(Path("/")).command(name, ["true"])
