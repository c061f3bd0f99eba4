"""What is published of what is true of the pods, and when."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from discover.selection.damping import (
    ADDITION,
    REMOVAL,
    DampingLimits,
    DampingResult,
    DampingState,
    Facts,
    ProbeResults,
    decide_published,
)
from discover.selection.objects import Key, PodView
from discover.selection.selection import Selection
from discover.selection.verdicts import Grade, Verdict
from hvd_elastic_ext.core.hosts import Host

LIMITS = DampingLimits(settle=0.5, damper=30.0, patience=3.0)
EVERYBODY = ProbeResults(everybody=True)


def verdict(name: str, grade: Grade = Grade.USABLE, *, uid: str = "", slots: int = 1, **more) -> Verdict:
    uid = uid or f"uid-{name}"
    pod = PodView(Key("ns", name), uid, "1")
    known = grade is not Grade.UNFIT
    return Verdict(pod, grade, more.pop("reason", grade.value), Host(name, slots, uid) if known else None, **more)


def usable(*names: str) -> list[Verdict]:
    return [verdict(name) for name in names]


def absent(*names: str) -> list[Verdict]:
    return [verdict(name, Grade.ABSENT) for name in names]


def leaving(*names: str) -> list[Verdict]:
    return [verdict(name, Grade.LEAVING) for name in names]


class Publishing:
    """Looks made one after the other, as the source makes them; ``now`` is what the tests say."""

    def __init__(self, *, state: DampingState | None = None, answers: ProbeResults = EVERYBODY) -> None:
        self.state = state or DampingState()
        self.answers = answers
        self.last: DampingResult | None = None
        self.reason = ""

    def look(self, now: float, *verdicts: Verdict, seen_at: float | None = None) -> dict[str, int] | None:
        selection = Selection(tuple(sorted(verdicts, key=lambda each: each.pod.key)))
        self.last, self.reason = decide_published(
            now, self.state, Facts(selection, self.answers, seen_at), limits=LIMITS
        )
        self.state = self.last.state
        return None if self.last.observation is None else self.last.observation.hosts.as_slots()

    def notes(self) -> dict[str, str]:
        assert self.last is not None
        return {key.name: note for key, note in self.last.notes.items()}

    def departing(self) -> dict[str, float | None]:
        assert self.last is not None
        assert self.last.observation is not None
        return {departure.host: departure.deadline for departure in self.last.observation.departing}


def running(*names: str, now: float = 0.0) -> Publishing:
    """A publishing that has published ``names`` at ``now``."""
    publishing = Publishing()
    publishing.look(now - 1.0, *usable(*names))
    assert publishing.look(now, *usable(*names)) == dict.fromkeys(names, 1)
    return publishing


# The first publication


def test_no_pods_are_published_at_once_as_no_hosts():
    assert Publishing().look(0.0) == {}


def test_the_first_publication_waits_for_all_probes_and_is_made_once():
    publishing = Publishing(answers=ProbeResults(admitted={"uid-a"}))
    assert publishing.look(0.0, *usable("a", "b")) is None
    assert publishing.look(0.6, *usable("a", "b")) is None
    publishing.answers = ProbeResults(admitted={"uid-a", "uid-b"})
    assert publishing.look(0.7, *usable("a", "b")) == {"a": 1, "b": 1}


def test_a_probe_that_failed_once_does_not_hold_up_the_first_publication():
    publishing = Publishing(answers=ProbeResults(admitted={"uid-a"}, refused={"uid-b": "connection refused"}))
    assert publishing.look(0.0, *usable("a", "b")) is None
    assert publishing.look(0.5, *usable("a", "b")) == {"a": 1}
    assert publishing.notes() == {"b": "connection refused"}


def test_the_first_publication_does_not_wait_for_ever():
    publishing = Publishing(answers=ProbeResults(admitted={"uid-a"}))
    assert publishing.look(0.0, *usable("a", "b")) is None
    assert publishing.last.again_at == 0.5
    assert publishing.look(0.5, *usable("a", "b")) is None
    assert publishing.last.again_at == 3.0
    assert publishing.look(3.0, *usable("a", "b")) == {"a": 1}


def test_hosts_of_an_earlier_run_are_kept_without_probe_or_settle():
    publishing = Publishing(state=DampingState(earlier=frozenset({"a", "b", "c", "gone"})), answers=ProbeResults())
    advised = verdict("b", advisory="node n1 is cordoned")
    assert publishing.look(0.0, verdict("a"), advised, *leaving("c"), *usable("new")) == {"a": 1, "b": 1}
    assert publishing.departing() == {"c": None}
    assert [host.name for host in publishing.last.to_probe] == ["new"]
    assert publishing.state.earlier == frozenset(), "one who comes back later is a newcomer"


def test_a_notice_for_a_host_of_an_earlier_run_passes_at_once():
    publishing = Publishing(state=DampingState(earlier=frozenset({"a"})), answers=ProbeResults())
    assert publishing.look(0.0, *leaving("a"), *usable("b")) == {}
    assert publishing.departing() == {"a": None}


def test_hosts_of_an_earlier_run_that_fell_silent_meanwhile_are_damped_too():
    publishing = Publishing(state=DampingState(earlier=frozenset({"a", "b"})), answers=ProbeResults())
    assert publishing.look(0.0, *absent("a", "b")) == {"a": 1, "b": 1}
    assert publishing.look(30.0, *absent("a", "b")) == {}


def test_the_first_publication_takes_along_who_was_admitted_in_its_last_moment():
    publishing = Publishing(answers=ProbeResults())
    assert publishing.look(0.0, *usable("a", "b")) is None
    publishing.answers = ProbeResults(admitted={"uid-a"})
    assert publishing.look(2.9, *usable("a", "b")) is None
    assert publishing.look(3.0, *usable("a", "b")) == {"a": 1}


# Additions


def test_additions_settle_and_come_together():
    publishing = running("a")
    assert publishing.look(10.0, *usable("a", "b")) == {"a": 1}
    assert publishing.last.again_at == 10.5
    assert publishing.look(10.4, *usable("a", "b", "c")) == {"a": 1}
    assert publishing.notes() == {"b": "gathering additions", "c": "gathering additions"}
    assert publishing.look(10.5, *usable("a", "b", "c")) == {"a": 1, "b": 1, "c": 1}
    assert publishing.last.again_at is None


def test_a_host_that_goes_before_it_settled_is_never_published():
    publishing = running("a")
    publishing.look(10.0, *usable("a", "b"))
    publishing.look(10.2, *usable("a"), verdict("b", Grade.UNFIT))
    assert publishing.look(10.5, *usable("a"), verdict("b", Grade.UNFIT)) == {"a": 1}
    publishing.look(10.6, *usable("a", "b"))
    assert publishing.last.again_at == pytest.approx(11.1), "it settles anew"


def test_one_is_added_only_once_it_was_admitted():
    publishing = running("a")
    publishing.answers = ProbeResults()
    for now in (10.0, 20.0):
        assert publishing.look(now, *usable("a", "b")) == {"a": 1}
        assert publishing.notes() == {"b": "being probed"}
        assert publishing.last.again_at is None
    publishing.answers = ProbeResults(admitted={"uid-b"})
    publishing.look(20.1, *usable("a", "b"))
    assert publishing.look(20.6, *usable("a", "b")) == {"a": 1, "b": 1}


def test_probes_that_lag_hold_up_no_other_addition():
    publishing = running("a")
    publishing.answers = ProbeResults(admitted={"uid-b"})
    publishing.look(10.0, *usable("a", "b", "c"))
    assert publishing.look(10.5, *usable("a", "b", "c")) == {"a": 1, "b": 1}


def test_rule_22_same_name_new_uid_is_probed_again_and_never_stands_for_the_old_one():
    publishing = running("a", "b")
    publishing.answers = ProbeResults(admitted={"uid-a", "uid-b"})
    again = verdict("b", uid="uid-b2")
    assert publishing.look(10.0, *usable("a"), again) == {"a": 1}
    assert [host.uid for host in publishing.last.to_probe] == ["uid-b2"]
    publishing.answers = ProbeResults(admitted={"uid-a", "uid-b2"})
    assert publishing.look(11.0, *usable("a"), again) == {"a": 1}
    assert publishing.look(11.5, *usable("a"), again) == {"a": 1, "b": 1}
    assert publishing.last.observation.hosts.get("b").uid == "uid-b2"


def test_rule_23_slots_change_at_once():
    publishing = running("a")
    assert publishing.look(10.0, verdict("a", slots=4)) == {"a": 4}


def test_two_pods_of_one_host_name_are_one_host_and_the_second_is_named():
    second = verdict("a2")
    second = Verdict(second.pod, Grade.USABLE, "usable", Host("a", 1, "uid-a2"))
    publishing = running("a")
    publishing.look(10.0, *usable("a"), second)
    assert publishing.look(10.5, *usable("a"), second) == {"a": 1}
    assert publishing.last.observation.hosts.get("a").uid == "uid-a"
    assert "ns/a has the host name a, too" in publishing.notes()["a2"]
    assert publishing.last.again_at is None, "time alone does not change that"
    assert publishing.look(20.0, second) == {}
    assert publishing.look(20.5, second) == {"a": 1}, "once the name is free it is given on"


def test_of_two_newcomers_of_one_host_name_one_is_added():
    both = [Verdict(verdict(name).pod, Grade.USABLE, "usable", Host("x", 1, f"uid-{name}")) for name in "pq"]
    publishing = running("a")
    publishing.look(10.0, *usable("a"), *both)
    assert publishing.look(10.5, *usable("a"), *both) == {"a": 1, "x": 1}
    assert publishing.last.observation.hosts.get("x").uid == "uid-p"
    assert publishing.last.again_at is None


# Advisory warnings


def test_an_advisory_keeps_who_is_there_and_adds_nobody():
    publishing = running("a")
    warned = [verdict(name, advisory="node n1 is cordoned") for name in "ab"]
    assert publishing.look(10.0, *warned) == {"a": 1}
    assert publishing.look(20.0, *warned) == {"a": 1}
    assert publishing.notes() == {"b": "not added: node n1 is cordoned"}
    publishing.look(21.0, *usable("a", "b"))
    assert publishing.look(21.5, *usable("a", "b")) == {"a": 1, "b": 1}


def test_a_removed_host_does_not_come_back_under_an_advisory():
    publishing = running("a", "b")
    publishing.look(10.0, *usable("a"), verdict("b", Grade.UNFIT))
    publishing.look(11.0, *usable("a"), verdict("b", advisory="node n1 is cordoned"))
    assert publishing.look(12.0, *usable("a"), verdict("b", advisory="node n1 is cordoned")) == {"a": 1}


# Removals


@pytest.mark.parametrize("grade", [Grade.UNFIT, Grade.LEAVING, Grade.GONE])
def test_unfit_and_leaving_hosts_go_at_once_even_if_they_are_all(grade):
    publishing = running("a", "b", "c")
    assert publishing.look(10.0, *[verdict(name, grade) for name in "abc"]) == {}
    assert not publishing.last.relist


def test_a_departure_is_told_with_its_deadline_for_as_long_as_the_pod_is_there():
    publishing = running("a", "b")
    notice = verdict("b", Grade.LEAVING, deadline=1234.5, reason="spot notice")
    for now in (10.0, 50.0, 500.0):
        assert publishing.look(now, *usable("a"), notice) == {"a": 1}
        assert publishing.departing() == {"b": 1234.5}
    assert publishing.look(501.0, *usable("a")) == {"a": 1}
    assert publishing.departing() == {}


def test_one_that_has_ended_by_a_notice_departs_for_as_long_as_its_pod_is_there():
    publishing = running("a", "b")
    for now in (10.0, 500.0):
        assert publishing.look(now, *usable("a"), verdict("b", Grade.GONE)) == {"a": 1}
        assert publishing.departing() == {"b": None}
    publishing.look(501.0, *usable("a"))
    assert publishing.departing() == {}


def test_a_notice_that_is_withdrawn_brings_the_host_back_as_an_addition():
    publishing = running("a", "b")
    publishing.look(10.0, *usable("a"), *leaving("b"))
    assert publishing.look(20.0, *usable("a", "b")) == {"a": 1}
    assert publishing.look(20.5, *usable("a", "b")) == {"a": 1, "b": 1}


def test_of_two_pods_of_one_name_that_leave_the_earlier_deadline_is_told():
    pods = [verdict(f"p{number}") for number in range(3)]
    deadlines = [None, 20.0, 10.0]
    both = [
        Verdict(pod.pod, Grade.LEAVING, "drained", Host("x", 1), deadline=deadline)
        for pod, deadline in zip(pods, deadlines, strict=True)
    ]
    publishing = running("a")
    publishing.look(10.0, *usable("a"), *both)
    assert publishing.departing() == {"x": 10.0}


def test_a_name_that_stays_in_use_does_not_depart():
    publishing = running("a")
    other = Verdict(PodView(Key("ns", "other"), "uid-o", "1"), Grade.LEAVING, "drained", Host("a", 1, "uid-o"))
    assert publishing.look(10.0, *usable("a"), other) == {"a": 1}
    assert publishing.departing() == {}


# The damper


def test_rule_21_all_nodes_silent_at_once_are_held_for_30_seconds_and_a_relist_is_asked_for_once():
    publishing = running("a", "b", "c")
    assert publishing.look(10.0, *absent("a", "b", "c")) == {"a": 1, "b": 1, "c": 1}
    assert publishing.last.relist
    assert publishing.last.again_at == 40.0
    assert "most hosts fell silent at once" in publishing.notes()["a"]
    assert publishing.look(39.9, *absent("a", "b", "c")) == {"a": 1, "b": 1, "c": 1}
    assert not publishing.last.relist
    assert publishing.look(40.0, *absent("a", "b", "c")) == {}
    assert publishing.look(41.0, *absent("a", "b", "c")) == {}, "time that is over is not given twice"


def test_rule_21_all_pods_deleted_come_through_at_once():
    publishing = running("a", "b", "c")
    assert publishing.look(10.0) == {}
    assert not publishing.last.relist


def test_a_notice_for_a_whole_zone_comes_through_at_once_though_its_nodes_are_silent():
    publishing = running("a", "b", "c", "d")
    publishing.look(10.0, *absent("a", "b", "c"), *usable("d"))
    assert publishing.look(12.0, *leaving("a", "b"), *absent("c"), *usable("d")) == {"d": 1}
    assert set(publishing.departing()) == {"a", "b"}


def test_half_is_not_more_than_half():
    publishing = running("a", "b")
    assert publishing.look(10.0, *usable("a"), *absent("b")) == {"a": 1}


def test_hosts_that_fall_silent_one_by_one_are_one_loss():
    publishing = running("a", "b", "c", "d")
    assert publishing.look(10.0, *absent("a"), *usable("b", "c", "d")) == {"b": 1, "c": 1, "d": 1}
    assert publishing.look(11.0, *absent("a", "b"), *usable("c", "d")) == {"c": 1, "d": 1}
    assert publishing.look(12.0, *absent("a", "b", "c"), *usable("d")) == {"c": 1, "d": 1}
    assert publishing.last.relist
    assert publishing.look(13.0, *absent("a", "b", "c", "d")) == {"c": 1, "d": 1}


def test_losses_far_apart_are_losses_each_of_its_own():
    publishing = running("a", "b", "c", "d")
    publishing.look(10.0, *absent("a"), *usable("b", "c", "d"))
    publishing.look(50.0, *absent("a", "b"), *usable("c", "d"))
    assert publishing.look(90.0, *absent("a", "b", "c"), *usable("d")) == {"d": 1}


def test_hosts_that_return_within_the_hold_were_never_removed():
    publishing = running("a", "b", "c")
    publishing.look(10.0, *absent("a", "b", "c"))
    assert publishing.look(20.0, *usable("a", "b", "c")) == {"a": 1, "b": 1, "c": 1}
    assert publishing.last.again_at is None
    assert publishing.look(60.0, *usable("a", "b", "c")) == {"a": 1, "b": 1, "c": 1}


def test_a_host_that_stays_silent_when_most_return_goes_at_once():
    publishing = running("a", "b", "c")
    publishing.look(10.0, *absent("a", "b", "c"))
    assert publishing.look(20.0, *usable("a", "b"), *absent("c")) == {"a": 1, "b": 1}


def test_a_silent_host_that_was_never_published_is_not_held():
    publishing = running("a")
    assert publishing.look(10.0, *usable("a"), *absent("b", "c", "d")) == {"a": 1}
    assert not publishing.last.relist


def test_a_held_host_without_a_name_of_its_own_keeps_the_one_it_was_published_under():
    publishing = running("a")
    pod = verdict("a", Grade.ABSENT).pod
    assert publishing.look(10.0, Verdict(pod, Grade.ABSENT, "node n1 is gone")) == {"a": 1}


# What is told beside the hosts


def test_the_latency_of_a_removal_counts_from_its_event():
    publishing = running("a", "b")
    publishing.look(10.0, *usable("a"), *leaving("b"), seen_at=9.998)
    assert publishing.last.causes == ((REMOVAL, 9.998),)
    publishing.look(11.0, *usable("a"), *leaving("b"), seen_at=10.9)
    assert publishing.last.causes == ()


def test_the_time_an_addition_took_counts_from_when_it_was_first_usable():
    publishing = running("a")
    publishing.answers = ProbeResults()
    publishing.look(10.0, *usable("a", "b"), seen_at=9.9)
    publishing.answers = ProbeResults(admitted={"uid-b"})
    publishing.look(12.0, *usable("a", "b"))
    assert publishing.last.causes == ()
    publishing.look(12.5, *usable("a", "b"))
    assert publishing.last.causes == ((ADDITION, 9.9),)


def test_what_the_damper_kept_back_is_no_slow_removal():
    publishing = running("a")
    publishing.look(10.0, *absent("a"), seen_at=9.9)
    assert publishing.look(40.0, *absent("a"), seen_at=39.9) == {}
    assert publishing.last.causes == ()


def test_the_reason_counts_what_is_held_back():
    publishing = running("a")
    publishing.answers = ProbeResults(admitted={"uid-b"})
    publishing.look(10.0, *usable("a", "b", "c"), verdict("d", advisory="cordoned"), *leaving("e"))
    assert publishing.reason == (
        "1 published; 1 waiting for the probe; 1 gathering; 1 not added for a warning; 1 leaving"
    )


@pytest.mark.parametrize("limits", [{"settle": -1.0}, {"damper": -1.0}, {"share": 0.0}, {"share": 1.5}])
def test_limits_that_mean_nothing_are_refused(limits):
    with pytest.raises(ValueError, match="hold"):
        DampingLimits(**limits)


GRADES = st.sampled_from([Grade.USABLE, Grade.USABLE, Grade.ABSENT, Grade.LEAVING, Grade.UNFIT, Grade.GONE, None])
PODS = st.fixed_dictionaries({name: st.tuples(GRADES, st.booleans(), st.booleans()) for name in "abcde"})
STEPS = st.lists(st.tuples(st.floats(0.0, 12.0), PODS), min_size=1, max_size=15)


@given(steps=STEPS, earlier=st.sets(st.sampled_from("abcde")))
def test_after_any_history_usable_hosts_are_published_unfit_ones_are_not_and_it_settles(steps, earlier):
    """Each pod: its grade (None: deleted), whether it is under an advisory, whether it has answered the probe."""
    publishing = Publishing(state=DampingState(earlier=frozenset(earlier)))
    now, admitted, published = 0.0, set(), set(earlier)
    for passes, pods in steps:
        now += passes
        admitted |= {f"uid-{name}" for name, (_, _, answers) in pods.items() if answers}
        publishing.answers = ProbeResults(admitted=admitted)
        verdicts = [
            verdict(name, grade, advisory="cordoned" if warned and grade is Grade.USABLE else "")
            for name, (grade, warned, _) in pods.items()
            if grade is not None
        ]
        shown = publishing.look(now, *verdicts)
        if shown is None:
            assert now < 3.0 + steps[0][0]
            continue
        graded = {each.pod.key.name: each for each in verdicts}
        assert not set(shown) & set(publishing.departing())
        assert {graded[name].grade for name in shown} <= {Grade.USABLE, Grade.ABSENT}
        assert {name for name in published if name in graded and graded[name].grade is Grade.USABLE} <= set(shown)
        for name in set(shown) - published:
            assert f"uid-{name}" in admitted
            assert not graded[name].advisory
        assert publishing.last.again_at is None or publishing.last.again_at > now
        published = set(shown)
    looks = 0
    while (again_at := publishing.last.again_at) is not None:
        publishing.look(again_at, *verdicts)
        looks += 1
    assert looks <= 8
    assert publishing.look(again_at or now + 100.0, *verdicts) is not None


# Containers that are started again


def living(name: str, life: str, grade: Grade = Grade.USABLE) -> Verdict:
    one = verdict(name, grade)
    return Verdict(one.pod, grade, one.reason, Host(name, 1, one.pod.uid, life=life))


def lives(publishing: Publishing) -> dict[str, str]:
    assert publishing.last is not None
    assert publishing.last.observation is not None
    return {host.name: host.life for host in publishing.last.observation.hosts}


def test_a_new_life_of_a_published_host_is_published_at_once():
    publishing = Publishing()
    publishing.look(0.0, living("a", "1"), living("b", "1"))
    publishing.look(0.6, living("a", "1"), living("b", "1"))
    publishing.look(5.0, living("a", "1"), living("b", "2"))
    assert lives(publishing) == {"a": "1", "b": "2"}


def test_a_new_life_that_was_off_the_list_is_probed_anew():
    publishing = Publishing(answers=ProbeResults(admitted={"uid-a/1", "uid-b/1"}))
    publishing.look(0.0, living("a", "1"), living("b", "1"))
    publishing.look(0.6, living("a", "1"), living("b", "1"))
    assert publishing.look(5.0, living("a", "1"), verdict("b", Grade.UNFIT)) == {"a": 1}
    assert publishing.look(5.6, living("a", "1"), living("b", "2")) == {"a": 1}
    assert publishing.notes() == {"b": "being probed"}
    publishing.answers = ProbeResults(admitted={"uid-a/1", "uid-b/1", "uid-b/2"})
    publishing.look(5.7, living("a", "1"), living("b", "2"))
    assert publishing.look(6.3, living("a", "1"), living("b", "2")) == {"a": 1, "b": 1}
    assert lives(publishing) == {"a": "1", "b": "2"}
