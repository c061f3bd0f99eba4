"""Unmodified scripts, with ``--adopt``."""

from __future__ import annotations

from pathlib import Path

import pytest

from hvd_elastic_ext.core.messages.rank_info import Place
from tests.integration.launcher.conftest import Launched
from tests.integration.standby.small_launcher import HERE, Job


def test_an_unmodified_script_that_is_adopted_consumes_each_sample_once_though_a_rank_is_killed(job: Job) -> None:
    first, second = (
        job.start(host, HERE / "unmodified.py", plan=Place(rank, 2, 0, 1, rank, 2), env={"HVD_ELASTIC_ADOPT": "1"})
        for rank, host in enumerate(("alpha", "beta"))
    )
    job.live(first, second)
    first.wait_step(size=2, more=9)
    second.process.kill()
    job.form(first)
    assert first.process.wait(40) == 0, first.process.output
    assert first.process.stdout.splitlines()[-1].split() == [
        *("samples", "240", "240"),
        *("hvd_elastic_ext.torch", "hvd_elastic_ext.worker.data.sampler"),
    ]
    steps = [step for step, _, _ in first.steps()]
    assert len(first.heard("done")) == 1
    assert [message["event"] for message in first.heard("record")].count("rolled_back") == 1
    assert first.beats[-1]["step"] == steps[-1]
    assert first.beats[-1]["commit"][1] == 2


ORDERS = (
    ("horovod.torch", "hvd_elastic_ext.torch"),
    ("hvd_elastic_ext.torch", "horovod.torch"),
    ("hvd_elastic_ext.worker.stock", "hvd_elastic_ext.torch"),
)
"""What a script imports first. Each process of a job takes one that is left."""
IMPORTS = f"""
import importlib, os
for number, names in enumerate({ORDERS}):
    try:
        os.mkdir(f"order-{{number}}")
    except FileExistsError:
        continue
    break
for name in names:
    importlib.import_module(name)
import horovod.torch as hvd, hvd_elastic_ext.torch as ours
from horovod.torch.mpi_ops import mpi_lib
adopted = hvd.elastic.TorchState is ours.TorchState and hvd.elastic.run is ours.run
print("order", number, "adopted", adopted, "around", mpi_lib.around_wait.__qualname__)
"""


@pytest.mark.parametrize(
    "adopt", [pytest.param((), id="as it is", marks=pytest.mark.soak), pytest.param(("--adopt",), id="adopted")]
)
def test_waits_for_other_ranks_are_timed_and_a_script_is_adopted_whatever_is_imported_first(
    adopt: tuple[str, ...], tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(IMPORTS)
    launched = Launched(tmp_path)
    launched.set_hosts(f"localhost:{len(ORDERS)}")
    with launched.run("-np", len(ORDERS), *adopt, "train.py") as process:
        assert process.wait(90) == 0, process.output
    for number in range(len(ORDERS)):
        assert f"order {number} adopted {bool(adopt)} around StepTimer.waiting" in process.stdout
