"""The memory that a slot keeps for its next process, and what no process gets: memory of others, and core dumps."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.faults.agent.conftest import holders_of
from tests.faults.agent.launching import WAIT, Agent, python
from tests.support.waiting import wait_until

TRAINEE = Path(__file__).with_name("trainee.py")
ABORTING = Path(__file__).with_name("aborting.py")


def test_a_process_that_follows_one_that_aborted_resumes_from_its_last_commit(agent: Agent) -> None:
    command = [sys.executable, TRAINEE, "2", "5"]
    for life in range(3):
        agent.start(0, *(command if life != 1 else ("sh", "-c", f"{' '.join(map(str, command))}; exit $?")))
        agent.wait_for("ended", 0, count=life + 1)
    lives = [line.split(" | ")[1:] for line in agent.written(0).decode().splitlines() if line.startswith("life")]
    assert [(number, weight) for number, weight, *_ in lives] == [("0", "0"), ("5", "15"), ("10", "30")]
    assert [held for _, _, held, *_ in lives] == ["False", "True", "True"]  # whether memory was in use before
    assert len({(descriptors, inodes) for *_, descriptors, inodes in lives}) == 1
    assert b"done | 15 | 45" in agent.written(0)
    ends = [(news["code"], news["signal"]) for news in agent.news("exited")]
    assert ends == [(134, 6), (134, None), (0, None)]
    assert len({news["pid"] for news in agent.news("started")}) == 3


def test_training_that_horovod_aborts_ends_with_the_same_result(agent: Agent, tmp_path: Path) -> None:
    for life in range(2):
        agent.start(0, sys.executable, ABORTING, 20, tmp_path / "marker")
        agent.wait_for("ended", 0, count=life + 1, timeout=100)
    assert [news["code"] for news in agent.news("exited")] == [134, 0], agent.process.output
    first, second, end, undisturbed = agent.written(0).decode().splitlines()
    assert (first, second) == ("from 0 steps", "from 6 steps")  # 8 steps were done; the last commit was at step 6
    # Weights, AdamW's state, counters and the generator of the dropout all continue from the commit.
    assert end == undisturbed


def test_each_slot_has_memory_of_its_own_and_no_other_slots(agent: Agent) -> None:
    code = (
        "import json, os, time\n"
        "links = []\n"
        "for name in os.listdir('/proc/self/fd'):\n"
        "    try: links.append((int(name), os.readlink(f'/proc/self/fd/{name}')))\n"
        "    except OSError: pass\n"
        "names = ('HVD_ELASTIC_RESULTS_FD', 'HVD_ELASTIC_COMMIT_FDS')\n"
        "print(json.dumps([','.join(os.environ.get(name, '') for name in names), links]), flush=True)\n"
        "time.sleep(1000)"
    )
    sizes = (2, 3, 0)
    for slot, commits in enumerate(sizes):
        agent.python(slot, code, commits=commits)
        agent.wait_for_text(slot, b"\n")
    for slot, commits in enumerate(sizes):
        numbers, links = json.loads(agent.written(slot))
        names = [f"results-{slot}", *(f"commit-{slot}-{number}" for number in range(commits))] if commits else []
        memory = [f"/memfd:hvd-{name} (deleted)" for name in names]
        assert [link for _, link in sorted(links) if "memfd" in link] == memory
        own = [int(number) for number in (numbers or "").split(",") if number]
        assert [number for number, _ in sorted(links) if number > 2] == own


def test_forgetting_a_slot_ends_its_process_and_frees_its_memory(agent: Agent) -> None:
    show = (
        "import os, time\n"
        "facts = [os.fstat(int(word)) for word in os.environ['HVD_ELASTIC_COMMIT_FDS'].split(',')]\n"
        "print(facts[0].st_dev, *[one.st_ino for one in facts], flush=True)\n"
        "time.sleep(1000)"
    )
    agent.python(0, show)
    device, *inodes = map(int, agent.wait_for_text(0, b"\n").split())
    memory = {(device, inode) for inode in inodes}
    # Agent, supervisor and training process; for a moment also a process that the agent is about to start.
    wait_until(lambda: len(set(holders_of(memory))) == 3, what="three that hold it")
    agent.order({"do": "stop", "slot": 0})
    agent.wait_for("ended", 0)
    wait_until(lambda: set(holders_of(memory)) == {agent.process.pid}, what="the agent alone with the memory")
    agent.order({"do": "forget", "slot": 0})
    agent.wait_for("forgotten", 0)
    assert holders_of(memory) == []
    agent.python(0, "import os; print(os.environ['HVD_ELASTIC_COMMIT_FDS'])", commits=1)  # like a new slot
    assert agent.wait_for("exited", 0, count=2)["code"] == 0


@pytest.mark.parametrize("commits", [2, 1], ids=["as before", "another number"])
def test_a_process_that_is_ordered_after_its_slot_was_forgotten_gets_new_memory(agent: Agent, commits: int) -> None:
    show = (
        "import os, subprocess, sys\n"
        "print(*[os.fstat(int(word)).st_ino for word in os.environ['HVD_ELASTIC_COMMIT_FDS'].split(',')], flush=True)\n"
    )
    stays = (  # its supervisor ends this child after the grace, and no process starts before that
        "code = 'import signal, time; signal.signal(15, signal.SIG_IGN); print(1, flush=True); time.sleep(1000)'\n"
        "subprocess.Popen([sys.executable, '-c', code], stdout=subprocess.PIPE).stdout.readline()\n"
    )
    agent.python(0, show + stays, grace_s=3.0, commits=2)
    agent.wait_for("exited", 0)
    before = agent.written(0).split()
    agent.order({"do": "forget", "slot": 0}, python(0, show, commits=commits))
    assert agent.wait_for("exited", 0, count=2)["code"] == 0
    after = agent.written(0).split()[len(before) :]
    assert (len(before), len(after), set(before) & set(after)) == (2, commits, set())
    told = [news["event"] for news in agent.news("ended", "forgotten", "started", slot=0)]
    assert told[:4] == ["started", "ended", "forgotten", "started"]


@pytest.fixture
def core_limit() -> Iterator[int]:
    """The largest core dump that this test and its programs may write."""
    soft, hard = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (hard, hard))
    yield hard
    resource.setrlimit(resource.RLIMIT_CORE, (soft, hard))


def test_no_core_is_dumped_except_for_a_training_process_that_asks_for_it(core_limit: int, agent: Agent) -> None:
    """Agents and supervisors know the job's key."""

    def limits(slot: int) -> list[int]:
        training = agent.wait_for("started", slot)["pid"]
        pids = (agent.process.pid, psutil.Process(training).ppid(), training)
        return [resource.prlimit(pid, resource.RLIMIT_CORE)[0] for pid in pids]

    for slot, core in enumerate((False, True)):
        agent.python(slot, WAIT, core=core)
        agent.wait_for_text(slot, b"up")
    assert [limits(0), limits(1)] == [[0, 0, 0], [0, 0, core_limit]]


def test_no_core_is_dumped_of_a_launcher(core_limit: int) -> None:
    run = (
        "import resource\n"
        "from hvd_elastic_ext.core.errors import UsageError\n"
        "from hvd_elastic_ext.launcher.cli import run\n"
        "try: run.main(['--no-such-option'])\n"
        "except UsageError: print(resource.getrlimit(resource.RLIMIT_CORE)[0])\n"
    )
    said = subprocess.run([sys.executable, "-c", run], capture_output=True, text=True, timeout=60, check=True)
    assert said.stdout == "0\n"
