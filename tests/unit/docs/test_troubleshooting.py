"""docs/troubleshooting.md quotes what the program says."""

from __future__ import annotations

import functools
import re
from pathlib import Path

import pytest

from tests.unit.words.snapshot import FILE

ROOT = Path(__file__).parents[3]
TEXT = (ROOT / "docs/troubleshooting.md").read_text(encoding="utf-8")
VARIABLE = re.compile(r"…|: |\b\d+\b|\bb\b(?:\[0\])?")
"""Where the program puts texts together, and what differs among jobs: numbers, the host ``b``, what follows."""


@functools.cache
def said() -> str:
    """The texts of the program, with ``…`` for what is put in."""
    return re.sub(r"\{[^{}]*\}|%[sdg]|%\.\df", "…", FILE.read_text(encoding="utf-8"))


def quotes() -> list[str]:
    rows = [line for line in TEXT.splitlines() if line.startswith("|")]
    return [quote for row in rows for quote in re.findall('"([^"]+)"', row.split("|")[1])]


def test_the_quoted_messages_are_found() -> None:
    assert len(quotes()) > 20


@pytest.mark.parametrize("quote", quotes())
def test_every_quoted_line_is_one_that_the_program_has(quote: str) -> None:
    texts = said()
    parts = [part.strip(" ,;:()") for part in VARIABLE.split(quote)]
    parts = [part for part in parts if len(part) > 3]
    assert parts
    assert [part for part in parts if part not in texts] == []
