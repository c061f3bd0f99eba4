"""Goodput: useful steps over what the listed hosts could have done since the first of them was listed."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hvd_elastic_ext.core.goodput import Accounting, Miscounted, accounted, share
from hvd_elastic_ext.core.journal import Record, read


class Story:
    """Records of a job, at times from 0 on."""

    def __init__(self, mono=1000.0):
        self.mono, self.records = mono, []

    def add(self, at, event, **fields):
        self.records.append(Record(self.mono + at, self.mono + at, 0, event, fields))
        return self

    def listed(self, at, departing=(), **slots):
        return self.add(at, "published", hosts=slots, departing=list(departing))

    def synced(self, at, step, size, world):
        return self.add(at, "synced", step=step, size=size, world=world, rank=0)

    def steps(self, begin, last, first, until, size, world):
        """Report steps ``first`` to ``last``, evenly from ``begin`` on until a time."""
        every = (until - begin) / (last - first + 1)
        for number in range(first, last + 1):
            self.add(begin + every * (number - first + 1), "stepped", step=number, size=size, world=world, rank=0)
        return self

    def goodput(self, now=None):
        return accounted(self.records).goodput(None if now is None else self.mono + now)


def begun():
    """Two hosts of two slots, whose training starts 20 s after they are listed: a step a second."""
    return Story().add(0, "started", run="r").listed(1, a=2, b=2).synced(21, 0, 4, 1).steps(21, 10, 1, 31, 4, 1)


def test_the_start_is_time_in_which_the_listed_hosts_could_have_worked():
    found = begun().goodput()
    assert found.ratio == pytest.approx(10 / 30)
    assert (found.useful_s, found.possible_s) == pytest.approx((40, 120))
    assert (found.since_s, found.stepless_s) == pytest.approx((30, 20))


def test_time_before_the_first_host_is_listed_counts_for_nothing():
    late = Story().add(0, "started").listed(500, a=1).synced(500, 0, 1, 1).steps(500, 10, 1, 510, 1, 1)
    assert late.goodput().ratio == pytest.approx(1.0)


def test_nothing_is_said_before_the_time_of_a_step_is_known():
    story = Story().listed(0, a=1)
    assert story.goodput().ratio is None
    assert story.add(10, "stepped", step=1, size=1, rank=0).goodput().ratio is None
    assert story.add(12, "stepped", step=2, size=1, rank=0).goodput().ratio == pytest.approx(2 / 12)


def test_a_step_is_worth_what_it_typically_takes_so_a_pause_among_steps_is_not_useful():
    story = begun().add(91, "stepped", step=11, size=4, world=1, rank=0)
    assert story.goodput().useful_s == pytest.approx(4 * 11)
    assert story.goodput().stepless_s == pytest.approx(20 + 59)


def test_steps_that_are_done_again_are_not_useful():
    story = begun().synced(41, 6, 4, 2).steps(41, 10, 7, 45, 4, 2)
    found = story.goodput()
    assert found.kept == 4 * 10
    assert (found.lost, found.lost_s) == (4, pytest.approx(4))
    assert found.useful_s == pytest.approx(40)


def test_a_roll_back_is_seen_by_the_numbers_of_the_steps_alone():
    found = begun().steps(40, 10, 7, 44, 4, 2).goodput()
    assert (found.lost, found.kept) == (4, 40)


def test_training_that_starts_anew_has_lost_all_its_steps():
    found = begun().add(40, "training_restarted", steps_lost=10).goodput()
    assert (found.ratio, found.kept, found.lost) == (0.0, 0, 10)


def test_slots_that_the_world_does_not_use_count_while_they_are_listed():
    story = begun().listed(31, a=2, b=2, c=4).steps(31, 20, 11, 41, 4, 1)
    assert story.goodput().possible_s == pytest.approx(30 * 4 + 10 * 8)
    gone = story.listed(41, a=2).steps(41, 30, 21, 51, 4, 1)
    assert gone.goodput().possible_s == pytest.approx(200 + 10 * 4)  # b trains on, though it is not listed any more


def test_a_host_counts_until_it_is_neither_listed_nor_departing():
    story = begun().listed(31, departing=["b"], a=2).listed(41, a=2).listed(51, a=2)
    assert story.goodput().possible_s == pytest.approx(30 * 4 + 10 * 4 + 10 * 2)


def test_a_step_of_a_global_batch_is_worth_as_much_in_a_small_world_as_it_takes_there():
    story = Story().listed(0, a=1, b=1).synced(0, 0, 2, 1).steps(0, 10, 1, 10, 2, 1).listed(10, a=1)
    story.synced(10, 10, 1, 2).steps(10, 20, 11, 30, 1, 2)  # twice as long on half the slots
    assert story.goodput().ratio == pytest.approx(1.0)
    assert story.goodput().useful_s == pytest.approx(40)


def test_steps_that_were_done_and_not_reported_count_by_the_step_from_which_the_next_world_goes_on():
    found = begun().synced(36, 13, 4, 2).steps(36, 20, 14, 43, 4, 2).goodput()
    assert found.kept == 4 * 20
    assert found.useful_s == pytest.approx(80)


def test_an_outage_counts_while_it_lasts_and_a_job_that_has_ended_counts_no_longer():
    story = begun()
    assert story.goodput(now=61).ratio == pytest.approx(10 / 60)
    story.add(31, "finished", code=0)
    assert story.goodput(now=1000).ratio == pytest.approx(10 / 30)
    assert story.goodput(now=1000).since_s == pytest.approx(30)


def test_a_reboot_between_two_launchers_takes_no_time_as_none_is_known():
    story = begun()
    story.mono = 5.0
    story.add(0, "started", run="r").synced(1, 10, 4, 2).steps(1, 20, 11, 11, 4, 2)
    assert story.goodput().ratio == pytest.approx(20 / 41)


def test_steps_of_another_run_are_not_done_again():
    story = begun().add(31, "started", run="other").synced(31, 0, 4, 1).steps(31, 10, 1, 41, 4, 1)
    assert (story.goodput().lost, story.goodput().kept) == (0, 80)


def test_a_new_launcher_that_finds_the_world_training_makes_nothing_look_slow():
    story = begun().add(31.5, "started", run="r")
    for number in range(11, 31):
        story.add(51 + number / 1e4, "stepped", step=number, size=4, world=1, rank=0)  # reported all at once
    assert story.steps(51.1, 40, 31, 61, 4, 1).goodput().useful_s == pytest.approx(4 * 40, rel=0.01)


def test_a_share_outside_0_to_1_is_a_defect_that_asks_for_a_report():
    assert share(1.0 + 1e-9, 1.0) == 1.0
    assert share(0.0, 0.0) == 0.0
    for part in (1.1, -0.1, math.nan):
        with pytest.raises(Miscounted, match="this is a defect of hvd-elastic: please report it"):
            share(part, 1.0)


VALUES = st.one_of(st.integers(-2, 30), st.none(), st.just("x"), st.just(10**14), st.floats(allow_nan=True))
EVENTS = st.sampled_from(
    ["stepped"] * 4 + ["synced", "synced", "published", "resized", "slept", "started", "finished", "training_restarted"]
)
LINES = st.lists(
    st.tuples(
        EVENTS,
        st.sampled_from([0.0, 0.01, 0.5, 1.0, 7.0, 900.0, -3.0]),
        st.fixed_dictionaries(
            {
                "step": st.integers(0, 30) | VALUES,
                "size": st.integers(1, 5) | VALUES,
                "world": st.integers(1, 4) | st.none(),
                "hosts": st.dictionaries(st.sampled_from("abc"), st.integers(0, 4) | VALUES) | VALUES,
                "departing": st.lists(st.sampled_from("abc")) | VALUES,
                "run": st.sampled_from(["r", "s", None]),
            }
        ),
    ),
    max_size=60,
)


@settings(deadline=None)
@given(LINES)
def test_goodput_is_a_share_whatever_a_journal_holds(lines):
    accounting, mono = Accounting(), 100.0
    for event, passed, fields in lines:
        mono += passed
        accounting.take(Record(mono, mono, 0, event, fields))
        for now in (None, mono, mono + 50.0):
            found = accounting.goodput(now)
            assert found.ratio is None or 0.0 <= found.ratio <= 1.0
            assert min(found.useful_s, found.possible_s, found.since_s, found.stepless_s, found.lost_s) >= -1e-6


def test_lines_that_are_no_times_change_nothing():
    text = json.dumps({"t": 1, "mono": 1e300, "generation": 0, "event": "stepped", "step": 5, "size": 1})
    assert accounted(read([text])).goodput().ratio is None
