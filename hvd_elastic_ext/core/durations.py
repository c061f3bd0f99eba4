"""The one form of a length of time in options, files and variables: ``30s``, ``1h30m``, ``500ms``, or plain seconds.
Units go from large to small, each at most once. Pure.
"""

from __future__ import annotations

import argparse
import math
import re
from itertools import pairwise
from typing import Final

METAVAR: Final = "TIME"
"""The placeholder of such a value in every help text."""
FORM: Final = "TIME is a length of time such as 500ms, 30s, 10m, 2h, 1h30m or 1d; a number alone is seconds."
"""The sentence of every help text that has it."""
EXAMPLES: Final = "30s, 10m or 1h30m"

MOST: Final = 64
"""Most characters: a file may hold anything."""
LONGEST_DAYS: Final = 1000
"""Longest time of an option that is not ``inf``: a longer one is a slip."""

_SECONDS: Final = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_NUMBER: Final = r"(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?"
_PLAIN: Final = re.compile(_NUMBER, re.ASCII)
_PART: Final = re.compile(rf"({_NUMBER})(ns|us|µs|ms|s|m|h|d)", re.ASCII)


def parse(text: str) -> float | None:
    """Return the seconds, from 0 on and finite; None for anything else."""
    word = text.strip()
    if len(word) > MOST:
        return None
    if _PLAIN.fullmatch(word):
        found = float(word)
    else:
        parts = _PART.findall(word)
        if not parts or "".join(number + unit for number, unit in parts) != word:
            return None
        sizes = [_SECONDS[unit] for _, unit in parts]
        if any(small >= large for large, small in pairwise(sizes)):
            return None
        found = math.fsum(float(number) * _SECONDS[unit] for number, unit in parts)
    return found if math.isfinite(found) else None


def time(text: str) -> float:
    """The type of an option with a :data:`METAVAR`. ``inf`` is accepted, too. Raises ``ValueError``, which the parser
    words by the name of this function, or ``ArgumentTypeError`` for a time that is too long.
    """
    return math.inf if text.strip().lower() in ("inf", "infinity") else _limited(text)


def whole_seconds(text: str) -> int:
    """As :func:`time`, without ``inf`` and rounded up: for programs that read whole seconds."""
    return math.ceil(_limited(text))


def _limited(text: str) -> float:
    found = parse(text)
    if found is None:
        raise ValueError(text)
    if found > LONGEST_DAYS * _SECONDS["d"]:
        raise argparse.ArgumentTypeError(f"{text!r} is longer than {LONGEST_DAYS} days")
    return found


whole_seconds.__name__ = time.__name__  # errors name the type
