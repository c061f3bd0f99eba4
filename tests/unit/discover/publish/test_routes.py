"""What each path of the HTTP interface answers."""

import json
import threading

import pytest

from discover.metrics import Metrics
from discover.publish.server import LOOP_TIMEOUT, Health, LatestPublication, Routes
from hvd_elastic_ext.core.hosts import HostSet
from hvd_elastic_ext.core.publication import Publication, from_json
from tests.support.waiting import wait_until


def publication(sequence: int, source: str = "life") -> Publication:
    return Publication(source, sequence, HostSet.of({"a": sequence}))


class Site:
    def __init__(self, clock, *, hold: float = 0.0) -> None:
        self.board = LatestPublication()
        self.vitals = Health(clock)
        self.metrics = Metrics(clock)
        self.routes = Routes(self.board, vitals=self.vitals, metrics=self.metrics, hold=hold)

    def status(self, target: str) -> int:
        answer = self.routes.answer(target, threading.Event())
        assert answer is not None
        return answer.status

    def body(self, target: str) -> bytes:
        answer = self.routes.answer(target, threading.Event())
        assert answer is not None
        return answer.body


@pytest.fixture
def site(manual_clock):
    return Site(manual_clock)


def test_before_the_first_publication_there_are_no_hosts_to_tell(site):
    assert site.status("/hosts") == 503


def test_hosts_are_told_in_the_form_the_launcher_reads(site):
    site.board.publish(publication(3))
    assert from_json(site.body("/hosts"), where="test") == publication(3)


@pytest.mark.parametrize("known", ["after=0", "after=2", "after=7", "after=3&source=other", "after=9&source=other"])
def test_whoever_knows_something_else_is_answered_at_once(site, known):
    site.board.publish(publication(3))
    assert from_json(site.body(f"/hosts?{known}"), where="test").sequence == 3


@pytest.mark.parametrize("known", ["after=3", "after=3&source=life"])
def test_whoever_knows_it_already_is_told_so_after_a_while(site, known):
    site.board.publish(publication(3))
    assert site.status(f"/hosts?{known}") == 204


def test_whoever_waits_for_the_first_publication_is_told_so_after_a_while(site):
    assert site.status("/hosts?after=0") == 204


@pytest.mark.parametrize("after", ["", "x", "٣", "9" * 30])
def test_what_is_no_sequence_number_is_refused(site, after):
    assert site.status(f"/hosts?after={after}") == 400


@pytest.mark.parametrize("path", ["/", "/hosts/", "http://["])
def test_other_paths_are_not_there(site, path):
    assert site.status(path) == 404


def test_all_who_wait_get_the_news(manual_clock):
    site = Site(manual_clock, hold=60.0)
    site.board.publish(publication(1))
    bodies: list[bytes] = []
    waiting = [threading.Thread(target=lambda: bodies.append(site.body("/hosts?after=1"))) for _ in range(20)]
    for thread in waiting:
        thread.start()
    site.board.publish(publication(2))
    for thread in waiting:
        thread.join()
    assert {json.loads(body)["sequence"] for body in bodies} == {2}
    assert len(bodies) == 20


def test_whoever_knows_the_first_publication_before_it_is_there_waits_for_the_second(manual_clock):
    site = Site(manual_clock, hold=60.0)
    bodies: list[bytes] = []
    waiting = threading.Thread(target=lambda: bodies.append(site.body("/hosts?after=1")))
    waiting.start()
    wait_until(lambda: site.board._waiting, what="somebody to wait")
    site.board.publish(publication(1))
    assert [woken.is_set() for woken in site.board._waiting] == [False]
    site.board.publish(publication(2))
    waiting.join()
    assert json.loads(bodies[0])["sequence"] == 2


def test_whoever_waits_is_let_go_at_the_end(manual_clock):
    site = Site(manual_clock, hold=60.0)
    answers: list[object] = []
    thread = threading.Thread(target=lambda: answers.append(site.routes.answer("/hosts?after=0", threading.Event())))
    thread.start()
    site.routes.close()
    thread.join()
    assert answers == [None]


def test_a_loop_that_stands_still_is_not_live(site, manual_clock):
    assert site.status("/livez") == 200
    manual_clock.advance(LOOP_TIMEOUT + 1)
    assert site.status("/livez") == 503
    site.vitals.loop_turned()
    assert site.status("/livez") == 200


def test_started_means_published_once_and_for_good(site):
    assert site.status("/startupz") == 503
    site.vitals.report(published=True, problem="")
    site.vitals.report(published=False, problem="disk full")
    assert site.status("/startupz") == 200


def test_ready_means_no_problem_now_and_says_which(site):
    assert site.status("/readyz") == 503
    site.vitals.report(published=True, problem="")
    assert site.status("/readyz") == 200
    site.vitals.report(published=True, problem="hosts: does not exist")
    assert site.body("/readyz") == b"hosts: does not exist\n"


def test_metrics_tell_what_is_published_and_how_old_it_is(site, manual_clock):
    assert b"last_publication_age_seconds NaN" in site.body("/metrics")
    site.metrics.published(publication(3))
    manual_clock.advance(7)
    lines = site.body("/metrics").decode().splitlines()
    assert "hvd_discover_hosts 1.0" in lines
    assert "hvd_discover_slots 3.0" in lines
    assert "hvd_discover_publications_total 1.0" in lines
    assert "hvd_discover_last_publication_age_seconds 7.0" in lines
