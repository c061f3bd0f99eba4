"""Many jobs: the same traces for every combination, and no choice that chance has made without saying so."""

from __future__ import annotations

import dataclasses

import pytest

from hvd_elastic_ext.core.errors import UsageError
from hvd_elastic_ext.simulate import study
from hvd_elastic_ext.simulate.cluster.times import Times
from hvd_elastic_ext.simulate.job import Result
from hvd_elastic_ext.simulate.study import Choice, Study, combinations, spread
from hvd_elastic_ext.simulate.traces import synthetic

FLEET = synthetic.parsed("hosts=4,days=0.2,mtbf=1h,untold=0.3,notice=30s,back=10m")


def test_a_grid_is_all_combinations_by_the_names_of_the_options() -> None:
    assert combinations("min_np=2,4; checkpoint_every=auto,60s; settle=3s") == [
        {"min_num_proc": least, "checkpoint_every": every, "settle_s": 3.0}
        for least in (2, 4)
        for every in ("auto", "60s")
    ]
    assert combinations("below_min=wait,sleep") == [{"below_min": "wait"}, {"below_min": "sleep"}]
    assert combinations("allowed_sizes=2+4") == [{"allowed_sizes": "2,4"}]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "names no option"),
        ("min_npp=2", "'min_npp' is not an option of simulate; did you mean min_np?"),
        ("min_np=two", "write a number"),
        ("below_min=rest", "choose one of wait, sleep, fail"),
        ("min_np", "write an option once"),
    ],
)
def test_a_grid_that_means_nothing_is_one_line(text: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        combinations(text)


def test_a_spread_is_a_mean_and_students_interval() -> None:
    assert spread([3.0]) == (3.0, None)
    mean, half = spread([1.0, 2.0, 3.0])
    assert mean == 2.0
    assert half == pytest.approx(4.30 / 3**0.5)


def test_a_smaller_minimum_keeps_more_of_a_fleet_that_shrinks() -> None:
    found = study.compared(_study(seeds=range(3)), combinations("min_np=1,4"))
    assert [each.changed["min_num_proc"] for each in found] == [1, 4]
    assert all(len(each.results) == 3 for each in found)


def test_a_combination_that_run_refuses_comes_last_with_the_reason() -> None:
    found = study.compared(_study(), combinations("min_np=4,2; max_np=3"))
    assert [bool(each.results) for each in found] == [True, False]
    assert "--min-np 4 is more than --max-np 3" in found[-1].refused


def test_a_recommendation_says_whether_the_difference_may_be_chance() -> None:
    sure, chance = ([_result(kept) for kept in values] for values in ((110, 111, 112), (90, 130, 113)))
    usual = Choice({"min_num_proc": 4}, [_result(kept) for kept in (100, 101, 102)])
    assert "beyond chance" in study.reason([Choice({"min_num_proc": 2}, sure), usual])
    assert "may be chance" in study.reason([Choice({"min_num_proc": 2}, chance), usual])


def test_a_recommendation_among_equals_says_that_they_are_equal_and_asks_for_no_more_seeds() -> None:
    """Defect: "which may be chance: try more --seeds" of equal results on a trace that is the same for each seed."""
    same = [Choice({"min_num_proc": least}, [_result(100)] * 2) for least in (1, 2, 3)]
    less = Choice({"min_num_proc": 4}, [_result(90)] * 2)
    assert study.reason(same[:2]).endswith("%; both results are equal")
    assert study.reason(same, chance=False).endswith("%; all 3 results are equal")
    two_of_three = study.reason([*same[:2], less], chance=False)
    assert ", the most of 3, as with --min-np 2; next is --min-np 4 with " in two_of_three


def test_a_difference_on_a_trace_without_chance_is_not_called_chance() -> None:
    best, less = (Choice({"min_num_proc": least}, [_result(kept)]) for least, kept in ((1, 100), (2, 90)))
    assert study.reason([best, less], chance=False).endswith(", without any chance in it")
    assert "may be chance" in study.reason([best, less], chance=True)


def test_a_recommendation_is_a_file_that_run_reads() -> None:
    text = study.config({"failure_budget": 99}, Choice({"min_num_proc": 2, "checkpoint_every": "60s"}, ()), "why")
    assert text == '# hvd-elastic simulate: why\nfailure-budget: 99\nmin-np: 2\ncheckpoint-every: "60s"\n'


def _study(seeds: range = range(1)) -> Study:
    return Study(FLEET.trace, {"failure_budget": 1000}, Times(boot_s=20.0), seeds)


def _result(kept: int) -> Result:
    plain = Result({"useful": 1.0}, 1.0, None, 0, 0, 0, 0, 0, 0, 0.0, 0, 0, None, 0.0, 0, 0)
    return dataclasses.replace(plain, kept=kept)
