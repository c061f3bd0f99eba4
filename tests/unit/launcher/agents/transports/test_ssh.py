"""The command line with which ssh reaches hosts."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hvd_elastic_ext.launcher.agents.transports.ssh import (
    HostKeys,
    Ssh,
    is_certified,
    read_host_keys,
    refused_key,
    shared_options,
)

JOBS = Path("/state dir/known_hosts")
USERS = ("/root/.ssh/known_hosts", "/root/.ssh/known_hosts2")


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


def test_no_host_is_trusted_unasked() -> None:
    assert "StrictHostKeyChecking" not in " ".join(Ssh(Path("/")).command("h1", ["true"]))


def test_what_the_configuration_says_is_read() -> None:
    said = (
        "host h1\nstricthostkeychecking ask\nuserknownhostsfile /root/.ssh/known_hosts /root/.ssh/known_hosts2\nfoo\n"
    )
    assert read_host_keys(said) == HostKeys("ask", USERS)
    assert read_host_keys("userknownhostsfile none\nstricthostkeychecking true\n") == HostKeys("true")
    assert read_host_keys("") == HostKeys()


@pytest.mark.parametrize("strict", ["true", "false", "accept-new", "", "off"])
def test_what_the_user_has_decided_is_left_alone_and_so_is_what_is_not_known(strict: str) -> None:
    assert HostKeys(strict, USERS).options(JOBS) == ()


def test_where_nobody_has_decided_new_hosts_are_remembered_in_the_jobs_file_and_known_ones_compared() -> None:
    accept = ("-oStrictHostKeyChecking=accept-new", "-oCheckHostIP=no")
    assert HostKeys("ask", USERS).options(JOBS) == (
        *accept,
        '-oUserKnownHostsFile="/state dir/known_hosts" /root/.ssh/known_hosts /root/.ssh/known_hosts2',
    )
    assert HostKeys("ask").options(JOBS)[2] == '-oUserKnownHostsFile="/state dir/known_hosts"'
    assert HostKeys("ask", USERS).options(None) == accept


@pytest.mark.parametrize("files", [("/a", "b"), ("/home/o'brien/known",), ("/my%20home/known",), ('/"a',), ("~/x",)])
def test_files_of_the_users_that_cannot_be_named_again_stay_his_own_setting(files: tuple[str, ...]) -> None:
    """Otherwise a key that the user has accepted would not count."""
    assert not any("UserKnownHostsFile" in option for option in HostKeys("ask", files).options(JOBS))


def test_names_and_files_in_which_ssh_looks_for_a_host_are_read() -> None:
    said = "host H1\nhostname h1.example\nport 2222\nuserknownhostsfile /u\nglobalknownhostsfile /g /g2\n"
    assert read_host_keys(said) == HostKeys("", ("/u",), ("/g", "/g2"), ("h1.example", "[h1.example]:2222"))
    assert read_host_keys(said + "hostkeyalias Alias\n").names[0] == "alias"


@pytest.mark.parametrize(
    ("line", "certified"),
    [
        ("@cert-authority * ssh-ed25519 AAAA", True),
        ("@cert-authority\t*.Example,other ssh-ed25519 AAAA", True),
        ("@cert-authority [h1.example]:2222 ssh-ed25519 AAAA", True),
        ("@cert-authority |1|c2FsdA==|aGFzaA== ssh-ed25519 AAAA", True),
        ("@cert-authority !*h1.*,* ssh-ed25519 AAAA", False),
        ("@cert-authority *.elsewhere ssh-ed25519 AAAA", False),
        ("@cert-authority", False),
        ("@revoked * ssh-ed25519 AAAA", False),
        ("# @cert-authority * ssh-ed25519 AAAA", False),
        ("h1.example ssh-ed25519 AAAA", False),
        ("", False),
    ],
)
def test_an_authority_that_vouches_for_a_host_leaves_nothing_open(line: str, certified: bool) -> None:
    assert is_certified([line], ("h1.example", "[h1.example]:2222")) is certified
    assert HostKeys("ask", USERS, certified=certified).open is not certified


def test_one_command_for_several_hosts_accepts_new_ones_only_if_all_are_undecided() -> None:
    free, strict, merged = HostKeys("ask", USERS), HostKeys("true", USERS), Path("/state/mpirun.known_hosts")
    file = f"-oUserKnownHostsFile={merged}"
    assert shared_options([free, free], merged) == ("-oStrictHostKeyChecking=accept-new", "-oCheckHostIP=no", file)
    assert shared_options([free, strict], merged) == (file,)
    assert shared_options([strict], merged) == shared_options([], merged) == ()
    assert file not in shared_options([free], Path("/state dir/mpirun.known_hosts"))  # Open MPI splits at spaces


def test_a_refused_key_has_a_remedy_that_names_host_port_and_file() -> None:
    said = ["@@@@@", "Offending ED25519 key in /state/known_hosts:3", "Host key verification failed."]
    assert "ssh-keygen -R h1 -f /state/known_hosts" in str(refused_key("h1", None, said))
    assert "ssh-keygen -R '[h1]:2222' -f /state/known_hosts" in str(refused_key("h1", 2222, said))
    assert "StrictHostKeyChecking accept-new for h1" in str(refused_key("h1", None, said[2:]))
    assert refused_key("h1", None, ["Permission denied (publickey)."]) is None
