"""What stands on the job itself counts for each of its pods."""

from __future__ import annotations

from typing import Any

import pytest

from discover.pods.operators import OPERATORS, HostRules, JobView
from discover.verdicts.signal_config import with_rules
from discover.verdicts.signals import BUILT_IN
from discover.verdicts.verdicts import Grade, Selection, Selector, Verdict, warnings_of
from tests.unit.discover.pod_and_node_views import NOW, node, picture, pod

KEY = "example.com/ends"
PODS = [pod("w-0"), pod("w-1")]


class Looking:
    """A selector with one row of a user's own about jobs."""

    def __init__(self, **row: Any) -> None:
        rows = {"ops": {"object": "job", "annotation": KEY, "says": "is being ended", **row}} if row else {}
        self._selector = Selector(HostRules(operator=OPERATORS["custom"]), with_rules(BUILT_IN, rows, where="f"))

    def at(self, now: float, annotations: dict[str, str] | None, *, uid: str = "") -> Selection:
        job = None if annotations is None else JobView(uid=uid, annotations=annotations)
        owned = [pod(each.key.name, ip=f"10.0.0.{number}", owner=("Job", "j", uid)) for number, each in enumerate(PODS)]
        return self._selector.select(now, picture(owned if uid else PODS, [node()]), job=job)


def first(selection: Selection) -> Verdict:
    one, other = selection.verdicts
    assert (one.grade, one.reason, one.advisory, one.deadline) == (
        other.grade,
        other.reason,
        other.advisory,
        other.deadline,
    )
    return one


@pytest.mark.parametrize(
    ("annotation", "value", "told"),
    [
        ("spot-instance", "true", "job runs on spot instances (true)"),
        ("max-wait-time", "300", "job waits only so long for resources (300)"),
        ("job-status", "Scaling", "job has a status of the job supervisor (Scaling)"),
        ("job-suspended", "true", "job is suspended (true)"),
    ],
)
def test_a_note_on_the_job_is_told_with_each_host_and_has_no_consequence(annotation: str, value: str, told: str):
    seen = first(Looking().at(NOW, {f"job-supervisor.kube-ai.io/{annotation}": value}))
    assert (seen.grade, seen.advisory, seen.deadline) == (Grade.USABLE, "", None)
    assert seen.reason == f"ready; {told}"


def test_a_notice_on_the_job_is_one_for_all_its_pods_until_it_is_taken_back():
    looking = Looking(**{"class": "imminent", "deadline": "epoch-value"})
    assert first(looking.at(NOW, None)).grade is Grade.USABLE
    going = first(looking.at(NOW, {KEY: f"{NOW + 60:.0f}"}))
    assert (going.grade, going.deadline) == (Grade.LEAVING, NOW + 60)
    assert going.reason == f"job is being ended ({NOW + 60:.0f})"
    assert first(looking.at(NOW, {})).grade is Grade.USABLE


def test_a_warning_on_the_job_adds_no_host_and_keeps_those_that_are_there():
    seen = first(Looking(**{"class": "advisory"}).at(NOW, {KEY: "soon"}))
    assert (seen.grade, seen.advisory) == (Grade.USABLE, "job is being ended (soon)")


def test_a_deadline_from_the_first_observation_stays_for_a_changed_job_and_restarts_for_another_job():
    looking = Looking(**{"class": "imminent", "deadline": "now+60"})
    assert first(looking.at(NOW, {KEY: "x"}, uid="u-1")).deadline == NOW + 60
    assert first(looking.at(NOW + 20, {KEY: "x", "other": "y"}, uid="u-1")).deadline == NOW + 60
    assert first(looking.at(NOW + 30, {KEY: "x"}, uid="u-2")).deadline == NOW + 90


def test_warnings_of_the_job_are_counted_as_such():
    assert warnings_of(Looking(**{"class": "imminent"}).at(NOW, {KEY: "x"}).verdicts) == {("job", "imminent"): 2}
    assert warnings_of(Looking(**{"class": "advisory"}).at(NOW, {KEY: "x"}).verdicts) == {("job", "advisory"): 2}
