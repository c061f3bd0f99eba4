"""What a cell of the table asks of one kind of State, whatever it trains with."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from itertools import pairwise
from typing import Any, NamedTuple, Protocol
from unittest import mock

import pytest
from horovod.common.exceptions import HorovodInternalError, HostsUpdatedInterrupt
from horovod.runner.elastic.worker import HostUpdateResult

from hvd_elastic_ext.worker.calls import calls
from hvd_elastic_ext.worker.state import public


class Subject(Protocol):
    """A State with ``batch`` and ``history``, and what it trains."""

    state: Any

    def train(self) -> None:
        """One step, and what a user notes of it."""

    def look(self) -> str:
        """A hash of all that the State is to keep."""


def asks_to_skip(state: Any) -> bool:
    """Whether it asks its loop to skip the sync when hosts were only removed."""
    state.on_hosts_updated(1, HostUpdateResult.removed)
    with pytest.raises(HostsUpdatedInterrupt) as raised:
        state.check_host_updates()
    return bool(raised.value.skip_sync)


def synced_at(state: Any) -> list[int]:
    """At which batches our loop syncs a State that asks to skip the sync after its first one."""
    synced: list[int] = []

    def training(state: Any) -> None:
        state.batch += 1
        if state.batch == 1:
            assert asks_to_skip(state)
            raise HostsUpdatedInterrupt(skip_sync=True)

    syncing = mock.patch.object(type(state), "sync", lambda self: synced.append(self.batch))
    with syncing, mock.patch.object(public, "_next_world"):
        public.run(training)(state)
    return synced


def rolls_back_exactly(subject: Subject) -> bool:
    """Whether four roll-backs to one commit, after steps and with them between, give the same bytes each time."""
    state = subject.state
    subject.train()
    state.save()
    committed = subject.look()
    random.seed(1)
    state.save()
    drawn = random.random()
    exact = True
    for _ in range(2):
        subject.train()
        try:
            raise HorovodInternalError("a peer was lost")
        except HorovodInternalError:
            state.restore()
        exact = exact and subject.look() == committed and random.random() == drawn
        subject.train()
        state.restore()
        exact = exact and subject.look() == committed
    return exact


Lives = list[tuple[int, bool, int]]
"""What each life found, whether it was whole, and what it committed before it was killed."""


def goes_on(seen: Lives) -> bool:
    """Each life found the last commit of the one before: the last it spoke of, or the next, which it could not."""
    return seen[0][0] == 0 and all(
        whole and found in (committed, committed + 1) for (_, _, committed), (found, whole, _) in pairwise(seen)
    )


class Fit(NamedTuple):
    """What one call did. ``trained``: whether its function ran."""

    trained: bool
    value: Any
    content: str


def _one_call(subject: Subject) -> Fit:
    ran: list[bool] = []

    def fit(state: Any) -> int:
        ran.append(True)
        subject.train()
        state.commit()
        return 7

    value = public.run(fit)(subject.state)
    return Fit(bool(ran), value, subject.look())


def skips_a_finished_call(one_program: Callable[[], Iterable[Subject]]) -> bool:
    """Whether a process that comes later passes over the first call, which is over, and has what it left behind.

    ``one_program`` makes the States of the two calls of a process, one after the other as they are needed. The results
    of calls are in one memory.
    """
    seen = []
    for _ in range(2):
        calls.forget()
        seen.append([_one_call(subject) for subject in one_program()])
    (first, second), (again, last) = seen
    assert first.trained
    assert second.trained
    assert last.trained, "nothing has followed the second call: its result is not kept"
    return not again.trained and (again.value, again.content) == (first.value, first.content)
