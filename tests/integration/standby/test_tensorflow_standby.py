"""Processes of TensorFlow: they rehearse a step, park, go live and form worlds; connections of a lost world are cut."""

from __future__ import annotations

import re
import signal
from pathlib import Path

import pytest

from hvd_elastic_ext.core.messages.rank_info import Place
from tests.integration.standby.small_launcher import HERE, Job, Member
from tests.support.tensorflow import needs_tensorflow
from tests.support.waiting import wait_until

pytestmark = [needs_tensorflow, pytest.mark.timeout(200)]

TRAINEE = HERE / "tensorflow_trainee.py"
START_S = 90.0
"""TensorFlow's import and the first graph take ten seconds on a busy machine."""
MET = {
    "TF_USE_LEGACY_KERAS": "1",
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "HVD_ELASTIC_INCARNATION": "1",
}


@pytest.fixture
def traces(tmp_path: Path) -> Path:
    made = tmp_path / "traces"
    made.touch()
    return made


def start(job: Job, host: str, traces: Path, **options: object) -> Member:
    env = {**MET, "TRACES": str(traces), "FAILS": str(fails(traces)), **dict(options.pop("env", {}))}  # type: ignore[call-overload]
    return job.start(host, TRAINEE, env=env, **options)  # type: ignore[arg-type]


def fails(traces: Path) -> Path:
    """While it exists, Python code raises an error in each graph."""
    return traces.with_name("fails")


def meeting(job: Job, traces: Path, **env: str) -> tuple[Member, Member]:
    """One trains alone, a second one parks meanwhile; then they form a world."""
    first = start(job, "alpha", traces, env=env)
    first.wait_said("parked", timeout=START_S)
    job.live(first)
    first.wait_step(size=1, timeout=START_S)
    second = start(job, "beta", traces, plan=Place(1, 2, 0, 1, 1, 2), env={**env, "HVD_ELASTIC_INCARNATION": "2"})
    second.wait_said("parked", timeout=START_S)
    return first, second


def go_on_together(job: Job, first: Member, second: Member) -> None:
    first.wait_step(size=1, more=3)  # it trains on all the while
    job.update(first)
    job.form(first, second)
    second.go()
    for member in (first, second):
        member.wait_step(size=2, more=12)


def check_that_they_are_one(first: Member, second: Member) -> None:
    assert second.steps()[0][0] > 1  # it takes up where the first one is
    mine, theirs = (dict(re.findall(r"^committed (\d+) (\w+)", each.process.stdout, re.M)) for each in (first, second))
    both = mine.keys() & theirs.keys()
    assert both
    assert [mine[step] for step in both] == [theirs[step] for step in both]


def traced_at(traces: Path, member: Member) -> list[str]:
    """The sizes of the worlds in which a process made its graph."""
    lines = [line.split() for line in traces.read_text().splitlines()]
    return [size for pid, size in lines if int(pid) == member.process.pid]


def rehearses_parks_and_meets(job: Job, traces: Path, **env: str) -> tuple[Member, Member]:
    first, second = meeting(job, traces, **env)
    wait_until(lambda: "built as 1 2 0 1 1 2" in second.process.stdout, what="its output")
    assert "rank 0 branch" not in second.process.stdout
    assert traced_at(traces, second) == ["1"], "it makes its graph before it parks"
    assert not second.steps(), "what a rehearsal prints is not shown"
    go_on_together(job, first, second)
    check_that_they_are_one(first, second)
    assert traced_at(traces, second) == ["1"], "and not again while the other one waits"
    return first, second


def test_a_state_of_tensorflow_rehearses_and_parks_before_its_training_and_meets_others(job: Job, traces: Path) -> None:
    """Then the second one is stopped: the first one goes on at once when it is told to cut its connections."""
    first, second = rehearses_parks_and_meets(job, traces, KIND="ours")
    check_the_fence(job, first, second)


def check_the_fence(job: Job, stays: Member, stopped: Member) -> None:
    before = len(stays.steps())
    stopped.process.send_signal(signal.SIGSTOP)
    job.form(stays)
    stays.tell("fence")
    stays.wait_step(size=1, more=3, timeout=10)  # Gloo's own patience is 30 s here
    together = max(step for step, _, size in stays.steps() if size == 2)
    alone = [step for step, _, size in stays.steps()[before:] if size == 1]
    assert together - 10 <= alone[0] <= together + 1  # from the last commit
    stopped.process.send_signal(signal.SIGCONT)


@pytest.mark.soak
def test_a_mixin_over_horovods_state_of_tensorflow_rehearses_and_parks_before_its_training_and_meets_others(
    job: Job, traces: Path
) -> None:
    """Under Horovod's loop."""
    rehearses_parks_and_meets(job, traces, KIND="over_horovods", LOOP="stock")


@pytest.mark.soak
def test_a_mixin_over_a_users_state_of_tensorflow_parks_before_its_training_and_meets_others(
    job: Job, traces: Path
) -> None:
    """Its steps are not known, so that it has no rehearsal."""
    first, second = meeting(job, traces, KIND="over_users")
    assert traced_at(traces, second) == []
    go_on_together(job, first, second)
    check_that_they_are_one(first, second)


@pytest.mark.soak
def test_a_plain_script_of_tensorflow_parks_at_hvd_init_and_goes_live_there(job: Job, traces: Path) -> None:
    first, second = meeting(job, traces, KIND="unmodified")
    assert "before init" in second.process.stdout
    assert "built as" not in second.process.stdout
    go_on_together(job, first, second)
    assert traced_at(traces, second) == ["2"]
    fails(traces).touch()
    wait_until(lambda: first.heard("failed") + second.heard("failed"), what="the error of the one that comes first")
    failed = first if first.heard("failed") else second
    assert failed.heard("failed")[0]["error"] == "UnknownError: RuntimeError: there is no such label"
    assert failed.process.wait(30) == 1
    assert not failed.heard("done"), "with Horovod's function around it, training would be done now"
