"""Real jobs of torch whose processes live through changes of their world; ``test_engines.py`` has the other cases."""

from __future__ import annotations

import os
import re
import signal
import sys
from pathlib import Path

import psutil
import pytest

from tests.integration.engines.conftest import Job
from tests.support.processes import RunningProcess
from tests.support.waiting import wait_until

pytestmark = pytest.mark.timeout(300)
DYING = Path(__file__).with_name("dying.py")
REFUSED = {
    "hvd.init(): --engine torch starts no world of Horovod's; call elastic.init() instead": (
        "import horovod.torch as hvd; hvd.init()"
    ),
    "init_process_group(): --engine torch forms a new world in the same processes; call elastic.init() instead": (
        "import torch.distributed as dist; dist.init_process_group('gloo')"
    ),
}


@pytest.mark.soak
@pytest.mark.parametrize("keys", [0, 1, 2, 3])
def test_the_others_go_on_at_once_without_a_member_that_dies_while_a_world_forms(
    job: Job, keys: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DIE_AT", str(keys))
    job.set_hosts("a:1")
    script = (sys.executable, str(DYING), "1000000")
    with job.run(*job.command("torch", processes=1, script=script)):
        assert job.wait_for_world(1) == 0
        [[(_, pid)]] = job.worlds(1)
        job.set_hosts("a:1", "b:1")
        back_at = job.wait_for_world(1, number=2)
        assert (job.directory / "died").exists()
        assert job.worlds(1)[1] == [(back_at, pid)], "it is the same process"
        job.stop()
    lost = [record for record in job.events("resized") if record.get("cause") == "worker failed"]
    assert [record.get("steps_lost") for record in lost] == [0]
    assert not [record for record in job.events("exited") if record.get("host") == "a" and record.get("code")]


@pytest.mark.soak
def test_the_others_go_on_in_the_same_processes_without_a_rank_that_is_stopped(job: Job) -> None:
    job.set_hosts("a:1", "b:1")
    with job.run(*job.command("torch", "--heartbeat-timeout", "4")):
        job.wait_for_world(2)
        pids = dict(re.findall(r"\[(\d+)\]<stdout>:goes on count=\d+ size=2 pid=(\d+)", job.process.output))
        os.kill(int(pids["1"]), signal.SIGSTOP)
        job.wait_for_world(1)
        assert psutil.pid_exists(int(pids["0"]))
        assert [pid for _, pid in job.worlds(1)[0]] == [int(pids["0"])]
        job.stop()
    [change] = [record for record in job.events("resized") if record.get("cause") == "worker failed"]
    assert change.get("steps_lost") <= 5  # those since the last commit


OWN = """
import os, sys
import torch, torch.distributed as dist
import hvd_elastic_ext.torch as elastic

elastic.init()
state = elastic.TorchState(count=0)

@elastic.run
def train(state):
    own = dist.new_group([0, 1])
    numbers = torch.ones(1)
    dist.all_reduce(numbers, group=own)
    print("sum", int(numbers), flush=True)
    state.commit()
    if elastic.rank() == 0:
        torch.ones(2, 3) @ torch.ones(2, 3)
    dist.barrier(group=own)

train(state)
"""


@pytest.mark.soak
def test_a_script_has_groups_of_its_own_and_an_error_of_its_own_is_a_failure(job: Job) -> None:
    job.set_hosts("a:1", "b:1")
    command = job.command("torch", "--failure-budget", "0", script=(sys.executable, "-c", OWN))
    with job.run(*command) as process:
        assert process.wait(200) == 1
    assert process.output.count("sum 2") == 2
    assert "mat1 and mat2 shapes cannot be multiplied" in process.stderr.splitlines()[-1]


@pytest.mark.soak
@pytest.mark.parametrize(("line", "script"), REFUSED.items(), ids=["horovod", "torch"])
def test_a_script_that_joins_another_world_itself_is_told_what_to_call_instead(
    job: Job, line: str, script: str
) -> None:
    job.set_hosts("a:1")
    command = job.command("torch", "--failure-budget", "0", processes=1, script=(sys.executable, "-c", script))
    with job.run(*command) as process:
        assert process.wait(200) == 1
    assert line in process.output


def printed(process: RunningProcess, pattern: str) -> int:
    """Wait for a line of one of the ranks; return its number."""
    wait_until(lambda: re.search(pattern, process.output), what=pattern, show=lambda: process.output)
    found = re.search(pattern, process.output)
    assert found is not None
    return int(found[1])


SENDING = """
import os, sys, time
from pathlib import Path
import torch, torch.distributed as dist
import hvd_elastic_ext.torch as elastic

elastic.init()
state = elastic.TorchState(count=0)

@elastic.run
def train(state):
    while state.count < 3:
        state.count += 1
        state.commit()
    print("pid", elastic.rank(), dist.get_world_size(), os.getpid(), flush=True)
    if dist.get_world_size() == 1:
        return
    large = torch.ones(1 << 26)
    while True:
        work = dist.broadcast(large, 0, async_op=sys.argv[1:] == ["later"])
        if work is not None:
            work.wait()
        Path("sends").touch()

train(state)
"""


@pytest.mark.soak
@pytest.mark.parametrize(
    ("removed", "waits"),
    [(False, ()), (True, ()), (False, ("later",))],
    ids=["trains", "is_to_leave", "waits_for_work"],
)
def test_a_rank_that_sends_to_one_that_dies_is_replaced_though_gloo_never_tells_it(
    job: Job, removed: bool, waits: tuple[str, ...]
) -> None:
    """Gloo tells no sender that has sent a part of its data: it would wait for half an hour."""
    job.set_hosts("a:1", "b:1")
    with job.run(*job.command("torch", script=(sys.executable, "-c", SENDING, *waits))) as process:
        wait_until(lambda: (job.directory / "sends").exists(), what="a broadcast", timeout=100)
        other = printed(process, r"pid 1 2 (\d+)")
        if removed:
            job.set_hosts("a:1")
            process.wait_for("world 2 forms", timeout=30)
        os.kill(other, signal.SIGKILL)
        assert process.wait(60) == 0, process.output
    assert len(re.findall(r"pid 0 1 \d+", process.output)) == 1
    for fenced in job.events("fenced"):  # none if it was between two messages
        assert (fenced.get("host"), fenced.get("slot")) == ("a", 0)
        assert "still waits for a peer that it lost" in fenced.get("reason")
    assert not job.events("struck") or {record.get("host") for record in job.events("struck")} == {"b"}


PLAIN = """
import os, time
from pathlib import Path
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
model = torch.nn.Linear(2, 1)
saved = Path("saved.pt")
done = 0
if saved.exists():
    done, values = torch.load(saved)
    model.load_state_dict(values)
ddp = DistributedDataParallel(model)
print("starts", dist.get_rank(), dist.get_world_size(), done, os.getpid(), flush=True)
while done < 40:
    ddp(torch.ones(1, 2)).sum().backward()
    done += 1
    if dist.get_rank() == 0:
        torch.save((done, model.state_dict()), "saved.new")
        os.replace("saved.new", saved)
    dist.barrier()
    time.sleep(0.1 if done < 20 or dist.get_world_size() == 1 else 60)
print("done", dist.get_rank(), flush=True)
"""


@pytest.mark.soak
def test_an_unmodified_script_of_ddp_is_started_again_in_each_world_and_goes_on_from_what_it_has_saved(
    job: Job,
) -> None:
    script = job.directory / "plain.py"
    script.write_text(PLAIN)
    job.set_hosts("a:1", "b:1")
    with job.run(*job.command("torch", script=(sys.executable, str(script)))) as process:
        process.wait_for("so each world has new processes, as with --engine torchrun")
        wait_until(lambda: (job.directory / "saved.pt").exists(), what="a step", timeout=100)
        other = printed(process, r"starts 1 2 0 (\d+)")
        os.kill(other, signal.SIGKILL)
        assert process.wait(100) == 0, process.output
    [again] = re.findall(r"starts 0 1 (\d+)", process.output)
    assert int(again) > 0


TRAJECTORY = """
import time
import torch
from torch.nn.parallel import DistributedDataParallel
import hvd_elastic_ext.torch as elastic

STEPS = 80

def made():
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1)).double()
    return model, torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

def step(model, optimizer, count, rank, size):
    torch.manual_seed(count)
    rows = torch.randn(12, 8, dtype=torch.float64)
    optimizer.zero_grad()
    ((model(rows[rank::size]) - rows[rank::size].sum(1, keepdim=True)) ** 2).mean().backward()
    optimizer.step()

elastic.init()
model, optimizer = made()
state = elastic.TorchState(model=model, optimizer=optimizer, count=0)

@elastic.run
def train(state):
    ddp = DistributedDataParallel(model)
    while state.count < STEPS:
        step(ddp, optimizer, state.count, elastic.rank(), elastic.size())
        state.count += 1
        if state.count % 3 == 0:
            state.commit()
        else:
            state.check_host_updates()
        time.sleep(0.05)

train(state)
if elastic.rank() == 0:
    alone, its = made()
    for count in range(STEPS):
        step(alone, its, count, 0, 1)
    pairs = zip(model.parameters(), alone.parameters())
    print("differs by", max(float((a - b).abs().max()) for a, b in pairs), flush=True)
"""


def steps(job: Job) -> list[int]:
    """The size of the world of each step that was told of."""
    return [record.get("size") for record in job.events("stepped")]


@pytest.mark.soak
def test_two_lost_ranks_leave_the_trajectory_of_ddp_as_it_is_without_them(job: Job) -> None:
    job.set_hosts("a:1", "b:1", "c:1")
    command = job.command("torch", processes=3, script=(sys.executable, "-c", TRAJECTORY))
    with job.run(*command) as process:
        for size in (3, 2):
            seen = [size] * 4
            wait_until(lambda seen=seen: steps(job)[-4:] == seen, what="steps", timeout=60)
            os.kill(job.events("spawned")[size - 1].get("pid"), signal.SIGKILL)
        assert process.wait(100) == 0, process.output
    assert [record.get("size") for record in job.events("resized")] == [3, 2, 1]
    [difference] = re.findall(r"differs by (\S+)", process.output)
    assert float(difference) < 1e-12
