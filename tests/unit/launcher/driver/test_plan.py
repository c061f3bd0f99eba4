"""``driver/plan.py`` shows all that a job does: nothing else decides."""

from __future__ import annotations

from pathlib import Path

from hvd_elastic_ext.launcher import planners
from hvd_elastic_ext.launcher.driver import plan

FOLDER = Path(planners.__file__).parent


def test_every_module_of_planners_has_its_turn() -> None:
    there = {".".join(path.relative_to(FOLDER).with_suffix("").parts) for path in FOLDER.glob("*/*.py")}
    asked = [planner.plan for planner in plan.PLANNERS] + [question.why_not for question in plan.MAY_A_WORLD_FORM]
    listed = {each.__module__.removeprefix(f"{planners.__name__}.") for each in asked}
    given_the_questions = {"membership.next_world"}  # a lambda
    assert {name for name in there if not name.endswith("__init__")} == listed - {plan.__name__} | given_the_questions
