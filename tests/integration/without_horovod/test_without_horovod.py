"""An environment that has no Horovod trains under torch, torchrun and mpirun, discovers hosts and reports."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

from tests.contract.comms.conftest import without_mpi
from tests.integration.anywhere.script_runs import QUIET, assert_finished_alike, events, script
from tests.integration.without_horovod.conftest import Environment, JobWithoutHorovod
from tests.support.ports import free_port
from tests.support.processes import run_process

pytestmark = pytest.mark.timeout(300)
needs_mpi = pytest.mark.skipif(without_mpi() is not None, reason=str(without_mpi()))
ELASTIC = "hvd_elastic_ext.cli"


def test_the_environment_of_these_tests_has_no_horovod_and_all_else(environment: Environment, tmp_path: Path) -> None:
    program = (
        "from importlib.util import find_spec as find; import hvd_elastic_ext.torch, torch; print(find('horovod'))"
    )
    assert environment.execute("-c", program, cwd=tmp_path) == "None\n"


@pytest.mark.soak
@pytest.mark.parametrize("engine", ["torch", "torchrun"])
def test_a_job_of_torch_grows_without_losing_a_step_and_its_reports_work(
    job: JobWithoutHorovod, environment: Environment, tmp_path: Path, engine: str
) -> None:
    job.set_hosts("a:1")
    durable = ("--checkpoint-dir", "ck", "--checkpoint-every", "20")
    with job.run(*job.words(engine, *durable, count=1_000_000, processes=1)):
        assert job.wait_for_world(1) == 0
        job.set_hosts("a:1", "b:1")
        grown_at = job.wait_for_world(2)
        known = [record.get("step") for record in job.events("committed", "stepped") if record.get("size") == 1]
        assert grown_at == max(known)
        done = re.findall(r"done count=(\d+) fingerprint=(\w+)", job.stop())
    assert len(done) == 2
    assert len(set(done)) == 1
    assert [record.get("cause") for record in job.events("resized")] == ["start", "hosts added"]

    assert "hosts added" in environment.run(ELASTIC, "events", job.journal, cwd=tmp_path)
    assert "no host is blocked" in environment.run(ELASTIC, "hosts", "list", "--state-dir", "state", cwd=tmp_path)
    assert done[0][0] in environment.run(ELASTIC, "checkpoints", "list", "ck", cwd=tmp_path)
    environment.run(ELASTIC, "checkpoints", "export", "ck", "--to", "out.pt", cwd=tmp_path)
    assert (tmp_path / "out.pt").stat().st_size > 0


@pytest.mark.soak
@needs_mpi
def test_a_job_of_mpirun_trains_to_its_end(job: JobWithoutHorovod) -> None:
    job.set_hosts("a:1", "b:1")
    with job.run(*job.words("mpirun", count=40, processes=2)) as process:
        assert process.wait(200) == 0, process.output
    done = re.findall(r"done count=(\d+) fingerprint=(\w+)", process.stdout)
    assert [count for count, _ in done] == ["40", "40"]
    assert len(set(done)) == 1


@pytest.mark.soak
@needs_mpi
def test_the_same_script_runs_under_plain_mpirun_and_torchrun_and_alone(
    environment: Environment, tmp_path: Path
) -> None:
    python = str(environment.python)
    torchrun = ["-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", str(free_port())]
    ways = {
        "mpirun": (2, ["mpirun", "--allow-run-as-root", "--oversubscribe", "-np", "2", python]),
        "torchrun": (2, [python, *torchrun]),
        "alone": (1, [python]),
    }
    for name, (ranks, start) in ways.items():
        folder = tmp_path / name
        folder.mkdir()
        with run_process([*start, *script(folder, steps=60, pause=0)], env=QUIET) as process:
            assert process.wait(timeout=100) == 0, process.output
        assert_finished_alike(events(folder, "done"), ranks=ranks, steps=60)


def test_what_needs_horovod_is_refused_in_one_line_that_says_how_to_get_it(
    environment: Environment, tmp_path: Path
) -> None:
    def refused(*options: str) -> str:
        said = environment.run(ELASTIC, "run", "-np", "1", *options, "true", cwd=tmp_path, code=2)
        # What a slow start says on a busy machine comes before it.
        return "".join(line for line in said.splitlines(keepends=True) if not line.startswith("hvd-elastic: starting"))

    said = refused()
    assert said.startswith("hvd-elastic run: Horovod is not installed, and --engine horovod, the default, needs it")
    assert "hvd-elastic build-horovod" in said
    assert "--engine torch, torchrun or mpirun" in said
    assert said.count("\n") == 1
    assert not (tmp_path / ".hvd-elastic").exists()
    said = refused("--log-level", "DEBUG", "--check-build")
    assert said == "hvd-elastic run: --check-build: Horovod is not installed on this machine\n"
    environment.run(ELASTIC, "run", "-np", "1", "--engine", "torchrun", "--log-level", "DEBUG", "true", cwd=tmp_path)


def test_a_script_that_asks_for_horovods_world_is_told_what_is_missing(
    environment: Environment, tmp_path: Path
) -> None:
    program = tmp_path / "train.py"
    program.write_text("import hvd_elastic_ext.torch as elastic\nelastic.TorchState(step=0, comms='horovod')\n")
    with run_process([environment.python, program]) as process:
        assert process.wait(60) == 1
    assert "comms='horovod': Horovod is not installed; hvd-elastic build-horovod" in process.output


def test_daemon_and_doctor_need_no_horovod(environment: Environment, tmp_path: Path) -> None:
    environment.run(
        "discover.cli", "--source", "static", "--hosts", "a:1", "--once", "--hosts-file", "hosts", cwd=tmp_path
    )
    assert (tmp_path / "hosts").read_text() == "a:1\n"
    said = environment.run(ELASTIC, "doctor", "--local", "--json", cwd=tmp_path)
    assert '"what": "Horovod is not installed"' in said
    assert sys.prefix not in said


def test_a_simulation_needs_no_horovod(environment: Environment, tmp_path: Path) -> None:
    said = environment.run(
        ELASTIC, "simulate", "--synthetic", "hosts=8", "--min-np", "4", "--work", "20000", "--json", cwd=tmp_path
    )
    assert json.loads(said)["jobs"][0]["kept"] == 20_000
