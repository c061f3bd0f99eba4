"""How fast commits come, seen through beats."""

from __future__ import annotations

import pytest

from hvd_elastic_ext.launcher.rules.checkpoints.commit_rate import Pace


@pytest.mark.parametrize("look_s", [0.05, 0.3])
@pytest.mark.parametrize("beat_s", [0.7, 1.0, 1.3])
def test_looks_between_beats_make_it_neither_faster_nor_slower_than_it_is(look_s: float, beat_s: float) -> None:
    pace = Pace()
    for look in range(int(60.0 / look_s)):
        now = look * look_s
        pace.saw(now, (1, 2, int(9.0 * (now // beat_s) * beat_s)))
        if now > 4.0:
            assert pace.per_s == pytest.approx(9.0, rel=0.35)


def test_nothing_is_known_across_worlds_and_what_was_is_kept() -> None:
    pace = Pace()
    assert pace.saw(0.0, (1, 2, 10))
    assert pace.saw(2.0, (1, 2, 30))
    assert pace.per_s == 10.0
    assert not pace.saw(3.0, (1, 3, 500))
    assert pace.saw(3.5, (1, 3, 501))
    assert not pace.saw(4.0, None)
    assert pace.per_s == 10.0
