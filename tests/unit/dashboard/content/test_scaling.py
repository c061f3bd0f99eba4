"""The view of how many hosts a job is worth has one unit: that of the decision."""

from __future__ import annotations

from typing import Any

import pytest

from hvd_elastic_ext.core.journal import read
from hvd_elastic_ext.dashboard.content.scaling import curve, scaling_of
from hvd_elastic_ext.dashboard.content.thinning import thinned
from hvd_elastic_ext.report.job_report import build_report
from hvd_elastic_ext.report.series import Speed
from tests.support.journals import JournalMaker


def grown(policy: str | None, **values: Any) -> JournalMaker:
    """Two hosts with two slots each do 10 steps in a second; four do 8."""
    journal = JournalMaker().add("started", run="r", autoscale=policy)
    for world, (count, every) in enumerate(((2, 0.1), (4, 0.125)), 1):
        hosts = {f"h{n}": 2 for n in range(count)}
        journal.resized("start" if world == 1 else "hosts added", 2 * count, after=2, hosts=hosts, generation=world)
        for _ in range(60):
            journal.step += 1
            journal.add("stepped", generation=world, after=every, step=journal.step, rank=0, size=2 * count,
                        values=values)  # fmt: skip
    return journal


def view(journal: JournalMaker, live: dict[str, Any] | None = None) -> dict[str, Any]:
    records = list(read(journal.lines))
    return scaling_of(records, build_report(records).speeds, live)


@pytest.mark.parametrize(
    ("policy", "unit", "told"),
    [
        ("efficiency", "steps of one host/s", [[2, 20.0, None], [4, 32.0, 6.0]]),
        ("deadline:hours=2,work=100,batch=host", "steps of one host/s", [[2, 20.0, None], [4, 32.0, 6.0]]),
        ("efficiency:batch=global,share=0.1", "steps/s", [[2, 10.0, None], [4, 8.0, -1.0]]),
        ("cost:per-hour=3,batch=global", "steps/s", [[2, 10.0, None], [4, 8.0, -1.0]]),
        ("threshold:cpu=0.8", "steps of one host/s", [[2, 20.0, None], [4, 32.0, 6.0]]),
        ("no such policy", "steps of one host/s", [[2, 20.0, None], [4, 32.0, 6.0]]),
        (None, "steps of one host/s", [[2, 20.0, None], [4, 32.0, 6.0]]),
    ],
)
def test_the_curve_is_the_work_by_which_a_policy_decides(policy: str | None, unit: str, told: list[Any]) -> None:
    found = view(grown(policy))
    assert (found["policy"], found["unit"]) == (policy or "", unit)
    assert [[hosts, pytest.approx(rate, rel=1e-3), added] for hosts, rate, added in found["curve"]] == told
    assert ("batch=global" in found["means"]) == (unit == "steps/s")


def test_samples_that_the_script_reports_are_the_unit_of_any_policy() -> None:
    for policy in ("efficiency", "efficiency:batch=global"):
        found = view(grown(policy, batch_size=32))  # of a rank
        assert found["unit"] == "samples/s"
        assert found["curve"] == [[2, pytest.approx(1280.0, rel=1e-3), None], [4, pytest.approx(2048.0, rel=1e-3), 384]]


def test_what_the_launcher_says_of_its_policy_goes_before_the_journal() -> None:
    found = view(grown("efficiency"), {"policy": "efficiency:batch=global"})
    assert (found["policy"], found["unit"]) == ("efficiency:batch=global", "steps/s")


def test_the_curve_of_a_long_journal_has_all_sizes() -> None:
    kept = thinned(line.encode() for line in grown("efficiency").resized("hosts added", 2, hosts={"a": 2}).lines)
    report = build_report(kept.records(), step_s=kept.step_s())
    assert [hosts for hosts, *_ in scaling_of(kept.records(), report.speeds, None)["curve"]] == [2, 4]


def test_one_size_tells_nothing_of_a_further_host() -> None:
    assert curve([Speed(3, 2.0, None)], "steps of one host/s") == [[3, 6.0, None]]
    assert curve([], "steps/s") == []
