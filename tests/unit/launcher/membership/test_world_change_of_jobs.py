"""What may hold a world back, and the effect of that."""

from __future__ import annotations

import pytest

from hvd_elastic_ext.launcher.driver import plan
from hvd_elastic_ext.launcher.driver.actions import HeldBack, WorldQuestion
from hvd_elastic_ext.launcher.driver.job import JobState
from tests.unit.launcher.scenarios import play


class Asked:
    """A question that holds worlds back while it has an answer. It notes the members for which it was asked."""

    def __init__(self, answer: HeldBack | None) -> None:
        self.answer = answer
        self.planned: list[bool] = []

    def __call__(self, job: JobState) -> HeldBack | None:
        self.planned.append(job.decision.members is not None)
        return self.answer if job.decision.members is not None else None


def asking(monkeypatch: pytest.MonkeyPatch, *answers: HeldBack | None) -> list[Asked]:
    asked = [Asked(answer) for answer in answers]
    more = tuple(WorldQuestion("may it?", each) for each in asked)
    monkeypatch.setattr(plan, "MAY_A_WORLD_FORM", (*plan.MAY_A_WORLD_FORM, *more))
    return asked


def test_a_world_forms_only_if_no_question_holds_it_back(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = play("train a b")
    [asked] = asking(monkeypatch, HeldBack("not before noon"))
    cluster.hosts(a=1, b=1, c=1)
    cluster.run(20.0)
    assert cluster.world == ["a", "b"]
    assert cluster.driver.job.decision.reason == "not before noon"
    asked.answer = None
    cluster.until(lambda: cluster.world == ["a", "b", "c"])


def test_every_question_is_asked_at_every_look_and_the_first_answer_is_the_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = play("train a b")
    asked = asking(monkeypatch, HeldBack("first"), HeldBack("second"))
    cluster.driver.look()
    assert [each.planned for each in asked] == [[False], [False]]
    cluster.hosts(a=1, b=1, c=1)
    cluster.run(20.0)
    assert cluster.driver.job.decision.reason == "first"
    assert len(asked[0].planned) == len(asked[1].planned) > 2
    assert any(asked[0].planned)
    assert not any(asked[1].planned)


def test_the_driver_looks_again_when_what_holds_a_world_back_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = play("train a b")
    cluster.run(12.0)
    until = cluster.clock.mono() + 0.25
    [asked] = asking(monkeypatch, HeldBack("soon", until))
    cluster.hosts(a=1)
    assert cluster.driver.look() == until
    assert asked.planned == [True]


def test_what_may_hold_a_world_back_stands_in_one_table_in_its_order() -> None:
    names = [question.why_not.__module__.rpartition(".")[2] for question in plan.MAY_A_WORLD_FORM]
    assert names == ["loopless", "restore", "save_then_stop", "custody"]
    assert all(question.asks.endswith("?") for question in plan.MAY_A_WORLD_FORM)
