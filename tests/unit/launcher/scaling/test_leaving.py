"""Which hosts go when a job shrinks, by table."""

from __future__ import annotations

import pytest

from hvd_elastic_ext.launcher.scaling.scaling import HostFacts, leaving


@pytest.mark.parametrize(
    ("hosts", "count", "gone"),
    [
        ([HostFacts("a"), HostFacts("b"), HostFacts("c")], 1, ("c",)),
        ([HostFacts("a", price=2.0), HostFacts("b", price=1.0), HostFacts("c", price=1.0)], 2, ("a", "c")),
        ([HostFacts("a", strikes=1), HostFacts("b")], 1, ("a",)),
        ([HostFacts("a", step_s=2.0), HostFacts("b", step_s=1.0), HostFacts("c", step_s=1.0)], 1, ("a",)),
        ([HostFacts("a", step_s=1.1), HostFacts("b", step_s=1.0), HostFacts("c", step_s=1.0)], 1, ("c",)),
        ([HostFacts("a"), HostFacts("b")], 0, ()),
        ([HostFacts("a"), HostFacts("b")], -3, ()),
    ],
    ids=["youngest", "dearest", "most often struck", "slowest", "a little slow is not slow", "none", "fewer than none"],
)
def test_where_any_host_can_go_the_least_useful_one_goes(
    hosts: list[HostFacts], count: int, gone: tuple[str, ...]
) -> None:
    assert leaving(hosts, count, ordered=False) == gone


def test_where_numbers_decide_the_highest_go_by_value_not_by_letters() -> None:
    names = ["job-worker-10.job", "job-worker-2.job", "job-worker-9.job", "launcher"]
    assert leaving([HostFacts(name) for name in names], 2, ordered=True) == ("job-worker-10.job", "job-worker-9.job")
    assert leaving([HostFacts(name) for name in names], 4, ordered=True)[-1] == "launcher"
