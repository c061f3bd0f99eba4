"""Which scalars a job has."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from hvd_elastic_ext.launcher.exports.tensorboard import MAX_VALUES, Scalars


def stepped(step: Any, size: int = 2, **values: Any) -> Mapping[str, Any]:
    return {"step": step, "size": size, "values": values}


def test_a_step_has_its_world_its_speed_what_training_reports_and_what_is_observed() -> None:
    scalars = Scalars()
    scalars.take("stepped", stepped(10), 100.0, {})
    point = scalars.take("stepped", stepped(14, 3, loss=0.5, epoch=2, done=False, note="x"), 102.0, {"queue": 7.0})
    assert point is not None
    assert (point.step, point.lost_from) == (14, None)
    assert point.values == {
        "job/world_size": 3.0,
        "job/steps_per_second": 2.0,
        "training/loss": 0.5,
        "training/epoch": 2.0,
        "signals/queue": 7.0,
    }


def test_steps_that_are_done_again_replace_those_before_and_so_does_the_first_of_a_launcher() -> None:
    scalars = Scalars()
    points = [scalars.take("stepped", stepped(step), at, {}) for at, step in enumerate((5, 9, 8, 9, 10))]
    assert [point.lost_from for point in points if point is not None] == [5, None, 8, None, None]


def test_what_is_behind_the_step_that_a_world_agrees_on_is_lost_though_not_each_step_is_told() -> None:
    def lost_from(scalars: Scalars, *events: tuple[str, int]) -> int | None:
        point = [scalars.take(event, stepped(step), 1.0, {}) for event, step in events][-1]
        assert point is not None
        return point.lost_from

    scalars = Scalars()
    assert lost_from(scalars, ("synced", 4), ("stepped", 7)) == 5
    assert lost_from(scalars, ("stepped", 20)) is None
    assert lost_from(scalars, ("rolled_back", 5), ("synced", 14), ("synced", 12), ("stepped", 15)) == 13
    assert lost_from(scalars, ("synced", 15), ("stepped", 18)) is None
    assert lost_from(scalars, ("synced", 17), ("stepped", 30)) == 18


def test_no_speed_is_told_over_a_change_of_the_world_or_a_roll_back() -> None:
    scalars = Scalars()
    scalars.take("stepped", stepped(5), 1.0, {})
    scalars.take("resized", {"cause": "hosts added"}, 2.0, {})
    over = scalars.take("stepped", stepped(6), 3.0, {})
    back = scalars.take("stepped", stepped(4), 4.0, {})
    assert over is not None
    assert back is not None
    assert "job/steps_per_second" not in {**over.values, **back.values}


def test_numbers_that_are_not_finite_are_shown_as_such_and_what_is_no_step_is_none() -> None:
    scalars = Scalars()
    point = scalars.take("stepped", stepped(1, loss="nan", bound="-inf", big=10**400), 1.0, {})
    assert point is not None
    assert math.isnan(point.values["training/loss"])
    assert (point.values["training/bound"], point.values["training/big"]) == (-math.inf, math.inf)
    for wrong in (stepped(None), stepped("7"), stepped(-1), {}):
        assert scalars.take("stepped", wrong, 2.0, {}) is None
    assert scalars.take("committed", stepped(3), 2.0, {}) is None


def test_values_are_bounded_in_number_and_length() -> None:
    many = {f"{number}" + "x" * 1000: number for number in range(10 * MAX_VALUES)}
    point = Scalars().take("stepped", stepped(1, **many), 1.0, {})
    assert point is not None
    assert len(point.values) == MAX_VALUES + 1
    assert max(map(len, point.values)) < 120
