"""The text of ``--autoscale``, and policies by signals and budgets."""

from __future__ import annotations

import pytest

from hvd_elastic_ext.core.errors import UsageError
from hvd_elastic_ext.launcher.scaling.efficiency import Efficiency
from hvd_elastic_ext.launcher.scaling.observations import Observations, Wish
from hvd_elastic_ext.launcher.scaling.policies import Cost, Deadline, Mark, Threshold, parse


@pytest.mark.parametrize(
    ("text", "policy"),
    [
        ("efficiency", Efficiency()),
        ("efficiency:share=0.3,batch=global,noise=on", Efficiency(0.3, "global", True)),
        ("threshold:cpu=0.8", Threshold((Mark("cpu", 0.8),))),
        (
            "threshold:cpu=0.4..0.8,queue=100",
            Threshold((Mark("cpu", 0.8, 0.4), Mark("queue", 100.0, total=True))),
        ),
        ("deadline:hours=2,work=1e6", Deadline(7200.0 + 5.0, 1e6, Efficiency())),
        ("cost:per-hour=20,price=3", Cost(20.0, 3.0, Efficiency(share=0.0))),
    ],
)
def test_a_policy_is_read(text: str, policy: object) -> None:
    assert parse(text).policy(5.0) == policy


def test_limits_go_with_any_policy_and_signals_shrink_slowly_by_default() -> None:
    assert parse("efficiency:changes=3,down=60,horizon=100").limits == {
        "down_s": 60.0,
        "changes": 3.0,
        "horizon_s": 100.0,
    }
    assert parse("threshold:cpu=0.8").limits == {"down_s": 300.0}


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("eficiency", "'eficiency' is not one of efficiency, threshold, deadline, cost; did you mean 'efficiency'?"),
        ("efficiency:shar=0.5", "'shar' is not one of its keys; did you mean 'share'?"),
        ("efficiency:share", "'share' is not KEY=VALUE"),
        ("efficiency:share=2", "share is '2'; write a number from 0 to 1"),
        ("efficiency:share=nan", "share is 'nan'; write a number from 0 to 1"),
        ("efficiency:share=0.5,share=0.4", "share is given twice"),
        ("efficiency:batch=rank", "batch is 'rank'; write host or global"),
        ("threshold", "no signal is given; write such as threshold:cpu=0.4..0.8,queue=100"),
        ("threshold:cpu=0.8..0.4", "cpu is '0.8..0.4'; write a target such as 0.8, or two marks such as 0.4..0.8"),
        ("threshold:cpu=80", "cpu is '80'; write a share from 0 to 1, such as 0.8 for 80 %"),
        ("threshold:gpu=40..80", "gpu is '40..80'; write a share from 0 to 1, such as 0.8 for 80 %"),
        ("threshold:my-queue=1", "'my-queue' is not the name of a signal; write letters, digits and _"),
        ("cost:per-hour=5,price=0", "price is 0; write what a host costs for an hour, or leave it out"),
        ("efficiency:changes=0.5", "changes is 0.5; write a whole number"),
        ("deadline:hours=2", "work is missing: how much is it, in steps of one host?"),
        ("cost:price=3", "per-hour is missing: how much may an hour cost?"),
    ],
)
def test_what_makes_no_policy_is_refused_in_one_line(text: str, error: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse(text)
    assert str(caught.value) == f"--autoscale {text!r}: {error}"


# --- signals with marks


def wish(size: int, *marks: Mark, least: int = 1, most: int = 16, **signals: float) -> Wish:
    return Threshold(marks).wish(0.0, Observations(size, size, signals=signals), least, most)


@pytest.mark.parametrize(
    ("cpu", "size"),
    [(0.8, 4), (0.87, 4), (0.73, 4), (0.9, 5), (1.6, 8), (0.4, 2), (0.01, 1), (100.0, 16)],
)
def test_a_target_gives_the_size_of_kubernetes_own_autoscaler(cpu: float, size: int) -> None:
    assert wish(4, Mark("cpu", 0.8), cpu=cpu).size == size


@pytest.mark.parametrize(("cpu", "size"), [(0.4, 4), (0.79, 4), (0.8, 4), (0.9, 6), (0.2, 2), (0.39, 3)])
def test_between_two_marks_nothing_happens_and_beyond_them_their_middle_is_the_target(cpu: float, size: int) -> None:
    assert wish(4, Mark("cpu", 0.8, low=0.4), cpu=cpu).size == size


def test_a_value_above_the_high_mark_always_wants_one_host_more() -> None:
    assert wish(1, Mark("cpu", 0.8, low=0.79), cpu=0.801).size == 2


def test_a_queue_is_of_all_hosts_and_its_marks_are_of_each() -> None:
    assert wish(4, Mark("queue", 100.0, total=True), queue=1000.0).size == 10
    assert wish(4, Mark("queue", 100.0, total=True), queue=0.0).size == 1


def test_of_several_signals_the_largest_size_wins() -> None:
    marks = Mark("cpu", 0.8), Mark("queue", 100.0, total=True)
    assert wish(4, *marks, cpu=0.4, queue=800.0) == Wish(8, "queue is 200 a host, its target is 100")


def test_while_a_signal_is_unknown_hosts_come_and_none_goes() -> None:
    marks = Mark("cpu", 0.8), Mark("queue", 100.0, total=True)
    assert wish(4, *marks, cpu=1.6).size == 8
    assert wish(4, *marks, cpu=0.2).size == 4
    assert wish(4, *marks) == Wish(4, "no value of cpu, queue yet")
