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


@pytest.mark.parametrize("adopt", [(), ("--adopt",)])
@pytest.mark.parametrize(
    "imports",
    [
        ["horovod.torch", "hvd_elastic_ext.torch"],
        ["hvd_elastic_ext.torch", "horovod.torch"],
        ["hvd_elastic_ext.worker.stock", "hvd_elastic_ext.torch"],
        ["horovod.torch"],
    ],
)
def test_waits_for_other_ranks_are_timed_whatever_is_imported_first(
    imports: list[str], adopt: tuple[str, ...], tmp_path: Path
) -> None:
    lines = [*(f"import {name}" for name in imports), "from horovod.torch.mpi_ops import mpi_lib"]
    (tmp_path / "train.py").write_text("\n".join([*lines, "print('around', mpi_lib.around_wait.__qualname__)"]))
    launched = Launched(tmp_path)
    launched.set_hosts("localhost:1")
    with launched.run("-np", "1", *adopt, "train.py") as process:
        assert process.wait(60) == 0, process.output
    assert "around StepTimer.waiting" in process.stdout


def test_a_script_that_imports_ours_before_horovod_can_be_adopted(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import hvd_elastic_ext.torch as ours\n"
        "import horovod.torch as hvd\n"
        "print('adopted', hvd.elastic.TorchState is ours.TorchState, hvd.elastic.run is ours.run)\n"
    )
    launched = Launched(tmp_path)
    launched.set_hosts("localhost:1")
    with launched.run("-np", "1", "--adopt", "train.py") as process:
        assert process.wait(60) == 0, process.output
    assert "adopted True True" in process.stdout
