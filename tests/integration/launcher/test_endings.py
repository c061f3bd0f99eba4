"""How jobs end whose scripts have nothing of ours: what failed has failed, what is done is not trained again."""

from __future__ import annotations

import os
import re
import signal
import sys
from pathlib import Path

import pytest
import torch

from hvd_elastic_ext import cli
from tests.contract.comms.conftest import without_mpi
from tests.integration.launcher.conftest import Launched
from tests.support import marks
from tests.support.pages import Answer, page, read_back, read_in_browser
from tests.support.waiting import wait_until

SCRIPT, LEAVER = (Path(__file__).with_name(name) for name in ("loopless.py", "leaver.py"))
PLAIN, STOCK = ([sys.executable, str(SCRIPT), kind] for kind in ("plain", "stock"))
QUICK = ("-np", "2", "--min-np", "1", "--settle", "0.2", "--blacklist-cooldown-range", "1", "2")


def shown(launched: Launched) -> list[tuple[int, int, int]]:
    """Step, rank and size of each step so far."""
    found = re.findall(r"step (\d+) rank (\d+) size (\d+)", launched.process.stdout)
    return [(int(step), int(rank), int(size)) for step, rank, size in found]


def reached(launched: Launched, number: int, *, size: int) -> None:
    launched.wait_for(
        f"step {number} of {size}", lambda: any(step >= number and of == size for step, _, of in shown(launched))
    )


def kill(launched: Launched, *hosts: str) -> None:
    for pid in [launched.pids()[host] for host in hosts]:
        os.kill(pid, signal.SIGKILL)


def test_a_rank_that_fails_as_the_others_finish_training_fails_the_job(
    launched: Launched, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SAVES", "0")
    monkeypatch.setenv("STEPS", "5")
    launched.set_hosts("localhost:2")
    with launched.run(*QUICK, *STOCK) as process:
        assert process.wait(90) == 1, process.output
    finished = launched.events("finished")[-1]
    assert finished.get("reason").startswith("localhost[0] crashed: exit code 1: OSError: [Errno 28] No space left on")
    assert finished.generation >= 1, "a line has the number of the world in which it was written"


@pytest.mark.parametrize(("end", "how"), [("exit 7", "exit code 7"), ("kill -SEGV $$", "killed by SIGSEGV")])
def test_one_failed_program_of_several_fails_the_job(launched: Launched, end: str, how: str) -> None:
    launched.set_hosts("localhost:2")
    half = launched.directory / "half.sh"
    half.write_text(f"mkdir half.lock 2>/dev/null && {end}\nsleep 1\nexit 0\n")
    with launched.run("-np", "2", "--state-dir", launched.directory / "state", "bash", str(half)) as process:
        assert process.wait(60) == 1, process.output
    assert not (launched.directory / "state" / "key").exists()  # nothing is left that would need it
    reason = launched.events("finished")[-1].get("reason")
    assert re.fullmatch(rf"rank \d on localhost\[\d\] crashed: {how}; 1 of 2 processes ended well", reason)


FAILING = """
import sys
import horovod.torch as hvd
import torch
hvd.init()
if hvd.rank() == 1:
    sys.exit(3)
for number in range(1000):
    hvd.allreduce(torch.ones(1), name=f"step.{number}")
"""


@pytest.mark.soak
def test_a_rank_that_fails_at_each_start_ends_the_job_after_three_and_is_named(launched: Launched) -> None:
    launched.set_hosts("localhost:2")
    (launched.directory / "train.py").write_text(FAILING)
    # A cooldown between the starts would be longer than the test.
    options = ("-np", "2", "--blacklist-cooldown-range", "600", "600")
    with launched.run(*options, sys.executable, "train.py") as process:
        assert process.wait(100) == 1, process.output
    reason = launched.events("finished")[-1].get("reason")
    assert reason.startswith("rank 1 on localhost[1] crashed: exit code 3")
    assert reason in process.stderr.splitlines()[-1]
    ends = [(record.get("slot"), record.get("cause")) for record in launched.events("exited")]
    assert [cause for slot, cause in ends if slot == 1] == ["crashed"] * 3
    assert {cause for slot, cause in ends if slot == 0} <= {"peer lost", "told to leave"}
    assert {record.get("subject") for record in launched.events("struck")} == {"slot 1 of localhost"}


def leaver(*words: str, budget: int = 0) -> tuple[str, ...]:
    options = ("-np", "2", "--failure-budget", str(budget), "--blacklist-cooldown-range", "1", "2")
    return (*options, sys.executable, str(LEAVER), *words)


soak, mpi = pytest.mark.soak, pytest.mark.skipif(without_mpi() is not None, reason=str(without_mpi()))
ALL_LEAVE = [
    pytest.param((), "quit", id="quit"),
    pytest.param((), "os", id="os"),
    pytest.param((), "late", id="late"),
    pytest.param(("--adopt",), "exit plain", id="adopt-exit"),
    pytest.param(("--adopt",), "os plain", id="adopt-os"),
    pytest.param((), "exit plain", id="stock-exit"),
    pytest.param((), "os plain", id="stock-os"),
    pytest.param(("--engine", "torchrun"), "exit", id="torchrun-exit"),
    pytest.param(("--engine", "torchrun"), "os", id="torchrun-os"),
    pytest.param(("--engine", "mpirun"), "exit", id="mpirun-exit", marks=mpi),
    pytest.param(("--engine", "mpirun"), "late-os", id="mpirun-late-os", marks=mpi),
]
"""With our State by ``sys.exit``: see the test of the last checkpoint."""


def check_all_left(launched: Launched) -> None:
    output = launched.process.stdout
    assert output.count("begins at 0") == 2
    assert "begins at 6" not in output
    assert "all ranks left the training function with exit code 0" in launched.process.stderr
    assert [record.get("code") for record in launched.events("exited")] == [0, 0]
    assert launched.events("finished")[-1].get("code") == 0


@soak
@pytest.mark.parametrize(("options", "how"), ALL_LEAVE)
def test_training_is_done_when_all_ranks_leave_the_process_within_the_training_function(
    launched: Launched, options: tuple[str, ...], how: str
) -> None:
    launched.set_hosts("localhost:2")
    with launched.run(*options, *leaver(*how.split())) as process:
        assert process.wait(90) == 0, process.output
    check_all_left(launched)


@pytest.mark.parametrize(("how", "extra"), [("changed", 17), pytest.param("os", 0, marks=soak)])
def test_when_all_ranks_leave_training_is_done_and_the_last_checkpoint_is_what_they_had_then(
    launched: Launched, how: str, extra: int
) -> None:
    launched.set_hosts("localhost:2")
    stored = launched.directory / "checkpoints"
    with launched.run("--checkpoint-dir", stored, "--checkpoint-every", "notice", *leaver(how)) as process:
        assert process.wait(90) == 0, process.output
    check_all_left(launched)
    assert "training is done; step 6 is in" in process.stderr
    exported = launched.directory / "exported.pt"
    assert cli.main(["checkpoints", "export", str(stored), "--to", str(exported)]) == 0
    kept = torch.load(exported, weights_only=True)
    assert (kept["step"], kept["extra"]) == (6, extra)
    with launched.run("--checkpoint-dir", stored, *leaver(how)) as process:
        assert process.wait(60) == 0, process.output
    assert "begins" not in process.stdout


@pytest.mark.soak
def test_one_rank_that_leaves_is_replaced_and_the_first_time_a_line_says_how_to_end_training(
    launched: Launched,
) -> None:
    launched.set_hosts("localhost:2")
    with launched.run(*leaver("one", budget=9)) as process:
        launched.wait_for("the second replacement", lambda: len(launched.events("spawned")) >= 4)
        process.terminate()
        assert process.wait(60) == 143, process.output
    advice = "To end training, let all ranks leave at the same step, or return from the training function"
    first_start = process.stderr.index("localhost slot 0 starts a process")
    assert process.stderr.index(advice) < first_start
    assert process.stderr.count(advice) == 1
    assert {record.get("cause") for record in launched.events("exited")[:2]} == {"left"}
    assert not launched.events("struck")


@pytest.mark.soak
def test_ranks_that_leave_after_a_sigterm_to_one_of_them_are_replaced(launched: Launched) -> None:
    launched.set_hosts("localhost:2")
    with launched.run(*leaver("term", budget=9)) as process:
        launched.wait_for("replacements", lambda: len(launched.events("spawned")) >= 4)
        process.terminate()
        assert process.wait(60) == 143, process.output
    assert "it got a SIGTERM" in process.stderr


@pytest.mark.soak
def test_a_script_without_a_loop_is_done_once_whatever_host_is_added(launched: Launched) -> None:
    launched.set_hosts("localhost:1", "127.0.0.1:1")
    with launched.run(*QUICK, *PLAIN) as process:
        reached(launched, 5, size=2)
        launched.set_hosts("localhost:1", "127.0.0.1:1", "127.0.0.2:1")
        launched.wait_for("what is said of it", lambda: launched.events("not_resized"))
        (launched.directory / "stop").touch()
        assert process.wait(60) == 0, process.output
    assert {size for _, _, size in shown(launched)} == {2}
    assert [number for number, rank, _ in shown(launched) if rank == 0].count(0) == 1
    assert process.stderr.count("no process has begun an elastic loop") == 1
    assert len(launched.events("resized")) == 1


def test_a_job_of_which_nothing_is_left_fails_and_says_what_would_have_kept_it(launched: Launched) -> None:
    launched.set_hosts("localhost:1")
    with launched.run(*QUICK, "-np", "1", *STOCK) as process:
        reached(launched, 30, size=1)
        kill(launched, "localhost")
        assert process.wait(60) == 1, process.output
    assert "no process is left that has trained" in process.stderr
    assert "--adopt, keeps commits when processes die" in process.stderr
    assert len(launched.events("resized")) < 3


@pytest.mark.soak
def test_with_restart_from_scratch_a_job_starts_from_the_beginning(launched: Launched) -> None:
    launched.set_hosts("localhost:1", "127.0.0.1:1")
    with launched.run(*QUICK, "--restart-from-scratch", *STOCK) as process:
        reached(launched, 30, size=2)
        kill(launched, "localhost", "127.0.0.1")
        launched.wait_for("a beginning", lambda: launched.events("training_restarted"))
        (launched.directory / "stop").touch()
        assert process.wait(90) == 0, process.output
    (begun,) = launched.events("training_restarted")
    assert begun.get("number") == 1
    assert begun.get("steps_lost") >= 5


@pytest.mark.soak
def test_a_returning_host_of_rank_0_does_not_restart_the_training_of_all(launched: Launched) -> None:
    launched.set_hosts("localhost:1", "127.0.0.1:1")
    with launched.run(*QUICK, *STOCK) as process:
        reached(launched, 10, size=2)
        kill(launched, "localhost")
        reached(launched, 10, size=1)  # it may be back soon
        launched.wait_for("its return", lambda: shown(launched)[-1][2] == 2)
        (launched.directory / "stop").touch()
        assert process.wait(60) == 0, process.output
    steps = [step for step, _, _ in shown(launched)]
    assert steps.count(0) == 2


@pytest.mark.soak
def test_with_adopt_training_continues_after_all_processes_are_killed(launched: Launched) -> None:
    launched.set_hosts("localhost:1", "127.0.0.1:1")
    with launched.run(*QUICK, "--adopt", *STOCK) as process:
        reached(launched, 30, size=2)
        kill(launched, "localhost", "127.0.0.1")
        reached(launched, 60, size=2)
        (launched.directory / "stop").touch()
        assert process.wait(60) == 0, process.output
    steps = [step for step, _, _ in shown(launched)]
    assert steps.count(0) == 2


@pytest.mark.soak
def test_a_script_that_ends_while_there_is_no_launcher_ends_the_job_under_the_next_one(
    launched: Launched, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAILS", "0")
    launched.set_hosts("localhost:1", "127.0.0.1:1")
    options = (*QUICK, "--state-dir", launched.directory / "state")
    with launched.run(*options, *PLAIN) as first:
        reached(launched, 5, size=2)
        workers = [record.get("pid") for record in launched.events("spawned")]
        first.kill()
        (launched.directory / "stop").touch()
        wait_until(lambda: not any(map(marks.start_time, workers)), what="the ends of both ranks")
        with launched.run(*options, *PLAIN) as second:
            assert second.wait(60) == 1, second.output
    assert "step 0 " not in second.stdout
    assert "1 of 2 processes ended well" in launched.events("finished")[-1].get("reason")


@pytest.mark.soak
def test_ranks_that_wait_for_one_with_fewer_steps_are_reported(
    launched: Launched, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEWER", "1")
    launched.set_hosts("localhost:1", "127.0.0.1:1")
    with launched.run(*QUICK, *STOCK) as process:
        launched.wait_for("what is said of it", lambda: launched.events("stalled"))
        process.terminate()
        assert process.wait(60) == 143
    (stalled,) = launched.events("stalled")
    assert stalled.get("finished") == [1]
    said = "rank 1 (127.0.0.1[0]) has finished training, and rank 0 (localhost[0]) has waited for it for "
    assert said in process.stderr


@pytest.mark.parametrize("engine", ["horovod", pytest.param("torchrun", marks=soak)])
def test_an_error_before_training_that_is_the_same_everywhere_ends_the_job_at_once(
    launched: Launched, engine: str
) -> None:
    (launched.directory / "train.py").write_text("import nowhere_to_be_found\n")
    launched.set_hosts("localhost:1", "127.0.0.1:1")
    # One that has failed much sooner than the other is not to be back before that.
    options = ("--blacklist-cooldown-range", "600", "600", "--output-filename", launched.directory / "output")
    with launched.run(*QUICK, *options, "--engine", engine, sys.executable, "train.py") as process:
        assert process.wait(60) == 1, process.output
    spawned = launched.events("spawned")
    assert max(sum(each.get("host") == other.get("host") for other in spawned) for each in spawned) == 1
    error = "No module named 'nowhere_to_be_found'"
    assert error in launched.events("finished")[-1].get("reason")
    # Either may have failed first, or both in one look: the page names one of them.
    do = page(launched.journal)["now"]["do"]
    assert any(f"Install on {host} " in do for host in ("localhost", "127.0.0.1")), do
    why = Answer("", error, "Install on ", output=error)
    read_back(launched.journal, why)
    read_in_browser(launched.journal, why, folder=launched.directory)


def test_a_script_that_is_nowhere_is_found_out_by_the_page(launched: Launched) -> None:
    launched.set_hosts("localhost:1", "127.0.0.1:1")
    options = ("--blacklist-cooldown-range", "600", "600", "--output-filename", launched.directory / "output")
    with launched.run(*QUICK, *options, sys.executable, "nowhere.py") as process:
        assert process.wait(60) == 1, process.output
    why = Answer("", "exit code 2", "Correct the command", output="can't open file")
    read_back(launched.journal, why)
    read_in_browser(launched.journal, why, folder=launched.directory)


def test_a_line_of_another_programs_hosts_file_is_told_by_the_page_with_what_to_write(launched: Launched) -> None:
    launched.hosts.write_text("localhost slots=2\n")
    with launched.run(*QUICK, sys.executable, "train.py") as process:
        assert process.wait(60) == 2, process.output
    now = page(launched.journal)["now"]
    assert (
        "'localhost slots=2' is a line for mpirun or --hostfile; write localhost:2. No world was formed." in now["text"]
    )
    assert now["do"].startswith("Fix what the reason names")
