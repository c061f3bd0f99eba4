"""Text of strangers where it is shown."""

from __future__ import annotations

import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hvd_elastic_ext.core.printable import PrintableFormatter, fitting, one_line, printable


@given(st.text())
def test_nothing_that_drives_a_terminal_is_left_and_the_rest_stays(text: str) -> None:
    shown = printable(text)
    assert all(each.isprintable() or each in "\n\t" for each in shown)
    if all(each.isprintable() or each in "\n\t" for each in text):
        assert shown == text


@given(st.text(), st.integers(1, 50))
def test_one_line_is_one_line_of_a_bounded_length(text: str, most: int) -> None:
    line = one_line(text, most=most)
    assert line.isprintable()
    assert len(line) <= most


SLOTS = "waiting: processes ready: 1, needed: 2; -np 2 is more than all hosts have (slots: 1); add a host"
FAILS = "; at most 595 s more, then the job fails (--elastic-timeout)"


@pytest.mark.parametrize(
    ("line", "columns", "shown"),
    [
        ("waiting: for b; at most 4 s more", 40, "waiting: for b; at most 4 s more"),
        ("waiting: for the hosts a, b and c; at most 4 s more", 40, "waiting: for the host…; at most 4 s more"),
        (f"{SLOTS}{FAILS}", 79, f"waiting: processes…{FAILS}"),
        (f"{SLOTS}{FAILS}", 100, f"waiting: processes ready: 1, n…dd a host{FAILS}"),
        (
            f"{SLOTS}; at most 5 s more, then it saves what memory holds and sleeps (--sleep-after)",
            79,
            "waiting: proces…; at most 5 s more, then it sav…olds and sleeps (--sleep-after)",
        ),
        (
            "waiting: for a; no limit: it ends when they are connected, or one has failed; look for a firewall",
            79,
            "waiting: for a; no limit: it ends when they ar… has failed; look for a firewall",
        ),
        ("world 1, size 2, step 1000, 12 steps/s", 20, "world 1, size 2, ste"),
        ("pod a: Pending: no node has room for it; started 5 s ago", 40, "pod a: Pending: no nod…; started 5 s ago"),
        ("a; which is longer than half of the columns", 20, "a; which is longer t"),
    ],
)
def test_a_line_that_is_too_long_for_the_terminal_keeps_until_when_and_what_then(
    line: str, columns: int, shown: str
) -> None:
    assert fitting(line, columns) == shown


@given(st.text() | st.text().map(lambda text: f"{text}; at most 4 s more, then the job fails"), st.integers(0, 100))
def test_a_line_fits_a_terminal_of_any_size(line: str, columns: int) -> None:
    found = fitting(line, columns)
    assert len(found) <= columns
    assert found == line or len(line) > columns


def test_controls_are_shown_as_escapes() -> None:
    assert printable("\x1b[2Jé\r\x07\x9b\u202e\n") == "\\e[2Jé\\r\\x07\\x9b\\u202e\n"


def test_a_log_is_printable_with_its_arguments_and_traceback() -> None:
    record = logging.LogRecord("x", logging.INFO, "x", 1, "pod %s", ("\x1b[2J",), None)
    assert PrintableFormatter("%(message)s").format(record) == "pod \\e[2J"
