"""Text of strangers where it is shown."""

from __future__ import annotations

import logging

from hypothesis import given
from hypothesis import strategies as st

from hvd_elastic_ext.core.printable import PrintableFormatter, one_line, printable


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


def test_controls_are_shown_as_escapes() -> None:
    assert printable("\x1b[2Jé\r\x07\x9b\u202e\n") == "\\e[2Jé\\r\\x07\\x9b\\u202e\n"


def test_a_log_is_printable_with_its_arguments_and_traceback() -> None:
    record = logging.LogRecord("x", logging.INFO, "x", 1, "pod %s", ("\x1b[2J",), None)
    assert PrintableFormatter("%(message)s").format(record) == "pod \\e[2J"
