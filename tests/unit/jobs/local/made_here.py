"""Functions that a test sends, as somebody's module has them."""

from __future__ import annotations

import json as text
from collections import OrderedDict
from math import sqrt
from pathlib import Path

SCALE = 10
SIZES = {"a": [1, 2.5, None, True]}
OPEN = Path(__file__).open()  # noqa: SIM115
OPEN.close()


def helper(value: int) -> int:
    return value * SCALE if value else again(value + 1)


def again(value: int) -> int:
    return helper(value)


class Model:
    size = SIZES["a"][0]


def train(value: int, *, more: int = 0) -> list[object]:
    def inner(each: int) -> int:
        return helper(each) + more

    return [inner(value), sqrt(4), Model.size, text.dumps(OrderedDict(a=1)), len(SIZES)]


def uses_a_file() -> str:
    return OPEN.read()


def makes() -> object:
    outside = 3

    def inner() -> int:
        return outside

    return inner
