"""The loop: events in a list, a source that says what the test wants, files for real."""

import logging
import signal

import pytest

from discover.daemon.loop import Daemon, DaemonState, EventQueue, Note, Publishers, StopRequested
from discover.metrics import Metrics
from discover.publish.files import PublishFailed
from discover.publish.server import Health, LatestPublication
from discover.sources import Observation, Unsettled
from hvd_elastic_ext.core.errors import HOSTS_KEPT, BadHosts, SourceUnavailable
from hvd_elastic_ext.core.hosts import HostSet
from hvd_elastic_ext.core.publication import Publication

STOP = StopRequested("SIGTERM", 0)
A, AB = Observation(HostSet.of({"a": 1})), Observation(HostSet.of({"a": 1, "b": 1}))
GONE = SourceUnavailable("in", "does not exist")


class Scripted:
    """A source that shows one thing after the other, the last one for ever."""

    def __init__(self, *shows: object) -> None:
        self.shows = list(shows)
        self.looks = 0
        self.stopped = False

    def start(self, changed):
        self.changed = changed

    def read(self):
        show = self.shows[min(self.looks, len(self.shows) - 1)]
        self.looks += 1
        if isinstance(show, Exception):
            raise show
        return show

    def stop(self):
        self.stopped = True


class Rig:
    def __init__(self, clock, *shows: object, publishers=()) -> None:
        self.clock = clock
        self.source = Scripted(*shows)
        self.board = LatestPublication()
        self.vitals = Health(clock)
        self.metrics = Metrics(clock)
        self.outlets = Publishers([*publishers, self.board], self.metrics)
        self.told_before_the_source = False

    def left(self) -> None:
        self.told_before_the_source = not self.source.stopped

    def run(self, *events: object) -> int:
        """Feed ``events``; a number lets that many seconds pass, a function is called, between turns."""
        left = list(events)

        def next_event(timeout: float):
            while True:
                event = left.pop(0)
                if callable(event):
                    event()
                    continue
                if isinstance(event, Note) and event is Note.TICK:
                    self.clock.advance(timeout)
                return event

        daemon = Daemon(
            self.source,
            self.outlets,
            state=DaemonState("life"),
            vitals=self.vitals,
            metrics=self.metrics,
            clock=self.clock,
            next_event=next_event,
            changed=lambda: None,
            leaving=self.left,
        )
        return daemon.run()

    @property
    def hosts(self):
        return None if self.board.current is None else self.board.current.hosts.names


def test_other_threads_are_told_to_end_before_the_source_is_stopped(manual_clock):
    rig = Rig(manual_clock, A)
    rig.run(STOP)
    assert rig.told_before_the_source
    assert rig.source.stopped


def test_time_alone_is_no_reason_to_look_while_all_is_well(manual_clock):
    rig = Rig(manual_clock, A)
    rig.run(Note.TICK, Note.TICK, STOP)
    assert rig.source.looks == 1


@pytest.mark.parametrize("bad", [GONE, BadHosts("in", 3, "bad"), ValueError("a defect"), Unsettled("in", "half")])
def test_after_any_failure_the_last_hosts_stay_and_the_source_is_read_again(manual_clock, bad):
    rig = Rig(manual_clock, A, bad, bad, AB)
    seen = []
    rig.run(Note.CHANGED, lambda: seen.append(rig.hosts), Note.TICK, Note.TICK, STOP)
    assert seen == [("a",)]
    assert rig.hosts == ("a", "b")


def test_a_problem_is_logged_once_and_its_end_too(manual_clock, caplog):
    caplog.set_level(logging.INFO)
    rig = Rig(manual_clock, A, GONE, GONE, GONE, A)
    rig.run(Note.CHANGED, Note.TICK, Note.TICK, Note.TICK, STOP)
    lines = [record.getMessage() for record in caplog.records if record.getMessage().startswith("source:")]
    assert lines == [f"source: {GONE}{HOSTS_KEPT}", "source: recovered"]


def test_problems_that_alternate_are_not_logged_at_each_look(manual_clock, caplog):
    caplog.set_level(logging.INFO)
    others = [BadHosts("in", 3, "bad"), GONE]
    rig = Rig(manual_clock, A, *others * 300, A)
    rig.run(Note.CHANGED, *[Note.TICK] * 600, STOP)
    lines = [record.getMessage() for record in caplog.records if record.getMessage().startswith("source:")]
    assert len([line for line in lines if "bad" in line]) in range(2, 14)
    assert len(lines) <= 27
    assert lines[-1] == "source: recovered"


def test_a_problem_that_comes_and_goes_is_not_logged_at_each_look(manual_clock, caplog):
    caplog.set_level(logging.INFO)
    rig = Rig(manual_clock, A, *[GONE, A] * 300)
    rig.run(Note.CHANGED, *[Note.TICK, Note.CHANGED] * 300, STOP)
    lines = [record.getMessage() for record in caplog.records if record.getMessage().startswith("source:")]
    assert 2 <= len(lines) <= 26


def test_a_file_written_forever_becomes_a_problem(manual_clock):
    rig = Rig(manual_clock, A, Unsettled("in", "is being written"))
    early: list[bool] = []
    rig.run(Note.CHANGED, *[Note.TICK] * 4, lambda: early.append(rig.vitals.ready()[0]), *[Note.TICK] * 3, STOP)
    assert early == [True]
    assert rig.vitals.ready() == (False, f"in: is being written{HOSTS_KEPT}")


class Stuck:
    """A publisher whose volume is full until told otherwise."""

    def __init__(self) -> None:
        self.full = True
        self.calls = 0

    @property
    def where(self) -> str:
        return "hosts"

    def publish(self, publication: Publication) -> None:
        self.calls += 1
        if self.full:
            raise PublishFailed("hosts", "no space left on device")

    def close(self) -> None:
        """Nothing to let go."""


def test_a_full_volume_is_tried_again_with_growing_pauses(manual_clock):
    stuck = Stuck()
    rig = Rig(manual_clock, A, publishers=[stuck])
    rig.run(*[Note.TICK] * 8, STOP)
    assert stuck.calls == 4  # at 0, 1, 3 and 7 s
    assert rig.hosts == ("a",)
    assert "no space left" in rig.vitals.ready()[1]


def test_hosts_are_published_before_they_are_logged(manual_clock, caplog):
    class Witness(Stuck):
        def publish(self, publication: Publication) -> None:
            logged.append((publication.sequence, f"sequence={publication.sequence}:" in caplog.text))

    caplog.set_level(logging.INFO)
    logged: list[tuple[int, bool]] = []
    Rig(manual_clock, A, AB, publishers=[Witness()]).run(Note.CHANGED, STOP)
    assert logged == [(1, False), (2, False)]
    assert "sequence=2: 2 hosts" in caplog.text


def test_once_there_is_room_again_all_is_well(manual_clock):
    stuck = Stuck()
    rig = Rig(manual_clock, A, publishers=[stuck])
    rig.run(Note.TICK, lambda: setattr(stuck, "full", False), Note.TICK, Note.TICK, STOP)
    assert rig.vitals.ready() == (True, "fresh")
    assert rig.vitals.started()[0]


def test_the_latency_ends_when_all_places_are_written(manual_clock):
    stuck = Stuck()
    rig = Rig(manual_clock, A, publishers=[stuck])
    rig.metrics.for_cluster().caused([("removal", manual_clock.mono())])
    text: list[bytes] = []
    rig.run(
        lambda: text.append(rig.metrics.render()), lambda: setattr(stuck, "full", False), Note.TICK, Note.TICK, STOP
    )
    assert b"event_to_publication_seconds_count" not in text[0]
    assert b'event_to_publication_seconds_sum{change="removal"} 1.0' in rig.metrics.render()


def test_it_ends_when_there_is_nothing_left_to_do(manual_clock, caplog):
    caplog.set_level(logging.INFO)
    assert Rig(manual_clock, A).run(StopRequested("the launcher has ended", 0)) == 0
    assert "stopping: the launcher has ended; the published hosts stay" in caplog.text


def test_an_end_that_is_a_mistake_is_an_error(manual_clock, caplog):
    caplog.set_level(logging.ERROR)
    assert Rig(manual_clock, A).run(StopRequested("there is no such container", 2)) == 2
    assert "there is no such container" in caplog.text


def test_the_queue_returns_events_in_order_and_a_tick_when_empty():
    inbox = EventQueue()
    inbox.attend()
    inbox.signalled(signal.SIGHUP, None)
    inbox.signalled(signal.SIGTERM, None)
    inbox.signalled(signal.SIGINT, None)
    told = [inbox.next(0.0) for _ in range(4)]
    assert told == [Note.CHANGED, STOP, StopRequested("SIGINT", 130), Note.TICK]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_a_signal_that_nobody_reads_yet_ends_whatever_is_waited_for(number, code):
    inbox = EventQueue()
    inbox.signalled(signal.SIGHUP, None)
    with pytest.raises(SystemExit) as ended:
        inbox.signalled(number, None)
    assert ended.value.code == code


def test_changes_that_come_before_the_look_are_looked_at_once():
    inbox = EventQueue()
    for _ in range(1000):
        inbox.changed()
    assert [inbox.next(0.0), inbox.next(0.0)] == [Note.CHANGED, Note.TICK]
    inbox.changed()
    assert [inbox.next(0.0), inbox.next(0.0)] == [Note.CHANGED, Note.TICK]
