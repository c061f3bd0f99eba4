"""``driver/plan.py`` lists all planners: nothing else decides."""

from __future__ import annotations

from pathlib import Path

import pytest

from hvd_elastic_ext.core.errors import JobFailed
from hvd_elastic_ext.launcher import planners
from hvd_elastic_ext.launcher.driver import plan
from hvd_elastic_ext.launcher.driver.actions import Plan
from hvd_elastic_ext.launcher.driver.job import JobState
from tests.unit.launcher.state_changes import small_job

FOLDER = Path(planners.__file__).parent


def test_every_module_of_planners_has_its_turn() -> None:
    there = {".".join(path.relative_to(FOLDER).with_suffix("").parts) for path in FOLDER.glob("*/*.py")}
    asked = [planner.plan for planner in plan.PLANNERS] + [question.why_not for question in plan.MAY_A_WORLD_FORM]
    listed = {each.__module__.removeprefix(f"{planners.__name__}.") for each in asked}
    given_the_questions = {"membership.next_world"}  # a lambda
    assert {name for name in there if not name.endswith("__init__")} == listed - {plan.__name__} | given_the_questions


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
