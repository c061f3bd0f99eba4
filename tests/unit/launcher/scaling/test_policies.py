"""The text of ``--autoscale``."""

from __future__ import annotations

import pytest

from hvd_elastic_ext.core.errors import UsageError
from hvd_elastic_ext.launcher.scaling.efficiency import Efficiency
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
