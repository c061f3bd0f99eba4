"""Where samplers and learning rates get their place from."""

from __future__ import annotations

from typing import Any

import pytest
from torch import distributed

from hvd_elastic_ext.worker.comms import current_world


class Fixed:
    """A world; without a place it is Horovod before ``hvd.init()``."""

    def __init__(self, *place: int) -> None:
        self._place = place

    def rank(self) -> int:
        if not self._place:
            raise ValueError("Horovod has not been initialized; use hvd.init().")
        return self._place[0]

    def size(self) -> int:
        return self._place[1]


@pytest.mark.parametrize(
    ("told", "horovods", "torchs", "place"),
    [
        (Fixed(2, 5), Fixed(1, 4), (3, 7), (2, 5)),
        (None, Fixed(1, 4), (3, 7), (1, 4)),
        (None, Fixed(), (3, 7), (3, 7)),
        (None, Fixed(), None, current_world.ALONE),
    ],
    ids=["told by a State", "Horovod", "torch.distributed", "in no world"],
)
def test_the_place_is_that_of_the_known_world_else_of_the_library_that_is_initialised(
    told: Any, horovods: Fixed, torchs: tuple[int, int] | None, place: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(current_world, "HorovodComms", lambda: horovods)
    monkeypatch.setattr(distributed, "is_initialized", lambda: torchs is not None)
    monkeypatch.setattr(distributed, "get_rank", lambda: torchs and torchs[0])
    monkeypatch.setattr(distributed, "get_world_size", lambda: torchs and torchs[1])
    current_world.use(told)
    assert current_world.current() == place
