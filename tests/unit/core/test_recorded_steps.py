"""Which steps between two checkpoints can be executed again."""

from __future__ import annotations

import json
from collections.abc import Sequence

from hvd_elastic_ext.core.commit_record import Identity
from hvd_elastic_ext.core.recorded_steps import KEY, Head, Noted, notes_in, ranges_of, way_to, ways


def noted(
    step: int,
    *,
    generation: int = 1,
    at: int | None = None,
    began: int = 0,
    worlds: Sequence[tuple[int, int]] = ((1, 0),),
    call: int = 1,
    lineage: int = 7,
) -> Noted:
    """A checkpoint after ``step`` steps; the first of them was noted unless ``began`` says otherwise."""
    at = step if at is None else at
    head = Head(3, began, at, step, tuple(worlds))
    return Noted(f"c{step}", Identity(lineage, 1, generation, step), call, step, f"{head.encode()}\n…")


def spans(*checkpoints: Noted) -> list[tuple[int, int]]:
    return [(steps.start, steps.stop - 1) for steps in ranges_of(ways(checkpoints))]


def test_the_steps_from_the_oldest_checkpoint_to_the_newest_can_be_executed_each_from_the_nearest_one() -> None:
    checkpoints = [noted(20), noted(40), noted(60)]
    assert spans(*checkpoints) == [(21, 60)]
    for step, base in ((21, 20), (40, 20), (41, 40), (60, 40)):
        way = way_to(step, ways(checkpoints))
        assert way is not None
        assert way.base.step == base, step
        assert step <= way.end.step
    assert way_to(20, ways(checkpoints)) is None
    assert way_to(61, ways(checkpoints)) is None


def test_one_checkpoint_alone_leads_to_no_step() -> None:
    assert spans(noted(20)) == []
    assert spans() == []


def test_steps_whose_notes_were_dropped_cannot_be_executed() -> None:
    assert spans(noted(20), noted(40), noted(60, began=40)) == [(21, 60)]
    assert spans(noted(20), noted(60, began=40)) == []
    assert spans(noted(20), noted(40), noted(60, began=50)) == [(21, 40)]


def test_a_way_leads_through_all_worlds_that_were_between_two_checkpoints() -> None:
    base = noted(20)
    assert spans(base, noted(60, generation=4, worlds=((1, 0), (2, 33), (4, 50)))) == [(21, 60)]
    # The last commit of a world is where the next one begins.
    assert spans(base, noted(60, generation=4, worlds=((1, 0), (4, 20)))) == [(21, 60)]


def test_a_checkpoint_whose_steps_were_lost_later_leads_nowhere() -> None:
    """World 2 ended with its hosts, and world 3 went on from an older checkpoint, by other steps."""
    lost = noted(50, generation=2, worlds=((1, 0), (2, 40)))
    later = noted(90, generation=3, worlds=((1, 0), (3, 30)))
    assert spans(noted(20), lost) == [(21, 50)]
    assert spans(lost, later) == []
    assert spans(noted(20), lost, later) == [(21, 90)]
    way = way_to(60, ways([noted(20), lost, later]))
    assert way is not None
    assert (way.base.step, way.end.step) == (20, 90)


def test_checkpoints_of_other_training_calls_or_other_jobs_have_nothing_in_common() -> None:
    assert spans(noted(20), noted(40, call=2)) == []
    assert spans(noted(20), noted(40, lineage=8)) == []


def test_steps_that_no_optimizer_has_done_count_among_the_noted_ones_only() -> None:
    """A gradient scaler skips a step now and then: the optimizer has done fewer than were noted."""
    assert spans(noted(20, at=22), noted(40, at=44)) == [(21, 40)]


def test_steps_outside_of_the_loop_are_not_noted_and_nothing_leads_past_them() -> None:
    """A reset callback has trained a step between the commits after 40 and 61 steps."""
    assert spans(noted(20), noted(40), noted(61, at=60)) == [(21, 40)]


def test_notes_of_another_commit_or_none_that_can_be_read_are_none() -> None:
    own = noted(20).notes
    assert notes_in(json.dumps({"program": "x", KEY: own}), step=20) == own
    assert notes_in(json.dumps({"program": "x", KEY: own}), step=21) is None
    for odd in ("{}", "[]", "", '{"replay": 3}', '{"replay": "x"}', '{"replay": "{}"}', '{"replay": {}}'):
        assert notes_in(odd, step=20) is None, odd
