"""What every source promises; the same suite for each of them."""

import contextlib
import random
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from discover.daemon.cluster_source import KubernetesSource, PodScope
from discover.metrics import Metrics
from discover.pods.operators import SLOTS_ANNOTATION, HostRules, operator_named
from discover.sources import FileSource, Observation, StaticSource, Unsettled
from discover.verdicts.damping import DampingLimits
from discover.verdicts.signals import BUILT_IN
from discover.verdicts.verdicts import Selector
from discover.watch.cluster import Cluster
from hvd_elastic_ext.core.errors import BadHosts, SourceUnavailable
from hvd_elastic_ext.core.hosts import HostSet
from hvd_elastic_ext.io.kube.access import Access
from tests.contract.discover.followed_server import HurriedClock
from tests.support.kube import bodies
from tests.support.kube.server import KubeServer
from tests.support.waiting import wait_until


class Static:
    """A list that never changes."""

    sees_unstarted = True

    def __init__(self, directory: Path) -> None:
        self.source = StaticSource(HostSet.of({"a": 1}))

    def close(self) -> None:
        self.source.stop()


class File(Static):
    """A file, changed by renaming another over it."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / "hosts"
        self.where = str(self.path)
        self.put({"a": 1})
        self.source = FileSource(self.path)

    def put(self, slots: dict[str, int]) -> None:
        self.write("".join(f"{name}:{count}\n" for name, count in slots.items()))

    def write(self, text: str) -> None:
        new = self.path.with_name("new")
        new.write_text(text)
        new.replace(self.path)

    @contextlib.contextmanager
    def away(self) -> Iterator[None]:
        text = self.path.read_text()
        self.path.unlink()
        yield
        self.write(text)


class Pods:
    """Pods on an API server."""

    sees_unstarted = False

    def __init__(self, directory: Path) -> None:
        self.kube = KubeServer()
        self.kube.start()
        self.kube.put("nodes", bodies.node("node-0"))
        self.put({"a": 1})
        self.where = f"pods of namespace default at {self.kube.url}"
        clock = HurriedClock(10.0)
        rules = HostRules(operator=operator_named("custom"), host_name="{name}")
        self.source = KubernetesSource(
            Cluster(Access(str(self.kube.kubeconfig(directory / "kubeconfig")))),
            PodScope(namespace="default", job="", rules=rules, selector="app=trainer"),
            selector=Selector(rules, BUILT_IN),
            probe=None,
            metrics=Metrics(clock).for_cluster(),
            clock=clock,
            draw=random.random,
            limits=DampingLimits(settle=0.0),
        )

    def put(self, slots: dict[str, int]) -> None:
        for pod in self.kube.all("pods"):
            if pod["metadata"]["name"] not in slots:
                self.kube.remove("pods", pod["metadata"]["name"])
        for name, count in slots.items():
            said = {SLOTS_ANNOTATION: str(count)}
            self.kube.put("pods", bodies.pod(name, labels={"app": "trainer"}, annotations=said))

    def away(self) -> contextlib.AbstractContextManager[None]:
        return self.kube.down()

    def close(self) -> None:
        self.source.stop()
        self.kube.stop()


@pytest.fixture(params=[Static, File, Pods])
def case(request, tmp_path):
    made = request.param(tmp_path)
    yield made
    made.close()


changing = pytest.mark.parametrize("case", [File, Pods], indirect=True)


def slots(source) -> dict[str, int] | None:
    """What is seen, if anything is."""
    seen = source.read()
    return None if isinstance(seen, Unsettled) else seen.hosts.as_slots()


def sees(case, wanted: dict[str, int]) -> None:
    wait_until(lambda: slots(case.source) == wanted, what=str(wanted), timeout=60, show=case.source.read)


def test_it_can_be_read_before_it_is_started_and_stopped_unstarted(case):
    assert slots(case.source) == ({"a": 1} if case.sees_unstarted else None)
    case.source.stop()
    assert slots(case.source) == ({"a": 1} if case.sees_unstarted else None)


def test_reading_twice_tells_the_same(case):
    case.source.start(lambda: None)
    sees(case, {"a": 1})
    first, second = case.source.read(), case.source.read()
    assert isinstance(first, Observation)
    assert first == second


def test_it_may_be_stopped_twice_and_leaves_no_thread(case):
    before = set(threading.enumerate())
    case.source.start(lambda: None)
    case.source.stop()
    case.source.stop()
    # Only its own: those of the server beside it come and go with connections.
    ours = {thread for thread in threading.enumerate() if not thread.name.startswith("kube-")}
    wait_until(lambda: ours & set(threading.enumerate()) <= before, what="the threads of the source to end", timeout=60)


@changing
def test_it_reports_changes_and_read_returns_them(case):
    changed = threading.Event()
    case.source.start(changed.set)
    sees(case, {"a": 1})
    for wanted in ({"b": 2}, {"b": 2, "c": 1}, {}):
        wait_until(changed.is_set, what="the call for what was there before", timeout=60)
        changed.clear()
        case.put(wanted)
        assert changed.wait(60)
        sees(case, wanted)


@changing
def test_a_source_that_cannot_be_read_is_unavailable_and_recovers(case):
    def unavailable() -> str:
        try:
            case.source.read()
        except SourceUnavailable as error:
            return str(error)
        return ""

    with case.away():
        case.source.start(lambda: None)
        wait_until(lambda: case.where in unavailable(), what="to be told so", timeout=60, show=unavailable)
    case.put({"c": 1})
    wait_until(lambda: not unavailable(), what="it to come back", timeout=60)
    sees(case, {"c": 1})


def test_what_is_no_list_is_refused_with_its_line(tmp_path):
    case = File(tmp_path)
    case.write("a:1\nb:zwei\nc:\n")
    with pytest.raises(BadHosts, match=r"hosts:2: .* \(and 1 more bad line\)"):
        case.source.read()
