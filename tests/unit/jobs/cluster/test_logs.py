"""Lines of a job's output."""

from __future__ import annotations

from hvd_elastic_ext.jobs.cluster.logs import of_rank, split


def test_a_line_of_a_rank_begins_with_it() -> None:
    assert of_rank("[1]<stdout>:x\n", 1)
    assert of_rank("[1]<stderr>:x\n", 1)
    assert not any(of_rank(line, 1) for line in ("[10]<stdout>:x\n", "[1] x\n", "x [1]<stdout>:\n", "\n"))


def test_the_time_before_a_line_is_split_off() -> None:
    assert split("2026-01-01T00:00:00.1Z  a b\n") == ("2026-01-01T00:00:00.1Z", " a b\n")
    assert split("2026-01-01T08:00:00.100000000+08:00 a\n") == ("2026-01-01T08:00:00.100000000+08:00", "a\n")
    assert split("no time\n") == ("", "no time\n")
