"""Stock ``horovodrun``, with its own ElasticDriver, on the same cluster: by the discovery script."""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.e2e.kubernetes.mpijob import LONGEST_S, ClusterJob, cluster_job
from tests.support import marks
from tests.support.kube import cluster_events
from tests.support.kube.containers import PORT
from tests.support.processes import RunningProcess
from tests.support.waiting import wait_until

__all__ = ["cluster_job"]

SPOT = "aws-node-termination-handler/spot-itn"

TRAIN = """
import os
import sys
import time
import torch
import horovod.torch as hvd

hvd.init()
model = torch.nn.Linear(4, 1)
optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), 0.1), model.named_parameters())
state = hvd.elastic.TorchState(model=model, optimizer=optimizer, step=0)

@hvd.elastic.run
def train(state):
    while not hvd.allreduce(torch.tensor(float(os.path.exists(sys.argv[1]))), op=hvd.Sum, name="stop"):
        optimizer.zero_grad()
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
        state.step += 1
        if hvd.rank() == 0:
            print(f"step {state.step} of size {hvd.size()}", flush=True)
        state.commit()
        time.sleep(0.2)  # most of the time, so that whoever is killed is killed here

train(state)
"""


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_rule_29_stock_horovod_is_scaled_from_two_to_four_to_one_and_takes_a_blocked_host_back(
    cluster_job: Callable[[int], ClusterJob], tmp_path: Path
) -> None:
    job = cluster_job(4)
    train, stop = tmp_path / "train.py", tmp_path / "stop"
    train.write_text(TRAIN)
    pods = [f"digits-worker-{number}" for number in range(4)]
    with job.cluster():
        wait_until(lambda: published(job) == pods[:2], what="two hosts", timeout=LONGEST_S, show=lambda: job.file)
        with job.popen(
            [*command(job), str(train), str(stop)], env={"OMP_NUM_THREADS": "1"}, cwd=tmp_path
        ) as horovodrun:
            trains(horovodrun, 2)
            job.workers.scale(4)
            trains(horovodrun, 4)
            for pod in pods[1:]:
                cluster_events.taint(job.kube, job.node(pod), SPOT)
            trains(horovodrun, 1)
            assert published(job) == pods[:1]
            cluster_events.untaint(job.kube, job.node(pods[1]), SPOT)
            trains(horovodrun, 2)
            (victim,) = (pid for pid in job.kubelets.container(pods[1]).pids() if is_trainee(pid, train))
            os.kill(victim, signal.SIGKILL)
            trains(horovodrun, 1)
            trains(horovodrun, 2)
            assert published(job) == pods[:2]
            stop.touch()
            assert horovodrun.wait(LONGEST_S) == 0, horovodrun.output


def command(job: ClusterJob) -> list[str]:
    """As ``docker/manifests/mpijob.yaml`` has it as a comment."""
    horovodrun = [sys.executable, str(Path(sys.executable).with_name("horovodrun"))]
    size = ["-np", "2", "--min-np", "1", "--max-np", "8"]
    ways = ["--host-discovery-script", str(job.file.with_name("discover_hosts.sh")), "-p", str(PORT)]
    ways += ["--network-interfaces", "eth0", "--blacklist-cooldown-range", "2", "5"]
    # It interrupts training before newcomers have started, and ranks die of waiting for those for longer than this.
    ways += ["--gloo-timeout-seconds", "240"]
    return [*horovodrun, *size, *ways, sys.executable]


def published(job: ClusterJob) -> list[str]:
    """Pods by the hosts file."""
    lines = job.file.read_text().splitlines() if job.file.exists() else []
    return sorted(line.partition(".")[0] for line in lines)


def trains(horovodrun: RunningProcess, size: int) -> None:
    """Wait for a few steps of that size from now on."""
    before = len(horovodrun.stdout)

    def steps() -> bool:
        assert horovodrun.returncode is None, horovodrun.output
        return len(re.findall(rf"step \d+ of size {size}\b", horovodrun.stdout[before:])) > 3

    wait_until(steps, what=f"steps of size {size}", timeout=LONGEST_S, show=lambda: horovodrun.output[-8000:])


def is_trainee(pid: int, train: Path) -> bool:
    """The process itself, and none of the shells above it."""
    words = marks.command_line(pid).split()
    return len(words) == 3 and words[1] == str(train)
