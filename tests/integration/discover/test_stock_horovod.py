"""Stock Horovod, unchanged, fed by the daemon through a discovery script."""

import sys
from pathlib import Path

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, given, settings

from discover.publish.files import HostsFile, Script
from hvd_elastic_ext.core.hosts import HostSet
from hvd_elastic_ext.core.publication import Publication
from tests.support.processes import run_process
from tests.support.waiting import wait_until

TRAIN = """
import sys
import time
import torch
import horovod.torch as hvd

hvd.init()
model = torch.nn.Linear(4, 1)
optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), 0.1), model.named_parameters())
state = hvd.elastic.TorchState(model=model, optimizer=optimizer, step=0, joined=0)

@hvd.elastic.run
def train(state):
    while state.joined < 5:
        optimizer.zero_grad()
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
        time.sleep(0.05)
        state.step += 1
        state.joined = state.joined + 1 if hvd.size() == 2 else 0
        if hvd.rank() == 0:
            print(f"step {state.step} of size {hvd.size()}", flush=True)
        state.commit()

train(state)
"""


@pytest.fixture(scope="module")
def horovodrun() -> Path:
    path = Path(sys.executable).with_name("horovodrun")
    if not path.exists():
        pytest.skip("needs Horovod beside this interpreter: run scripts/setup and use its virtual environment")
    return path


@pytest.mark.soak
def test_a_job_of_stock_horovodrun_grows_when_the_watched_file_does(place, horovodrun, tmp_path):
    train = tmp_path / "train.py"
    train.write_text(TRAIN)
    script = tmp_path / "discover.sh"
    place.watched.write_text("localhost:1\n")
    command = [sys.executable, str(horovodrun), "-np", "1", "--min-np", "1", "--max-np", "2"]
    command += ["--host-discovery-script", str(script), "--network-interfaces", "lo", "--gloo"]
    command += ["--elastic-timeout", "60", sys.executable, str(train)]
    with place.run("--script", script):
        wait_until(lambda: script.exists() and place.published() == "localhost:1\n", what="the script and the hosts")
        with run_process(command, cwd=tmp_path, env={"OMP_NUM_THREADS": "1"}) as job:
            job.wait_for(r"step \d+ of size 1", timeout=60)
            place.watched.write_text("127.0.0.1:1\nlocalhost:1\n")
            assert job.wait(90) == 0, job.output
            assert "of size 2" in job.output
    assert place.published() == "localhost:1\n127.0.0.1:1\n"


NAMES = st.from_regex(r"\A[a-z0-9_]([a-z0-9_-]{0,30}[a-z0-9_])?(\.[a-z0-9]{1,8}){0,3}\Z")


SLOW_IS_FINE = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]


@settings(max_examples=3, deadline=None, suppress_health_check=SLOW_IS_FINE)
@given(st.dictionaries(NAMES, st.integers(1, 1024), max_size=50))
def test_rule_24_whatever_is_published_horovods_own_reader_understands(tmp_path, horovodrun, slots):
    from horovod.runner.elastic.discovery import HostDiscoveryScript

    hosts_file = HostsFile(tmp_path / "hosts")
    script = Script(tmp_path / "d.sh", hosts_file=hosts_file.path)
    news = Publication("life", 1, HostSet.of(slots))
    for publisher in (hosts_file, script):
        publisher.publish(news)
        publisher.close()
    assert HostDiscoveryScript(str(tmp_path / "d.sh"), 7).find_available_hosts_and_slots() == slots
