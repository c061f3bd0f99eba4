"""``lines.txt``: all that the program says, as it was last agreed to."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tests.unit.words.texts import ROOT, as_file, texts_of_tree

FILE: Final = Path(__file__).with_name("lines.txt")
WRITE: Final = "python -m tests.unit.words --write"


def now(root: Path = ROOT) -> str:
    """What the file holds if it is written now."""
    return f"Written by `{WRITE}`: what the program says, by module. texts.py says what is in here.\n\n" + as_file(
        texts_of_tree(root)
    )


def differences(before: str, after: str) -> str:
    """The lines that differ, with - and +, below their modules; "" for none."""
    old, new = _modules(before), _modules(after)
    changed = [path for path in sorted({*old, *new}) if old.get(path) != new.get(path)]
    return "\n".join(line for path in changed for line in (path, *_changes(old.get(path, []), new.get(path, []))))


def _changes(old: list[str], new: list[str]) -> Iterator[str]:
    return (line for line in difflib.unified_diff(old, new, lineterm="", n=0) if line[:3] in ("-  ", "+  "))


def _modules(text: str) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    lines: list[str] = []
    for line in filter(None, text.splitlines()):
        if line.startswith(" "):
            lines.append(line)
        else:
            lines = found.setdefault(line, [])
    return found
