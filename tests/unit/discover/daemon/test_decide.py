"""What is published, given what was seen."""

from dataclasses import replace

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, given, settings

from discover.daemon.loop import DaemonState, decide
from discover.sources import Observation, Unsettled
from hvd_elastic_ext.core.errors import HOSTS_KEPT, BadHosts, SourceUnavailable
from hvd_elastic_ext.core.hosts import Host, HostSet
from hvd_elastic_ext.core.publication import Departure, Publication

ERROR = SourceUnavailable("hosts", "does not exist")
HALF = Unsettled("hosts", "is being written")

PATIENT = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])

hosts = st.dictionaries(st.sampled_from("abcdef"), st.integers(1, 8), max_size=6).map(HostSet.of)
seen = st.one_of(hosts.map(Observation), st.just(ERROR), st.just(BadHosts("hosts", 3, "bad")), st.just(HALF))


def known(**slots: int) -> DaemonState:
    current = HostSet.of(slots)
    return DaemonState("life", seniority=current, last=Publication("life", 1, current))


@PATIENT
@given(st.lists(seen, max_size=12))
def test_after_any_history_the_last_good_hosts_stand(history):
    state = DaemonState("life")
    for now, look in enumerate(history):
        decision, _ = decide(float(now), state, look)
        state = decision.state
    good = [look for look in history if isinstance(look, Observation)]
    if good:
        assert state.last is not None
        assert {*state.last.hosts} == {*good[-1].hosts}
    else:
        assert state.last is None


@PATIENT
@given(st.lists(seen, max_size=12))
def test_the_sequence_grows_by_one_with_each_news_and_never_otherwise(history):
    state, sequence = DaemonState("life"), 0
    for now, look in enumerate(history):
        decision, _ = decide(float(now), state, look)
        before, state = state, decision.state
        sequence += decision.news
        assert (state.last.sequence if state.last else 0) == sequence
        assert decision.news == (state.last != before.last)


@PATIENT
@given(hosts, hosts)
def test_known_hosts_keep_their_places_before_new_ones(before, now):
    decision, _ = decide(0.0, DaemonState("life", seniority=before), Observation(now))
    names = decision.state.last.hosts.names
    veterans = [name for name in before.names if name in now]
    assert list(names[: len(veterans)]) == veterans
    assert list(names[len(veterans) :]) == sorted(set(now.names) - set(veterans))


@PATIENT
@given(seen)
def test_looking_twice_at_the_same_is_no_news(look):
    first, _ = decide(0.0, known(a=1), look)
    again, _ = decide(0.1, first.state, look)
    assert not again.news


def test_an_error_is_a_problem_and_publishes_nothing():
    decision, reason = decide(0.0, known(a=1), ERROR)
    assert not decision.news
    assert decision.problem == reason == f"{ERROR}{HOSTS_KEPT}"


def test_what_is_in_doubt_is_followed_and_a_problem():
    decision, _ = decide(0.0, known(a=1), Observation(HostSet.of({"a": 2}), doubt="the server is away"))
    assert (decision.news, decision.problem, decision.followed) == (True, "the server is away", True)


def test_a_file_being_written_is_no_problem_until_patience_ends():
    early, _ = decide(10.0, known(a=1), HALF)
    assert not early.problem
    late, _ = decide(15.0, early.state, HALF)
    assert "hosts: is being written" in late.problem


def test_the_time_for_settling_restarts_after_a_settled_look():
    half, _ = decide(10.0, known(a=1), HALF)
    whole, _ = decide(11.0, half.state, Observation(HostSet.of({"a": 1})))
    assert whole.state.unsettled_since is None
    again, _ = decide(100.0, whole.state, HALF)
    assert not again.problem


def test_the_reason_names_every_change():
    _, reason = decide(0.0, known(a=1, b=2, c=2), Observation(HostSet.of({"b": 4, "c": 1, "d": 1})))
    assert reason == "3 hosts, 6 slots; added d, removed a, grown b, shrunk c"


def test_a_departure_alone_is_news():
    state = replace(known(a=1), last=Publication("life", 1, HostSet.of({"a": 1})))
    decision, reason = decide(0.0, state, Observation(HostSet.of({"a": 1}), (Departure("b", "drained"),)))
    assert decision.news
    assert "b departing (drained)" in reason


def test_a_departure_is_told_again_only_if_it_has_changed():
    state = decide(0.0, known(a=1), Observation(HostSet.of({"a": 1}), (Departure("b", "spot"), Departure("c", "spot"))))
    later = (Departure("b", "spot"), Departure("c", "spot", 20.0), Departure("d", "drained"))
    _, reason = decide(1.0, state[0].state, Observation(HostSet.of({"a": 1}), later))
    assert reason == "1 host, 1 slot; c departing (spot), d departing (drained)"


def test_a_new_price_alone_is_news():
    (host,) = HostSet.of({"a": 1})
    state = decide(0.0, DaemonState("life"), Observation(HostSet((host,))))[0].state
    decision, _ = decide(1.0, state, Observation(HostSet((replace(host, price="2.5"),))))
    assert decision.news
    assert [each.price for each in decision.state.last.hosts] == ["2.5"]


def test_a_host_that_was_made_anew_is_a_newcomer():
    before = HostSet((Host("a", 1, uid="1"), Host("b", 1, uid="2")))
    now = HostSet((Host("a", 1, uid="9"), Host("b", 1, uid="2")))
    decision, _ = decide(0.0, DaemonState("life", seniority=before), Observation(now))
    assert decision.state.last.hosts.names == ("b", "a")


def test_many_names_are_cut_short():
    _, reason = decide(0.0, DaemonState("life"), Observation(HostSet.of({f"h{n}": 1 for n in range(20)})))
    assert reason.endswith("and 12 more")


@pytest.mark.parametrize("seen", ["z d c a", "a c d z"])
def test_new_hosts_are_sorted_and_known_ones_are_not(seen):
    veterans = DaemonState("life", seniority=HostSet.of({"z": 1, "a": 1}))
    decision, _ = decide(0.0, veterans, Observation(HostSet.of(dict.fromkeys(seen.split(), 1))))
    assert decision.state.last.hosts.names == ("z", "a", "c", "d")


def test_hosts_are_kept_only_where_some_are_known():
    assert decide(0.0, DaemonState("life"), ERROR)[1] == str(ERROR)
    waiting = DaemonState("life", unsettled_since=0.0)
    assert decide(9.0, waiting, HALF)[1] == "hosts: is being written"
    for state in (known(a=1), DaemonState("life", seniority=HostSet.of({"a": 1}))):
        assert decide(0.0, state, ERROR)[1] == f"{ERROR}{HOSTS_KEPT}"
