"""Makes text of strangers (servers, programs, other users) harmless where it is shown: it cannot drive a terminal."""

from __future__ import annotations

import logging
from typing import Final

KEPT: Final = frozenset("\n\t")
"""Characters that stay although they are not printable: lines of several rows are meant as such."""
_LIMITS: Final = ("; at most ", "; no limit: ")
"""What the end of a wait begins with."""
_LEAST_REASON: Final = 16
"""This many characters of the reason of a wait stay, however long its end is."""
_BEGINNING: Final = 30
"""This many characters of its beginning stay before any of its end does."""
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


def fitting(line: str, columns: int) -> str:
    """Return ``line`` in ``columns`` characters, for a terminal. That of a wait is cut in the middle of its reason, so
    that how long it lasts at most, and what then follows, stay visible; of another line a short last part stays.
    """
    if len(line) <= columns:
        return line
    at = max(line.rfind(limit) for limit in _LIMITS)
    if at < 0 and ";" in line and len(line) - line.rfind(";") <= columns // 2:
        at = line.rfind(";")
    if at < 0:
        return line[:columns]
    reason, end = line[:at], line[at:]
    most = max(0, columns - min(len(reason), _LEAST_REASON))
    room = columns - min(len(end), most)
    return _cut(reason, room, first=max(room // 2, min(room - 1, _BEGINNING))) + _cut(end, most, first=most // 2)


def _cut(text: str, most: int, *, first: int) -> str:
    """``text`` in ``most`` characters, without its middle if it is longer: the ``first`` ones stay, and the last."""
    if len(text) <= most:
        return text
    first = max(0, first)
    return text[:first] + "…"[:most] + text[len(text) - max(0, most - first - 1) :]


class PrintableFormatter(logging.Formatter):
    """Formats records so that nothing in them drives a terminal."""

    def format(self, record: logging.LogRecord) -> str:
        """The formatted record, printable."""
        return printable(super().format(record))


def _escaped(character: str) -> str:
    return _ESCAPES.get(character) or character.encode("unicode_escape").decode("ascii")
