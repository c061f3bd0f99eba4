"""Lines in, news out, and nothing that waits."""

from __future__ import annotations

import os

from hypothesis import given
from hypothesis import strategies as st

from hvd_elastic_ext.agent.descriptors import FULL, Lines, Outbox


@given(st.lists(st.binary(max_size=20)), st.integers(1, 7))
def test_lines_come_out_whole_however_they_were_cut(pieces: list[bytes], size: int) -> None:
    data = b"\n".join(pieces)
    lines = Lines(100)
    read = [line for at in range(0, len(data), size) for line in lines.feed(data[at : at + size])]
    assert read == data.split(b"\n")[:-1]


@given(st.integers(1, 30))
def test_a_line_that_is_too_long_is_said_once_and_the_next_is_read(size: int) -> None:
    data = b"good\n" + b"x" * 50 + b"\ngood again\n"
    lines = Lines(10)
    read = [line for at in range(0, len(data), size) for line in lines.feed(data[at : at + size])]
    assert read == [b"good", None, b"good again"]


def test_a_reader_that_went_away_costs_the_news_and_nothing_else() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    outbox = Outbox(writer)
    outbox.put("output", text="x" * FULL)
    outbox.write()
    assert outbox.empty
    outbox.put("output", text="y")
    assert outbox.empty
    assert not outbox.full
    os.close(writer)
