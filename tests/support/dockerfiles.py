"""Reads Dockerfiles, as far as this project's go."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).parents[2]


class Instruction(NamedTuple):
    """``COPY`` and ``a b ./``."""

    word: str
    rest: str


def instructions(path: Path) -> list[Instruction]:
    """Each instruction, lines put together, comments left out."""
    lines = [line for line in path.read_text(encoding="utf-8").splitlines() if not line.lstrip().startswith("#")]
    text = re.sub(r"\\\n\s*", " ", "\n".join(lines))
    return [Instruction(word, rest) for word, _, rest in (line.partition(" ") for line in text.splitlines() if line)]


def stages(path: Path) -> list[list[Instruction]]:
    """The same, a list for each ``FROM``."""
    found: list[list[Instruction]] = []
    for each in instructions(path):
        if each.word == "FROM":
            found.append([])
        if found:
            found[-1].append(each)
    return found
