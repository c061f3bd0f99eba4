"""The demo's job that chooses its number of hosts: its curve, and what makes its hosts come and go."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from hvd_elastic_ext.demo.cloud import chosen, main
from hvd_elastic_ext.demo.command import SIZED, parser, sizing_plan
from hvd_elastic_ext.demo.job import Folder, sizing_options
from hvd_elastic_ext.demo.scenario import ALL
from hvd_elastic_ext.launcher.scaling.decide import Memory, ScaleLimits, decide
from hvd_elastic_ext.launcher.scaling.observations import Observations, SpeedLog
from hvd_elastic_ext.launcher.scaling.policies import parse


def sizes_of(policy: str, *, more_s: float, noise: float) -> list[int]:
    """The sizes that a job goes through; ``more_s``: what each further process costs this machine, of every step."""
    read, chance = parse(policy), random.Random(1)
    limits = ScaleLimits(1, len(ALL), **{**read.limits, "changes": int(read.limits["changes"])})
    found, log, memory, now = [1], SpeedLog(), Memory(), 0.0
    while now < 120.0:
        size = found[-1]
        step_s = SIZED.step_delays_s[size - 1] + more_s * size
        steps = [step_s * chance.lognormvariate(0.0, noise) for _ in range(int(2.0 / step_s))]
        now, log = now + 2.0, log.seen(size, steps)
        seen = Observations(size, size, log.speeds(), resize_s=0.3)
        decision, memory = decide(now, read.policy(0.0), seen, limits, memory)
        found += [decision.size] if decision.change else []
    return found


@pytest.mark.parametrize("noise", [0.005, 0.03])
@pytest.mark.parametrize("more_s", [0.0, 0.01, 0.05])
def test_the_policy_goes_to_three_hosts_and_back_to_two_also_on_a_busy_machine(
    tmp_path: Path, more_s: float, noise: float
) -> None:
    with Folder(tmp_path) as folder:
        policy = sizing_options(folder, ALL)[1]
    assert sizes_of(policy, more_s=more_s, noise=noise) == [1, 2, 3, 2]


@pytest.mark.parametrize(
    ("before", "wanted", "leaving", "after"),
    [
        (["a"], 2, [""], ["a", "b"]),
        (["b"], 3, [""], ["b", "a", "c"]),
        (["a", "b", "c", "d"], 3, ["c"], ["a", "b", "d"]),
        (["a", "b"], 9, [""], ["a", "b", "c", "d"]),
    ],
)
def test_hosts_stay_come_and_go_as_the_launcher_asks(
    before: list[str], wanted: int, leaving: list[str], after: list[str]
) -> None:
    assert chosen(before, ["a", "b", "c", "d"], wanted, leaving) == after


def test_the_hosts_file_is_replaced(tmp_path: Path) -> None:
    file = tmp_path / "hosts"
    file.write_text("localhost:1\n127.0.0.1:1\n")
    environ = {"HVD_ELASTIC_HOSTS": "1", "HVD_ELASTIC_LEAVING": "localhost"}
    assert main([str(file), *ALL], environ) == 0
    assert file.read_text() == "127.0.0.1:1\n"
    assert list(tmp_path.iterdir()) == [file]


def test_either_part_may_run_alone_and_the_training_knows_its_delays() -> None:
    assert parser().parse_args([]).part is None
    assert parser().parse_args(["--part", "sizes"]).part == "sizes"
    command = sizing_plan(seed=3).training.command(Path("train.py"), Path("report"), hurry=Path("enough"))
    assert {"--step-delay=0.6,0.384,0.368", "--seed=3"} < set(command)
