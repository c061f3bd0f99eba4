"""Scripts with several training calls: a process that comes later, or again, skips those that are over."""

from __future__ import annotations

import os
import re
import signal
import sys
from pathlib import Path
from typing import Final

import pytest

from tests.contract.comms.conftest import without_mpi
from tests.integration.launcher.conftest import Launched

FOLDS: Final = Path(__file__).with_name("folds.py")
RESULT: Final = re.compile(r"rank (\d) call (\d) (result .*)")
pytestmark = pytest.mark.timeout(300)
QUICK: Final = ("--settle", "0.2", "--blacklist-cooldown-range", "1", "2", "--min-np", "1")


def results(output: str) -> dict[str, set[str]]:
    """By call, what was printed of it: one line, however many processes printed it."""
    found: dict[str, set[str]] = {}
    for _, call, text in RESULT.findall(output):
        found.setdefault(call, set()).add(text)
    return found


def kill(launched: Launched, pid: int, *, after: int) -> None:
    """Kill a process after that many more lines about steps and commits."""
    lines = len(launched.events("committed", "stepped"))
    launched.wait_for("some steps", lambda: len(launched.events("committed", "stepped")) > lines + after)
    os.kill(pid, signal.SIGKILL)


def run(launched: Launched, kind: str, *options: str, kill_in: str | None, use: str = "ours") -> str:
    """Run the script, kill rank 1 in a call, and return the output."""
    launched.set_hosts("localhost:2")
    with launched.run(*QUICK, *options, "-np", "2", "env", f"USE={use}", sys.executable, str(FOLDS), kind) as process:
        if kill_in is not None:
            begins = re.compile(rf"rank 1 pid (\d+) begins call {kill_in}")
            launched.wait_for("the call", lambda: begins.search(process.stdout))
            found = begins.search(process.stdout)
            assert found is not None
            kill(launched, int(found[1]), after=8)
        assert process.wait(180) == 0, process.output
        return process.output


mpi = pytest.mark.skipif(without_mpi() is not None, reason=str(without_mpi()))
OTHERS = [
    pytest.param("stock", ("--adopt",), id="adopt"),
    pytest.param("engine", ("--engine", "torch"), id="torch"),
    pytest.param("engine", ("--engine", "torchrun"), id="torchrun"),
    pytest.param("engine", ("--engine", "mpirun"), id="mpirun", marks=mpi),
]


@pytest.mark.soak
@pytest.mark.parametrize(("use", "options"), OTHERS)
def test_a_process_that_is_killed_in_a_later_fold_comes_back_in_that_fold(
    launched: Launched, use: str, options: tuple[str, ...]
) -> None:
    """With Horovod and our State: see the test of the newcomer."""
    found = results(run(launched, "folds", *options, kill_in="2", use=use))
    assert found == {call: {text} for call, text in expected("folds").items()}
    assert [each.get("size") for each in launched.events("resized")][-1] == 2


@pytest.mark.soak
@pytest.mark.parametrize(("use", "options"), [pytest.param("ours", (), id="horovod"), *OTHERS])
def test_a_process_that_is_killed_while_fine_tuning_comes_back_with_what_pretraining_left(
    launched: Launched, use: str, options: tuple[str, ...]
) -> None:
    found = results(run(launched, "tune", *options, kill_in="2", use=use))
    assert found == {call: {text} for call, text in expected("tune").items()}


def test_a_newcomer_on_another_host_catches_up_before_it_interrupts_the_others_and_so_does_one_that_was_killed(
    launched: Launched,
) -> None:
    launched.set_hosts("localhost:1")
    with launched.run(*QUICK, "-np", "1", "env", "USE=ours", sys.executable, str(FOLDS), "folds") as process:
        # The last call goes on until there are two: whoever comes now is in no earlier one.
        launched.wait_for("the last call", lambda: "begins call 3" in process.stdout)
        launched.set_hosts("localhost:1", "127.0.0.1:1")
        launched.wait_for("a world of both", lambda: len(launched.events("resized")) == 2)
        kill(launched, launched.pids()["127.0.0.1"], after=8)
        assert process.wait(180) == 0, process.output
        output = process.output
    assert results(output) == {call: {text} for call, text in expected("folds").items()}
    assert len(RESULT.findall(output)) == 3 + 2 + 3  # both newcomers printed the results of what was over, too
    first, joined, left, back = launched.events("resized")[:4]
    assert [each.get("size") for each in (first, joined, left, back)] == [1, 2, 1, 2]
    assert (joined.get("call"), joined.get("cause")) == (3, "hosts added")
    assert back.get("call") == 3
    skipped = launched.events("call_skipped")
    assert [each.get("call") for each in skipped] == [1, 2, 1, 2]
    # All this time the other one trains: it is interrupted once, when the newcomer is in its call.
    ready = next(each for each in launched.events("parked") if each.get("host") == "127.0.0.1")
    assert skipped[1].mono < ready.mono < joined.mono
    assert [(each.get("call"), each.get("kept")) for each in launched.events("call_ended")] == [(1, True), (2, True)]


ENGINES = [
    pytest.param("torchrun", marks=pytest.mark.soak),
    pytest.param("mpirun", marks=[pytest.mark.soak, mpi]),
]


@pytest.mark.parametrize("engine", ENGINES)
def test_a_newcomer_has_the_results_before_a_world_of_new_processes_begins(launched: Launched, engine: str) -> None:
    launched.set_hosts("localhost:1")
    script = ("env", "USE=engine", sys.executable, str(FOLDS), "folds")
    with launched.run(*QUICK, "--engine", engine, "-np", "1", *script) as process:
        launched.wait_for("the second call", lambda: "begins call 2" in process.stdout)
        launched.set_hosts("localhost:1", "127.0.0.1:1")
        assert process.wait(180) == 0, process.output
    assert results(process.stdout) == {call: {text} for call, text in expected("folds").items()}
    assert [each.get("size") for each in launched.events("resized")] == [1, 2]


@pytest.mark.parametrize("engine", ENGINES)
def test_a_call_whose_result_is_not_kept_is_trained_again_in_a_world_of_new_processes(
    launched: Launched, monkeypatch: pytest.MonkeyPatch, engine: str
) -> None:
    monkeypatch.setenv("UNFIT", "1")
    output = run(launched, "folds", "--engine", engine, kill_in="2", use="engine")
    found = {call: {text.partition(" drawn")[0] for text in texts} for call, texts in results(output).items()}
    assert found == {call: {text.partition(" drawn")[0]} for call, text in expected("folds").items()}
    assert {each.get("kept") for each in launched.events("call_ended")} == {False}
    assert "each world from now on trains it again" in output
    assert not launched.events("call_skipped")


@pytest.mark.soak
def test_the_example_of_the_docs_runs_as_it_is(launched: Launched) -> None:
    text = (Path(__file__).parents[3] / "docs/state.md").read_text().partition("## Several training functions")[2]
    (launched.directory / "kfold.py").write_text(text.partition("```python\n")[2].partition("```")[0])
    with launched.run("-np", "2", "kfold.py", source=("-H", "localhost:2")) as process:
        assert process.wait(180) == 0, process.output
    [losses] = re.findall(r"losses \[(.*)\]", process.stdout)
    assert len(losses.split(",")) == 5


def expected(kind: str) -> dict[str, str]:
    """What one process alone computes, without Horovod."""
    import torch

    def trained(call: int, net: torch.nn.Sequential) -> str:
        optimizer = torch.optim.SGD(net.parameters(), 0.01, momentum=0.9)
        for epoch in range(30):
            x = torch.randn(8, 4, generator=torch.Generator().manual_seed(call * 1000 + epoch)) + call
            optimizer.zero_grad()
            net(x).pow(2).mean().backward()
            optimizer.step()
        whole = sum(parameter.double().sum().item() for parameter in net.parameters())
        bias = ",".join(f"{each:.9f}" for each in net[-1].bias.detach())  # type: ignore[union-attr]
        return f"result {whole:.9f} {bias} drawn {torch.randperm(1000)[:2].tolist() if call == 1 else '-'}"

    with torch.random.fork_rng():
        if kind == "folds":
            found = {}
            for fold in range(3):
                torch.manual_seed(fold)
                found[str(fold + 1)] = trained(fold + 1, torch.nn.Sequential(torch.nn.Linear(4, 1)))
            return found
        torch.manual_seed(0)
        body = torch.nn.Sequential(torch.nn.Linear(4, 4))
        first = trained(1, body)
        return {"1": first, "2": trained(2, torch.nn.Sequential(body[0], torch.nn.Linear(4, 2)))}
