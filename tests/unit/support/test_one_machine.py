"""The cluster whose pods are processes leaves none of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from tests.support.kube.one_machine import OneMachine
from tests.support.kube.server import KubeServer


class Life:
    """A pod's, that ends between two looks at it."""

    is_name, gone_since = False, None

    def __init__(self, *alive: bool) -> None:
        self._alive = iter(alive)
        self.killed = 0

    @property
    def alive(self) -> bool:
        return next(self._alive, False)

    def ask_to_end(self, *, by: float) -> None:
        if not self.alive:
            self.kill()

    def kill(self) -> None:
        self.killed += 1


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[OneMachine]:
    with KubeServer(folder=tmp_path) as kube:
        yield OneMachine(kube, tmp_path, env={}, home=tmp_path)


def test_what_runs_beside_a_process_that_ends_between_two_looks_is_ended(machine: OneMachine) -> None:
    life = Life(True, False)
    machine._runs["uid"] = cast(Any, life)
    machine.look()
    assert (life.killed, machine._runs) == (1, {})
    machine.leave()


def test_one_process_that_cannot_be_ended_keeps_no_other_alive(machine: OneMachine) -> None:
    class Stubborn(Life):
        def kill(self) -> None:
            raise OSError("no")

    lives = [Life(), Stubborn(), Life()]
    machine._runs |= {str(number): cast(Any, each) for number, each in enumerate(lives)}
    with pytest.raises(OSError, match="no"):
        machine.leave()
    assert [each.killed for each in lives] == [1, 0, 1]
    assert not machine._machine.pods.exists()
