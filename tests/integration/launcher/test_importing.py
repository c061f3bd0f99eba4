"""A real job that goes on from what torch.save once wrote, until it has checkpoints of its own."""

from __future__ import annotations

import hashlib
import re
import signal
import sys
from pathlib import Path

import pytest
import torch

from tests.integration.launcher.conftest import Launched
from tests.support.processes import RunningProcess

CONTINUER = Path(__file__).with_name("continuer.py")
pytestmark = [pytest.mark.soak, pytest.mark.timeout(600)]


def old_checkpoint(path: Path) -> str:
    """Made by a script without any of this; the digest of what is in it."""
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.ones(1, 4)).sum().backward()
        optimizer.step()
    path.parent.mkdir(exist_ok=True)
    wrapped = {f"module.{key}": value for key, value in model.state_dict().items()}
    torch.save({"state_dict": wrapped, "optimizer": optimizer.state_dict(), "epoch": 40, "args": {"lr": 0.01}}, path)
    moments = optimizer.state_dict()["state"][0]["exp_avg"]
    return hashlib.sha256(model.weight.detach().numpy().tobytes() + moments.numpy().tobytes()).hexdigest()[:16]


def began(process: RunningProcess) -> dict[str, str]:
    return dict(re.findall(r"\[(\d+)\]<stdout>:began (.*)", process.output))


def test_all_ranks_start_from_a_file_that_one_rank_has(launched: Launched) -> None:
    files = launched.directory / "files"
    digest = old_checkpoint(files / "1.pt")
    launched.set_hosts("localhost:2")
    job = ["-np", 2, "--checkpoint-every", "notice", "--checkpoint-dir", launched.directory / "checkpoints"]
    job += ["--state-dir", launched.directory / "state", sys.executable, CONTINUER, files]
    with launched.run(*job) as first:
        launched.wait_for("both ranks", lambda: len(began(first)) == 2, timeout=200)
        said = {f"loaded={loaded} epoch=40 weights={digest} begun=0" for loaded in (True, False)}
        assert set(began(first).values()) == said
        launched.wait_for_steps(2)
        first.send_signal(signal.SIGTERM)
        assert first.wait(120) == 143, first.output
    [sealed] = launched.events("sealed")
    launched.journal.unlink()
    with launched.run(*job) as again:
        launched.wait_for("both ranks", lambda: len(began(again)) == 2, timeout=200)
        assert {text.split()[0] for text in began(again).values()} == {"loaded=False"}
        assert {text.split()[1] for text in began(again).values()} == {f"epoch={40 + sealed.get('step')}"}
        assert "1.pt is not loaded: training goes on after step" in again.output
        again.kill()


def test_a_checkpoint_file_that_no_rank_has_gives_one_line(launched: Launched) -> None:
    launched.set_hosts("localhost:2")
    job = ["-np", 2, "--state-dir", launched.directory / "state", sys.executable, CONTINUER, launched.directory]
    with launched.run(*job) as process:
        assert process.wait(200) == 1
        assert "no rank has it; give its path as it is on at least one host" in process.output
