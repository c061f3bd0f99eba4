"""Makes text of strangers (servers, programs, other users) harmless where it is shown: it cannot drive a terminal."""

from __future__ import annotations

import logging
from typing import Final

KEPT: Final = frozenset("\n\t")
"""Characters that stay although they are not printable: lines of several rows are meant as such."""
_ESCAPES: Final = {"\r": "\\r", "\x1b": "\\e"}


def printable(text: str) -> str:
    """Return ``text`` with each character that does not print, but line ends and tabs, as an escape such as ``\\x07``.

    So nothing clears a screen, moves the cursor, or hides a part of a line.
    """
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() or each in KEPT else _escaped(each) for each in text)


def one_line(text: str, *, most: int) -> str:
    """Return ``text`` printable, in one line of at most ``most`` characters. The end of a long one is cut."""
    line = " ".join(printable(text[: 4 * most]).split())
    return line if len(line) <= most else f"{line[: most - 1]}…"


class PrintableFormatter(logging.Formatter):
    """Formats records so that nothing in them drives a terminal."""

    def format(self, record: logging.LogRecord) -> str:
        """The formatted record, printable."""
        return printable(super().format(record))


def _escaped(character: str) -> str:
    return _ESCAPES.get(character) or character.encode("unicode_escape").decode("ascii")
