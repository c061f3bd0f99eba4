"""Which process reads the launcher's standard input, and when it is said that none does."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from hvd_elastic_ext.launcher.job.standard_input import StandardInput
from hvd_elastic_ext.launcher.membership.rendezvous import Seat

HERE, AWAY = Seat("localhost", 0), Seat("h2", 0)
HAS, HAS_NOT = {"stdin": True}, {"stdin": False}


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[int]:
    (tmp_path / "hosts").write_text("a:1\n")
    with (tmp_path / "hosts").open() as file:
        yield file.fileno()


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.message for record in caplog.records if record.levelno == logging.WARNING]


def test_the_first_process_that_starts_as_rank_0_reads_it_and_those_after_it_in_its_slot(
    hosts: int, caplog: pytest.LogCaptureFixture
) -> None:
    stdin = StandardInput.of(hosts)
    assert not stdin.goes_to(Seat("localhost", 1), rank=1, facts=HAS)
    assert stdin.goes_to(HERE, rank=0, facts=HAS)
    stdin.world_begins()
    assert not stdin.goes_to(Seat("localhost", 1), rank=0, facts=HAS)
    assert stdin.goes_to(HERE, rank=1, facts=HAS)
    assert not stdin.goes_to(HERE, rank=0, facts=HAS_NOT), "its agent is another one now"
    assert lines(caplog) == []
    stdin.close()


def test_one_line_says_that_a_host_elsewhere_has_none(hosts: int, caplog: pytest.LogCaptureFixture) -> None:
    stdin = StandardInput.of(hosts)
    for _ in range(2):
        assert not stdin.goes_to(AWAY, rank=0, facts={})
        stdin.world_begins()
    (line,) = lines(caplog)
    assert line.startswith("standard input is not passed on: rank 0 starts on h2, ")
    assert line.endswith("; let the script read a file that the host has")


@pytest.mark.parametrize("why_not", ["", "mpirun does not give it to any rank"])
def test_one_line_says_that_rank_0_runs_already_or_that_its_engine_has_none(
    why_not: str, hosts: int, caplog: pytest.LogCaptureFixture
) -> None:
    stdin = StandardInput.of(hosts, why_not=why_not)
    assert not why_not or not stdin.goes_to(HERE, rank=0, facts=HAS)
    stdin.world_begins()
    stdin.world_begins()
    (line,) = lines(caplog)
    assert (why_not or "rank 0 was started by an earlier launcher") in line


def test_nothing_is_said_where_nothing_was_given(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "empty").touch()
    reading, writing = os.pipe()
    with (tmp_path / "empty").open() as empty:
        for descriptor in (empty.fileno(), reading):
            stdin = StandardInput.of(descriptor)
            assert not stdin.goes_to(AWAY, rank=0, facts={})
            stdin.close()
            assert lines(caplog) == []
    os.write(writing, b"x")
    stdin = StandardInput.of(reading)
    stdin.goes_to(AWAY, rank=0, facts={})
    assert len(lines(caplog)) == 1
    assert os.read(reading, 10) == b"x", "the launcher itself reads nothing"
    os.close(reading)
    os.close(writing)


def test_a_terminal_the_null_device_and_what_is_closed_are_not_passed_on(tmp_path: Path) -> None:
    first, second = os.openpty()
    with open(os.devnull) as null:
        for descriptor in (first, second, null.fileno()):
            assert StandardInput.of(descriptor).descriptor is None
    os.close(first)
    os.close(second)
    assert StandardInput.of(second).descriptor is None
    folder = os.open(tmp_path, os.O_RDONLY)
    assert StandardInput.of(folder).descriptor is None
    os.close(folder)
