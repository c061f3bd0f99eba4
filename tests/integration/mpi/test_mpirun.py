"""Jobs that mpirun starts."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from hvd_elastic_ext.worker.comms import NO_SECOND_WORLD
from tests.contract.comms.conftest import without_mpi
from tests.support import tensorflow
from tests.support.processes import run_process
from tests.support.tensorflow import needs_tensorflow

HERE = Path(__file__).parent
AVERAGES = HERE.parent / "worker/alone.py"
WITH_TENSORFLOW = HERE.parent / "with_tensorflow"

pytestmark = pytest.mark.skipif(without_mpi() is not None, reason=str(without_mpi()))


def mpirun(ranks, *command, **env):
    start = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-np", str(ranks), sys.executable]
    return run_process([*start, *command], env={"OMP_NUM_THREADS": "1", **env})


@pytest.mark.soak
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("script", "remedy"),
    [
        ("alone.py", "call elastic.init() instead of hvd.init()"),
        pytest.param("alone_tensorflow.py", "start it with hvd-elastic run", marks=needs_tensorflow),
    ],
)
def test_horovod_without_mpi_under_mpirun_is_an_error_that_says_how_to_mend_it(script, remedy):
    with mpirun(2, HERE / script) as job:
        code = job.wait(timeout=240)
    if "horovod's world: 0 1" not in job.stdout:
        pytest.skip("needs a Horovod without MPI: scripts/setup --without-mpi")
    assert code != 0
    assert "mpirun started 2 processes" in job.output
    assert remedy in job.output
    assert "or build Horovod --with-mpi" in job.output
    assert "training alone" not in job.output


@pytest.fixture
def of_tensorflow(tmp_path):
    """What the scripts of ``with_tensorflow`` need."""
    if not tensorflow.has_mpi():
        pytest.skip("needs a Horovod with MPI: scripts/setup --with tensorflow --with-mpi")
    return {"USE": "ours", "MARKS": str(tmp_path), "OMPI_MCA_mpi_yield_when_idle": "1"}


@pytest.mark.soak
@needs_tensorflow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("script", ["loop.py", "fit.py"])
def test_a_script_of_tensorflow_trains_and_commits_under_mpirun_and_ends_with_the_numbers_of_one_process(
    of_tensorflow, script
):
    found = []
    for ranks in (2, 1):
        with mpirun(ranks, WITH_TENSORFLOW / script, BATCHES="12", EPOCHS="1", **of_tensorflow) as job:
            assert job.wait(timeout=140) == 0, job.output
        found.append(re.findall(r"rank \d of \d result .*", job.stdout))
    (together, alone) = found
    assert len(together) == 2
    assert {line.replace("of 2", "of 1").replace("rank 1", "rank 0") for line in together} == set(alone)


@pytest.mark.soak
@needs_tensorflow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("how", ["RAISES_AT", "DIES_AT"])
def test_a_rank_of_tensorflow_that_ends_alone_ends_the_job_and_the_others_say_why(of_tensorflow, how):
    with mpirun(2, WITH_TENSORFLOW / "loop.py", **of_tensorflow, **{how: "7"}) as job:
        assert job.wait(timeout=240) != 0
    assert "five batches are done" in job.stdout
    assert "result" not in job.stdout
    assert "MPI_FINALIZE" not in job.output
    assert ("RuntimeError: there are no labels for batch 7" in job.stderr) == (how == "RAISES_AT")
    # mpirun ends the others itself where one was killed.
    assert (NO_SECOND_WORLD in job.stderr) == (how == "RAISES_AT")


@pytest.mark.parametrize("how", [pytest.param("raise", marks=pytest.mark.soak), "kill"])
def test_a_rank_that_ends_alone_ends_the_job_and_nobody_waits(how):
    with mpirun(2, HERE / "broken.py", how) as job:
        assert job.wait(timeout=60) != 0
    assert job.stdout.count("training") == 2
    assert "went on" not in job.output
    assert ("a mistake in the script" in job.stderr) == (how == "raise")


ASKS_ALONE = (
    "import runpy, sys; from hvd_elastic_ext.worker.comms import current_world as c; c.init('mpi'); "
    "alone = c.rank() == 1 and c.local_rank(); c.joined().max(0, name='all'); "
    "sys.stdout.write(f'asked {c.rank()} {alone}\\n'); "  # as one string: both ranks write
    "del sys.argv[0]; runpy.run_path(sys.argv[0], run_name='__main__')"
)
EPOCHS, EVERY = 1, 8


@pytest.fixture(scope="module")
def averaging_job(tmp_path_factory):
    """The folder and the output of two ranks of DiLoCo, of which one asks something alone at first."""
    folder = tmp_path_factory.mktemp("averaging")
    (folder / "hurry").touch()
    with mpirun(2, "-c", ASKS_ALONE, AVERAGES, folder, str(EPOCHS), str(EVERY), "DiLoCo") as job:
        assert job.wait(timeout=120) == 0, job.output
    return folder, job.stdout


def test_a_rank_may_ask_alone_for_its_number_on_its_machine(averaging_job):
    _, stdout = averaging_job
    assert "asked 1 1" in stdout


def test_ranks_of_mpirun_train_alone_between_averages_and_end_equal_with_each_sample_once(averaging_job):
    folder, stdout = averaging_job
    assert len(re.findall(r"weights (\w+)", stdout)) == 2
    assert len(set(re.findall(r"weights (\w+)", stdout))) == 1
    ranks = [[line.split() for line in file.read_text().splitlines()] for file in folder.glob("*.alone")]
    assert len(ranks) == 2
    taken = [sample for lines in ranks for line in lines if line[0] == "step" for sample in line[4].split(",")]
    assert sorted(map(int, taken)) == list(range(720))
    for lines in ranks:
        kinds = [line[0] for line in lines]
        assert kinds[: EVERY + 2] == ["step"] * EVERY + ["average", "step"]
        assert {line[1] for line in lines if line[0] == "average"} == {"2"}
    first, second = ([line[2] for line in lines if line[0] == "step"] for lines in ranks)
    assert not set(first) & set(second), "between two averages they differ"


@pytest.mark.soak
def test_mpi_without_mpirun_is_a_world_of_one(tmp_path):
    code = (
        "from hvd_elastic_ext.worker.comms import current_world as c; c.init('mpi'); "
        "print(c.rank(), c.size(), c.local_rank())"
    )
    with run_process([sys.executable, "-c", code]) as job:
        assert job.wait(timeout=60) == 0
    assert job.stdout.split() == ["0", "1", "0"]
