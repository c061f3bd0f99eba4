"""Only checkpoints are left of a job with several training calls: the same command goes on in the call in progress."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any, Final

import pytest
import torch

from hvd_elastic_ext.checkpoint.format.manifest import RESULTS
from hvd_elastic_ext.checkpoint.programs import cli
from tests.contract.comms.conftest import without_mpi
from tests.integration.launcher.conftest import Launched
from tests.integration.launcher.test_checkpoints import lose_everything

THREE_CALLS: Final = Path(__file__).with_name("three_calls.py")


ENGINES: Final = [
    "horovod",
    "torchrun",
    pytest.param("mpirun", marks=pytest.mark.skipif(without_mpi() is not None, reason=str(without_mpi()))),
]


def job(launched: Launched, engine: str, state: str, *, pause_s: float) -> list[object]:
    where = ["--state-dir", launched.directory / state, "--checkpoint-dir", launched.directory / "checkpoints"]
    quick = ["--engine", engine, "--settle", "0.2", "-np", "2", "--checkpoint-every", "4"]
    return [*quick, *where, "env", f"PAUSE_S={pause_s}", sys.executable, THREE_CALLS]


def expected() -> dict[str, str]:
    """What one process alone computes, without Horovod."""
    found = {}
    with torch.random.fork_rng():
        for call in (1, 2, 3):
            torch.manual_seed(call)
            model = torch.nn.Linear(4, 1)
            optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
            for at in range(20):
                x = torch.randn(8, 4, generator=torch.Generator().manual_seed(100 * call + at))
                optimizer.zero_grad()
                (model(x) - call).pow(2).mean().backward()
                optimizer.step()
            found[str(call)] = f"{sum(each.double().sum().item() for each in model.parameters()):.9f}"
    return found


def listed(launched: Launched, capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    capsys.readouterr()
    assert cli.main(["list", str(launched.directory / "checkpoints"), "--json"]) == 0
    return list(json.loads(capsys.readouterr().out))


@pytest.mark.soak
@pytest.mark.timeout(240)
@pytest.mark.parametrize("engine", ENGINES)
def test_a_job_of_which_only_checkpoints_are_left_goes_on_in_the_call_in_progress(
    launched: Launched, capsys: pytest.CaptureFixture[str], tmp_path: Path, engine: str
) -> None:
    launched.set_hosts("localhost:2")
    with launched.run(*job(launched, engine, "state", pause_s=0.5)):
        in_call_2 = lambda: any(record.get("call") == 2 for record in launched.events("sealed"))  # noqa: E731
        launched.wait_for("a checkpoint in the second call", in_call_2)
        lose_everything(launched)
    newest = next(entry for entry in listed(launched, capsys) if entry["whole"])
    assert (newest["call"], newest["resumable"]) == (2, True)

    with launched.run(*job(launched, engine, "another state", pause_s=0)) as again:
        assert again.wait(90) == 0, again.output
    [resumed] = launched.events("resumed")
    assert (resumed.get("call"), resumed.get("step")) == (2, newest["step"])
    done = set(re.findall(r"did step (\d+) of call (\d)", again.output))
    first = newest["step"] - 20 + 1
    assert done == {*((str(step), "2") for step in range(first, 21)), *((str(step), "3") for step in range(1, 21))}
    found = set(re.findall(r"rank (\d) call (\d) result (\S+)", again.output))
    assert found == {(rank, call, value) for rank in "01" for call, value in expected().items()}

    end = listed(launched, capsys)[0]
    assert (end["call"], "finished" in end["facts"]) == (3, True)
    where, to = str(launched.directory / "checkpoints"), tmp_path / "first.pt"
    assert len(list(Path(where, RESULTS).iterdir())) == 3
    assert cli.main(["verify", where]) == 0
    assert cli.main(["export", where, "--to", str(to), "--call", "1"]) == 0
    weights = torch.load(to, weights_only=True)["model"].values()
    assert f"{sum(each.double().sum().item() for each in weights):.9f}" == expected()["1"]
