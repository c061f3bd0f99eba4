"""The source of a cluster's hosts, on collections that answer as written. Threads are real, time is virtual."""

import threading
from dataclasses import replace

import pytest

from discover.daemon.cluster_source import CPU_SHARE, MAX_PAUSE, KubernetesSource, PodScope, _Looks, in_doubt_at
from discover.daemon.once import explain
from discover.metrics import Metrics
from discover.pods.operators import HostRules, operator_named
from discover.sources import Observation, Unsettled
from discover.verdicts.damping import DampingLimits
from discover.verdicts.signals import BUILT_IN
from discover.verdicts.verdicts import Selector
from discover.watch.reflector import WatchStatus
from hvd_elastic_ext.core.errors import SourceUnavailable
from hvd_elastic_ext.core.hosts import HostSet
from hvd_elastic_ext.io.kube.errors import ApiError, Reason
from tests.support.waiting import wait_until
from tests.unit.discover.scripted_collection import Scripted, event, listing, node, pod

REFUSED = ApiError(Reason.UNREACHABLE, "connection refused")
READY = {"conditions": [{"type": "Ready", "status": "True"}], "podIP": "10.0.0.1"}


def worker(name: str, version: int, **status):
    made = pod(name, version, **{**READY, **status})
    made["spec"]["subdomain"] = "j"
    return made


def healthy(name: str = "node", version: int = 2):
    return {**node(name, version), "status": {"conditions": [{"type": "Ready", "status": "True"}]}}


class Held(Scripted):
    """Its watches stay open, say what they are given, and end when they are broken off."""

    def __init__(self, clock, *answers) -> None:
        super().__init__(clock, *answers)
        self.news: list[object] = []
        self.over = threading.Event()
        self.watched = threading.Event()
        self.answers.append([])

    def _pieces(self, pieces):
        if self.requests[-1].ask.name != "WATCH":
            yield from super()._pieces(pieces)
            return
        self.watched.set()
        while not self.over.wait(0.002):
            while self.news:
                said = self.news.pop(0)
                if isinstance(said, ApiError):
                    raise said
                yield said
        raise ApiError(Reason.CUT, "broken off")

    def interrupt(self) -> None:
        self.over.set()


class FakeCluster:
    host = "https://there"

    def __init__(self, clock, pods, nodes, *, job=None, beside=REFUSED) -> None:
        self.clock = clock
        self.of_pods, self.of_nodes, self.of_job = Held(clock, *pods), Held(clock, *nodes), job
        self.beside = beside
        self.exists: dict[str, bool] = {}
        self.selectors: list[str] = []
        self._first = True

    def pods(self, namespace, selector):
        if not self._first:
            return Scripted(self.clock, self.beside)  # the look beside the watch
        self._first = False
        script, opened = self.of_pods, self.of_pods.open
        script.open = lambda request: (self.selectors.append(selector()), opened(request))[1]
        return script

    def nodes(self, selector):
        return self.of_nodes

    def job(self, resource, *, namespace, name):
        if isinstance(self.of_job, ApiError):
            raise self.of_job
        return self.of_job or {"metadata": {"name": name}}

    def node_exists(self, name):
        return self.exists.get(name, True)


class Rig:
    def __init__(self, clock, *, pods, nodes=None, job=None, operator="mpi", settle=0.0, beside=REFUSED) -> None:
        self.clock = clock
        self.cluster = FakeCluster(clock, pods, nodes or [listing(5, healthy())], job=job, beside=beside)
        rules = HostRules(operator=operator_named(operator))
        self.metrics = Metrics(clock)
        self.changes = 0
        self.source = KubernetesSource(
            self.cluster,
            PodScope(namespace="n", job="j", rules=rules),
            selector=Selector(rules, BUILT_IN),
            probe=None,
            metrics=self.metrics.for_cluster(),
            clock=clock,
            draw=lambda: 0.0,
            limits=DampingLimits(settle=settle),
        )

    def start(self):
        self.source.start(self._changed)
        return self

    def _changed(self) -> None:
        self.changes += 1

    def sees(self, *names: str) -> Observation:
        def look():
            self.clock.advance(0.01)
            try:
                seen = self.source.read()
            except SourceUnavailable:
                return None
            return seen if isinstance(seen, Observation) and set(seen.hosts.names) == set(names) else None

        return wait_until(look, what=f"exactly {names}")

    @property
    def numbers(self) -> dict[str, float]:
        lines = self.metrics.render().decode().splitlines()
        return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines if line[0] != "#"}


@pytest.fixture
def rig(manual_clock):
    made = []

    def make(**how):
        made.append(Rig(manual_clock, **how))
        return made[-1]

    yield make
    for each in made:
        each.source.stop()


TWO = listing(10, worker("a", 3), worker("b", 4))


def test_hosts_of_an_earlier_run_stay_where_a_new_one_would_not_be_added(rig):
    cordoned = {**healthy(), "spec": {"unschedulable": True}}
    one = rig(pods=[TWO], nodes=[listing(5, cordoned)])
    one.source.resume(HostSet.of({"a.j.n.svc": 1}))
    one.start()
    one.sees("a.j.n.svc")


def test_pods_under_a_warning_are_counted_as_they_are_when_the_metrics_are_read(rig):
    one = rig(pods=[TWO], nodes=[listing(5, {**healthy(), "spec": {"unschedulable": True}})])
    one.source.resume(HostSet.of({"a.j.n.svc": 1, "b.j.n.svc": 1}))
    warned = 'hvd_discover_warnings{class="advisory",source="node"}'
    assert warned not in one.numbers
    one.start()
    one.sees("a.j.n.svc", "b.j.n.svc")
    assert one.numbers[warned] == 2.0
    one.cluster.of_nodes.news.append(event("MODIFIED", healthy(version=11)))
    wait_until(lambda: (one.source.read(), one.numbers[warned] == 0.0)[1], what="no warning")


def test_rule_06_a_server_that_is_away_leaves_what_was_known_in_doubt(rig):
    one = rig(pods=[TWO]).start()
    assert one.sees("a.j.n.svc", "b.j.n.svc").doubt == ""
    one.cluster.of_pods.watched.wait(10)
    one.cluster.of_pods.answers = [REFUSED]
    one.cluster.of_pods.news.append(ApiError(Reason.CUT, "reset"))
    away = "connection refused"
    wait_until(lambda: one.clock.advance(0.1) or one.source._pods.status.problem == away, what="the trouble")
    assert one.sees("a.j.n.svc", "b.j.n.svc").doubt == ""
    one.clock.advance(11.0)
    doubt = one.sees("a.j.n.svc", "b.j.n.svc").doubt
    assert "connection refused; keeping what was known of them" in doubt


def lists(of: Scripted) -> int:
    return sum(request.ask.name != "WATCH" for request in of.requests)


def test_what_no_watch_tells_is_found_by_a_list_beside_it(rig):
    three = listing(20, worker("a", 3), worker("b", 4), worker("c", 15))
    one = rig(pods=[TWO, [], three], beside=three).start()
    one.sees("a.j.n.svc", "b.j.n.svc")
    wait_until(lambda: one.clock.advance(1.0) or lists(one.cluster.of_pods) == 2, what="another list")
    one.sees("a.j.n.svc", "b.j.n.svc", "c.j.n.svc")


def test_a_server_that_was_set_back_is_asked_for_pods_and_nodes_again(rig):
    ahead = ApiError.of_status({"message": "Too large resource version"}, code=504)
    one = rig(pods=[TWO, [], TWO], nodes=[listing(5, healthy()), [], listing(5, healthy())], beside=ahead).start()
    one.sees("a.j.n.svc", "b.j.n.svc")
    both = (one.cluster.of_pods, one.cluster.of_nodes)
    wait_until(lambda: one.clock.advance(1.0) or [lists(each) for each in both] == [2, 2], what="another list of each")


def test_rule_21_nodes_that_fall_silent_together_are_listed_again_while_their_hosts_stay(rig):
    silent = {**node("node", 9), "status": {"conditions": [{"type": "Ready", "status": "Unknown"}]}}
    one = rig(pods=[TWO, [], TWO], nodes=[listing(5, healthy()), [], listing(9, silent)]).start()
    one.sees("a.j.n.svc", "b.j.n.svc")
    assert one.cluster.of_nodes.watched.wait(10)
    one.cluster.of_nodes.news.append(event("MODIFIED", silent))
    wait_until(
        lambda: one.sees("a.j.n.svc", "b.j.n.svc") and lists(one.cluster.of_nodes) == lists(one.cluster.of_pods) == 2,
        what="another list of each",
    )
    one.clock.advance(DampingLimits().damper)
    one.sees()


def test_the_first_look_waits_for_the_job_and_its_slots(rig):
    job = {"metadata": {"name": "j"}, "spec": {"slotsPerWorker": 4}}
    one = rig(pods=[TWO], job=job).start()
    assert {host.slots for host in one.sees("a.j.n.svc", "b.j.n.svc").hosts} == {4}


def test_a_job_that_cannot_be_read_is_not_waited_for_for_ever(rig):
    one = rig(pods=[TWO], job=REFUSED).start()
    wait_until(lambda: one.source._pods.status.listed and one.source._nodes.status.listed, what="the lists")
    assert isinstance(one.source.read(), Unsettled)
    one.clock.advance(6.0)
    one.sees("a.j.n.svc", "b.j.n.svc")
    assert not one.source.job_settled  # hosts are published; but whose they are may still be said
    one.cluster.of_job = {"metadata": {"name": "j", "uid": "u"}}
    wait_until(lambda: one.source.job_settled or one.clock.advance(1.0), what="the job")
    assert one.source.job.uid == "u"


def test_a_statefulset_that_may_not_be_read_needs_a_selector(rig):
    one = rig(pods=[TWO], job=ApiError.of_status({"message": "no"}, code=403), operator="statefulset").start()
    wait_until(lambda: one.source._pods.status.problem, what="the trouble")
    assert not one.source._pods.status.listed


def test_a_node_that_nobody_has_seen_is_asked_for(rig):
    """§2.1-7"""
    one = rig(pods=[TWO], nodes=[listing(5)])
    one.cluster.exists["node"] = False
    one.start()
    wait_until(lambda: one.clock.advance(1.0) or _all(one, "silent", "unfit", "held"), what="the verdicts")


def _all(one: Rig, *words: str) -> bool:
    one.source.read()
    latest = one.source.evaluation
    rows = () if latest is None else explain(latest.selection, latest.damping)
    return bool(rows) and {row.verdict for row in rows} <= set(words)


def test_what_is_known_is_in_doubt_ten_seconds_after_a_problem_begins():
    lost = WatchStatus(in_sync_at=5.0).failed(65.0, "x", lived=60.0)
    assert in_doubt_at(WatchStatus(in_sync_at=5.0)) is None
    assert in_doubt_at(lost) == 75.0  # the watch was open and quiet until then
    assert in_doubt_at(replace(lost, hidden=True)) is None
    assert in_doubt_at(WatchStatus().failed(65.0, "x", lived=0.0)) is None


def test_a_problem_lasts_until_a_watch_lives_or_all_objects_are_known():
    lost = WatchStatus(in_sync_at=5.0).failed(65.0, "x", lived=60.0)
    assert in_doubt_at(replace(lost, problem="").failed(70.0, "y", lived=0.2)) == 75.0
    assert in_doubt_at(replace(lost, problem="").failed(170.0, "y", lived=90.0)) == 180.0
    assert in_doubt_at(replace(lost, problem="", in_sync_at=71.0).failed(72.0, "y", lived=0.2)) == 82.0


@pytest.fixture
def looks(manual_clock):
    calls: list[float] = []
    made = _Looks(manual_clock)
    made.start(lambda: calls.append(manual_clock.mono()))
    yield made, calls
    made.stop()


def test_many_news_are_one_call(looks, manual_clock):
    box, calls = looks
    box.note(False)
    begun = manual_clock.mono()
    manual_clock.advance(1.0)
    box.note(True)
    box.note(True)
    assert calls == [begun]
    assert (box.begin(), box.begin()) == (begun + 1.0, None)  # when the first objects changed


def test_looks_follow_at_once_in_a_burst_and_are_limited_under_constant_change(looks, manual_clock):
    box, calls = looks
    for count in range(1, 51):
        box.note(True)
        assert len(calls) == count  # at once
        box.begin()
        manual_clock.advance(0.01)
        box.end(0.01)
    begun, looks = manual_clock.mono(), len(calls)
    while manual_clock.mono() < begun + 4.0:
        box.note(True)
        wait_until(lambda: box._notified or manual_clock.advance(0.005), what="the call", interval=0.0005)
        box.begin()
        manual_clock.advance(0.01)
        box.end(0.01)
    share = (len(calls) - looks) * 0.01 / 4.0
    assert 0 < share < 1.2 * CPU_SHARE
    manual_clock.advance(60.0)
    box.note(True)
    assert calls[-1] == manual_clock.mono()


def test_a_rest_is_never_long(looks, manual_clock):
    box, calls = looks
    box.end(99.0)
    box.note(True)
    assert calls == []
    manual_clock.advance(MAX_PAUSE)
    wait_until(lambda: calls, what="the call")
