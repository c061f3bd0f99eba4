"""An agent without a free descriptor tells it, or tries again; it does not end."""

from __future__ import annotations

import contextlib
import os
import resource
from collections.abc import Iterator

from hvd_elastic_ext.agent.descriptors import DescriptorLoop
from hvd_elastic_ext.agent.notices.watch import AGAIN_S, CloudWatch
from hvd_elastic_ext.agent.resolver import Found, Lookup
from tests.support.clock import ManualClock


class Loop(DescriptorLoop):
    """With a clock of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = ManualClock()

    def now(self) -> float:
        return self.clock.mono()


class Silent:
    """A listener that is told nothing."""

    def cloud_notice(self) -> None:
        raise AssertionError("no cloud was asked")

    def cloud_advice(self, reason: str | None) -> None:
        raise AssertionError(reason)

    def cloud_problem(self, source: str, problem: str | None) -> None:
        raise AssertionError(problem)


@contextlib.contextmanager
def no_descriptor_left() -> Iterator[None]:
    usual = resource.getrlimit(resource.RLIMIT_NOFILE)
    last = os.dup(0)
    os.close(last)
    resource.setrlimit(resource.RLIMIT_NOFILE, (last, usual[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, usual)


def test_a_name_that_cannot_be_looked_up_for_lack_of_descriptors_is_a_problem_told_at_once() -> None:
    loop, told = Loop(), list[Found]()
    with no_descriptor_left():
        lookup = Lookup(loop, "localhost", then=told.append)
    assert lookup.due() == loop.now()
    lookup.tick()
    assert told == [Found((), "no resolver can be started: Too many open files")]


def test_a_cloud_that_cannot_be_asked_for_lack_of_descriptors_is_asked_after_a_pause() -> None:
    loop = Loop()
    with no_descriptor_left():
        watch = CloudWatch(loop, "aws", None, listener=Silent())
    assert watch.due() == loop.now() + AGAIN_S
    watch.close()
    assert watch.due() is None
