"""Stock Horovod over a trace: what goes on in place, what waits for newcomers, and what is lost, is arithmetic."""

from __future__ import annotations

from hvd_elastic_ext.simulate import options
from hvd_elastic_ext.simulate.cluster.times import Times
from hvd_elastic_ext.simulate.in_place import in_place
from hvd_elastic_ext.simulate.versus import Restarted
from hvd_elastic_ext.simulate.traces.rows import parsed

TIMES = Times(step_s=1.0, every=8, agent_s=5.0, boot_s=10.0, join_s=2.0, sync_s=1.0, load_s=2.0, write_s=0.0)
START_S, CHANGE_S = 20.0, 3.0
UP = "time,host,event,notice,slots\n0,a,up,,2\n0,b,up,,2\n"


def played(rows: str, **given: object) -> Restarted:
    trace = parsed(UP + rows, where="trace")
    return in_place(trace, options.settings({"min_num_proc": 1, "checkpoint_every": "100s", **given}, trace), TIMES)


def test_told_of_a_host_the_others_go_on_without_a_start_and_lose_nothing() -> None:
    result = played("1000,b,down,100\n2000,a,crash,,\n2001,a,down,,\n")
    assert (result.lost, result.downtime_s) == ((2000 - 900 - CHANGE_S) % 8, CHANGE_S + 1.0)
    assert result.kept == 4 * (900 - START_S) + 2 * (2000 - 900 - CHANGE_S - result.lost)


def test_what_is_not_committed_is_done_again_when_a_host_goes_without_notice() -> None:
    result = played("900,b,down,,\n2000,a,down,100\n")
    assert result.lost == (900 - START_S) % 8 == 0
    assert played("903,b,down,,\n2000,a,down,100\n").lost == 3


def test_a_host_that_comes_stops_all_until_its_processes_have_booted() -> None:
    result = played("1000,c,up,,4\n2000,c,down,100\n")
    assert result.downtime_s == 10.0 + CHANGE_S
    assert result.kept == 4 * (1005 - START_S) + 8 * (1900 - 1015) + 4 * (2000 - 1900 - CHANGE_S)


def test_without_a_holder_of_a_commit_all_start_again_from_the_checkpoint() -> None:
    result = played("950,a,down,,\n950,b,down,,\n940,c,up,,4\n3000,c,down,100\n".replace("940", "951"))
    assert result.lost == (950 - START_S) % 100 == 30
    assert result.kept == 4 * 900 + 4 * (2900 - 956 - 15)
