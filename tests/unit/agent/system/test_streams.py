"""Lines in, news out, and nothing that waits."""

from __future__ import annotations

import json
import os
import select
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hvd_elastic_ext.agent.system.streams import FULL, Lines, Outbox


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


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    reader, writer = os.pipe()
    yield reader, writer
    os.close(reader)
    os.close(writer)


def writable(descriptor: int) -> bool:
    poll = select.poll()
    poll.register(descriptor, select.POLLOUT)
    return any(flags & select.POLLOUT for _, flags in poll.poll(0))


def test_news_come_out_in_order_and_no_writing_ever_blocks(pipe: tuple[int, int]) -> None:
    reader, writer = pipe
    outbox = Outbox(writer)
    for number in range(50):
        outbox.put("output", text=f"{number} " + "x" * 9_000)  # far more than the pipe holds
    taken = b""
    while not outbox.empty:
        if writable(writer):
            outbox.write()
        else:
            taken += os.read(reader, 10_000)
    while select.select([reader], [], [], 0)[0]:
        taken += os.read(reader, 1 << 20)
    numbers = [json.loads(line)["text"].split()[0] for line in taken.splitlines()]
    assert numbers == [str(number) for number in range(50)]


def test_a_box_that_nobody_empties_says_that_it_is_full_and_keeps_everything(pipe: tuple[int, int]) -> None:
    outbox = Outbox(pipe[1])
    assert not outbox.full
    outbox.put("output", text="x" * FULL)
    assert outbox.full
    outbox.put("exited", slot=0)
    assert outbox.full
    assert not outbox.empty


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
