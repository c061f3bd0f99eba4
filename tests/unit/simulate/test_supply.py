"""A simulated job that chooses its number of hosts, of those that a trace has."""

from __future__ import annotations

import io
import json

import pytest

from hvd_elastic_ext.core.errors import UsageError
from hvd_elastic_ext.simulate import options
from hvd_elastic_ext.simulate.cluster.times import Times
from hvd_elastic_ext.simulate.job import Result, Work, simulate
from hvd_elastic_ext.simulate.supply import Supply, check, first_hosts
from hvd_elastic_ext.simulate.table import of_job
from hvd_elastic_ext.simulate.traces.rows import Row, parsed

EIGHT = "time,host,event,notice,slots,price\n" + "".join(f"0,h{number},up,,1,1\n" for number in range(8))
QUICK = {"agent_s": 1.0, "boot_s": 5.0, "host_s": 20.0}
NONE_HELPS = Times(step_s=1.0, sizes={1: 1.0, 8: 7.9}, **QUICK)
ALL_HELP = Times(step_s=1.0, **QUICK)


def played(text: str, times: Times, policy: str, *, journal: io.StringIO | None = None, **given: object) -> Result:
    trace = parsed(text, where="trace")
    settings = options.settings({"min_num_proc": 1, "autoscale": policy, **given}, trace)
    return simulate(trace, settings, times, work=Work(), journal=journal)


def up(name: str, slots: int = 1) -> Row:
    return Row(0.0, name, "up", slots=slots)


def test_a_job_grows_while_hosts_pay_and_has_no_others() -> None:
    result = played(EIGHT + "2500,h7,down,,,\n", ALL_HELP, "efficiency", num_proc=2)
    assert result.sizes[-1] == 8
    assert result.failed is None
    assert "hosts asked for: " + " → ".join(map(str, result.sizes)) in of_job([result])
    fixed = played(EIGHT + "2500,h7,down,,,\n", ALL_HELP, "efficiency", num_proc=8)
    assert result.capacity < fixed.capacity <= 8 * 2500


def test_hosts_that_do_not_pay_are_given_back_and_cost_nothing_then() -> None:
    journal = io.StringIO()
    result = played(EIGHT + "2500,h7,down,,,\n", NONE_HELPS, "efficiency", num_proc=4, journal=journal)
    assert result.sizes[-1] == 1
    assert result.lost == 0
    assert result.cost < 0.5 * 4 * 2500 / 3600
    asked = [record for line in journal.getvalue().splitlines() if (record := json.loads(line))["event"] == "scaled"]
    assert [each["hosts"] for each in asked] == list(result.sizes)


def test_a_budget_is_kept_at_the_traces_prices() -> None:
    result = played(EIGHT + "1200,h0,price,,,4\n2500,h7,down,,,\n", ALL_HELP, "cost:per-hour=3", num_proc=1)
    assert result.sizes == (2, 3, 2, 3), "the dearest of three goes, and a cheap one comes for it"
    assert result.cost <= 3 * 2500 / 3600 + 0.5


def test_a_host_that_the_cluster_takes_away_is_replaced_by_another_one() -> None:
    rows = EIGHT + "1000,h0,down,60,,\n2500,h7,down,,,\n"
    result = played(rows, NONE_HELPS, "cost:per-hour=2,price=1,share=0", num_proc=2, min_num_proc=2)
    assert result.failed is None
    assert result.steps > 0.9 * 2500 / NONE_HELPS.step("", 2)


def test_those_that_go_go_first_and_free_hosts_come_for_missing_ones() -> None:
    supply = Supply(2, {name: up(name) for name in "abcd"})
    assert supply.more() == ["a", "b"]
    assert supply.asked(3, []) == []
    assert supply.more() == ["c"]
    assert supply.asked(2, ["a"]) == ["a"]
    supply.gone("b")
    assert supply.more() == ["a"]
    assert supply.asked(1, ["x"]) == ["a"]
    assert supply.sizes == [3, 2, 1]


def test_a_job_starts_with_as_many_hosts_as_its_processes_need() -> None:
    rows = [up("a", 4), up("b", 4), up("c", 4)]
    assert [first_hosts(rows, slots) for slots in (1, 4, 5, 12, 99)] == [1, 1, 2, 3, 3]


def test_a_policy_that_goes_by_what_no_simulation_knows_is_refused() -> None:
    check("threshold:iteration=0.5")
    with pytest.raises(UsageError, match="a simulation does not know cpu, only iteration, price"):
        check("threshold:iteration=0.5,cpu=0.8")
