"""Jobs that succeed: their last state is their newest checkpoint, and the same command says so."""

from __future__ import annotations

import json

import pytest

from hvd_elastic_ext.checkpoint.programs import cli
from tests.integration.launcher.conftest import Launched
from tests.integration.launcher.test_checkpoints import job, results, sealed_steps, stored


@pytest.mark.soak
def test_a_job_with_save_and_load_functions_ends_in_a_last_checkpoint_and_may_train_on(
    launched: Launched, capsys: pytest.CaptureFixture[str]
) -> None:
    launched.set_hosts("localhost:2")
    command = [*job(launched, steps=73, every="50"), "own"]
    with launched.run(*command) as first:
        assert first.wait(110) == 0, first.output
        assert set(results(first)) == {"0", "1"}
    assert stored(launched, capsys)[0]["step"] == 73
    to = launched.directory / "files"
    assert cli.main(["export", str(launched.directory / "checkpoints"), "--to", str(to)]) == 0
    assert json.loads((to / "progress.json").read_text()) == {"count": 73}
    with launched.run("--train-on", *command) as on:
        assert on.wait(110) == 0, on.output
        assert set(results(on)) == {"0", "1"}
        assert launched.events("resumed")[-1].get("step") == 73
        assert on.stdout.count("loaded 73\n") == 2


@pytest.mark.soak
def test_a_finished_job_is_recognised_by_its_checkpoints_alone(
    launched: Launched,
) -> None:
    launched.set_hosts("localhost:1")
    with launched.run(*job(launched, steps=400, every="notice", processes=1)) as first:
        launched.wait_for_steps(1)
        first.terminate()
        assert first.wait(110) == 143, first.output
    for number in range(2):
        with launched.run(*job(launched, steps=400, every="notice", processes=1, state=f"other-{number}")) as again:
            assert again.wait(110) == 0, again.output
            assert ("the job is done" in again.output) == (number == 1)
            assert ("done 400" in again.output) == (number == 0)


STOCK = """
import sys, time
import torch
import horovod.torch as hvd
{imports}
hvd.init()
model = torch.nn.Linear(4, 4)
optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.01), model.named_parameters())
state = {state}(model=model, optimizer=optimizer, count=0)

@hvd.elastic.run
def train(state):
    while state.count < 43:
        optimizer.zero_grad()
        model(torch.ones(1, 4)).sum().backward()
        optimizer.step()
        state.count += 1
        if state.count % 10 == 0:
            state.commit()
        time.sleep(0.02)

train(state)
"""


@pytest.mark.soak
@pytest.mark.parametrize(
    ("imports", "state", "options"),
    [
        ("", "hvd.elastic.TorchState", ("--adopt",)),
        ("import hvd_elastic_ext.torch as elastic", "elastic.TorchState", ()),
    ],
)
def test_scripts_with_horovods_own_loop_end_in_a_last_checkpoint_too(
    launched: Launched, imports: str, state: str, options: tuple[str, ...]
) -> None:
    launched.set_hosts("localhost:1")
    (launched.directory / "script.py").write_text(STOCK.format(imports=imports, state=state))
    command = [*options, *job(launched, steps=0, every="notice", processes=1)[:-2], "script.py"]
    with launched.run(*command) as first:
        assert first.wait(110) == 0, first.output
    assert sealed_steps(launched) == [43]
    with launched.run(*command) as again:
        assert again.wait(110) == 0, again.output
        assert "the job is done: step 43" in again.output


@pytest.mark.soak
def test_storage_that_fails_at_the_end_costs_the_checkpoint_but_not_exit_code_0(launched: Launched) -> None:
    launched.set_hosts("localhost:1")
    script = STOCK.format(imports="import hvd_elastic_ext.torch as elastic", state="elastic.TorchState")
    in_its_place = (
        'import os, shutil\nshutil.rmtree("checkpoints", ignore_errors=True)\nopen("checkpoints", "w").close()\n'
    )
    (launched.directory / "script.py").write_text(script + in_its_place)
    command = [*job(launched, steps=0, every="notice", processes=1)[:-2], "script.py"]
    with launched.run(*command) as first:
        assert first.wait(110) == 0, first.output
        assert "training is done, but no checkpoint has its end" in first.output
    assert launched.events("finished")[-1].get("code") == 0
