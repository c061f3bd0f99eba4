"""A training process that Horovod aborts goes on from its own last commit."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.faults.agent.conftest import Agent, holders_of
from tests.support import marks
from tests.support.waiting import wait_until

TRAINEE = Path(__file__).with_name("trainee.py")
WAIT = "import time\nwhile True: time.sleep(1)"
QUICKLY = {"codes": [134], "pause_s": 0.01}


def lives(agent: Agent, slot: int = 0) -> list[list[str]]:
    lines = [line.split(" | ") for line in agent.written(slot).decode().splitlines()]
    return [line[1:] for line in lines if line[0] == "life"]


def test_a_process_that_aborts_resumes_from_its_own_last_commit(agent: Agent) -> None:
    agent.start(0, sys.executable, TRAINEE, 2, 5, env={"RANK": "7"}, restart=QUICKLY)
    agent.order({"do": "finish"})
    assert agent.process.wait() == 0, agent.process.output
    found = lives(agent)
    assert [(number, weight) for number, weight, *_ in found] == [("0", "0"), ("5", "15"), ("10", "30")]
    assert [held for _, _, held, *_ in found] == ["False", "True", "True"]  # was there memory in use already?
    assert len({(descriptors, inodes) for *_, descriptors, inodes in found}) == 1
    assert b"done | 15 | 45" in agent.written(0)
    events = [news["event"] for news in agent.news() if news["event"] != "output"]
    once_more = ["exited", "restarting", "restarted"]
    assert events == ["started", *once_more, *once_more, "exited", "ended"]
    assert [(news["code"], news["signal"]) for news in agent.news("exited")] == [(134, 6), (134, 6), (0, None)]
    assert len({news["pid"] for news in agent.news("started", "restarted")}) == 3


def test_a_shell_between_agent_and_training_process_changes_nothing(agent: Agent) -> None:
    agent.start(0, "sh", "-c", f"{sys.executable} {TRAINEE} 1 4; exit $?", restart=QUICKLY)
    agent.order({"do": "finish"})
    assert agent.process.wait() == 0, agent.process.output
    assert [(number, weight) for number, weight, *_ in lives(agent)] == [("0", "0"), ("4", "12")]
    assert [(news["code"], news["signal"]) for news in agent.news("exited")] == [(134, None), (0, None)]


def test_the_budget_ends_restarts_and_pauses_grow(agent: Agent) -> None:
    policy = {"codes": [134], "limit": 3, "within_s": 60, "pause_s": 0.01, "pause_max_s": 0.02}
    agent.python(0, "import os; os.abort()", restart=policy)
    agent.order({"do": "finish"})
    assert agent.process.wait() == 134
    assert [news["pause_s"] for news in agent.news("restarting")] == [0.01, 0.02, 0.02]
    assert agent.news("ended")[0]["reason"] == "exit code 134, but it was restarted 3 times in 60 s already"


def test_without_a_policy_nothing_is_restarted(agent: Agent) -> None:
    agent.python(0, "import os; os.abort()")
    assert agent.wait_for("ended", 0)["code"] == 134
    assert agent.news("restarting") == []


def test_stopping_a_slot_that_waits_for_its_restart_cancels_that(agent: Agent) -> None:
    agent.python(0, "import os; os.abort()", restart={"codes": [134], "pause_s": 1000, "pause_max_s": 1000})
    agent.wait_for("restarting", 0)
    agent.order({"do": "stop", "slot": 0}, {"do": "finish"})
    assert agent.process.wait() == 134
    assert agent.news("ended")[0]["reason"] == "told to stop"


def test_a_process_that_ends_after_being_told_to_is_not_restarted(agent: Agent) -> None:
    code = "import os, signal\nsignal.signal(15, lambda *_: os.abort())\nprint('up', flush=True)\n" + WAIT
    agent.python(0, code, restart=QUICKLY)
    agent.wait_for_text(0, b"up")
    agent.order({"do": "stop", "slot": 0, "grace_s": 30})
    assert agent.wait_for("ended", 0)["reason"] == "told to stop"
    assert agent.news("exited")[0]["code"] == 134
    assert agent.news("restarting") == []


def test_what_a_process_leaves_running_ends_before_the_next_one_starts(agent: Agent, tmp_path: Path) -> None:
    code = (
        "import os, subprocess, sys\n"
        "if sys.argv[1] in os.listdir(): sys.exit()\n"
        "open(sys.argv[1], 'w').close()\n"
        "child = subprocess.Popen(['sleep', '1000'], start_new_session=True)\n"
        "print(child.pid, flush=True)\n"
        "os.abort()\n"
    )
    agent.python(0, code, "seen", restart=QUICKLY, cwd=str(tmp_path))
    agent.wait_for("restarted", 0)
    child = int(agent.written(0).split()[0])
    assert marks.start_time(child) is None


def test_each_slot_has_memory_of_its_own_and_nobody_elses(agent: Agent) -> None:
    code = (
        "import json, os, time\n"
        "links = []\n"
        "for name in os.listdir('/proc/self/fd'):\n"
        "    try: links.append((int(name), os.readlink(f'/proc/self/fd/{name}')))\n"
        "    except OSError: pass\n"
        "print(json.dumps([os.environ.get('HVD_ELASTIC_COMMIT_FDS'), links]), flush=True)\n"
    ) + WAIT
    for slot, commits in enumerate((2, 3, 0)):
        agent.python(slot, code, commits=commits)
        agent.wait_for_text(slot, b"\n")
    for slot, commits in enumerate((2, 3, 0)):
        numbers, links = json.loads(agent.written(slot))
        memory = [f"/memfd:hvd-commit-{slot}-{number} (deleted)" for number in range(commits)]
        assert [link for _, link in sorted(links) if "memfd" in link] == memory
        assert [number for number, _ in sorted(links) if number > 2] == [
            int(n) for n in (numbers or "").split(",") if n
        ]


def test_forgetting_a_slot_ends_its_process_and_frees_its_memory(agent: Agent) -> None:
    show = (
        "import os\n"
        "facts = [os.fstat(int(word)) for word in os.environ['HVD_ELASTIC_COMMIT_FDS'].split(',')]\n"
        "print(facts[0].st_dev, *[one.st_ino for one in facts], flush=True)\n"
    )
    agent.python(0, show + WAIT)
    agent.wait_for_text(0, b"\n")
    device, *inodes = map(int, agent.written(0).split())
    memory = {(device, inode) for inode in inodes}
    assert len(set(holders_of(memory))) == 3  # agent, holder and training process
    agent.order({"do": "stop", "slot": 0})
    agent.wait_for("ended", 0)
    wait_until(lambda: set(holders_of(memory)) == {agent.process.pid}, what="the agent alone with the memory")
    agent.order({"do": "forget", "slot": 0})
    agent.wait_for("forgotten", 0)
    assert holders_of(memory) == []
    agent.python(0, "import os; print(os.environ['HVD_ELASTIC_COMMIT_FDS'])", commits=1)  # as good as new
    assert agent.wait_for("exited", 0, count=2)["code"] == 0


@pytest.fixture
def core_limit() -> Iterator[int]:
    """The largest that this test, and what it starts, may have."""
    soft, hard = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (hard, hard))
    yield hard
    resource.setrlimit(resource.RLIMIT_CORE, (soft, hard))


def test_no_core_is_dumped_unless_that_is_asked_for(core_limit: int, agent: Agent) -> None:
    show = "import resource; print(resource.getrlimit(resource.RLIMIT_CORE)[0])"
    for slot, core in enumerate((False, True)):
        agent.python(slot, show, core=core)
        agent.wait_for("ended", slot)
    assert [int(agent.written(slot)) for slot in range(2)] == [0, core_limit]


def test_no_core_is_dumped_of_an_agent_and_its_holders_which_know_the_jobs_key(core_limit: int, agent: Agent) -> None:
    agent.python(0, "import time; print('up', flush=True); time.sleep(600)", core=True)
    agent.wait_for_text(0, b"up")
    training = agent.wait_for("started", 0)["pid"]
    (holder,) = [pid for pid in psutil.Process(agent.process.pid).children() if pid.pid != training]
    soft = [resource.prlimit(pid, resource.RLIMIT_CORE)[0] for pid in (agent.process.pid, holder.pid, training)]
    assert soft == [0, 0, core_limit]


def test_no_core_is_dumped_of_a_launcher(core_limit: int) -> None:
    run = (
        "import resource\n"
        "from hvd_elastic_ext.launcher.cli import run\n"
        "try: run.main(['--no-such-option'])\n"
        "except SystemExit: print(resource.getrlimit(resource.RLIMIT_CORE)[0])\n"
    )
    said = subprocess.run([sys.executable, "-c", run], capture_output=True, text=True, timeout=60, check=True)
    assert said.stdout == "0\n"
