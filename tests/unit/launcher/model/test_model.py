"""The model itself: its scripts, its elections, and whether its oracle finds violations."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hvd_elastic_ext.launcher.departures import clean_exits
from hvd_elastic_ext.launcher.departures.clean_exits import Departure, DepartureOutcome
from hvd_elastic_ext.simulate.cluster.processes import Candidate, Commit, elect
from hvd_elastic_ext.worker.sync import exchange
from tests.unit.launcher.model.history import Event, History, drawn, script
from tests.unit.launcher.model.play import Failure, play, shrunk


@pytest.mark.parametrize("seed", range(50))
def test_a_script_is_read_as_it_was_printed(seed: int) -> None:
    history = drawn(random.Random(seed).randrange)
    assert script(str(history)) == history


def test_a_script_with_a_word_that_means_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="'explode' is nothing that happens"):
        script("1.0 explode a")


_SMALL = st.integers(0, 3)
_COMMITS = st.none() | st.builds(Commit, st.integers(1, 3), _SMALL, _SMALL, _SMALL, st.integers(1, 2), call=st.just(1))
_CANDIDATES = st.lists(st.builds(Candidate, _COMMITS, _SMALL, st.integers(1, 3), end=st.none()), min_size=1, max_size=4)


@given(_CANDIDATES)
def test_ranks_of_the_model_elect_whom_real_ones_elect(candidates: list[Candidate]) -> None:
    rows = [_row(each) for each in candidates]
    real, ours = exchange.elect(rows), elect(candidates, lineage=9)
    assert ours.generation == real.generation
    root = candidates[real.root]
    assert ours.commit == (root.commit or Commit(root.incarnation, 0, 0, 0, 9))
    assert ours.incarnation == max(row.incarnation for row in rows)


def _row(candidate: Candidate) -> exchange.Candidate:
    held, incarnation = candidate.commit, candidate.incarnation
    lineage, incarnation, generation, number, batch = (
        (held.lineage, held.incarnation, held.generation, held.number, held.batch)
        if held is not None
        else (0, incarnation, 0, 0, 0)
    )
    same = {"loose": 0, "data": 1, "layout": 1, "tree": 1, "layout_digest": 1, "loose_digest": 1, "firm_digest": 0}
    return exchange.Candidate(
        lineage, incarnation, generation, number, batch, **same, proposal=9, entered=candidate.entered
    )


def test_a_failing_history_is_shrunk_to_what_makes_it_fail() -> None:
    def fails(history: History) -> Failure | None:
        verbs = [event.verb for event in history.events]
        return Failure(history, "p", "", "") if verbs.count("kill") >= 2 else None

    history = script("0 hosts a:1 b:2 c:1\n4 cut a\n5 kill a ahead\n6 agent b\n7.5 kill b/1\n9 notice c 5")
    found = fails(history)
    assert found is not None
    plain = shrunk(found, again=fails).history
    assert [event.verb for event in plain.events] == ["hosts", "kill", "kill"]
    assert all(event.slot == 0 and not event.word for event in plain.events)
    assert plain.events[0] == Event(0.0, "hosts", hosts=(("c", 1),)) or len(plain.events[0].hosts) <= 2


def test_nothing_happens_and_the_job_ends_well() -> None:
    assert play(script("0 hosts a:1 b:2")) is None


def test_a_job_that_nobody_heals_ends_and_says_so() -> None:
    assert play(script("0 hosts a:1\n4 cut a\n4 alone")) is None


@pytest.mark.parametrize("leaves", ["2.1 leave 0", "2.7 leave 0.3", "5 leave 3", "1.6 leave 0; 9 leave 0.3"])
def test_a_job_in_which_all_ranks_leave_together_is_done_in_any_training_call(leaves: str) -> None:
    assert play(script(f"0 calls 1 3; 0 hosts a:1 b:2; {leaves}")) is None


def test_a_driver_that_starts_again_what_all_have_left_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    part = DepartureOutcome(Departure.PART, "they have not left together")
    monkeypatch.setattr(clean_exits, "outcome_of_departure", lambda *args: part)
    failure = play(script("0 calls 1 3; 0 hosts a:1 b:2; 2.7 leave 0"))
    assert failure is not None
    assert failure.promise == "all may leave"
