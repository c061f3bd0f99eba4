"""Samplers and streams that are told their place, so that worlds of any size need no processes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from hvd_elastic_ext.worker.data.sampler import ElasticSampler
from tests.unit.worker.histories import World


class Placed(Protocol):
    place: tuple[int, int]

    def load_state_dict(self, state: dict[str, Any], /) -> None: ...


Dealer = TypeVar("Dealer", bound=Placed)


class PlacedSampler(ElasticSampler):
    def __init__(self, place: tuple[int, int], count: int, **options: Any) -> None:
        self.place = place
        super().__init__(range(count), **options)

    def world(self) -> tuple[int, int]:
        return self.place


def enter(
    world: World, progress: dict[str, Any], make: Callable[[], Dealer], *, job: list[Dealer] | None = None
) -> list[Dealer]:
    """The samplers or streams of a new world after its sync: newcomers and survivors alike load the same progress.

    ``job`` are those of the world before: survivors bring what they had recorded, newcomers nothing.
    """
    dealers = (job or [])[: world.size]
    dealers += [make() for _ in range(world.size - len(dealers))]
    dealers.reverse()  # whoever survives has another rank
    for rank, dealer in enumerate(dealers):
        dealer.load_state_dict(progress)
        dealer.place = (rank, world.size)
    return dealers
