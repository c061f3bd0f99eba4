"""Made traces: what their numbers say, and nothing that no seed decides."""

from __future__ import annotations

from collections import Counter

import pytest

from hvd_elastic_ext.core.errors import UsageError
from hvd_elastic_ext.simulate.traces.synthetic import DAY_S, parsed


def test_a_seed_gives_the_same_trace_and_another_one_another() -> None:
    spec = parsed("mtbf=6h,hosts=16,days=7,notice=2m")
    assert spec.trace(1) == spec.trace(1)
    assert spec.trace(1) != spec.trace(2)


def test_hosts_are_reclaimed_as_often_as_told_and_some_without_notice() -> None:
    spec = parsed("mtbf=6h,hosts=50,days=20,notice=2m,untold=0.25,back=10m")
    downs = [row for row in spec.trace(0).rows if row.event == "down"]
    assert len(downs) == pytest.approx(50 * 20 * 24 / 6, rel=0.1)
    assert Counter(row.notice for row in downs)[0.0] / len(downs) == pytest.approx(0.25, abs=0.03)


def test_a_zone_goes_at_once() -> None:
    downs = [row for row in parsed("hosts=12,zones=3,zone_mtbf=1d,days=10").trace(3).rows if row.event == "down"]
    first = [row for row in downs if row.at < downs[0].at + 60.0]
    assert len(first) == 4


def test_more_is_reclaimed_by_day_than_by_night() -> None:
    rows = parsed("hosts=100,days=10,mtbf=10h,diurnal=0.9").trace(0).rows
    by_day = sum(0.25 < row.at % DAY_S / DAY_S < 0.75 for row in rows if row.event == "down")
    assert by_day / sum(row.event == "down" for row in rows) > 0.7


@pytest.mark.parametrize("text", ["hosts=0", "hosts=1.5", "mtbf=soon", "untold=2", "host=3", "days="])
def test_a_number_that_cannot_be_is_one_line(text: str) -> None:
    with pytest.raises(UsageError, match="--synthetic"):
        parsed(text)
