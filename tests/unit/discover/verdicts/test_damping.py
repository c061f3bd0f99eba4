"""What is published of what is true of the pods, and when."""

from collections.abc import Iterable
from dataclasses import replace
from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

from discover.pods.views import Key, PodView
from discover.verdicts.damping import (
    ADDITION,
    REMOVAL,
    DampingFacts,
    DampingLimits,
    DampingResult,
    DampingState,
    ProbeResults,
    decide_published,
)
from discover.verdicts.verdicts import Grade, Selection, Verdict
from hvd_elastic_ext.core.hosts import Host, HostSet

LIMITS = DampingLimits(settle=0.5, damper=30.0, probe_wait=3.0)
EVERYBODY = ProbeResults(admits_all=True)


def verdict(name: str, grade: Grade = Grade.USABLE, *, uid: str = "", slots: int = 1, **more) -> Verdict:
    uid = uid or f"uid-{name}"
    pod = PodView(Key("ns", name), uid, "1")
    known = grade is not Grade.UNFIT
    return Verdict(pod, grade, more.pop("reason", grade.value), Host(name, slots, uid) if known else None, **more)


def earlier_hosts(names: Iterable[str]) -> HostSet:
    return HostSet.of(dict.fromkeys(names, 1))


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
            now, self.state, DampingFacts(selection, self.answers, seen_at), limits=LIMITS
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


SIGNS = {"!": Grade.LEAVING, "?": Grade.ABSENT, "-": Grade.UNFIT, ".": Grade.GONE, "~": Grade.USABLE}


def pods(text: str) -> list[Verdict]:
    """``a``: usable. ``a!``: leaving. ``a?``: absent. ``a-``: unfit. ``a.``: gone. ``a~``: usable, with an advisory."""
    return [judged(word) for word in text.split()]


@cache  # as verdicts of pods that have not changed, they are the same objects at each look
def judged(word: str) -> Verdict:
    return verdict(word[0], SIGNS.get(word[1:], Grade.USABLE), advisory="node is cordoned" if "~" in word else "")


def running(names: str) -> Publishing:
    """A publishing that has published ``names`` at 0, and has looked again."""
    publishing = Publishing()
    for now in (-1.0, 0.0, 0.0):
        publishing.look(now, *pods(names))
    return publishing


def play(script: str) -> Publishing:
    """Play looks, one after the other, separated by ``;``: ``TIME PODS [+ ADMITTED] [/ REFUSED] [= SHOWN]``.

    It begins with ``run NAMES:`` for hosts that are published, or ``earlier NAMES:`` for those of an earlier run.
    Without a ``+`` there is no probe. SHOWN are hosts, or ``none``, and ``> DEPARTING``, ``@ WHEN TIME ALONE CHANGES
    IT``, ``relist``.
    """
    start, _, looks = script.rpartition(":")
    kind, _, names = start.partition(" ")
    publishing = (
        running(names) if kind == "run" else Publishing(state=DampingState(earlier=earlier_hosts(names.split())))
    )
    admitted: set[str] | None = None
    for look in looks.split(";"):
        given, _, shown = look.partition("=")
        given, _, refused = given.partition("/")
        given, plus, more = given.partition("+")
        if plus:
            admitted = (admitted or set()) | {f"uid-{name}" for name in more.split()}
        if admitted is not None:
            publishing.answers = ProbeResults(admitted, {f"uid-{name}": "refused" for name in refused.split()})
        now, _, there = given.strip().partition(" ")
        hosts = publishing.look(float(now), *pods(there))
        if "=" in look:
            check(publishing, hosts, shown, look)
    return publishing


def check(publishing: Publishing, hosts: dict[str, int] | None, shown: str, look: str) -> None:
    relist = "relist" in shown
    shown, _, again_at = shown.replace("relist", "").partition("@")
    shown, _, departing = shown.partition(">")
    assert hosts == (None if "none" in shown else dict.fromkeys(shown.split(), 1)), look
    assert publishing.last is not None
    assert publishing.last.relist is relist, look
    if hosts is not None:
        assert set(publishing.departing()) == set(departing.split()), look
    if again_at:
        assert publishing.last.again_at == (None if "never" in again_at else pytest.approx(float(again_at))), look


@pytest.mark.parametrize(
    "script",
    [
        pytest.param(script, id=name)
        for name, script in {
            # The first publication
            "no pods are published at once as no hosts": "0 =",
            "it waits for all probes and is made once": "0 a b + a = none; 0.6 a b = none; 0.7 a b + b = a b",
            "a probe that failed once does not hold it up": "0 a b + a / b = none; 0.5 a b / b = a",
            "it does not wait for ever": "0 a b + a = none @ 0.5; 0.5 a b = none @ 3; 3 a b = a",
            "a notice for a host of an earlier run passes at once": "earlier a: 0 a! b + = > a",
            "silent hosts of an earlier run are damped": "earlier a b: 0 a? b? + = a b relist; 30 a? b? =",
            "who is admitted in its last moment is in it": "0 a b + = none; 2.9 a b + a = none; 3 a b = a",
            # Additions
            "they settle and come together": (
                "run a: 10 a b = a @ 10.5; 10.4 a b c = a @ 10.5; 10.5 a b c = a b c @ never"
            ),
            "a host that goes before it settled is never published": (
                "run a: 10 a b; 10.2 a b-; 10.5 a b- = a; 10.6 a b = a @ 11.1"
            ),
            "a host is added once it was admitted": (
                "run a: 10 a b + = a @ never; 20 a b = a @ never; 20.1 a b + b; 20.6 a b = a b"
            ),
            "a probe that lags holds up no other addition": "run a: 10 a b c + b; 10.5 a b c = a b",
            "an advisory keeps who is there and adds nobody": (
                "run a: 10 a~ b~ = a; 20 a~ b~ = a; 21 a b; 21.5 a b = a b"
            ),
            "a removed host does not come back under an advisory": "run a b: 10 a b-; 11 a b~; 12 a b~ = a",
            "a notice that is withdrawn brings the host back as an addition": (
                "run a b: 10 a b! = a > b; 20 a b = a; 20.5 a b = a b"
            ),
            # Removals
            "unfit hosts go at once even if they are all": "run a b c: 10 a- b- c- =",
            "deleted ones too": "run a b c: 10 =",
            "leaving hosts go at once even if they are all": "run a b c: 10 a! b! c! = > a b c",
            "a host that ended by a notice departs while its pod is there": (
                "run a b: 10 a b. = a > b; 500 a b. = a > b; 501 a = a"
            ),
            # The damper
            "a notice passes at once though nodes are silent": ("run a b c d: 10 a? b? c? d; 12 a! b! c? d = d > a b"),
            "half is not more than half": "run a b: 10 a b? = a",
            "hosts that fall silent one by one are one loss": (
                "run a b c d: 10 a? b c d = b c d; 11 a? b? c d = c d; 12 a? b? c? d = c d relist; 13 a? b? c? d? = c d"
            ),
            "losses far apart are each a loss of its own": (
                "run a b c d: 10 a? b c d; 50 a? b? c d; 90 a? b? c? d = d"
            ),
            "hosts that return within the hold were never removed": (
                "run a b c: 10 a? b? c?; 20 a b c = a b c @ never; 60 a b c = a b c"
            ),
            "a host that stays silent when most return goes at once": "run a b c: 10 a? b? c?; 20 a b c? = a b",
            "a silent host that was never published is not held": "run a: 10 a b? c? d? = a",
        }.items()
    ],
)
def test_what_is_published_and_when(script: str):
    play(script)


def test_rule_21_all_nodes_silent_at_once_are_held_for_30_seconds_and_a_relist_is_asked_for_once():
    silent = "a? b? c?"
    held = play(f"run a b c: 10 {silent} = a b c @ 40 relist; 39.9 {silent} = a b c")
    assert held.notes()["a"] == "kept for another 0 s: most hosts fell silent at once"
    assert play(f"run a b c: 10 {silent}; 15 {silent}").notes()["a"].startswith("kept for another 25 s")
    assert held.look(40.0, *pods(silent)) == {}
    assert held.look(41.0, *pods(silent)) == {}, "time that is over is not given twice"


@pytest.mark.parametrize(
    ("script", "notes"),
    [
        ("run a: 10 a b", {"b": "gathering additions"}),
        ("run a: 10 a b +", {"b": "being probed"}),
        ("run a: 10 a b + / b", {"b": "refused"}),
        ("run a: 10 a~ b~", {"b": "not added: node is cordoned"}),
    ],
)
def test_the_notes_say_why_a_usable_pod_is_not_published(script: str, notes: dict[str, str]):
    assert play(script).notes() == notes


def test_hosts_of_an_earlier_run_are_kept_without_probe_or_settle():
    publishing = Publishing(state=DampingState(earlier=earlier_hosts(["a", "b", "c", "gone"])), answers=ProbeResults())
    advised = verdict("b", advisory="node n1 is cordoned")
    assert publishing.look(0.0, verdict("a"), advised, *pods("c!"), verdict("new")) == {"a": 1, "b": 1}
    assert publishing.departing() == {"c": None}
    assert [host.name for host in publishing.last.to_probe] == ["new"]
    assert publishing.state.earlier == HostSet(), "one who comes back later is a newcomer"


def test_rule_22_same_name_new_uid_is_probed_again_and_never_stands_for_the_old_one():
    publishing = running("a b")
    publishing.answers = ProbeResults(admitted={"uid-a", "uid-b"})
    again = verdict("b", uid="uid-b2")
    assert publishing.look(10.0, *pods("a"), again) == {"a": 1}
    assert [host.uid for host in publishing.last.to_probe] == ["uid-b2"]
    publishing.answers = ProbeResults(admitted={"uid-a", "uid-b2"})
    assert publishing.look(11.0, *pods("a"), again) == {"a": 1}
    assert publishing.look(11.5, *pods("a"), again) == {"a": 1, "b": 1}
    assert publishing.last.observation.hosts.get("b").uid == "uid-b2"


def test_two_pods_of_one_host_name_are_one_host_and_the_second_is_named():
    second = verdict("a2")
    second = Verdict(second.pod, Grade.USABLE, "usable", Host("a", 1, "uid-a2"))
    publishing = running("a")
    publishing.look(10.0, *pods("a"), second)
    assert publishing.look(10.5, *pods("a"), second) == {"a": 1}
    assert publishing.last.observation.hosts.get("a").uid == "uid-a"
    assert "ns/a has the host name a, too" in publishing.notes()["a2"]
    assert publishing.last.again_at is None, "time alone does not change that"
    assert publishing.look(20.0, second) == {}
    assert publishing.look(20.5, second) == {"a": 1}, "once the name is free it is given on"


def test_of_two_newcomers_of_one_host_name_one_is_added():
    both = [Verdict(verdict(name).pod, Grade.USABLE, "usable", Host("x", 1, f"uid-{name}")) for name in "pq"]
    publishing = running("a")
    publishing.look(10.0, *pods("a"), *both)
    assert publishing.look(10.5, *pods("a"), *both) == {"a": 1, "x": 1}
    assert publishing.last.observation.hosts.get("x").uid == "uid-p"
    assert publishing.look(10.6, *pods("a"), *both) == {"a": 1, "x": 1}
    assert publishing.last.again_at is None, "the other one is not waited for"


def named(name: str, host: str, grade: Grade = Grade.USABLE, **more) -> Verdict:
    """A pod whose host has another name than the pod."""
    one = verdict(name, grade, **more)
    return replace(one, host=Host(host, 1, one.pod.uid))


def test_a_published_pod_that_takes_the_name_of_an_earlier_one_is_new_from_that_look_on():
    publishing = running("a b")
    assert publishing.look(10.0, *pods("a"), named("b", "a")) == {"a": 1}
    assert "ns/a has the host name a, too" in publishing.notes()["b"]
    assert publishing.look(10.2, named("b", "a")) == {}
    assert publishing.last.again_at == pytest.approx(10.7)
    assert publishing.look(10.7, named("b", "a")) == {"a": 1}
    assert publishing.last.observation.hosts.get("a").uid == "uid-b"


@pytest.mark.parametrize(
    ("advisory", "answers", "note"),
    [("node is cordoned", EVERYBODY, "not added: node is cordoned"), ("", ProbeResults(), "being probed")],
)
def test_a_published_pod_that_loses_its_name_is_not_added_again_where_a_new_one_would_not_be(advisory, answers, note):
    publishing = running("a b")
    publishing.answers = answers
    second = named("b", "a", advisory=advisory)
    for now in (10.0, 10.2):
        assert publishing.look(now, *pods("a"), second) == {"a": 1}
        assert publishing.notes() == {"b": note}
    for now in (11.0, 12.0):
        assert publishing.look(now, second) == {}
        assert publishing.notes() == {"b": note}


def test_a_pod_that_takes_the_name_of_a_later_one_takes_its_place():
    publishing = running("a b c")
    assert publishing.look(10.0, named("a", "b"), *pods("b c")) == {"b": 1, "c": 1}
    assert {host.uid for host in publishing.last.observation.hosts} == {"uid-a", "uid-c"}


def test_two_pods_of_one_host_name_of_an_earlier_run_are_one_host():
    publishing = Publishing(state=DampingState(earlier=earlier_hosts(["x"])))
    assert publishing.look(0.0, named("a", "x"), named("b", "x")) == {"x": 1}
    assert {host.uid for host in publishing.last.observation.hosts} == {"uid-a"}


def test_a_silent_host_that_is_kept_is_published_as_it_is_now_and_as_the_same_set_until_it_changes():
    publishing = Publishing()
    for now in (-1.0, 0.0):
        publishing.look(now, living("a", "1"))
    silent = living("a", "2", Grade.ABSENT)
    publishing.look(10.0, silent)
    assert lives(publishing) == {"a": "2"}
    hosts = publishing.last.observation.hosts
    publishing.look(11.0, silent)
    assert publishing.last.observation.hosts is hosts


def test_a_departure_is_told_with_its_deadline_for_as_long_as_the_pod_is_there():
    publishing = running("a b")
    notice = verdict("b", Grade.LEAVING, deadline=1234.5, reason="spot notice")
    for now in (10.0, 50.0, 500.0):
        assert publishing.look(now, *pods("a"), notice) == {"a": 1}
        assert publishing.departing() == {"b": 1234.5}
    assert publishing.look(501.0, *pods("a")) == {"a": 1}
    assert publishing.departing() == {}


def test_a_departure_whose_reason_or_deadline_changes_is_told_anew_and_any_other_is_the_same_object():
    publishing = running("a b c")
    told = []
    for reason, deadline in (("spot", 10.0), ("spot", 20.0), ("drained", 20.0), ("drained", None)):
        going = verdict("b", Grade.LEAVING, deadline=deadline, reason=reason)
        publishing.look(10.0, *pods("a"), going, verdict("c", Grade.LEAVING))
        told.append(publishing.last.observation.departing)
    assert [(b.reason, b.deadline) for b, _ in told] == [
        ("spot", 10.0),
        ("spot", 20.0),
        ("drained", 20.0),
        ("drained", None),
    ]
    assert len({id(c) for _, c in told}) == 1


def test_of_two_pods_of_one_name_that_leave_the_earlier_deadline_is_told():
    both = [
        Verdict(verdict(f"p{deadline}").pod, Grade.LEAVING, "drained", Host("x", 1), deadline=deadline)
        for deadline in (None, 20.0, 10.0)
    ]
    publishing = running("a")
    publishing.look(10.0, *pods("a"), *both)
    assert publishing.departing() == {"x": 10.0}


def test_of_two_pods_of_one_name_that_leave_at_the_same_time_the_reason_is_always_the_same():
    both = [named(name, "x", Grade.LEAVING, reason=reason) for name, reason in (("p", "spot"), ("q", "drained"))]
    publishing = running("a")
    publishing.look(10.0, *pods("a"), *both)
    assert [each.reason for each in publishing.last.observation.departing] == ["drained"]


def test_a_name_that_stays_in_use_does_not_depart():
    publishing = running("a")
    other = Verdict(PodView(Key("ns", "other"), "uid-o", "1"), Grade.LEAVING, "drained", Host("a", 1, "uid-o"))
    assert publishing.look(10.0, *pods("a"), other) == {"a": 1}
    assert publishing.departing() == {}


def test_a_held_host_without_a_name_of_its_own_keeps_the_one_it_was_published_under():
    publishing = running("a")
    pod = verdict("a", Grade.ABSENT).pod
    assert publishing.look(10.0, Verdict(pod, Grade.ABSENT, "node n1 is gone")) == {"a": 1}


def test_the_latency_of_a_removal_counts_from_its_event():
    publishing = running("a b")
    publishing.look(10.0, *pods("a"), *pods("b!"), seen_at=9.998)
    assert publishing.last.causes == ((REMOVAL, 9.998),)
    publishing.look(11.0, *pods("a"), *pods("b!"), seen_at=10.9)
    assert publishing.last.causes == ()


def test_the_removal_of_a_host_whose_name_another_published_pod_has_taken_counts_from_that_event():
    publishing = running("a b")
    taken = replace(verdict("a"), host=Host("b", 1, "uid-a"))
    publishing.look(10.0, taken, *pods("b"), seen_at=9.998)
    assert publishing.last.causes == ((REMOVAL, 9.998),)


def test_the_time_an_addition_took_counts_from_when_it_was_first_usable():
    publishing = running("a")
    publishing.answers = ProbeResults()
    publishing.look(10.0, *pods("a b"), seen_at=9.9)
    publishing.answers = ProbeResults(admitted={"uid-b"})
    publishing.look(12.0, *pods("a b"))
    assert publishing.last.causes == ()
    publishing.look(12.5, *pods("a b"))
    assert publishing.last.causes == ((ADDITION, 9.9),)


def test_what_the_damper_kept_back_is_no_slow_removal():
    publishing = running("a")
    publishing.look(10.0, *pods("a?"), seen_at=9.9)
    assert publishing.look(40.0, *pods("a?"), seen_at=39.9) == {}
    assert publishing.last.causes == ()


def test_the_reason_counts_what_is_held_back():
    publishing = running("a")
    publishing.answers = ProbeResults(admitted={"uid-b"})
    publishing.look(10.0, *pods("a b c"), verdict("d", advisory="cordoned"), *pods("e!"))
    assert publishing.reason == (
        "1 published; 1 waiting for the probe; 1 gathering; 1 not added for a warning; 1 leaving"
    )


def test_while_nothing_changes_the_same_observation_is_handed_on():
    """Each step after it sees at once that there is nothing to do."""
    publishing = running("a b")
    publishing.look(1.0, *pods("a b c!"))
    seen = publishing.last.observation
    publishing.look(2.0, *pods("a b c!"), *pods("d-"))
    assert publishing.last.observation is seen
    publishing.look(3.0, *pods("a b"))
    assert publishing.last.observation is not seen
    assert publishing.last.observation.hosts is seen.hosts


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
    publishing = Publishing(state=DampingState(earlier=earlier_hosts(sorted(earlier))))
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


VERDICTS = st.builds(
    lambda pod, host, grade, life, advisory, reason: replace(
        verdict(pod, grade, reason=reason, advisory=advisory),
        host=None if grade is Grade.UNFIT else Host(host or pod, 1, f"uid-{pod}", life=life),
    ),
    st.sampled_from("abcd"),
    st.sampled_from(["", "", "", "a", "b"]),
    st.sampled_from([Grade.USABLE] * 4 + [Grade.ABSENT] * 2 + [Grade.LEAVING, Grade.UNFIT, Grade.GONE]),
    st.sampled_from(["", "", "1"]),
    st.sampled_from(["", "", "node is cordoned"]),
    st.sampled_from(["one", "other"]),
)
CHANGES = st.tuples(
    st.sampled_from([0.1, 0.6, 4.0, 31.0]),
    st.lists(VERDICTS, max_size=3),
    st.sets(st.sampled_from("abcd"), max_size=1),
    st.sampled_from(["abcd", "abcd", "ab", ""]),
)


@given(steps=st.lists(CHANGES, max_size=12), earlier=st.sets(st.sampled_from("abc")))
def test_who_remembers_the_groups_of_the_last_look_decides_as_who_makes_them_anew(steps, earlier):
    """Each step: seconds, changed pods, deleted pods, and which pods have answered the probe."""
    state, there, now = DampingState(earlier=earlier_hosts(sorted(earlier))), {}, 0.0
    for passes, changes, deleted, answered in steps:
        now += passes
        there |= {each.pod.uid: each for each in changes}
        there = {uid: there[uid] for uid in sorted(there) if uid.removeprefix("uid-") not in deleted}
        answers = ProbeResults(admitted={f"uid-{name}{life}" for name in answered for life in ("", "/1")})
        facts = DampingFacts(Selection(tuple(there.values())), answers, now)
        (one, reason), (other, why) = (
            decide_published(now, before, facts, limits=LIMITS) for before in (state, replace(state, pods=None))
        )
        assert (replace(one, state=replace(one.state, pods=None)), reason) == (
            replace(other, state=replace(other.state, pods=None)),
            why,
        )
        if one.observation is not None:
            published = one.state.published
            assert one.observation.hosts.as_slots() == {host.name: host.slots for host in published.values()}
            assert set(one.observation.hosts) == set(published.values())
            if state.observation is not None and published == state.published:
                assert one.observation.hosts is state.observation.hosts
        state = one.state


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


def priced(price: str) -> Verdict:
    one = living("a", "1")
    assert one.host is not None
    return Verdict(one.pod, one.grade, one.reason, replace(one.host, price=price))


def test_a_new_price_of_a_published_host_is_published_at_once():
    publishing = Publishing()
    for now, price in ((0.0, "1"), (0.6, "1"), (5.0, "2.5")):
        publishing.look(now, priced(price))
    assert publishing.last is not None
    assert publishing.last.observation is not None
    assert [host.price for host in publishing.last.observation.hosts] == ["2.5"]


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
