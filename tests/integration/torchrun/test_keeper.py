"""The keeper of commit memory, with a stand-in for torchrun's agent."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from hvd_elastic_ext.worker.commits import torchrun_keeper as keeper
from hvd_elastic_ext.worker.commits.inherited import Agent, places
from tests.support import marks
from tests.support.processes import run_process
from tests.support.waiting import wait_until

AGENT = Path(__file__).with_name("agent.py")


@pytest.fixture
def runtime():
    """A folder for sockets, with a short name."""
    with tempfile.TemporaryDirectory(prefix="hvdt-") as folder:
        yield Path(folder)


def agent(runtime, **variables):
    env = {"XDG_RUNTIME_DIR": str(runtime), **variables}
    return run_process([sys.executable, AGENT], env=env, stdin=subprocess.PIPE)


def workers(process, count, *, time):
    process.popen.stdin.write(f"{count}\n")
    process.popen.stdin.flush()
    answers = wait_until(
        lambda: found if len(found := re.findall(r"^workers (.*)\n", process.stdout, re.M)) == time else None,
        what=f"answer {time} of the agent",
        timeout=30,
        show=lambda: process.output,
    )
    return json.loads(answers[-1])


def keepers(runtime):
    return [pid for pid in marks.pids() if f"keeper.py {runtime}/" in marks.command_line(pid)]


def nothing_is_left(runtime):
    wait_until(lambda: not keepers(runtime), what="the keeper's end", show=lambda: keepers(runtime))
    wait_until(lambda: not list(runtime.iterdir()), what="its directory's end", show=lambda: list(runtime.iterdir()))


def test_workers_that_start_together_share_one_keeper_that_is_their_users_alone(runtime):
    with agent(runtime) as process:
        first = workers(process, 4, time=1)
        assert len({inode for worker in first for inode in worker["inodes"]}) == 8, "each has memory of its own"
        (found,) = keepers(runtime)
        assert os.getsid(found) != os.getsid(process.pid)
        assert {os.readlink(f"/proc/{found}/fd/{number}") for number in (0, 1, 2)} == {os.devnull}
        (directory,) = runtime.iterdir()
        assert directory.stat().st_mode & 0o777 == 0o700
        assert (directory / keeper.SOCKET).stat().st_mode & 0o077 == 0
        os.kill(found, signal.SIGTERM)
        nothing_is_left(runtime)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, None], ids=["killed", "terminated", "done"])
def test_a_worker_started_again_finds_its_memory_until_the_agent_ends_and_then_nothing_is_left(runtime, number):
    with agent(runtime) as process:
        first = workers(process, 2, time=1)
        second = workers(process, 2, time=2)
        assert [worker["inodes"] for worker in second] == [worker["inodes"] for worker in first]
        assert [worker["runs_before"] for worker in second] == [1, 1]
        if number is None:
            process.popen.stdin.close()
        else:
            process.send_signal(number)
        process.wait()
        nothing_is_left(runtime)


def test_a_killed_keeper_is_replaced_and_its_leftovers_are_removed(runtime):
    with agent(runtime) as process:
        workers(process, 1, time=1)
        marks.kill(keepers(runtime))
        assert workers(process, 1, time=2)[0]["runs_before"] == 0
        marks.kill(keepers(runtime))
    assert list(runtime.iterdir())
    with agent(runtime) as process:
        workers(process, 1, time=1)
        assert len(list(runtime.iterdir())) == 1
        process.kill()
        process.wait()
        nothing_is_left(runtime)


def test_two_agents_have_a_keeper_each(runtime):
    with agent(runtime) as one, agent(runtime) as other:
        first, second = workers(one, 1, time=1), workers(other, 1, time=1)
        assert len(keepers(runtime)) == 2
        assert not {*first[0]["inodes"]} & {*second[0]["inodes"]}
        one.kill()
        one.wait()
        wait_until(lambda: len(list(runtime.iterdir())) == 1, what="the first one's directory to go")
        wait_until(lambda: len(keepers(runtime)) == 1, what="the first one's end")
        other.kill()
        other.wait()
        nothing_is_left(runtime)


def test_without_a_descriptor_for_the_agents_end_it_is_looked_at(runtime, monkeypatch):
    """Old kernels and some sandboxes have no pidfd_open."""
    monkeypatch.setattr(keeper, "watch_process", lambda pid: None)
    agent_process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    started = keeper.start_time(agent_process.pid)
    with keeper._listen(runtime) as listener:
        agent_process.communicate(b"\n")
        keeper.serve(listener, pid=agent_process.pid, started=started, watch=None)


AS_SOMEBODY_ELSE = """
import os, sys
os.chdir(sys.argv[1])
os.setgroups([])
os.setgid(65534)
os.setuid(65534)
if sys.argv[2] == "make":
    os.mkdir(sys.argv[3])
elif sys.argv[2] == "link":
    os.symlink(sys.argv[4], sys.argv[3])
else:
    os.rmdir(sys.argv[3])
"""


def somebody_else(folder, *words):
    subprocess.run([sys.executable, "-c", AS_SOMEBODY_ELSE, *map(str, (folder, *words))], check=True, timeout=30)


@pytest.fixture
def shared(runtime):
    """Folders like /tmp, and like a home directory."""
    if os.geteuid() != 0:
        pytest.skip("needs root, to be somebody else")
    shared, home = runtime / "tmp", runtime / "home"
    shared.mkdir()
    shared.chmod(0o1777)
    home.mkdir(mode=0o700)
    return shared, home


def test_a_process_that_takes_the_keepers_name_first_blocks_no_worker(shared):
    folder, home = shared
    with agent(folder, HOME=str(home)) as process:
        life = Agent(process.pid, keeper.start_time(process.pid))
        planted = places("job", life, {"XDG_RUNTIME_DIR": str(folder)})[0].name
        somebody_else(folder, "make", planted)
        first = workers(process, 2, time=1)
        somebody_else(folder, "remove", planted)  # and now there is room in the first place
        second = workers(process, 2, time=2)
        assert [worker["inodes"] for worker in second] == [worker["inodes"] for worker in first]
        assert not list(folder.iterdir())
        process.popen.stdin.close()
        process.wait()
        wait_until(lambda: not list(home.iterdir()), what="its directory's end", show=lambda: list(home.iterdir()))


def test_a_link_that_looks_like_a_dead_keepers_directory_takes_no_file_of_ours(shared):
    folder, home = shared
    victim = home / "victim"
    victim.mkdir()
    (victim / keeper.LOCK).touch()
    with agent(folder, HOME=str(home)) as process:
        gone = Agent(2**22, 1)  # no process has such a number
        somebody_else(folder, "link", places("job", gone, {"XDG_RUNTIME_DIR": str(folder)})[0].name, victim)
        workers(process, 1, time=1)
        assert (victim / keeper.LOCK).exists()
