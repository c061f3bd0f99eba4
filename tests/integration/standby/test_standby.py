"""Processes start parked, go live by a re-initialisation, and form worlds."""

from __future__ import annotations

import re
import socket
import sys
from pathlib import Path

import pytest

from hvd_elastic_ext.core.messages.rank_info import Place
from tests.integration.standby.small_launcher import HERE, Job, Member
from tests.support.waiting import wait_until

TRAINEE = HERE / "trainee.py"
STOCK = HERE / "stock.py"


def first_of(job: Job, script: Path = TRAINEE, **env: str) -> Member:
    """A process that trains alone: parked, then called."""
    first = job.start("alpha", script, env=env)
    first.wait_said("parked")
    assert not first.steps()
    job.live(first)
    first.wait_step(size=1)
    return first


def finished(*members: Member) -> list[str]:
    """End them; return the last line of each."""
    members[0].job.stop()
    for member in members:
        assert member.process.wait(60) == 0, member.process.output
        assert len(member.heard("done")) == 1
    return [member.process.stdout.splitlines()[-1] for member in members]


def test_our_state_parks_before_its_training_goes_live_alone_and_meets_a_second_one(job: Job) -> None:
    first, second = meeting(job, LOOP="ours")
    told_to_leave(job, first, second)


@pytest.mark.soak
def test_a_mixin_over_a_users_state_parks_before_its_training_and_meets_others_under_horovods_loop(job: Job) -> None:
    first, second = meeting(job, LOOP="stock", KIND="over_users")
    told_to_leave(job, first, second)


@pytest.mark.soak
def test_a_mixin_over_horovods_state_parks_before_its_training_and_meets_others(job: Job) -> None:
    """Then one is told to leave while it asks for a rank."""
    first, second = meeting(job, LOOP="ours", KIND="over_horovods")
    job.update(first, second)  # both ask for a place in the next world, which only one of them gets
    job.form(first)
    first.wait_step(size=1, more=1)
    job.update(second, leave=[second])
    assert second.process.wait(20) == 0, second.process.output
    assert "removed" in second.process.stdout
    finished(first)


def meeting(job: Job, **env: str) -> tuple[Member, Member]:
    """One trains alone, a second one parks meanwhile; then they form a world."""
    first = first_of(job, **env)
    env |= {"HVD_ELASTIC_INCARNATION": "2"}
    second = job.start("beta", TRAINEE, plan=Place(1, 2, 0, 1, 1, 2), env=env)
    second.wait_said("parked")
    # Its output comes over another pipe than that message.
    wait_until(lambda: "built as 1 2 0 1 1 2" in second.process.stdout, what="its output")
    assert "rank 0 branch" not in second.process.stdout
    first.wait_step(size=1, more=3)  # it trains on all the while
    job.update(first)
    job.form(first, second)
    second.go()
    for member in (first, second):
        member.wait_step(size=2, more=12)
    assert second.wait_said("entered") == {"say": "entered", "generation": 2, "rank": 1, "size": 2}
    assert [message["generation"] for message in first.heard("entered")] == [1, 2]
    assert second.steps()[0][0] > 1  # it takes up where the first one is
    mine, theirs = (dict(re.findall(r"^committed (\d+) (\w+)", each.process.stdout, re.M)) for each in (first, second))
    both = mine.keys() & theirs.keys()
    assert both
    assert [mine[step] for step in both] == [theirs[step] for step in both]
    # A restarted launcher gives newcomers its number, and their commits are those of the others.
    wait_until(
        lambda: [each.beats[-1]["commit"][0] for each in (first, second)] == [2, 2], what="commits of its number"
    )
    assert "reset" not in second.process.stdout  # it has the place that it was shown
    return first, second


def told_to_leave(job: Job, stays: Member, leaves: Member) -> None:
    job.update(stays, leaves, leave=[leaves])
    job.form(stays)
    assert leaves.process.wait(20) == 0, leaves.process.output
    last = leaves.steps()[-1][0]
    assert f"removed {last} alive False" in leaves.process.stdout
    assert not leaves.heard("done")
    assert "core dumped" not in leaves.process.output
    stays.wait_step(size=1, more=3)
    steps = [step for step, _, _ in stays.steps()]
    assert steps == list(range(1, len(steps) + 1))  # nothing was repeated, nothing skipped
    finished(stays)


def test_the_first_processes_meet_in_init_their_loop_finds_the_world_formed_and_all_tell_a_failure_alike(
    job: Job,
) -> None:
    env = {"FAIL_AT": "20"}
    plan = Place(0, 1, 0, 1, 0, 1)
    members = [job.start(host, TRAINEE, plan=plan, alone=False, env=env) for host in ("alpha", "beta")]
    for member in members:
        assert member.wait_said("parked") == {"say": "parked", "at": "init", "later": True, "call": 0}
        assert "built as" not in member.process.stdout
    job.live(*members)
    said = [member.wait_said("failed") for member in members]
    assert [message["error"] for message in said] == [f"ZeroDivisionError: rank {rank} could not" for rank in (0, 1)]
    assert said[0]["digest"] == said[1]["digest"]
    assert "in train" in said[0]["traceback"]
    for rank, member in enumerate(members):
        assert member.process.wait(30) == 1
        assert [step for step, _, _ in member.steps()] == list(range(1, 21))
        assert f"built as {rank} 2 0 1 {rank} 2" in member.process.stdout
        assert len(member.heard("parked")) == len(member.heard("entered")) == len(member.heard("failed")) == 1
        assert "reset" not in member.process.stdout
        assert not member.heard("done")


def test_a_plain_script_parks_at_hvd_init_and_goes_live_there(job: Job) -> None:
    """It ends with 0 at its next init when it is told to leave."""
    first = first_of(job, STOCK)
    assert "init as 0 1 0 1" in first.process.stdout
    second = job.start("beta", STOCK, plan=Place(1, 2, 0, 1, 1, 2))
    second.wait_said("parked")
    wait_until(lambda: "before init" in second.process.stdout, what="its output")  # over another pipe
    assert "init as" not in second.process.stdout
    job.update(first)
    job.form(first, second)
    second.go()
    for member in (first, second):
        member.wait_step(size=2, more=3)
    assert "init as 1 2 0 1" in second.process.stdout
    job.update(first, second, leave=[first])
    job.form(second)
    assert first.process.wait(20) == 0, first.process.output
    second.wait_step(size=1, more=3)
    assert not first.heard("done")
    finished(second)
    assert "notification service: None" in second.process.stdout  # no port was opened for notices


@pytest.mark.soak
def test_a_script_behind_a_shell_parks_too(job: Job, tmp_path: Path) -> None:
    shell = tmp_path / "train.sh"
    helper = f"{sys.executable} -c 'import horovod.torch; print(\"helper\")'"
    shell.write_text(f"#!/bin/bash\n{helper}\n{sys.executable} {STOCK}\necho after: $?\n")
    member = job.start("alpha", shell, python=["bash"], plan=Place(2, 3, 2, 3, 0, 1), env={"STEPS": "5"})
    member.wait_said("parked")
    assert "helper" in member.process.stdout
    job.form(member)
    member.go()
    assert finished(member) == ["after: 0"]
    assert "init as 0 1 0 1" in member.process.stdout  # without devices, the local rank is the real one


def test_one_that_gets_another_place_than_it_was_shown_is_told_by_its_reset_callbacks(job: Job) -> None:
    env = {"STEPS": "5", "HVD_ELASTIC_DEVICE": "GPU-c"}
    member = job.start("alpha", TRAINEE, plan=Place(2, 4, 2, 4, 0, 1), env=env)
    member.wait_said("parked")
    job.form(member)
    member.go()
    finished(member)
    lines = member.process.stdout.splitlines()
    assert "built as 2 4 2 4 0 1" in lines
    assert "rank 0 branch" not in lines
    assert "sampler deals 250" in lines
    # Two rows of ones: the gradients of a world of one, not divided by the size that is planned.
    assert "dummy step [8.0, 2.0]" in lines
    # Where slots have devices, a local rank leads to the same one for life.
    assert lines.index("reset 0 1") < lines.index("enter 0 1 2 1")


def test_a_new_plan_is_seen_while_parked_and_a_failure_outside_the_training_function_is_told(
    job: Job, tmp_path: Path
) -> None:
    script = tmp_path / "look.py"
    script.write_text(
        "import hvd_elastic_ext.torch as elastic, horovod.torch as hvd, time\n"
        "hvd.init()\n"
        "while hvd.size() == 2: time.sleep(0.01)\n"
        "print(hvd.rank(), hvd.size(), elastic.rank(), elastic.size(), elastic.local_rank(), flush=True)\n"
        "int('model')\n"
    )
    member = job.start("alpha", script, plan=Place(1, 2, 0, 1, 1, 2))
    wait_until(lambda: member.beats, what="beats", timeout=30)
    member.tell("plan", rank=2, size=3, local_rank=1, local_size=2, cross_rank=0, cross_size=1)
    assert member.process.wait(30) == 1
    assert "2 3 2 3 1" in member.process.stdout.splitlines()
    assert member.heard("failed")[0]["error"].startswith("ValueError: invalid literal")
    assert "Traceback" in member.process.stderr


@pytest.mark.parametrize(("library", "left"), [("horovod", 2), ("torch", 0)])
def test_the_threads_of_its_library_have_ended_when_a_process_is_parked(
    job: Job, tmp_path: Path, library: str, left: int
) -> None:
    """They look for work all the time. Two of Gloo's stay in Horovod, which never ends them before the next world."""
    script = tmp_path / "idle.py"
    script.write_text(IDLE)
    member = job.start("alpha", script, env={"HVD_ELASTIC_COLLECTIVES": library} if library == "torch" else {})
    member.wait_said("parked")
    printed = wait_until(lambda: re.findall(r"^library (.+)$", member.process.stdout, re.M), what="its threads")
    alive = {each.name for each in Path(f"/proc/{member.process.pid}/task").iterdir()}
    assert len(alive.intersection(printed[0].split())) == left < len(printed[0].split())
    job.form(member)
    member.go()
    finished(member)
    assert "sum 1.0 at 1" in member.process.stdout


IDLE = """
import os, threading
import torch
import hvd_elastic_ext.torch as elastic
from hvd_elastic_ext.worker.comms import current_world

def threads():
    return set(os.listdir("/proc/self/task"))

before = threads()
elastic.init()
pythons = {str(each.native_id) for each in threading.enumerate()}
state = elastic.TorchState(model=torch.nn.Linear(2, 1))
print("library", *sorted(threads() - before - pythons), flush=True)

@elastic.run
def train(state):
    total = torch.ones(1)
    current_world.comms().sum(total, name="ones")
    print("sum", total.item(), "at", elastic.size(), flush=True)

train(state)
"""


def test_a_parked_one_told_to_leave_ends_with_0_and_was_never_removed(job: Job) -> None:
    member = job.start("alpha", TRAINEE)
    member.wait_said("parked")
    job.update(member, leave=[member])
    assert member.process.wait(20) == 0
    assert "removed" not in member.process.stdout


def test_a_parked_one_whose_agent_goes_away_ends_and_says_so(job: Job) -> None:
    member = job.start("alpha", STOCK)
    member.wait_said("parked")
    member.end.shutdown(socket.SHUT_RDWR)
    assert member.process.wait(20) == 1
    assert "the agent of this host has gone" in member.process.stderr
