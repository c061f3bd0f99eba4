"""The notes that each commit takes along."""

from __future__ import annotations

import pytest

from hvd_elastic_ext.worker.replay import history, notes
from hvd_elastic_ext.worker.replay.history import MOST, History
from hvd_elastic_ext.worker.replay.notes import Run, World


def run(number: int, *, steps: int = 1, same: bool = False, generation: int = 1) -> Run:
    return Run(World(generation, 2, source="sampler", total=96), (0.1 if same else number / 1000,), steps)


def runs_of(text: str) -> notes.Runs:
    found, _ = history.decode(text)
    return notes.joined(run for piece in found.pieces for run in piece.runs)


def test_all_steps_come_back_with_where_they_are_however_they_were_committed() -> None:
    every, kept = [run(number) for number in range(50)], History()
    for start in range(0, 50, 7):
        kept = kept.after(every[start : start + 7], generation=1)
    text = kept.encode(5, step=48)
    found, head = history.decode(text)
    assert found == kept
    assert (head.seed, head.step, head.began, head.at, head.worlds) == (5, 48, 0, 50, ((1, 0),))
    assert runs_of(text) == notes.joined(every)


def test_equal_steps_take_no_room_however_often_they_are_committed() -> None:
    kept = History()
    for _ in range(5000):
        kept = kept.after([run(0, same=True)], generation=1)
    assert len(kept.encode(5, step=5000)) < 200
    assert (kept.began, kept.at) == (0, 5000)


def test_the_oldest_steps_go_when_there_is_no_room_and_the_worlds_that_only_they_were_of() -> None:
    kept = History()
    for number in range(6000):
        world = 1 + number // 2000
        kept = kept.after([run(number, generation=world)], generation=world)
    text = kept.encode(5, step=6000)
    assert len(text) < MOST + 1000
    assert kept.at == 6000
    assert kept.began > 4000
    assert kept.worlds == ((3, 4000),)
    assert runs_of(text)[0].rates == (kept.began / 1000,)


def test_the_world_whose_last_commit_the_notes_begin_with_stays_known() -> None:
    kept = History(10, worlds=((1, 0),)).after([run(1)], generation=2)
    assert kept.worlds == ((1, 0), (2, 10))
    assert kept._bounded().worlds == kept.worlds
    assert history.decode(kept.encode(5, step=11))[1].leads_through(1, 10)


def test_a_commit_without_a_step_changes_nothing_but_the_world() -> None:
    kept = History().after([run(1)], generation=1)
    assert kept.after([], generation=1) == kept
    assert kept.after([], generation=2).worlds == ((1, 0), (2, 1))


@pytest.mark.parametrize("text", ["", "{}", '{"seed":1,"began":0,"at":1,"step":1,"worlds":[]}\nx'])
def test_another_text_is_refused(text: str) -> None:
    with pytest.raises((ValueError, TypeError, LookupError)):
        history.decode(text)
