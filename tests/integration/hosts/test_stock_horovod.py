"""Stock Horovod, elastic, over ssh, trains across the test hosts: they are hosts enough."""

import sys
from pathlib import Path

import pytest

TRAIN = """
import socket
import torch
import horovod.torch as hvd

hvd.init()
model = torch.nn.Linear(4, 1)
optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), 0.1), model.named_parameters())
state = hvd.elastic.TorchState(model=model, optimizer=optimizer, step=0)

@hvd.elastic.run
def train(state):
    while state.step < 5:
        optimizer.zero_grad()
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
        state.step += 1
        print(f"{socket.gethostname()} step {state.step} rank {hvd.rank()} of {hvd.size()}", flush=True)
        state.commit()

train(state)
"""


@pytest.mark.soak
def test_stock_horovodrun_trains_across_two_hosts_over_ssh(nethosts, tmp_path):
    horovodrun = Path(sys.executable).with_name("horovodrun")
    if not horovodrun.exists():
        pytest.skip("needs Horovod beside this interpreter: run scripts/setup and use its virtual environment")
    hosts = nethosts(2)
    script = tmp_path / "train.py"
    script.write_text(TRAIN)
    discover = tmp_path / "discover.sh"
    discover.write_text("#!/bin/sh\nprintf 'h1:1\\nh2:1\\n'\n")
    discover.chmod(0o755)
    command = [sys.executable, horovodrun, "-np", "2", "--min-np", "2", "--max-np", "2", "--elastic-timeout", "60"]
    command += ["--host-discovery-script", discover, *hosts.horovodrun_options, sys.executable, script]
    with hosts.launcher.popen(command, cwd=tmp_path, env={"OMP_NUM_THREADS": "1"}) as job:
        assert job.wait(100) == 0, job.output
    for host in ("h1", "h2"):
        assert f"{host} step 5 rank " in job.output, job.output
    assert "of 2" in job.output
