"""Jobs that restart from their last checkpoint, or go on in place: what they lose is arithmetic."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hvd_elastic_ext.simulate import options
from hvd_elastic_ext.simulate.cluster.times import Times
from hvd_elastic_ext.simulate.traces.rows import parsed
from hvd_elastic_ext.simulate.versus import Restarted, in_place, restarted

TIMES = Times(step_s=1.0, agent_s=5.0, boot_s=10.0, join_s=2.0, sync_s=1.0, load_s=2.0, write_s=10.0)
COMMITTING = replace(TIMES, every=8, write_s=0.0)
"""Of jobs that go on in place."""
START_S, AGAIN_S, CHANGE_S = 20.0, 15.0, 3.0
"""The first start, one on hosts whose agents are there, and a change of a world that goes on."""
UP = "time,host,event,notice,slots\n0,a,up,,2\n0,b,up,,2\n"


def played(rows: str, rank_steps: int | None = None, **given: object) -> Restarted:
    trace = parsed(UP + rows, where="trace")
    return restarted(trace, options.settings(given, trace), TIMES, rank_steps=rank_steps)


def test_what_is_done_since_the_last_checkpoint_is_lost() -> None:
    result = played("1000,a,crash,,\n1020,a,crash,,\n1021,a,down,,\n", checkpoint_every="100s")
    whole = int((1000 - START_S) // 110)  # of 100 s of training and 10 s of writing each
    assert result.kept == 4 * whole * 100
    assert result.starts == 3


def test_hosts_that_come_are_taken_in_at_once_or_later_whichever_is_better() -> None:
    soon = played("1000,c,up,,4\n9000,c,crash,,\n", checkpoint_every="100s")
    assert soon.starts == 2
    late = played("8950,c,up,,4\n9000,c,crash,,\n", checkpoint_every="100s")
    assert late.starts == 1


def test_below_its_minimum_it_does_nothing() -> None:
    result = played("1000,b,down,,\n3000,b,up,,2\n4000,b,down,,\n", checkpoint_every="100s")
    assert result.starts == 2
    assert result.capacity == pytest.approx(4 * 1000 + 2 * 2000 + 4 * 1000)


def test_work_that_is_done_ends_it() -> None:
    result = played("10000,b,down,,\n", rank_steps=2000, checkpoint_every="100s")
    assert result.took_s == pytest.approx(START_S + 500 + 5 * 10)


def test_auto_is_the_best_interval_for_the_failures_of_the_trace() -> None:
    rows = "".join(f"{3600 * hour},a,crash,,\n" for hour in range(1, 20))
    best = played(rows, checkpoint_every="auto")
    assert best.interval_s == pytest.approx(270, rel=0.1)  # Young's sqrt(2 * 10 s * 1 h), a little more
    assert all(best.kept >= played(rows, checkpoint_every=f"{every}s").kept for every in (60, 1200))


def test_told_of_a_host_that_will_go_it_saves_and_goes_on_without_it() -> None:
    told = played("1000,b,down,100\n2000,b,up,,2\n2001,b,down,,\n", checkpoint_every="2000s", min_num_proc=2)
    assert told.lost == 0
    assert told.kept == 4 * (900 - START_S) + 2 * (2001 - 900 - AGAIN_S)
    untold = played("900,b,down,,\n2000,b,up,,2\n2001,b,down,,\n", checkpoint_every="2000s", min_num_proc=2)
    assert untold.lost == 900 - START_S


def test_time_without_a_step_and_steps_done_again_are_told() -> None:
    result = played("1000,a,crash,,\n1500,a,crash,,\n2000,a,crash,,\n", checkpoint_every="100s")
    assert result.downtime_s == 2 * AGAIN_S
    assert result.done - result.kept == 4 * result.lost > 0
    assert played("1000,a,crash,,\n1500,a,down,,\n1520,b,down,,\n1600,b,up,,2\n1610,b,down,,\n").downtime_s > 110


def test_a_host_that_comes_disturbs_nobody_until_its_agent_has_started() -> None:
    grown = played("1000,c,up,,4\n9000,c,down,,\n", checkpoint_every="100s")
    assert grown.downtime_s == AGAIN_S
    assert grown.starts == 2


def stayed(rows: str, **given: object) -> Restarted:
    trace = parsed(UP + rows, where="trace")
    return in_place(
        trace, options.settings({"min_num_proc": 1, "checkpoint_every": "100s", **given}, trace), COMMITTING
    )


def test_told_of_a_host_the_others_go_on_without_a_start_and_lose_nothing() -> None:
    result = stayed("1000,b,down,100\n2000,a,crash,,\n2001,a,down,,\n")
    assert (result.lost, result.downtime_s) == ((2000 - 900 - CHANGE_S) % 8, CHANGE_S + 1.0)
    assert result.kept == 4 * (900 - START_S) + 2 * (2000 - 900 - CHANGE_S - result.lost)


def test_what_is_not_committed_is_done_again_when_a_host_goes_without_notice() -> None:
    result = stayed("900,b,down,,\n2000,a,down,100\n")
    assert result.lost == (900 - START_S) % 8 == 0
    assert stayed("903,b,down,,\n2000,a,down,100\n").lost == 3


def test_a_host_that_comes_stops_all_until_its_processes_have_booted() -> None:
    result = stayed("1000,c,up,,4\n2000,c,down,100\n")
    assert result.downtime_s == 10.0 + CHANGE_S
    assert result.kept == 4 * (1005 - START_S) + 8 * (1900 - 1015) + 4 * (2000 - 1900 - CHANGE_S)


def test_without_a_holder_of_a_commit_all_start_again_from_the_checkpoint() -> None:
    result = stayed("950,a,down,,\n950,b,down,,\n940,c,up,,4\n3000,c,down,100\n".replace("940", "951"))
    assert result.lost == (950 - START_S) % 100 == 30
    assert result.kept == 4 * 900 + 4 * (2900 - 956 - 15)
