"""Where samplers and learning rates get their place from."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from torch import distributed

from hvd_elastic_ext.worker.comms import current_world


class Fixed:
    def __init__(self, rank: int, size: int) -> None:
        self._place = (rank, size)

    def rank(self) -> int:
        return self._place[0]

    def size(self) -> int:
        return self._place[1]


class NotYet(Fixed):
    """Horovod before ``hvd.init()``."""

    def __init__(self) -> None:
        pass

    def rank(self) -> int:
        raise ValueError("Horovod has not been initialized; use hvd.init().")


@pytest.fixture(autouse=True)
def nobody_told_us() -> Iterator[None]:
    current_world.use(None)
    yield
    current_world.use(None)


def test_the_place_comes_from_the_states_library() -> None:
    current_world.use(Fixed(2, 5))
    assert current_world.current() == (2, 5)
    current_world.use(Fixed(0, 3))
    assert current_world.current() == (0, 3)


def test_without_a_state_the_place_comes_from_horovod(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(current_world, "HorovodComms", lambda: Fixed(1, 4))
    assert current_world.current() == (1, 4)


def test_without_horovod_the_place_comes_from_torch_distributed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(current_world, "HorovodComms", NotYet)
    monkeypatch.setattr(distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(distributed, "get_rank", lambda: 3)
    monkeypatch.setattr(distributed, "get_world_size", lambda: 7)
    assert current_world.current() == (3, 7)


def test_a_process_in_no_world_is_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(current_world, "HorovodComms", NotYet)
    assert current_world.current() == current_world.ALONE
