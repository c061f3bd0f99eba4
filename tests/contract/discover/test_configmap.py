"""Hosts in a ConfigMap of an API server, and who of several daemons may put them there."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from discover.common.source import Unsettled
from discover.publishing.configmap import MAX_DATA, OVERLAP, WRITE_INTERVAL, BackgroundConfigMap, own_in_time
from discover.publishing.file_lock import OwnedByOther
from discover.publishing.files import PublishFailed
from hvd_elastic_ext.core.clock import SystemClock
from hvd_elastic_ext.core.publication import Departure, from_json
from tests.contract.discover.writing import NAME, Writing, publication
from tests.support.clock import ManualClock
from tests.support.kube import statuses
from tests.support.kube.server import KubeServer
from tests.support.waiting import wait_until


@pytest.fixture
def writing(kube: KubeServer, tmp_path: Path) -> Iterator[Writing]:
    made = Writing(kube, tmp_path, "rbac.yaml", "configmap.yaml")
    yield made
    made.close()


@pytest.fixture
def admin(kube: KubeServer, tmp_path: Path) -> Iterator[Writing]:
    made = Writing(kube, tmp_path)
    yield made
    made.close()


def test_under_the_rights_of_the_manifest_hosts_script_and_publication_stand_there(writing: Writing) -> None:
    departing = Departure("c", "node n is shutting down", 2e9)
    writing.configmap().publish(published := publication(1, "ab", departing=[departing]))
    assert sorted(writing.data()) == ["discover_hosts.sh", "hosts", "publication.json"]
    assert writing.data()["hosts"] == "a:1\nb:1\n"
    assert from_json(writing.data()["publication.json"], where="it") == published
    assert writing.kube.counts.answers(403) == 0


def test_the_script_prints_the_hosts_wherever_it_is_mounted_and_always_succeeds(
    writing: Writing, tmp_path: Path
) -> None:
    writing.configmap().publish(publication(1, "ab"))
    mounted = tmp_path / "a mount"
    mounted.mkdir()
    for key, text in writing.data().items():
        (mounted / key).write_text(text)
    script = mounted / "discover_hosts.sh"
    script.chmod(0o755)
    ran = subprocess.run([script], capture_output=True, text=True, check=True, cwd="/")
    assert (ran.stdout, ran.stderr) == ("a:1\nb:1\n", "")
    (mounted / "hosts").unlink()
    ran = subprocess.run([script], capture_output=True, text=True, check=True)
    assert (ran.stdout, ran.stderr) == ("", "")


def test_it_is_written_only_when_it_says_something_else(writing: Writing) -> None:
    configmap = writing.configmap()
    for _ in range(5):
        configmap.publish(publication(1, "ab"))
        writing.clock.advance(61.0)
    assert writing.written == writing.kube.counts.of("patch", "configmaps") == 1


def test_a_restarted_daemon_writes_only_its_lease_and_knows_the_published_hosts(writing: Writing) -> None:
    writing.configmap().publish(publication(1, "ba"))
    assert writing.configmap("two").published_before().names == ("b", "a")


def test_keys_of_others_are_left_alone(writing: Writing) -> None:
    writing.kube.change("configmaps", NAME, {"data": {"theirs": "x"}})
    writing.configmap().publish(publication(1, "a"))
    assert writing.data()["theirs"] == "x"


def test_what_others_changed_is_mended(writing: Writing) -> None:
    configmap, wanted = writing.configmap(), publication(1, "a")
    configmap.publish(wanted)
    writing.kube.change("configmaps", NAME, {"data": {"hosts": "evil:1\n"}})
    writing.clock.advance(61.0)
    configmap.publish(wanted)
    assert writing.hosts() == ["a:1"]


def test_a_change_that_crosses_another_is_refused_and_made_good(writing: Writing) -> None:
    configmap = writing.configmap()
    configmap.publish(publication(1, "a"))
    writing.kube.change("configmaps", NAME, {"data": {"hosts": "evil:1\n"}})
    with pytest.raises(PublishFailed, match="another client has just changed it"):
        configmap.publish(publication(2, "ab"))
    assert writing.hosts() == ["evil:1"]
    configmap.publish(publication(2, "ab"))
    assert writing.hosts() == ["a:1", "b:1"]


def test_one_that_is_not_there_and_may_not_be_made_comes_with_the_remedy(writing: Writing) -> None:
    writing.kube.remove("configmaps", NAME)
    configmap = writing.configmap()
    with pytest.raises(PublishFailed, match="kubectl -n default create configmap digits-hosts"):
        configmap.publish(publication(1, "a"))
    writing.kube.put("configmaps", {"metadata": {"name": NAME}})
    configmap.publish(publication(1, "a"))
    assert writing.hosts() == ["a:1"]


@pytest.mark.parametrize("kind", ["configmaps", "leases"])
def test_without_the_right_nothing_is_written_and_the_remedy_is_named(
    kube: KubeServer, tmp_path: Path, kind: str
) -> None:
    writing = Writing(kube, tmp_path, "rbac.yaml", "configmap.yaml")
    (role,) = (each for each in kube.all("roles") if each["metadata"]["name"] == "hvd-discover-configmap-digits")
    kube.put("roles", {**role, "rules": [each for each in role["rules"] if kind not in each["resources"]]})
    with pytest.raises(PublishFailed, match=r"forbidden.*hvd-elastic manifest configmap gives the right"):
        writing.configmap().publish(publication(1, "a"))
    assert writing.hosts() is None
    writing.close()


def test_a_server_that_fails_leaves_what_stands_there(writing: Writing) -> None:
    configmap = writing.configmap()
    configmap.publish(publication(1, "ab"))
    plan = writing.kube.faults.on("patch", "configmaps").answer(statuses.internal("etcd is away"))
    with pytest.raises(PublishFailed, match="etcd is away"):
        configmap.publish(publication(2, "abc"))
    plan.stop()
    with writing.kube.down(), pytest.raises(PublishFailed, match=r"no answer from the API server"):
        configmap.publish(publication(2, "abc"))
    assert writing.hosts() == ["a:1", "b:1"]
    configmap.publish(publication(2, "abc"))
    assert writing.hosts() == ["a:1", "b:1", "c:1"]


def test_an_answer_that_was_lost_is_no_harm(writing: Writing) -> None:
    configmap = writing.configmap()
    configmap.publish(publication(1, "a"))
    lost = writing.kube.faults.on("patch", "configmaps", times=1).cut()
    with pytest.raises(PublishFailed):
        configmap.publish(publication(2, "ab"))
    lost.wait()
    configmap.publish(publication(2, "ab"))
    assert writing.hosts() == ["a:1", "b:1"]


def test_more_than_a_configmap_takes_goes_without_the_publication(admin: Writing) -> None:
    many = [f"digits-worker-{number}.digits.default.svc" for number in range(12_000)]
    configmap = admin.configmap()
    configmap.publish(publication(1, many[:100]))
    assert "publication.json" in admin.data()
    configmap.publish(publication(2, many))
    assert sorted(admin.data()) == ["discover_hosts.sh", "hosts"]
    with pytest.raises(PublishFailed, match="more than a ConfigMap takes"):
        configmap.publish(publication(3, [f"{'x' * 60}.{name}" for name in many]))
    assert len(admin.hosts() or ()) == 12_000
    assert len(admin.data()["hosts"]) < MAX_DATA


# The last survivor


def test_the_last_survivor_stays_for_as_long_as_a_kubelet_may_take(writing: Writing) -> None:
    configmap = writing.configmap()
    configmap.publish(publication(1, "ab"))
    writing.clock.advance(1000.0)
    wanted = publication(2, "c", departing=[Departure("a", "why", writing.clock.wall() + 20.0)])
    configmap.publish(wanted)
    survivor = (writing.hosts() or [])[0]
    assert writing.hosts() == [survivor, "c:1"]
    writing.clock.advance(OVERLAP.most - 1.0)
    configmap.publish(wanted)
    assert writing.hosts() == [survivor, "c:1"]
    writing.clock.advance(1.0)
    configmap.publish(wanted)
    assert writing.hosts() == ["c:1"]


def test_the_publication_is_not_held_back(writing: Writing) -> None:
    configmap = writing.configmap()
    configmap.publish(publication(1, "a"))
    configmap.publish(publication(2, "b"))
    assert from_json(writing.data()["publication.json"], where="it").hosts.names == ("b",)
    assert writing.hosts() == ["a:1", "b:1"]


def test_a_kept_host_of_an_earlier_run_stays_too_and_goes_with_its_pod(writing: Writing) -> None:
    writing.configmap().publish(publication(1, "a"))
    writing.clock.advance(60.0)
    configmap, wanted = writing.configmap("one"), publication(1, "b")
    configmap.publish(wanted)
    assert writing.hosts() == ["a:1", "b:1"]
    writing.dead.add("a")
    configmap.publish(wanted)
    assert writing.hosts() == ["b:1"]


# Several daemons


def test_the_holder_renews_it_and_needs_no_more_than_that(writing: Writing) -> None:
    one, two, wanted = writing.configmap("one"), writing.configmap("two"), publication(1, "a")
    for _ in range(20):
        one.publish(wanted)
        with pytest.raises(OwnedByOther):
            two.publish(publication(1, "b"))
        writing.clock.advance(5.0)
    assert writing.kube.counts.of("update", "leases") == 9
    assert writing.hosts() == ["a:1"]


def test_another_daemon_takes_over_once_the_lease_has_expired(writing: Writing) -> None:
    writing.configmap("one").publish(publication(1, "a"))
    two, wanted = writing.configmap("two"), publication(1, "ab")
    with pytest.raises(OwnedByOther):
        two.publish(wanted)
    writing.clock.advance(29.0)
    with pytest.raises(OwnedByOther):
        two.publish(wanted)
    writing.clock.advance(1.0)
    two.publish(wanted)
    assert writing.hosts() == ["a:1", "b:1"]
    assert writing.kube.get("leases", NAME)["spec"]["leaseTransitions"] == 1


def test_one_that_ends_is_followed_at_once(writing: Writing) -> None:
    one = writing.configmap("one")
    one.publish(publication(1, "a"))
    one.close()
    one.close()
    writing.configmap("two").publish(publication(1, "ab"))
    assert writing.kube.get("leases", NAME)["spec"]["holderIdentity"] == "two"
    assert writing.hosts() == ["a:1", "b:1"]


def test_a_daemon_that_gets_the_lease_back_begins_with_what_is_published_then(writing: Writing) -> None:
    one, two = writing.configmap("one"), writing.configmap("two")
    one.publish(publication(1, "a"))
    with pytest.raises(OwnedByOther):
        two.publish(publication(1, "b"))
    writing.clock.advance(30.0)
    writing.dead.add("a")
    two.publish(publication(1, "b"))
    with pytest.raises(PublishFailed, match="another daemon has just claimed"):
        one.publish(publication(2, "c"))
    with pytest.raises(OwnedByOther):
        one.publish(publication(2, "c"))
    two.close()
    one.publish(publication(2, "c"))
    assert writing.hosts() == ["b:1", "c:1"]  # and the survivor is that of the other


def test_of_two_daemons_that_want_the_lease_one_gets_it(kube: KubeServer, tmp_path: Path) -> None:
    writing = Writing(kube, tmp_path, "rbac.yaml", "configmap.yaml")
    daemons = [writing.configmap(str(number), clock=SystemClock()) for number in range(4)]
    together, ends = threading.Barrier(len(daemons)), []

    def race(number: int) -> None:
        together.wait()
        try:
            daemons[number].publish(publication(1, [f"of-{number}"]))
            ends.append(number)
        except (PublishFailed, OwnedByOther):
            pass

    threads = [threading.Thread(target=race, args=(number,)) for number in range(len(daemons))]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    (winner,) = ends
    assert writing.hosts() == [f"of-{winner}:1"]
    assert kube.get("leases", NAME)["spec"]["holderIdentity"] == str(winner)
    writing.close()


# In a thread of its own


class Outside:
    """A delegate, what it counts, and its thread."""

    def __init__(self, writing: Writing, me: str = "one") -> None:
        self.failures = 0
        self.owns: list[bool] = []
        self.configmap = writing.configmap(me)
        self.delegate = BackgroundConfigMap(
            self.configmap, clock=writing.clock, failed=self._fail, owns=self.owns.append
        )

    def _fail(self) -> None:
        self.failures += 1


def test_publish_returns_at_once_however_slow_the_server(kube: KubeServer, tmp_path: Path) -> None:
    writing = Writing(kube, tmp_path)
    outside = Outside(writing)
    outside.delegate.start()
    hung = kube.faults.on("get", "leases").hang()
    outside.delegate.publish(publication(1, "a"))
    hung.wait()
    outside.delegate.publish(publication(2, "ab"))  # returns, and does not wait for the first
    hung.stop()
    outside.delegate.close()
    wait_until(lambda: "configmap" not in {each.name for each in threading.enumerate()}, what="its end", timeout=60)
    assert writing.hosts() is None
    writing.close()


def test_of_fast_changes_the_first_is_written_at_once_and_then_the_newest_after_the_interval(writing: Writing) -> None:
    outside = Outside(writing)
    outside.delegate.publish(publication(1, "a"))
    outside.delegate.turn()
    assert (writing.hosts(), writing.written) == (["a:1"], 1)
    for number in range(2, 32):  # ten in a second
        outside.delegate.publish(publication(number, ["a", f"h-{number}"]))
        assert outside.delegate.turn() == pytest.approx(WRITE_INTERVAL - (number - 2) * 0.1)
        writing.clock.advance(0.1)
    assert writing.written == 1
    writing.clock.advance(0.01)
    outside.delegate.turn()
    assert (writing.hosts(), writing.written) == (["a:1", "h-31:1"], 2)
    writing.clock.advance(WRITE_INTERVAL)
    outside.delegate.publish(publication(32, "ab"))
    outside.delegate.turn()
    assert (writing.hosts(), writing.written) == (["a:1", "b:1"], 3)


# What stood there before


def test_what_stood_there_is_found_out_however_long_the_server_is_away(writing: Writing) -> None:
    writing.configmap("before").publish(publication(1, "ba"))
    outside, told = Outside(writing), []
    outside.delegate.recall(lambda: told.append(outside.delegate.earlier))
    with writing.kube.down():
        for _ in range(6):
            outside.delegate.turn()
            writing.clock.advance(30.0)
        assert isinstance(outside.delegate.recalled(), Unsettled)
        assert "trying again" in outside.delegate.problem
        assert told == []
    outside.delegate.turn()
    assert outside.delegate.problem == ""
    (stood,) = told
    assert stood is not None
    assert stood.names == ("b", "a")
    outside.delegate.turn()
    assert len(told) == 1


def test_nothing_is_published_before_the_earlier_hosts_are_known(admin: Writing) -> None:
    outside = Outside(admin)
    failing = admin.kube.faults.on("get", "configmaps").answer(statuses.internal("etcd is away"))
    outside.delegate.recall(lambda: None)
    outside.delegate.publish(publication(1, "a"))
    outside.delegate.turn()
    assert (outside.delegate.earlier, admin.hosts()) == (None, None)
    failing.stop()
    admin.clock.advance(10.0)
    outside.delegate.turn()
    outside.delegate.turn()
    assert admin.hosts() == ["a:1"]


def test_where_the_right_is_missing_that_is_believed_after_some_tries(
    kube: KubeServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    writing = Writing(kube, tmp_path, "rbac.yaml")
    outside = Outside(writing)
    outside.delegate.recall(lambda: None)
    for _ in range(2):
        outside.delegate.turn()
        assert isinstance(outside.delegate.recalled(), Unsettled)
        writing.clock.advance(30.0)
    outside.delegate.turn()
    assert outside.delegate.earlier is not None
    assert outside.delegate.earlier.names == ()
    assert "hvd-elastic manifest configmap gives the right" in caplog.text
    writing.close()


def test_a_403_of_a_server_that_was_away_does_not_hide_anything(writing: Writing) -> None:
    """One that has only just started may not know its rules yet; and whoever forgets what stood there drops hosts."""
    writing.configmap("before").publish(publication(1, "ba"))
    outside = Outside(writing)
    outside.delegate.recall(lambda: None)
    with writing.kube.down():
        for _ in range(6):
            outside.delegate.turn()
            writing.clock.advance(30.0)
    forbidden = statuses.ApiError(statuses.status(403, "Forbidden", "configmaps is forbidden"))
    writing.kube.faults.on("get", "configmaps", times=2).answer(forbidden)
    for _ in range(3):
        outside.delegate.turn()
        writing.clock.advance(30.0)
    assert outside.delegate.earlier is not None
    assert outside.delegate.earlier.names == ("b", "a")


# One look


class Sleeper(ManualClock):
    """Whoever waits is there at once; ``meanwhile`` happens after each wait."""

    meanwhile: Callable[[], None] = staticmethod(lambda: None)

    def wait(self, event: threading.Event, timeout: float | None) -> bool:
        self.advance(timeout or 0.0)
        self.meanwhile()
        return event.is_set()


def test_one_look_waits_until_the_lease_of_one_that_was_killed_is_over(
    admin: Writing, caplog: pytest.LogCaptureFixture
) -> None:
    admin.configmap("killed").own()
    clock = Sleeper()
    began, mine = clock.mono(), admin.configmap("mine", clock=clock)
    own_in_time(mine, clock=clock)
    assert clock.mono() - began == pytest.approx(30.0)
    assert sum("waiting 30 s at most" in each.message for each in caplog.records) == 1
    mine.publish(publication(1, "a"))
    assert admin.hosts() == ["a:1"]


def test_once_ends_as_soon_as_the_holder_of_the_lease_renews_it(admin: Writing) -> None:
    lives, clock = admin.configmap("lives"), Sleeper()
    lives.own()

    def renew() -> None:
        admin.clock.advance(2.0)
        lives.own()

    clock.meanwhile = renew
    began, mine = clock.mono(), admin.configmap("mine", clock=clock)
    with pytest.raises(OwnedByOther, match="hvd-discover lives already writes it"):
        own_in_time(mine, clock=clock)
    assert clock.mono() - began == pytest.approx(10.0)


def test_failures_are_told_and_tried_again_with_growing_pauses(admin: Writing) -> None:
    outside = Outside(admin)
    outside.delegate.publish(publication(1, "a"))
    with admin.kube.down():
        assert [outside.delegate.turn()] == [1.0]
        assert "trying again" in outside.delegate.problem
        assert outside.delegate.turn() == 1.0  # not yet
        admin.clock.advance(1.0)
        assert outside.delegate.turn() == 2.0
    assert outside.failures == 2
    admin.clock.advance(2.0)
    outside.delegate.turn()
    assert (outside.delegate.problem, admin.hosts(), outside.owns) == ("", ["a:1"], [True])


def test_a_daemon_that_stands_by_has_no_problem_and_takes_over(
    writing: Writing, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    one, two = Outside(writing, "one"), Outside(writing, "two")
    for each in (one, two):
        each.delegate.publish(publication(1, "a"))
        each.delegate.turn()
    assert (two.delegate.problem, two.failures, two.owns) == ("", 0, [False])
    assert [each.delegate.stands_by for each in (one, two)] == [False, True]
    for _ in range(3):
        writing.clock.advance(2.0)
        two.delegate.turn()
    assert sum("standing by" in each.message for each in caplog.records) == 1
    writing.clock.advance(30.0)
    two.delegate.turn()
    assert two.owns[-1] is True
    assert not two.delegate.stands_by
