"""Reads Dockerfiles, as far as this project needs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).parents[2]


class Instruction(NamedTuple):
    """One instruction, such as ``COPY`` and ``a b ./``."""

    word: str
    rest: str


def instructions(path: Path) -> list[Instruction]:
    """Return each instruction, with continued lines joined and without comments."""
    lines = [line for line in path.read_text(encoding="utf-8").splitlines() if not line.lstrip().startswith("#")]
    text = re.sub(r"\\\n\s*", " ", "\n".join(lines))
    return [Instruction(word, rest) for word, _, rest in (line.partition(" ") for line in text.splitlines() if line)]


def stages(path: Path) -> list[list[Instruction]]:
    """Return the instructions of each stage: a list for each ``FROM``."""
    found: list[list[Instruction]] = []
    for each in instructions(path):
        if each.word == "FROM":
            found.append([])
        if found:
            found[-1].append(each)
    return found
