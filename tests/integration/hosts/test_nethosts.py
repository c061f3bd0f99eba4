"""The test hosts are hosts: apart from this machine, cut off in silence, and gone afterwards."""

import os
import re
import socket
import subprocess
import time
from pathlib import Path

from tests.support import marks, namespaces
from tests.support.nethosts import NETWORK
from tests.support.waiting import wait_until


def ask(host, name, *command, timeout=20.0):
    """Run ``command`` over ssh."""
    return host.run(["ssh", "-o", "ConnectTimeout=2", name, *command], timeout=timeout)


def test_the_machine_itself_is_untouched_and_out_of_reach_and_the_users_home_is_not_read(nethosts):
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
    home = ask(hosts.launcher, "h1", "echo $HOME").stdout.strip()
    assert home != str(Path.home())
    assert list(Path(home).iterdir()) == []


def test_a_cut_link_is_silent_a_restored_one_carries_on_and_a_killed_host_comes_back_with_the_same_key(nethosts):
    hosts = nethosts(1)
    ticks = "for i in $(seq 1000); do echo tick $i $(date +%s.%N); sleep 0.05; done"
    with hosts.launcher.popen(["ssh", "h1", ticks]) as process:

        def newest() -> float:
            """When the newest tick was made."""
            return float(re.findall(r"^tick \d+ (\S+)\n", process.stdout, re.MULTILINE)[-1])

        process.wait_for("tick 3")
        hosts["h1"].cut()
        cut_at = time.time()  # what is under way may still arrive
        refused = ask(hosts.launcher, "h1", "true")
        assert refused.returncode == 255  # after more than a second of silence, while ssh waited to connect
        assert newest() < cut_at
        assert process.returncode is None
        hosts["h1"].restore()
        wait_until(lambda: newest() > cut_at, what="the next tick", timeout=20)
    hosts["h1"].kill()
    assert hosts["h1"].pids() == []
    hosts["h1"].boot()
    hosts["h1"].restore()
    assert ask(hosts.launcher, "h1", "hostname").stdout == "h1\n"


def test_nothing_is_left_of_a_closed_network_nor_of_a_command_whose_block_has_ended(nethosts):
    hosts = nethosts(2)
    with hosts.launcher.popen(["ssh", "-tt", "h1", "echo up; sleep 97"]) as process:
        process.wait_for("up")
    wait_until(lambda: not any("sleep 97" in marks.command_line(pid) for pid in hosts["h1"].pids()), what="the end")
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
