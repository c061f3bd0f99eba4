"""What a training script defines: classes whose values may be in a State, and others."""

from __future__ import annotations

import dataclasses
import enum
from typing import Any, NamedTuple


class Colour(enum.Enum):
    RED = 1
    BLUE = "b"


class Mode(enum.IntFlag):
    A = 1
    B = 2


class Word(str, enum.Enum):
    average = "average"


class Point(NamedTuple):
    x: int
    y: Any


@dataclasses.dataclass
class Best:
    loss: float
    weights: Any = None

    def __post_init__(self) -> None:
        assert not isinstance(self.loss, str), "reading calls no code of a class"


@dataclasses.dataclass(frozen=True, order=True)
class Key:
    __slots__ = ("name",)
    name: str


@dataclasses.dataclass
class Listed(list[int]):
    """A dataclass with items besides its fields."""

    name: str = ""


class Own:
    """Neither plain nor a record."""

    class Inner(NamedTuple):
        a: int
