"""What follows the loss of a peer in a world of Horovod."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from hvd_elastic_ext.worker.comms import NO_SECOND_WORLD, OfHorovod


class World(OfHorovod):
    """Horovod's, whose ranks meet by MPI or by Gloo."""

    def __init__(self, *, mpi: bool) -> None:
        self.operations = SimpleNamespace(mpi_enabled=lambda: mpi)  # type: ignore[misc]
        self.rejoined = 0

    def rejoin(self) -> None:
        self.rejoined += 1


def test_a_world_of_gloo_is_followed_by_another_one() -> None:
    world = World(mpi=False)
    world.reset()
    assert world.rejoined == 1


def test_a_world_of_mpi_is_the_last_one_and_the_process_exits_with_a_line_that_says_so() -> None:
    world = World(mpi=True)
    with pytest.raises(SystemExit) as ended:
        world.reset()
    assert ended.value.code == NO_SECOND_WORLD
    assert world.rejoined == 0
