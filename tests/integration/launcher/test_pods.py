"""``hvd-elastic run --rsh pod`` with real Horovod; the pod is this machine, and its name ``localhost``."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from hvd_elastic_ext.core.agent_command import agent_command
from tests.integration.launcher.conftest import COUNTER, Launched

CARRIERS = Path(__file__).parents[2] / "support" / "fake_carriers.py"


@pytest.fixture
def kubectl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the pods that there are. Each call of ``kubectl`` is noted in ``calls``."""
    program = tmp_path / "bin" / "kubectl"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\necho "$*" >> {tmp_path}/calls\nexec {sys.executable} {CARRIERS} kubectl "$@"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("FAKE_PODS", str(tmp_path / "pods"))
    pods = tmp_path / "pods" / "jobs"
    pods.mkdir(parents=True)
    return pods


def test_a_job_runs_in_pods(launched: Launched, kubectl: Path, tmp_path: Path) -> None:
    (kubectl / "localhost").touch()
    launched.set_hosts("localhost:2")
    with launched.run("-np", "2", "--rsh", "pod", "--job", "in-pods", sys.executable, COUNTER, "10") as process:
        assert process.wait(90) == 0, process.output
    assert process.stdout.count("done 10") == 2
    assert "Defaulted container" not in process.output
    (call,) = (tmp_path / "calls").read_text().splitlines()
    assert call.startswith("exec -i localhost -- sh -c ")
    assert call.endswith(" ".join(agent_command(sys.executable)))


def test_a_launcher_that_may_not_reach_pods_says_which_rule_it_lacks(launched: Launched, kubectl: Path) -> None:
    (kubectl / "localhost").write_text("forbidden")
    launched.set_hosts("localhost:1")
    with launched.run("-np", "1", "--rsh", "pod", "--elastic-timeout", "3", sys.executable, COUNTER) as process:
        assert process.wait(60) == 1
    assert 'resources: ["pods/exec"], verbs: ["get", "create"]' in process.stderr
    assert "Traceback" not in process.output
