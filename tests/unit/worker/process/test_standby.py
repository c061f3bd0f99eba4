"""What a process does with an order to cut its connections, before, while and after it enters a world."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Callable, Iterator

import pytest

from hvd_elastic_ext.worker.process.fence import Fence
from hvd_elastic_ext.worker.process.link import Link
from hvd_elastic_ext.worker.process.standby import ADDRESS, Standby
from tests.unit.worker.process.test_fence import closed, horovods

FENCE = {"tell": "fence"}


class Joining:
    """A process and the next world, which ``tell`` is called in."""

    def __init__(self, stack: contextlib.ExitStack) -> None:
        self.agent, theirs = socket.socketpair()
        stack.enter_context(self.agent)
        self.process = Standby(Link(theirs), fence=Fence(), environ={ADDRESS: "127.0.0.1"})
        stack.callback(self.process.link.close)
        self.process.generation = 1
        self._stack = stack
        self._ends: tuple[int, int]

    def hear(self, *messages: dict[str, object]) -> None:
        for message in messages:
            self.process.link.on_message(message)

    def join(self, tell: Callable[[], object]) -> None:
        """Enter the next world. ``tell`` is called once it has a connection."""

        def connect() -> None:
            self._ends = horovods()
            for end in self._ends:
                self._stack.callback(os.close, end)
            tell()

        self.process.init(connect, lambda: None, later=False)

    @property
    def is_cut(self) -> bool:
        with socket.socket(fileno=os.dup(self._ends[1])) as end:
            return closed(end)


@pytest.fixture
def joining() -> Iterator[Joining]:
    with contextlib.ExitStack() as stack:
        yield Joining(stack)


def world(generation: int) -> dict[str, object]:
    return {"tell": "world", "generation": generation}


def test_an_order_for_the_world_before_leaves_the_world_that_forms_alone(joining: Joining) -> None:
    joining.join(lambda: joining.hear(FENCE, world(2)))
    assert not joining.is_cut


def test_so_it_does_if_it_is_heard_after_the_world_has_formed(joining: Joining) -> None:
    late = threading.Thread(target=joining.hear, args=(FENCE, world(2)))
    joining.join(late.start)
    late.join()
    assert not joining.is_cut


def test_an_order_that_follows_the_number_of_the_world_cuts_it_while_it_forms(joining: Joining) -> None:
    joining.join(lambda: joining.hear(world(2), FENCE))
    assert joining.is_cut


def test_an_order_in_the_world_cuts_it(joining: Joining) -> None:
    joining.join(lambda: joining.hear(world(2)))
    assert not joining.is_cut
    joining.hear(FENCE)
    assert joining.is_cut


def test_a_world_that_did_not_form_is_cut(joining: Joining) -> None:
    def fail() -> None:
        raise ValueError("Horovod could not be initialized")

    with pytest.raises(ValueError, match="could not"):
        joining.join(fail)
    joining.hear(FENCE)
    assert joining.is_cut


def test_who_asks_for_a_rank_or_connects_says_that_it_waits_for_others(joining: Joining) -> None:
    seen: list[bool] = []
    status = joining.process.link.status
    joining.join(lambda: (seen.append(status.waiting), joining.hear(world(2))))
    assert seen == [True]
    assert not status.waiting
