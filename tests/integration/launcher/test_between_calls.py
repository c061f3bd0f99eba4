"""A process is lost between two training calls, or at the very end of one: nobody else is to blame, and the numbers are
those of a run in which nothing happens."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Final

import pytest

from tests.integration.launcher.conftest import Launched
from tests.integration.launcher.test_calls import QUICK, results
from tests.support.processes import RunningProcess

FOLDS: Final = Path(__file__).with_name("losing_folds.py")


def command(launched: Launched, *arguments: str, size: int, use: str = "ours") -> list[str]:
    marks = launched.directory / "marks"
    marks.mkdir()
    return ["env", f"USE={use}", f"MARKS={marks}", f"SIZE={size}", sys.executable, str(FOLDS), *arguments]


def ends_well(launched: Launched, process: RunningProcess, *, draws: bool = True) -> None:
    assert process.wait(120) == 0, process.output
    assert results(process.output) == {call: {text} for call, text in expected(draws=draws).items()}
    assert launched.events("struck")
    assert {each.get("cause") for each in launched.events("struck")} == {"crashed"}
    assert len({(each.get("host"), each.get("subject")) for each in launched.events("struck")}) == 1  # nobody else


def causes(launched: Launched) -> list[str]:
    """Why processes have ended before the job was done."""
    return sorted(cause for each in launched.events("exited") if (cause := each.get("cause")) != "done")


@pytest.mark.soak
@pytest.mark.parametrize("least", ["3", "1"])
def test_a_process_that_rolls_back_while_another_one_has_begun_the_next_call_catches_up(
    launched: Launched, least: str
) -> None:
    launched.set_hosts("localhost:3")
    script = command(launched, "end", size=3)
    with launched.run(*QUICK, "--min-np", least, "-np", "3", *script) as process:
        ends_well(launched, process)
    assert causes(launched) == ["behind", "crashed"]
    skipped = [(each.get("call")) for each in launched.events("call_skipped")]
    assert sorted(skipped) == [1, 1, 2, 2]  # by those that have started again
    calls = [(each.get("size"), each.get("call")) for each in launched.events("resized")]
    assert calls == ([(3, None), (3, 3)] if least == "3" else [(3, None), (1, 3), *calls[2:]])


@pytest.mark.soak
def test_with_horovods_own_state_no_process_trains_in_the_call_of_others(launched: Launched) -> None:
    launched.set_hosts("localhost:3")
    script = command(launched, "end", size=3, use="stock")
    why = "waits outside until the job ends: the result of call 1 was not kept"
    with launched.run(*QUICK, "-np", "3", *script) as process:
        launched.wait_for("the reason", lambda: why in process.output, timeout=120)
        (launched.directory / "marks" / "enough").touch()
        ends_well(launched, process)
    assert causes(launched)[:2] == ["behind", "crashed"]
    assert max(each.get("size") for each in launched.events("resized")[1:]) == 1
    ended = [(each.get("kept"), each.get("reason")) for each in launched.events("call_ended")]
    assert {(kept, reason.partition(";")[0]) for kept, reason in ended} == {(False, "its State is Horovod's own")}


@pytest.mark.soak
@pytest.mark.parametrize("use", ["ours", "stock"])
@pytest.mark.parametrize("kind", ["allreduce", "object"])
def test_survivors_of_a_loss_between_two_calls_are_victims_and_a_host_listed_meanwhile_joins_in_a_call(
    launched: Launched, kind: str, use: str
) -> None:
    launched.set_hosts("localhost:2")
    adopt = ("--adopt",) if use == "stock" else ()
    script = command(launched, kind, "listed", size=3, use=use)
    with launched.run(*QUICK, *adopt, "-np", "2", *script) as process:
        launched.wait_for("both to be between calls", lambda: (launched.directory / "marks" / "in-1").exists())
        launched.set_hosts("localhost:2", "127.0.0.1:1")
        launched.wait_for("the new host", lambda: any(e.get("host") == "127.0.0.1" for e in launched.events("spawned")))
        assert len(launched.events("resized")) == 1  # it waits for the loop
        (launched.directory / "marks" / "listed").touch()
        ends_well(launched, process, draws=False)
    # A call lasts 30 ms here: one that is called within it may find the others in the next one, and starts again.
    assert [cause for cause in causes(launched) if cause != "behind"] == ["crashed", "peer lost"]
    last = launched.events("resized")[-1]
    assert (last.get("size"), "127.0.0.1" in last.get("hosts")) == (3, True)
    assert re.search("HorovodInternalError", process.output)


def expected(*, draws: bool) -> dict[str, str]:
    """What one process alone computes, without Horovod."""
    import torch

    found = {}
    with torch.random.fork_rng():
        for call in (1, 2, 3):
            torch.manual_seed(call - 1)
            net = torch.nn.Linear(4, 1, dtype=torch.float64)
            optimizer = torch.optim.SGD(net.parameters(), 0.01, momentum=0.9)
            for epoch in range(10):
                generator = torch.Generator().manual_seed(call * 1000 + epoch)
                x = torch.randn(8, 4, generator=generator, dtype=torch.float64) + call
                optimizer.zero_grad()
                net(x).pow(2).mean().backward()
                optimizer.step()
            whole = sum(parameter.sum().item() for parameter in net.parameters())
            drawn = torch.randperm(1000)[:2].tolist() if call == 1 and draws else "-"
            found[str(call)] = f"result {whole:.9f} {net.bias.item():.9f} drawn {drawn}"
    return found
