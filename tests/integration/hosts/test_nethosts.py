"""The test hosts are hosts: named, reachable by ssh, cut off in silence, and gone afterwards."""

import os
import socket
import subprocess
import time
from pathlib import Path

import pytest

from tests.support import marks, namespaces
from tests.support.nethosts import NETWORK
from tests.support.waiting import wait_until


def ask(host, name, *command, timeout=20.0):
    """Run ``command`` over ssh."""
    return host.run(["ssh", "-o", "ConnectTimeout=2", name, *command], timeout=timeout)


def test_a_shell_on_a_host_reads_nothing_of_the_users_home(nethosts):
    hosts = nethosts(1)
    home = ask(hosts.launcher, "h1", "echo $HOME").stdout.strip()
    assert home != str(Path.home())
    assert Path(home).is_dir()
    assert not list(Path(home).iterdir())


def test_ssh_reaches_every_host_by_its_name(nethosts):
    hosts = nethosts(2)
    for host in hosts:
        done = ask(hosts.launcher, host.name, "hostname; ip -4 -br addr show eth0")
        assert done.returncode == 0, done.output
        hostname, interface = done.stdout.splitlines()
        assert hostname == host.name
        assert f"{host.address}/24" in interface
    assert ask(hosts["h1"], "h2", "hostname").stdout == "h2\n"


def test_a_host_knows_its_own_name_and_does_not_take_it_for_loopback(nethosts):
    host = nethosts(1)[0]
    done = host.run(["python3", "-c", "import socket; n = socket.gethostname(); print(n, socket.gethostbyname(n))"])
    assert done.stdout == f"h1 {host.address}\n"
    host.resolve_own_name_to("127.0.1.1")
    done = host.run(["python3", "-c", "import socket; print(socket.gethostbyname('h1'))"])
    assert done.stdout == "127.0.1.1\n"


def test_the_machine_itself_is_untouched_and_out_of_reach(nethosts):
    before = subprocess.run(["ip", "-br", "addr"], capture_output=True, text=True, check=True).stdout
    hosts = nethosts(1)
    after = subprocess.run(["ip", "-br", "addr"], capture_output=True, text=True, check=True).stdout
    assert after == before
    assert NETWORK not in after
    assert socket.gethostname() != "h1"
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        code = f"import socket; socket.create_connection(('127.0.0.1', {listener.getsockname()[1]}), 2)"
        assert "Connection refused" in hosts[0].run(["python3", "-c", code]).stderr


def test_a_cut_link_is_silent_and_a_restored_one_carries_on(nethosts):
    hosts = nethosts(1)
    ticks = "for i in $(seq 1000); do echo tick $i; sleep 0.05; done"
    with hosts.launcher.popen(["ssh", "h1", ticks]) as process:
        process.wait_for("tick 3")
        hosts["h1"].cut()
        time.sleep(0.3)  # what is under way arrives
        said = len(process.stdout)
        refused = ask(hosts.launcher, "h1", "true")
        assert refused.returncode == 255  # after more than a second of silence, while ssh waited to connect
        assert len(process.stdout) == said
        assert process.returncode is None
        hosts["h1"].restore()
        wait_until(lambda: len(process.stdout) > said, what="the next tick", timeout=20)
    assert ask(hosts.launcher, "h1", "true").returncode == 0


def test_a_frozen_host_answers_no_more_until_it_is_thawed(nethosts):
    hosts = nethosts(1)
    hosts["h1"].freeze()
    with hosts.launcher.popen(["ssh", "h1", "echo thawed"]) as process:
        with pytest.raises(AssertionError, match="in vain"):
            process.wait_for("thawed", timeout=0.5)
        hosts["h1"].thaw()
        process.wait_for("thawed")


def test_a_killed_host_is_empty_and_comes_back_with_the_same_key(nethosts):
    hosts = nethosts(1)
    assert ask(hosts.launcher, "h1", "true").returncode == 0
    hosts["h1"].kill()
    assert hosts["h1"].pids() == []
    assert ask(hosts.launcher, "h1", "true").returncode == 255
    hosts["h1"].boot()
    hosts["h1"].restore()
    done = ask(hosts.launcher, "h1", "true")
    assert done.returncode == 0, done.output


def test_a_host_can_be_added_later_and_all_know_it(nethosts):
    hosts = nethosts(1)
    added = hosts.add_host()
    assert added.name == "h2"
    assert ask(hosts["h1"], "h2", "hostname").stdout == "h2\n"


def test_commands_end_with_their_block_even_over_ssh(nethosts):
    hosts = nethosts(1)
    with hosts.launcher.popen(["ssh", "-tt", "h1", "echo up; sleep 98"]) as process:
        process.wait_for("up")
    wait_until(lambda: not any("sleep 98" in marks.command_line(pid) for pid in hosts["h1"].pids()), what="the end")


def test_nothing_is_left_of_a_closed_network(nethosts):
    hosts = nethosts(2)
    inside = [pid for host in (*hosts, hosts.launcher) for pid in host.pids()]
    assert len(inside) >= 5  # three first processes, two sshd
    with hosts.launcher.popen(["ssh", "h1", "echo up; sleep 98"]) as process:
        process.wait_for("up")
        hosts.close()
    assert namespaces.named(hosts.prefix) == []
    assert not hosts.directory.exists()
    assert [pid for pid in inside if marks.start_time(pid) is not None] == []
    assert not any(name.startswith(hosts.prefix) for name in os.listdir("/run/netns"))
    assert not Path("/etc/netns").exists() or not list(Path("/etc/netns").glob(f"{hosts.prefix}*"))
