"""What a training script may keep in its State, and a reader on another rank. It stands for that script, too."""

from __future__ import annotations

import dataclasses
import enum
from typing import Any, NamedTuple

from torch import Tensor

from hvd_elastic_ext.worker.commits import tree_codec

NOTHING: frozenset[tree_codec.Name] = frozenset()


def there_and_back(tree: Any, *, admitted: frozenset[tree_codec.Name] | None = NOTHING) -> Any:
    """``tree`` as another rank reads it; None: as the process that wrote it."""
    tensors: list[Tensor] = []
    data = tree_codec.write(tree, tensors)
    return tree_codec.read(data, lambda index, kind: tensors[index].clone(), admitted=admitted)


class Colour(enum.Enum):
    RED = 1
    BLUE = "b"


class Mode(enum.Flag):
    A = 1
    B = 2


class Point(NamedTuple):
    x: int
    y: Any


@dataclasses.dataclass
class Best:
    loss: float
    weights: Any = None


@dataclasses.dataclass(frozen=True)
class Fixed:
    """With slots of its own making."""

    __slots__ = ("name",)
    name: str

    def __getstate__(self) -> dict[str, str]:
        return {"name": self.name}

    def __setstate__(self, state: dict[str, str]) -> None:
        object.__setattr__(self, "name", state["name"])


class Own:
    """Neither plain nor a record."""

    def __init__(self) -> None:
        self.value = 1
