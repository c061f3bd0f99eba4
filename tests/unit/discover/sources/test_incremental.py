"""What is brought up to date by what has changed is what it would be if all of it were looked at anew."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from discover.app.decide import DaemonState, decide
from discover.common.source import Observation
from discover.selection.damping import (
    DampingFacts,
    DampingLimits,
    DampingResult,
    DampingState,
    ProbeResults,
    decide_published,
    probe_key,
    still_holds,
)
from discover.selection.objects import ClusterSnapshot, Key, different
from discover.selection.operators import OPERATORS, SLOTS_ANNOTATION, HostRules, JobView
from discover.selection.selection import Selection, Selector, groups_of
from discover.selection.signal_table import BUILT_IN
from discover.selection.verdict_index import VerdictGroups
from hvd_elastic_ext.core.hosts import Host, HostSet, follow
from tests.support.kube.bodies import taint
from tests.unit.discover.pod_and_node_views import NOW, changed, node, picture, pod

NAMES = [f"w-{number}" for number in range(6)]
NODES = ["node-0", "node-1", "node-2"]
LIMITS = DampingLimits(settle=0.5, damper=30.0, probe_wait=3.0)
POD_STATES = st.fixed_dictionaries(
    {
        "node": st.sampled_from([*NODES, "node-9"]),
        "phase": st.sampled_from(["Pending", "Running", "Running", "Running", "Failed", "Unknown"]),
        "ready": st.sampled_from([True, True, True, False]),
        "deletion": st.sampled_from(["", "", "", "2026-01-01T00:00:30Z"]),
        "annotations": st.sampled_from([{}, {}, {"touched": "1"}, {SLOTS_ANNOTATION: "2"}, {SLOTS_ANNOTATION: "0"}]),
        "hostname": st.sampled_from(["", "", "same"]),
    }
)
NODE_STATES = st.fixed_dictionaries(
    {
        "ready": st.sampled_from([True, True, False, "Unknown"]),
        "taints": st.sampled_from(
            [[], [], [taint("aws-node-termination-handler/spot-itn", added="2026-01-01T00:00:00Z")]]
        ),
        "unschedulable": st.sampled_from([False, False, True]),
    }
)


@dataclass
class Scratch:
    """Looks at all there is each time: it knows nothing of what was changed last."""

    state: DampingState = field(default_factory=DampingState)

    def look(
        self, now: float, selection: Selection, answers: ProbeResults, limits: DampingLimits
    ) -> tuple[DampingResult, str]:
        bare = Selection(selection.verdicts, selection.again_at, selection.missing)
        before = replace(self.state, observation=None, clear=None, unlike=frozenset())
        damping, reason = decide_published(now, before, DampingFacts(bare, answers, now), limits=limits)
        self.state = damping.state
        return damping, reason


class Looking(RuleBasedStateMachine):
    """A cluster that changes at random, followed by one who looks at what has changed, and by one who looks at all."""

    @initialize(
        hidden=st.booleans(),
        shared=st.sampled_from([False, False, False, True]),
        running=st.sampled_from([True, False]),
    )
    def begin(self, hidden: bool, shared: bool, running: bool) -> None:
        self.rules, self.limits = HostRules(operator=OPERATORS["mpi"]), LIMITS
        self.follower = self.new_selector()
        self.snapshot = picture([], None if hidden else [])
        self.shared = shared
        self.scratch = Scratch()
        self.version, self.now, self.job = 1, 100.0, None
        self.answers: set[str] = set()
        self.exists: dict[str, bool] = {}
        self.last: tuple[DampingFacts, DampingResult, str] | None = None
        self.begun = DampingState()
        self.state, self.plain = DaemonState("a"), DaemonState("a")
        self.lives: dict[str, int] = {}
        self.missed = self.unseen = 0
        if running:
            self.snapshot = picture([self._pod(name, node="node-0") for name in NAMES[:4]], [node("node-0")])
            self.answers.update(each.uid for each in self.snapshot.pods.values())
            self.both_come_to_the_same()
            self.now += 1.0

    def new_selector(self) -> Selector:
        return Selector(self.rules, BUILT_IN)

    def _version(self) -> int:
        self.version += 1
        return self.version

    def _pod(self, name: str, **state: Any) -> Any:
        uid = f"{name}/{self.lives.get(name, 0)}"
        return pod(name, uid=uid, version=self._version(), hostNetwork=self.shared, **state)

    @rule(name=st.sampled_from(NAMES), state=POD_STATES, answers=st.booleans())
    def a_pod_changes(self, name: str, state: dict[str, Any], answers: bool) -> None:
        self.snapshot = changed(self.snapshot, self._pod(name, **state))
        if answers:
            self.pods_answer_the_probe({name})

    @rule(
        name=st.sampled_from(NAMES),
        deletion=st.sampled_from(["", "2026-01-01T00:00:30Z"]),
        hostname=st.sampled_from(["", "", *NAMES]),
    )
    def a_pod_runs_or_is_being_deleted(self, name: str, deletion: str, hostname: str) -> None:
        self.a_pod_changes(name, {"node": "node-0", "deletion": deletion, "hostname": hostname}, True)

    @rule(name=st.sampled_from(NAMES), again=st.booleans(), state=POD_STATES)
    def a_pod_goes(self, name: str, again: bool, state: dict[str, Any]) -> None:
        known = self.snapshot.pods.get(Key("default", name))
        if known is not None:
            self.snapshot = changed(self.snapshot, gone=[known])
        self.lives[name] = self.lives.get(name, 0) + 1
        if again:
            self.a_pod_changes(name, state, True)

    @rule(states=st.dictionaries(st.sampled_from(NAMES), st.one_of(POD_STATES, st.none())))
    def pods_change_between_two_looks(self, states: dict[str, dict[str, Any] | None]) -> None:
        gone = [each for name in states if (each := self.snapshot.pods.get(Key("default", name))) is not None]
        for name in states:
            self.lives[name] = self.lives.get(name, 0) + 1
        come = [self._pod(name, **state) for name, state in states.items() if state is not None]
        self.answers.update(each.uid for each in come)
        there = {each.key for each in come}
        self.snapshot = changed(self.snapshot, *come, gone=[each for each in gone if each.key not in there])

    @rule(states=st.dictionaries(st.sampled_from(NAMES), POD_STATES))
    def pods_are_listed(self, states: dict[str, dict[str, Any]]) -> None:
        same = [replace(each) for key, each in self.snapshot.pods.items() if key.name not in states]
        listed = (*same, *(self._pod(name, **state) for name, state in states.items()))
        self.snapshot = replace(self.snapshot, pods=picture(listed).pods, changed=None)

    @rule(name=st.sampled_from(NODES), state=NODE_STATES)
    def a_node_changes(self, name: str, state: dict[str, Any]) -> None:
        self.snapshot = changed(self.snapshot, node(name, version=self._version(), **state))

    @rule(name=st.sampled_from(NODES))
    def a_node_goes(self, name: str) -> None:
        self.snapshot = changed(self.snapshot, gone=[node(name)])

    @rule(names=st.sets(st.sampled_from(NODES)), hidden=st.sampled_from([False, False, True]))
    def nodes_are_listed(self, names: set[str], hidden: bool) -> None:
        listed = [node(name, version=self._version()) for name in sorted(names)]
        self.snapshot = replace(self.snapshot, nodes=None if hidden else picture([], listed).nodes)

    @rule(slots=st.sampled_from([None, 1, 3]))
    def the_job_changes(self, slots: int | None) -> None:
        self.job = None if slots is None else JobView(slots_per_worker=slots)

    @rule(name=st.sampled_from([*NODES, "node-9"]), there=st.booleans())
    def a_node_was_asked_for(self, name: str, there: bool) -> None:
        self.exists = {**self.exists, name: there}

    @rule(names=st.sets(st.sampled_from(NAMES)))
    def pods_answer_the_probe(self, names: set[str]) -> None:
        self.answers |= {f"{name}/{self.lives.get(name, 0)}" for name in names}

    @rule(seconds=st.sampled_from([0.2, 0.6, 5.0, 31.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    @rule(settle=st.sampled_from([0.0, 0.5]), share=st.sampled_from([0.2, 0.5, 1.0]))
    def the_limits_change(self, settle: float, share: float) -> None:
        self.limits = replace(LIMITS, settle=settle, share=share)
        self.last = None if self.last is None else (DampingFacts(Selection()), *self.last[1:])

    @rule(slots=st.sampled_from([None, 2]), cordoned=st.booleans())
    def the_daemon_starts_again_with_other_rules(self, slots: int | None, cordoned: bool) -> None:
        self.snapshot = changed(self.snapshot, node("node-0", version=self._version(), unschedulable=cordoned))
        self.rules = HostRules(operator=OPERATORS["mpi"], slots=slots)
        self.follower, self.last = self.new_selector(), None
        earlier = HostSet() if self.state.last is None else self.state.last.hosts
        self.begun = DampingState(earlier=frozenset(earlier.names))
        self.scratch = Scratch(self.begun)
        self.state, self.plain = DaemonState("b", earlier), DaemonState("b", earlier)

    @rule(looks=st.integers(1, 2))
    def the_source_misses_looks(self, looks: int) -> None:
        self.missed = 1 + looks

    @rule(looks=st.integers(1, 2))
    def the_daemon_misses_what_the_source_shows(self, looks: int) -> None:
        self.unseen = 1 + looks

    @precondition(lambda self: self.snapshot.nodes is not None)
    @rule()
    def nothing_happens(self) -> None:
        self.snapshot = ClusterSnapshot(self.snapshot.pods, self.snapshot.nodes)

    @invariant()
    def both_come_to_the_same(self) -> None:
        if not hasattr(self, "follower"):
            return
        if self.missed:
            self.missed -= 1
            return
        wall = NOW + self.now - 100.0
        how: dict[str, Any] = {"node_exists": self.exists, "job": self.job}
        selection = self.follower.select(wall, self.snapshot, **how)
        assert [each.pod.key for each in selection.verdicts] == sorted(self.snapshot.pods)
        assert groups_of(selection) == VerdictGroups.of(selection.verdicts)
        # Who looks for the first time does not know since when what is not timed is there, nor what nodes said before
        # they were missing.
        fresh = self.new_selector().select(wall, self.snapshot, **how)
        known = set(self.snapshot.nodes or {}) if self.snapshot.nodes is not None else {*NODES, "node-9"}
        assert [_timeless(each) for each in selection.verdicts if each.pod.node in known] == [
            _timeless(each) for each in fresh.verdicts if each.pod.node in known
        ]
        self._held_alike(selection)

    def _held_alike(self, selection: Selection) -> None:
        hosts = [each.host for each in selection.verdicts if each.host is not None and each.pod.uid in self.answers]
        facts = DampingFacts(selection, ProbeResults(admitted=frozenset(map(probe_key, hosts))), self.now)
        plain, plain_reason = self.scratch.look(self.now, selection, facts.answers, self.limits)
        if self.last is not None and still_holds(self.now, self.last[1], of=self.last[0], facts=facts):
            _, damping, reason = self.last
        else:
            state = self.begun if self.last is None else self.last[1].state
            damping, reason = decide_published(self.now, state, facts, limits=self.limits)
            assert set(damping.causes) == set(plain.causes)
        self.last = (facts, damping, reason)
        assert reason == plain_reason
        assert dict(damping.state.published) == dict(plain.state.published)
        assert damping.state.unlike == plain.state.unlike
        assert (dict(damping.notes), set(damping.to_probe)) == (dict(plain.notes), set(plain.to_probe))
        assert (damping.again_at, damping.state.started) == (plain.again_at, plain.state.started)
        if damping.observation is None or plain.observation is None:
            assert damping.observation is plain.observation
            return
        assert set(damping.observation.hosts) == set(plain.observation.hosts)
        assert damping.observation.departing == plain.observation.departing
        if self.unseen:
            self.unseen -= 1
            return
        one, said = decide(self.now, self.state, damping.observation)
        other, plainly = decide(self.now, replace(self.plain, seen=None), plain.observation)
        # What is known of the change gives the order of names in the reason.
        assert (one.news, _words(said)) == (other.news, _words(plainly))
        self.state, self.plain = one.state, other.state
        assert self.state.last == self.plain.last
        assert self.state.last is not None
        assert self.state.last.hosts.by_name == HostSet(self.state.last.hosts.hosts).by_name
        assert self.state.last.hosts.slots == HostSet(self.state.last.hosts.hosts).slots


def _words(text: str) -> list[str]:
    return sorted(text.replace(",", " ").replace(";", " ").split())


def _timeless(verdict: Any) -> tuple[Any, ...]:
    return (verdict.pod.key, verdict.pod.uid, verdict.grade, verdict.reason, verdict.host, verdict.advisory)


# A history that fails is not made shorter: that takes up to 300 s, longer than a test may take. Copy its steps into a
# test of their own, as below. One is enough for a run.
Looking.TestCase.settings = settings(
    max_examples=60,
    stateful_step_count=40,
    deadline=None,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
    report_multiple_bugs=False,
)
TestLooking = Looking.TestCase


@given(
    st.dictionaries(st.integers(0, 9), st.integers(1, 3).map(str)),
    st.dictionaries(st.integers(0, 9), st.integers(1, 3).map(str)),
)
def test_what_is_different_is_what_is_another_object_and_what_is_gone(before: dict[int, str], after: dict[int, str]):
    brute = {key for key in {*before, *after} if before.get(key) is not after.get(key)}
    assert sorted(different(before, after)) == sorted(brute)
    assert different(before, before) == []


def test_while_no_host_changes_the_same_objects_are_handed_on():
    """Each step after them sees at once that there is nothing to do."""
    pods = [pod(f"w-{number}", node=f"node-{number % 2}") for number in range(20)]
    snapshot = picture(pods, [node("node-0"), node("node-1")])
    selector = Selector(HostRules(operator=OPERATORS["mpi"]), BUILT_IN)
    everybody = ProbeResults(admits_all=True)
    facts = DampingFacts(selector.select(NOW, snapshot), everybody)
    first, _ = decide_published(1.0, DampingState(), facts, limits=LIMITS)
    damping, _ = decide_published(2.0, first.state, facts, limits=LIMITS)
    touched = changed(snapshot, replace(pods[3], version="2", annotations={"touched": "1"}))
    then = DampingFacts(selector.select(NOW, touched), everybody)
    assert then.selection.verdicts != facts.selection.verdicts
    assert still_holds(3.0, damping, of=facts, facts=then)
    gone = DampingFacts(selector.select(NOW, changed(touched, gone=[pods[3]])), everybody)
    assert not still_holds(3.0, damping, of=then, facts=gone)


@pytest.mark.parametrize("reversed_names", [False, True])
def test_new_hosts_are_sorted_and_known_ones_are_not(reversed_names: bool):
    veterans, come = HostSet.of({"z": 1, "a": 1}), HostSet.of({"z": 1, "d": 1, "c": 1, "a": 1})
    hosts = HostSet(tuple(reversed(come.hosts))) if reversed_names else come
    found = decide(0.0, DaemonState("x", seniority=veterans), Observation(hosts))[0].state.last
    assert found is not None
    assert found.hosts.names == ("z", "a", "c", "d")
    assert follow(veterans, found.hosts)[1].added == ("c", "d")


def test_the_remaining_seconds_of_a_held_host_are_updated_at_each_look():
    first = DampingFacts(
        Selector(HostRules(operator=OPERATORS["mpi"]), BUILT_IN).select(NOW, picture([pod()], [node()]))
    )
    published = DampingState(published={"uid-w-0": Host("w-0.job.default.svc", 1)}, started=True)
    silent = Selector(HostRules(operator=OPERATORS["mpi"]), BUILT_IN).select(NOW, picture([pod()], [node(ready=False)]))
    calm, _ = decide_published(1.0, published, first, limits=LIMITS)
    held, _ = decide_published(1.0, published, DampingFacts(silent), limits=LIMITS)
    assert held.state.damped
    assert still_holds(2.0, calm, of=first, facts=first)
    assert not still_holds(2.0, held, of=DampingFacts(silent), facts=DampingFacts(silent))


def test_a_host_that_takes_the_name_of_a_later_one_takes_its_place_although_only_one_pod_changed():
    one = Looking()
    one.begin(hidden=False, shared=False, running=True)
    one.both_come_to_the_same()
    one.a_pod_changes("w-0", {"node": "node-0", "hostname": "w-1"}, True)
    one.both_come_to_the_same()
    assert one.state.last is not None
    assert [host.uid for host in one.state.last.hosts] == ["w-2/0", "w-3/0", "w-0/0"]


def test_two_pods_of_one_name_leave_for_the_same_reason_whichever_changed_last():
    one = Looking()
    one.begin(hidden=False, shared=False, running=False)
    leaving = {"deletion": "2026-01-01T00:00:30Z", "hostname": "same"}
    one.a_pod_changes("w-0", {"node": "node-2", **leaving}, True)
    one.a_pod_changes("w-1", {"node": "node-0", **leaving}, True)
    one.both_come_to_the_same()
    spot = taint("aws-node-termination-handler/spot-itn", added="2026-01-01T00:00:00Z")
    one.a_node_changes("node-2", {"taints": [spot]})
    one.both_come_to_the_same()
    one.time_passes(5.0)
    one.both_come_to_the_same()


@pytest.mark.parametrize("cordoned", [False, True])
@pytest.mark.parametrize("answers", [False, True])
def test_a_published_pod_that_takes_the_name_of_an_earlier_one_is_new_from_that_look_on(cordoned: bool, answers: bool):
    one = Looking()
    one.begin(hidden=False, shared=False, running=True)
    one.both_come_to_the_same()
    one.a_node_changes("node-0", {"unschedulable": cordoned})
    one.both_come_to_the_same()
    one.a_pod_changes("w-3", {"node": "node-0", "hostname": "w-0"}, False)
    if not answers:
        one.answers.discard("w-3/0")
    one.both_come_to_the_same()
    one.time_passes(0.2)
    one.a_node_changes("node-2", {})  # concerns no pod: nothing has to be decided
    one.both_come_to_the_same()
    one.time_passes(0.2)
    one.a_pod_goes("w-0", False, {})
    one.both_come_to_the_same()
    one.time_passes(0.6)
    one.both_come_to_the_same()
