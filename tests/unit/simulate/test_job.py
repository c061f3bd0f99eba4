"""A simulated job: the driver's decisions in virtual time, and what its hosts' time went to."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path

import pytest

from hvd_elastic_ext.simulate import options
from hvd_elastic_ext.simulate.cluster.times import Times
from hvd_elastic_ext.simulate.job import Result, Work, simulate
from hvd_elastic_ext.simulate.traces.rows import parsed

TIMES = Times(step_s=1.0, agent_s=2.0, boot_s=10.0, join_s=1.0, sync_s=1.0, write_s=5.0)
UP = "time,host,event,notice,slots\n0,a,up,,2\n0,b,up,,2\n"


def played(text: str, *, times: Times = TIMES, work: Work | None = None, seed: int = 0, **given: object) -> Result:
    trace = parsed(text, where="trace")
    return simulate(trace, options.settings(given, trace), times, work=work, seed=seed)


def test_every_slot_second_is_in_one_category() -> None:
    result = played(
        UP + "600,b,down,60,\n900,b,up,,2\n1200,a,crash,,\n2000,b,down,,\n",
        min_num_proc=1,
    )
    assert sum(result.slot_seconds.values()) == pytest.approx(4 * 600 + 2 * 300 + 4 * 1100)
    assert all(value >= -1e-6 for value in result.slot_seconds.values()), result.slot_seconds


def test_a_job_that_nothing_disturbs_trains_but_for_its_start() -> None:
    result = played(UP + "10000,b,down,,\n")
    assert result.worlds == 1
    assert result.slot_seconds["boot"] == pytest.approx(4 * 12.0, abs=1.0)
    assert result.goodput > 0.998
    assert result.kept == result.done == 4 * result.steps


def test_steps_since_the_last_commit_are_lost_with_a_host_and_counted_so() -> None:
    result = played(
        UP + "1000.5,b,down,,\n1500,b,up,,2\n2000,b,down,,\n",
        times=Times(step_s=1.0, every=50, boot_s=10.0),
        min_num_proc=1,
    )
    assert result.rollbacks == 1
    lost = result.done - result.kept
    assert 0 < lost <= 2 * 4 * 50  # each time at most what was done since a commit
    assert result.slot_seconds["rollback"] >= lost * 1.0


def test_ranks_that_average_go_on_after_a_loss_and_follow_a_notice_at_the_next_step() -> None:
    trace = UP + "1000.5,b,lost,,\n1500,b,up,,2\n2010,b,down,20,\n2600,a,crash,,\n"
    found = [
        played(trace, times=Times(step_s=1.0, every=64, averages=averages, boot_s=10.0), min_num_proc=1)
        for averages in (0.0, 1.0)
    ]
    together, alone = found
    assert together.done - together.kept > 64
    assert alone.done == alone.kept
    assert (alone.rollbacks, alone.worlds) == (0, together.worlds)
    assert alone.kept > together.kept


def test_a_host_with_notice_costs_no_step() -> None:
    result = played(UP + "1000.5,b,down,120,\n2000,a,crash,,\n", min_num_proc=1)
    assert result.done == result.kept


def test_a_host_that_is_back_as_soon_as_it_has_gone_is_used_again() -> None:
    result = played(UP + "1000,b,down,120,\n1000,b,up,,2\n9000,a,crash,,\n", min_num_proc=1)
    assert result.slot_seconds["unused"] < 2 * 200.0
    assert result.kept > 4 * 8500


def test_below_its_minimum_a_job_waits_and_fails_after_the_elastic_timeout() -> None:
    text = UP + "500,b,down,,\n5000,a,crash,,\n"
    waits = played(text, elastic_timeout_s=10000.0)
    assert waits.failed is None
    assert waits.slot_seconds["below_min"] == pytest.approx(2 * 4500, rel=0.01)
    fails = played(text, elastic_timeout_s=100.0)
    assert fails.failed is not None
    assert "--elastic-timeout" in fails.failed
    assert fails.slot_seconds["over"] == pytest.approx(2 * 4400, rel=0.02)


def test_a_job_sleeps_below_its_minimum_and_goes_on_from_its_checkpoint() -> None:
    text = UP + "1000,b,down,,\n5000,b,up,,2\n9000,b,down,,\n"
    result = played(text, below_min="sleep", checkpoint_every="100s")
    assert result.sleeps >= 1
    assert result.failed is None
    assert result.slot_seconds["asleep"] == pytest.approx(2 * 4000, rel=0.05)
    assert result.kept > 4 * 4500  # before and after


def test_work_that_is_done_ends_the_job() -> None:
    result = played(UP + "10000,b,down,,\n", work=Work(rank_steps=4000))
    assert result.kept == 4000
    assert result.took_s == pytest.approx(1000 + 15, abs=20)


def test_a_checkpoint_that_slows_steps_costs_what_it_costs() -> None:
    slowed = Times(step_s=1.0, boot_s=10.0, write_s=50.0, slowed=0.1)
    result = played(UP + "5000,b,down,,\n", times=slowed, checkpoint_every="100s")
    share = result.slot_seconds["checkpoint"] / result.capacity
    assert 0.3 * 0.1 < share < 0.6 * 0.1  # about half of the time, by a tenth
    assert result.checkpoints > 30


def test_hosts_of_another_kind_hold_up_the_others() -> None:
    times = Times(step_s=1.0, boot_s=10.0, kinds={"slow": {"step_s": 2.0}})
    text = "time,host,event,kind\n0,a,up,\n0,b,up,slow\n1000,b,down,\n"
    result = played(text, times=times)
    assert result.slot_seconds["uneven"] / result.capacity == pytest.approx(0.25, abs=0.01)  # a waits half of its time


def test_a_host_that_vanishes_is_found_by_its_silence() -> None:
    found = played(UP + "1000,b,lost,,\n2000,a,crash,,\n", min_num_proc=1)
    gone = played(UP + "1000,b,down,,\n2000,a,crash,,\n", min_num_proc=1)
    assert found.slot_seconds["rollback"] > gone.slot_seconds["rollback"] + 2 * 2.0  # a stands still meanwhile
    assert found.worlds == gone.worlds


def test_slots_are_paid_for_while_they_are_there() -> None:
    result = played(UP + "3600,b,down,,\n7200,a,crash,,\n", min_num_proc=1, work=Work(price=0.5))
    assert result.cost == pytest.approx(0.5 * (4 + 2))


def test_the_same_seed_gives_the_same_result_and_another_one_another() -> None:
    text = UP + "1000,b,down,,\n1300,b,up,,2\n3000,a,crash,,\n4000,b,down,60,\n"
    times = Times(boot_s=20.0, spread=0.3)
    one, same, other = (played(text, times=times, seed=seed, min_num_proc=1) for seed in (1, 1, 2))
    assert one == same
    assert one.slot_seconds != other.slot_seconds


def test_a_result_does_not_depend_on_how_python_orders_sets_and_torch_is_not_loaded_for_it() -> None:
    code = (
        "import sys\nfrom hvd_elastic_ext.cli import main\n"
        "code = main(['simulate', *sys.argv[1:]])\nassert 'torch' not in sys.modules\nsys.exit(code)"
    )
    words = ["--synthetic", "mtbf=2h,hosts=6,slots=2,days=0.3,untold=0.4", "--min-np", "2", "--json"]
    command, here = [sys.executable, "-c", code, *words], Path(__file__).parents[3]
    outs = {
        subprocess.run(
            command, env={"PYTHONHASHSEED": seed, "PYTHONPATH": str(here)}, capture_output=True, check=True
        ).stdout
        for seed in ("0", "1", "77")
    }
    assert len(outs) == 1
    assert b"goodput" in outs.pop()


def test_the_journal_of_a_simulated_job_is_like_that_of_a_real_one() -> None:
    journal = io.StringIO()
    trace = parsed(UP + "1000,b,down,60,\n2000,a,crash,,\n", where="trace")
    simulate(trace, options.settings({"min_num_proc": 1}, trace), TIMES, journal=journal)
    events = [json.loads(line) for line in journal.getvalue().splitlines()]
    assert [each["cause"] for each in events if each["event"] == "resized"][:2] == ["start", "hosts removed"]


def test_a_spare_saves_a_world_and_its_time_has_a_name() -> None:
    text = UP + "0,c,up,,2\n1000,b,lost,,\n4000,a,crash,,\n"
    none, spare = (played(text, num_proc=4, min_num_proc=1, max_num_proc=4, spares=number) for number in ("0", "auto"))
    assert none.worlds == 3  # the others alone, then with the next host
    assert spare.worlds == 2
    assert spare.kept > none.kept
    assert none.slot_seconds["spare"] == 0.0
    assert spare.slot_seconds["spare"] == pytest.approx(2 * (1000 - 25), rel=0.05)
    assert sum(spare.slot_seconds.values()) == pytest.approx(sum(none.slot_seconds.values()))


def test_lost_steps_that_are_executed_again_as_they_were_take_the_time_of_any_others() -> None:
    text = UP + "1000.5,b,down,,\n2000,a,crash,,\n"
    assert played(text, min_num_proc=1, replay=True) == played(text, min_num_proc=1)
