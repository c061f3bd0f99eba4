"""The place of a process in a world, in Horovod's terms."""

from __future__ import annotations

from typing import Final, NamedTuple


class Place(NamedTuple):
    """A slot in Horovod's sense: its place in the world, on the host, and among the hosts with this local rank."""

    rank: int
    size: int
    local_rank: int
    local_size: int
    cross_rank: int
    cross_size: int

    def text(self) -> str:
        """Return the answer to ``rank_and_size`` (Horovod's ``SlotInfo.to_response_string``)."""
        return ",".join(map(str, self))

    def environment(self) -> dict[str, str]:
        """Return the environment variables that Horovod's ``init`` reads."""
        return {name: str(number) for name, number in zip(VARIABLES, self, strict=True)}


VARIABLES: Final = tuple(f"HOROVOD_{name.upper()}" for name in Place._fields)
"""Names of :meth:`Place.environment`."""
ALONE: Final = Place(0, 1, 0, 1, 0, 1)
"""The place of the only process of a world."""


def place_of(text: str) -> Place | None:
    """Parse the output of :meth:`Place.text`; None for other text."""
    numbers = text.split(",")
    if len(numbers) != len(Place._fields) or not all(number.isascii() and number.isdigit() for number in numbers):
        return None
    return Place(*map(int, numbers))
