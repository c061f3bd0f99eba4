"""What becomes of a wish: bounds, windows, the number of changes, costs, hosts that do not come."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from hypothesis import given
from hypothesis import strategies as st

from hvd_elastic_ext.launcher.scaling.decide import HOUR_S, Decision, Memory, ScaleLimits, decide
from hvd_elastic_ext.launcher.scaling.observations import STEPS, Observations, Speed, Wish


@dataclass
class Wishes:
    """A policy that wishes what a test says."""

    size: int
    trial: bool = False
    gain: float | None = None
    otherwise: Wish | None = None

    def wish(self, now: float, seen: Observations, least: int, most: int) -> Wish:
        return Wish(self.size, "because", self.trial, self.gain, self.otherwise)


@dataclass
class Cluster:
    """A job that gets what it asks for, unless ``has`` is less."""

    limits: ScaleLimits
    size: int = 4
    has: int = 1000
    resize_s: float = 0.1
    now: float = 0.0
    memory: Memory = field(default_factory=Memory)
    wanted: int = 4
    speeds: dict[int, Speed] = field(default_factory=dict)

    def ask(self, policy: Wishes, after_s: float = 0.0) -> Decision:
        self.now += after_s
        self.size = min(self.wanted, self.has)
        seen = Observations(self.size, self.wanted, self.speeds, resize_s=self.resize_s)
        decision, self.memory = decide(self.now, policy, seen, self.limits, self.memory)
        self.wanted = decision.size
        return decision


AT_ONCE = ScaleLimits(1, 16, changes=100, up_s=0.0, down_s=0.0)


def test_a_wish_within_limits_is_followed() -> None:
    assert Cluster(AT_ONCE).ask(Wishes(8)) == Decision(8, "because", True)
    assert Cluster(AT_ONCE).ask(Wishes(4)) == Decision(4, "because", False)


def test_no_size_is_outside_of_limits() -> None:
    assert Cluster(AT_ONCE).ask(Wishes(100)).size == 16
    assert Cluster(AT_ONCE).ask(Wishes(0)).size == 1
    assert Cluster(replace(AT_ONCE, most=3)).ask(Wishes(8)) == Decision(3, "4 hosts are outside of 1 to 3", True)


def test_a_smaller_size_is_taken_after_its_window_and_the_largest_wish_of_it_counts() -> None:
    job = Cluster(replace(AT_ONCE, down_s=300.0))
    assert job.ask(Wishes(2)).size == 4
    assert job.ask(Wishes(3), 150).size == 4
    assert job.ask(Wishes(1), 149).size == 4
    assert job.ask(Wishes(1), 1) == Decision(3, "because", True)


def test_a_wish_to_stay_begins_the_window_of_a_smaller_size_again() -> None:
    job = Cluster(replace(AT_ONCE, down_s=300.0))
    job.ask(Wishes(2))
    job.ask(Wishes(4), 200)
    assert job.ask(Wishes(2), 150).size == 4
    assert job.ask(Wishes(2), 149).size == 4
    assert job.ask(Wishes(2), 200).size == 2


def test_a_larger_size_waits_for_its_own_window() -> None:
    job = Cluster(replace(AT_ONCE, up_s=60.0))
    assert job.ask(Wishes(8)).size == 4
    assert job.ask(Wishes(6), 30).size == 4
    assert job.ask(Wishes(8), 30).size == 6


def test_what_the_cluster_does_not_give_is_taken_back_and_not_asked_for_until_later() -> None:
    job = Cluster(AT_ONCE, has=6)
    assert job.ask(Wishes(8)).size == 8
    assert job.ask(Wishes(8), 1).size == 8
    assert job.ask(Wishes(8), 299).size == 8
    back = job.ask(Wishes(8), 1)
    assert (back.size, back.change) == (6, True)
    assert back.reason == "no more than 6 of 8 hosts came in 300 s"
    assert job.ask(Wishes(8), 60).size == 6
    assert job.ask(Wishes(8), 600).size == 8


def test_a_change_has_to_bring_back_the_time_that_it_stops_training() -> None:
    job = Cluster(replace(AT_ONCE, horizon_s=100.0), resize_s=6.0)
    assert "do not bring back" in job.ask(Wishes(8, gain=0.05)).reason
    assert job.ask(Wishes(8, gain=0.07)).size == 8
    assert Cluster(replace(AT_ONCE, horizon_s=100.0), resize_s=11.0).ask(Wishes(8)).size == 4


def test_a_policy_that_knows_its_gain_comes_back_to_a_size_twice_an_hour() -> None:
    job = Cluster(AT_ONCE)
    sizes = [job.ask(Wishes(8 if turn % 2 == 0 else 4, gain=1.0), 10).size for turn in range(20)]
    changes = sum(before != after for before, after in zip([4, *sizes], sizes, strict=False))
    assert changes <= 6


@given(
    wishes=st.lists(
        st.tuples(st.integers(0, 40), st.booleans(), st.floats(0.0, 1200.0), st.none() | st.integers(0, 40)),
        max_size=60,
    ),
    limits=st.builds(
        ScaleLimits,
        least=st.integers(1, 4),
        most=st.integers(4, 32),
        changes=st.integers(0, 8),
        up_s=st.floats(0, 300),
        down_s=st.floats(0, 300),
    ),
    has=st.integers(1, 40),
)
def test_whatever_a_policy_wishes_no_hour_has_more_changes_than_allowed(
    wishes: list[tuple[int, bool, float, int | None]], limits: ScaleLimits, has: int
) -> None:
    job = Cluster(limits, has=has)
    made: list[float] = []
    for size, trial, after_s, other in wishes:
        before = job.memory.changes
        otherwise = None if other is None else Wish(other, "else")
        decision = job.ask(Wishes(size, trial, otherwise=otherwise), after_s)
        assert limits.least <= decision.size <= limits.most
        if job.memory.changes[len(before) :] or (decision.change and job.memory.changes[-1:] != before[-1:]):
            made.append(job.now)
        assert sum(job.now - HOUR_S < at <= job.now for at in made) <= limits.changes


def test_a_trial_is_called_one_until_its_steps_are_measured() -> None:
    job = Cluster(AT_ONCE)
    assert job.ask(Wishes(2, trial=True)) == Decision(2, f"a trial of {STEPS} steps: because", True, trial=True)
    assert job.ask(Wishes(2), 2.0) == Decision(2, "a trial (4 hosts before): because")
    job.speeds = {2: Speed(0.1, STEPS - 1)}
    assert job.ask(Wishes(2), 2.0) == Decision(2, "a trial (4 hosts before): because")
    job.speeds = {2: Speed(0.1, STEPS)}
    assert job.ask(Wishes(2), 2.0) == Decision(2, "because")


def test_a_change_that_is_not_a_trial_is_not_called_one() -> None:
    job = Cluster(AT_ONCE)
    assert job.ask(Wishes(2)) == Decision(2, "because", True)
    assert job.ask(Wishes(2), 2.0) == Decision(2, "because")


def test_a_trial_leaves_one_change_for_the_way_back() -> None:
    job = Cluster(replace(AT_ONCE, changes=2))
    assert job.ask(Wishes(8, trial=True)).size == 8
    assert "not for a trial" in job.ask(Wishes(12, trial=True), 10).reason
    assert job.ask(Wishes(4), 10).size == 4


def test_where_a_trial_may_not_be_made_the_wish_behind_it_counts() -> None:
    job, back = Cluster(replace(AT_ONCE, changes=2)), Wish(4, "4 are best")
    assert job.ask(Wishes(8, trial=True, otherwise=back)).size == 8
    assert job.ask(Wishes(6, trial=True, otherwise=back), 10) == Decision(4, "4 are best", True)
    held = job.ask(Wishes(6, trial=True, otherwise=back), 10)
    assert (held.size, held.change) == (4, False)


def test_a_trial_is_not_begun_from_a_size_that_could_not_be_come_back_to() -> None:
    job = Cluster(AT_ONCE)
    for size in (8, 4, 8, 4):
        assert job.ask(Wishes(size, trial=size == 8, gain=1.0), 10).size == size
    held = job.ask(Wishes(9, trial=True, gain=1.0), 10)
    assert (held.size, "returned to 2 times" in held.reason) == (4, True)
