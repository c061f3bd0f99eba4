"""What every publisher promises; the same suite for each of them."""

import contextlib
import subprocess
import threading
from pathlib import Path

import pytest

from discover.metrics import Metrics
from discover.publish.files import HostsFile, Publisher, Script
from discover.publish.server import Health, LatestPublication, Routes, Server, UnixAddress
from hvd_elastic_ext.core.clock import SystemClock
from hvd_elastic_ext.core.hosts import HostSet
from hvd_elastic_ext.core.publication import Publication, from_json, parse_hosts_text
from tests.support.serving import UnixConnection


def publication(sequence: int, **slots: int) -> Publication:
    return Publication("life", sequence, HostSet.of(slots))


class OnFile:
    """The hosts file, read as any program would."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / "hosts"
        self.publisher: Publisher = HostsFile(self.path)

    def seen(self) -> dict[str, int] | None:
        if not self.path.exists():
            return None
        return parse_hosts_text(self.path.read_text(), where="hosts").as_slots()

    def close(self) -> None:
        self.publisher.close()


class ByScript(OnFile):
    """The discovery script, run as horovodrun runs it; it prints what a hosts file says."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.script = directory / "discover.sh"
        self.publisher = _Both(HostsFile(self.path), Script(self.script, hosts_file=self.path))

    def seen(self) -> dict[str, int] | None:
        if not self.script.exists():
            return None
        ran = subprocess.run([self.script], capture_output=True, text=True, check=True)
        return parse_hosts_text(ran.stdout, where="script").as_slots()


class _Both:
    def __init__(self, *publishers: Publisher) -> None:
        self._publishers = publishers

    def publish(self, publication: Publication) -> None:
        for publisher in self._publishers:
            publisher.publish(publication)

    def close(self) -> None:
        for publisher in self._publishers:
            publisher.close()


class OverHttp:
    """The push, asked for over a real socket."""

    def __init__(self, directory: Path) -> None:
        clock = SystemClock()
        self.publisher: Publisher = (board := LatestPublication())
        self.routes = Routes(board, vitals=Health(clock), metrics=Metrics(clock))
        self.socket = directory / "s"
        self.server = Server(UnixAddress(self.socket), self.routes)
        self.server.start()

    def seen(self) -> dict[str, int] | None:
        with contextlib.closing(UnixConnection(self.socket)) as connection:
            connection.request("GET", "/hosts")
            answer = connection.getresponse()
            body = answer.read()
        return None if answer.status == 503 else from_json(body, where="push").hosts.as_slots()

    def close(self) -> None:
        self.routes.close()
        self.server.close()


@pytest.fixture(params=[OnFile, ByScript, OverHttp])
def way(request, tmp_path):
    made = request.param(tmp_path)
    yield made
    made.close()


def test_each_publication_is_seen_in_its_order_once_publish_returned(way):
    assert way.seen() is None
    lists = [{"a": 1}, {"a": 1, "b": 4}, {"z": 1, "a": 1, "m": 2}, {"z": 1, "a": 1, "m": 2}, {}]
    for sequence, slots in enumerate(lists, start=1):
        way.publisher.publish(publication(sequence, **slots))
        assert list((way.seen() or {}).items()) == list(slots.items())
    assert way.seen() == {}, "no hosts are seen as no hosts"


def test_rule_25_readers_see_one_publication_or_another_and_never_half_of_one(way):
    lists = [{f"{letter}{n}": 1 for n in range(50)} for letter in "ab"]
    way.publisher.publish(publication(1, **lists[0]))
    done = threading.Event()
    torn: list[object] = []

    def read() -> None:
        while not done.is_set():
            seen = way.seen()
            if seen not in lists:
                torn.append(seen)

    readers = [threading.Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    for sequence in range(2, 20):
        way.publisher.publish(publication(sequence, **lists[sequence % 2]))
    done.set()
    for reader in readers:
        reader.join()
    assert torn == []


def test_closing_twice_is_harmless_and_takes_nothing_back_from_readers_of_files(way):
    way.publisher.publish(publication(1, a=1))
    way.publisher.close()
    way.publisher.close()
    if not isinstance(way, OverHttp):
        assert way.seen() == {"a": 1}
