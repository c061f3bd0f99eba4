"""Several publishers, each tried again in its own time."""

import pytest

from discover.daemon.loop import FIRST_PAUSE, Publishers
from discover.metrics import Metrics
from discover.publish.files import OwnedByOther, PublishFailed
from hvd_elastic_ext.core.hosts import HostSet
from hvd_elastic_ext.core.publication import Publication

NEWS = Publication("life", 1, HostSet.of({"a": 1}))


class Way:
    """A way out that fails for as long as it is told to."""

    def __init__(self, *, failing: Exception | None = None) -> None:
        self.failing = failing
        self.calls = 0
        self.closed = False

    @property
    def where(self) -> str:
        return "way"

    def publish(self, publication: Publication) -> None:
        self.calls += 1
        if self.failing is not None:
            raise self.failing

    def close(self) -> None:
        self.closed = True


FULL = PublishFailed("way", "no space left on device")


def test_one_that_fails_holds_up_no_other(manual_clock):
    bad, good = Way(failing=FULL), Way()
    problem = Publishers([bad, good], Metrics(manual_clock)).bring_to(NEWS, now=0.0)
    assert good.calls == 1
    assert "no space left" in problem
    assert "trying again" in problem


def test_a_failed_place_is_not_tried_before_its_pause_is_over(manual_clock):
    way = Way(failing=FULL)
    outlets = Publishers([way], Metrics(manual_clock))
    for now in (0.0, 0.5, FIRST_PAUSE):
        assert outlets.bring_to(NEWS, now=now)
    assert way.calls == 2


def test_success_forgets_the_failures(manual_clock):
    way = Way(failing=FULL)
    outlets = Publishers([way], Metrics(manual_clock))
    outlets.bring_to(NEWS, now=0.0)
    way.failing = None
    assert outlets.bring_to(NEWS, now=1.0) == ""
    way.failing = FULL
    outlets.bring_to(NEWS, now=2.0)
    outlets.bring_to(NEWS, now=2.0 + FIRST_PAUSE)
    assert way.calls == 4


def test_a_place_owned_by_another_ends_it(manual_clock):
    with pytest.raises(OwnedByOther):
        Publishers([Way(failing=OwnedByOther("x"))], Metrics(manual_clock)).bring_to(NEWS, now=0.0)


def test_closing_the_publishers_closes_each_of_them(manual_clock):
    ways = [Way(), Way()]
    Publishers(ways, Metrics(manual_clock)).close()
    assert all(way.closed for way in ways)
