"""Many steps as one event lead to what single steps lead to."""

from __future__ import annotations

import dataclasses

import pytest

from hvd_elastic_ext.simulate import options
from hvd_elastic_ext.simulate.cluster.times import Times
from hvd_elastic_ext.simulate.job import Result, simulate
from hvd_elastic_ext.simulate.traces.rows import parsed

TIMES = Times(step_s=0.5, every=4, agent_s=1.0, boot_s=5.0, join_s=0.5, sync_s=0.5, write_s=3.0)
UP = "time,host,event,notice,slots\n0,a,up,,2\n0,b,up,,1\n0,c,up,,1\n"
STORIES = {
    "nothing happens": "300,a,down,,\n",
    "a host goes without notice": "100.2,b,down,,\n200,a,crash,,\n",
    "a host goes with notice and comes back": "100,b,down,20,\n150,b,up,,1\n300,a,crash,,\n",
    "a process crashes": "80.1,a,crash,,\n200,c,down,,\n",
    "a host vanishes": "90,c,lost,,\n200,a,crash,,\n",
    "all but one go": "60,a,down,5,\n70,b,down,,\n200,c,crash,,\n",
}


@pytest.mark.parametrize("story", STORIES)
@pytest.mark.parametrize("given", [{}, {"checkpoint_every": "30s"}], ids=["", "with checkpoints"])
def test_strides_do_what_single_steps_do(story: str, given: dict[str, str]) -> None:
    one, many = (
        _played(STORIES[story], dataclasses.replace(TIMES, every_step=single), given) for single in (True, False)
    )
    assert many.worlds == one.worlds
    assert many.steps == pytest.approx(one.steps, abs=8)  # a world may be left one commit later
    assert many.goodput == pytest.approx(one.goodput, abs=0.02)
    assert many.checkpoints == pytest.approx(one.checkpoints, abs=1)
    assert many.events < one.events / 3


def _played(rows: str, times: Times, given: dict[str, str]) -> Result:
    trace = parsed(UP + rows, where="trace")
    return simulate(trace, options.settings({"min_num_proc": 1, **given}, trace), times)
