"""``driver/plan.py`` lists all planners: nothing else decides."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from hvd_elastic_ext import launcher
from hvd_elastic_ext.core.errors import JobFailed
from hvd_elastic_ext.launcher.driver import plan
from hvd_elastic_ext.launcher.driver.actions import Plan
from hvd_elastic_ext.launcher.driver.job import JobState
from tests.unit.launcher.state_changes import small_job

FOLDER = Path(launcher.__file__).parent
ROOMS = ("membership", "custody", "health", "checkpoints", "departures", "scaling", "reporting")


def test_every_module_with_a_planner_has_its_turn() -> None:
    """A planner is called ``plan``, or something with ``plan``, and takes the job alone."""
    asked = {planner.plan for planner in plan.PLANNERS}
    listed = {f"{each.__module__}.{each.__name__}" for each in asked}
    there = {
        f"{launcher.__name__}.{room}.{path.stem}.{each.name}"
        for room in ROOMS
        for path in (FOLDER / room).glob("*.py")
        for each in ast.parse(path.read_text()).body
        if isinstance(each, ast.FunctionDef)
        and each.name.split("_")[0] == "plan"
        and [argument.arg for argument in each.args.args] == ["job"]
    }
    assert there
    assert there <= listed


@pytest.mark.parametrize("stop", [True, False])
@pytest.mark.parametrize("ends", ["failure", "finishing"])
def test_a_job_that_begins_to_end_has_its_end_seen_to_in_the_same_look(
    monkeypatch: pytest.MonkeyPatch, ends: str, stop: bool
) -> None:
    job, asked = small_job(), list[str]()

    def end(job: JobState) -> Plan:
        asked.append("planner")
        setattr(job.outcome, ends, JobFailed("told to") if ends == "failure" else True)
        return Plan(job.now + 0.1, stop=stop)

    def see_to_it(job: JobState) -> Plan:
        asked.append("end" if job.ending else "no end")
        return Plan(stop=job.ending)

    monkeypatch.setattr(plan, "PLANNERS", (plan.Planner(see_to_it, ending=True), plan.Planner(end)))
    assert plan.look(job) == job.now + plan.LOOK_S
    assert asked == ["no end", "planner", "end"]
    plan.look(job)
    assert asked[3:] == ["end"]
