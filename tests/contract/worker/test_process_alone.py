"""What a training process counts, says in its journal, and takes up of an earlier one."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import horovod.torch as hvd
import pytest
import torch
from horovod.common.exceptions import HorovodInternalError, HostsUpdatedInterrupt
from torch import nn

import hvd_elastic_ext.torch as elastic
from hvd_elastic_ext.worker.calls.calls import current as current_calls
from hvd_elastic_ext.worker.state import keeper as keeping
from hvd_elastic_ext.worker.state.loop import run
from hvd_elastic_ext.worker.sync.host_updates import HostsUpdate
from tests.contract.worker.training import events, given_a_journal, step, trained
from tests.support import light_torch
from tests.support.clock import ManualClock
from tests.unit.worker.python_with_hook import HOOK, python

pytestmark = pytest.mark.usefixtures("alone")


@pytest.mark.parametrize("passes", [1, 3])
def test_a_step_of_horovods_optimizer_counts_once(passes: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOROVOD_ELASTIC", "1")  # Horovod registers its hooks in a world of one only then
    journal = given_a_journal(monkeypatch, tmp_path)
    net = nn.Linear(3, 2)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.Adam(net.parameters()), net.named_parameters(), backward_passes_per_step=passes
    )
    elastic.TorchState(model=net, optimizer=optimizer)
    for number in range(4):
        for _ in range(passes):
            net(torch.ones(2, 3)).sum().backward()
        optimizer.synchronize()
        assert len(events(journal, "stepped")) == number
        with optimizer.skip_synchronize():
            optimizer.step()
        optimizer.zero_grad()
    assert [event["step"] for event in events(journal, "stepped")] == [1, 2, 3, 4]


MAKES_A_STATE = """
import horovod.torch as hvd
import torch
from horovod.torch.elastic.state import OptimizerStateHandler
from hvd_elastic_ext.worker.process import standby
{ours}
status = standby.current().link.status
weight = torch.nn.Parameter(torch.ones(1))
optimizer = torch.optim.SGD([weight], lr=1.0, momentum=0.9)
{state}
for broadcast in (lambda: hvd.broadcast_optimizer_state(optimizer, root_rank=0), OptimizerStateHandler(optimizer).sync):
    optimizer.state.clear()
    try:
        broadcast()
    except Exception as error:  # the step is before that
        assert "initialized" in str(error), error
    assert optimizer.state, "Horovod has made no state"
print({steps}, status.fresh)
optimizer.step()
print({steps}, status.fresh)
"""


@pytest.mark.parametrize("ours", [False, True], ids=["the stock State", "our State"])
def test_the_step_with_which_horovod_makes_the_state_of_an_optimizer_is_not_a_step_of_training(ours: bool) -> None:
    """Defect: after it a rank that failed had "done a step", so it got a cooldown, and never ended the job."""
    code = MAKES_A_STATE.format(
        ours="import hvd_elastic_ext.torch as elastic" if ours else "",
        state="state = elastic.TorchState(optimizer=optimizer)" if ours else "",
        steps="state._keeper._steps.done" if ours else "status.step",
    )
    here, there = socket.socketpair()
    with here, there:
        here.sendall(b'{"tell": "alone"}\n')  # the State joins the world, and nobody else is there
        found = python(
            code.replace("weight = ", "status.fresh = True\nweight = "), path=f"{HOOK}:{light_torch.FOLDER}", link=there
        )
    assert found.stdout.split() == ["0", "True", "1", "False"], found.stderr


@pytest.mark.parametrize("passes", [1, 2])
def test_no_interrupt_comes_while_horovod_is_reducing(passes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOROVOD_ELASTIC", "1")  # Horovod registers its hooks in a world of one only then
    net = nn.Linear(3, 2)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(net.parameters(), lr=0.1), net.named_parameters(), backward_passes_per_step=passes
    )
    state = elastic.TorchState(model=net, optimizer=optimizer)
    state.on_hosts_updated(1, 1)
    for _ in range(passes):
        net(torch.ones(2, 3)).sum().backward()
        state.check_host_updates()
    optimizer.step()
    with pytest.raises(HostsUpdatedInterrupt):
        state.check_host_updates()


@pytest.mark.parametrize("kind", [elastic.TorchState, hvd.elastic.TorchState])
def test_a_step_that_a_reset_callback_has_begun_with_a_lost_peer_is_dropped_before_it_runs_again(
    kind: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOROVOD_ELASTIC", "1")
    net = nn.Linear(3, 2)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(net.parameters(), lr=0.5), net.named_parameters())
    state, losses, before = kind(model=net, optimizer=optimizer), [True, True, False], net.weight.detach().clone()

    def trains_a_step() -> None:
        net(torch.ones(1, 3)).sum().backward()
        if losses.pop(0):
            for handle, _ in optimizer._handles.values():
                hvd.synchronize(handle)  # else its name is in use
            raise HorovodInternalError("a peer is lost")
        optimizer.step()

    def train() -> bool:
        if losses:
            raise HostsUpdatedInterrupt(False)
        return True

    state.register_reset_callbacks([trains_a_step])
    assert run(state, train, reset=lambda: None, clock=Hurried())
    assert torch.allclose(net.weight, before - 0.5)  # gradients are 1: one step, with those of one pass


class Hurried(ManualClock):
    """Nobody has to wait."""

    def wait(self, event: threading.Event, timeout: float | None) -> bool:
        return False


@pytest.mark.parametrize("then", ["restore", "check_host_updates"])
def test_steps_count_on_after_one_that_raised(then: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    journal = given_a_journal(monkeypatch, tmp_path)

    class Sometimes(torch.optim.SGD):
        fails = False

        @torch.optim.Optimizer.profile_hook_step
        def step(self, closure: Any = None) -> Any:
            if self.fails:
                raise ValueError("not this time")
            return super().step(closure)

    net = nn.Linear(3, 2)
    optimizer = Sometimes(net.parameters(), lr=0.1)
    state = elastic.TorchState(model=net, optimizer=optimizer)
    optimizer.fails = True
    with pytest.raises(ValueError, match="not this time"):
        step(net, optimizer)
    optimizer.fails = False
    getattr(state, then)()
    step(net, optimizer)
    assert [event["step"] for event in events(journal, "stepped")] == [1]


def test_what_a_users_save_adds_is_saved_when_an_interrupt_seals() -> None:
    class Extended(elastic.TorchState):
        saves = 0

        def save(self) -> None:
            type(self).saves += 1
            super().save()

    state = Extended(batch=0)
    state.batch = 1
    state.on_hosts_updated(1, 1)
    with pytest.raises(HostsUpdatedInterrupt):
        state.check_host_updates()
    assert Extended.saves == 1


def test_a_training_process_journals_steps_commits_syncs_and_roll_backs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    journal = given_a_journal(monkeypatch, tmp_path)
    monkeypatch.setenv("HOROVOD_HOSTNAME", "h1")
    net, optimizer = trained(lambda p: torch.optim.SGD(p, lr=0.1))
    state = elastic.TorchState(model=net, optimizer=optimizer, epoch=2, loss=0.5, name="digits", history=[1])
    state.sync()
    step(net, optimizer)
    state.save()
    step(net, optimizer)
    step(net, optimizer)
    state.restore()
    lines = events(journal)
    assert [line["event"] for line in lines] == ["synced", "stepped", "committed", "stepped", "stepped", "rolled_back"]
    assert {(line["host"], line["rank"], line["size"], line["generation"]) for line in lines} == {("h1", 0, 1, 0)}
    assert lines[0]["values"] == {"epoch": 2, "loss": 0.5, "name": "digits"}
    assert (lines[2]["number"], lines[2]["step"]) == (1, 1)
    assert (lines[-1]["steps_lost"], lines[-1]["step"]) == (2, 1)


@pytest.mark.parametrize(("sample", "journalled"), [("1000", [1, 3]), ("0", [1, 2, 3])])
def test_the_last_step_is_in_the_journal_once_though_steps_are_sampled(
    sample: str, journalled: list[int], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    journal = given_a_journal(monkeypatch, tmp_path)
    monkeypatch.setenv("HVD_ELASTIC_SAMPLE", sample)
    net, optimizer = trained(lambda p: torch.optim.SGD(p, lr=0.1))
    state = elastic.TorchState(model=net, optimizer=optimizer)
    for _ in range(3):
        step(net, optimizer)
    state._returned()  # loops call it when the training function has returned
    state._returned()
    assert [line["step"] for line in events(journal, "stepped")] == journalled


def test_a_journal_that_is_not_there_or_breaks_does_not_hurt_training(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for path in (tmp_path / "absent", Path("/dev/full"), tmp_path):
        monkeypatch.setenv("HVD_ELASTIC_WORKER_JOURNAL", str(path))
        state = elastic.TorchState(batch=0)
        state.sync()
        state.restore()
    assert not (tmp_path / "absent").exists()


def test_memory_that_will_not_do_is_said_when_the_state_is_built(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    asked: list[dict[str, int]] = []

    def warning(**demand: int) -> str:
        asked.append(demand)
        return "the memory limit is too small"

    monkeypatch.setattr(keeping, "memory_warning", warning)
    monkeypatch.setenv("HOROVOD_LOCAL_SIZE", "4")
    journal = given_a_journal(monkeypatch, tmp_path)
    net = nn.Linear(1000, 100)
    elastic.TorchState(model=net, optimizer=torch.optim.Adam(net.parameters()))
    [demand] = asked
    # What Adam is going to keep counts already, though it comes with the first step.
    assert 3 * net.weight.nbytes < demand["commit_bytes"] < 3.1 * net.weight.nbytes
    assert demand["processes"] == 4
    assert "the memory limit is too small" in caplog.text
    assert events(journal, "memory")[0]["needed"] == demand["commit_bytes"]


def test_a_deadline_before_the_next_check_is_met_on_the_last_commit_and_what_it_costs_is_counted_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    journal = given_a_journal(monkeypatch, tmp_path)
    net, optimizer = trained(torch.optim.Adam)
    state = elastic.TorchState(model=net, optimizer=optimizer)
    state.sync()
    state.save()
    step(net, optimizer)
    step(net, optimizer)
    assert not events(journal, "deadline_missed")
    state.on_hosts_update(HostsUpdate(generation=5, reason="spot", deadline=time.monotonic()))
    step(net, optimizer)
    step(net, optimizer)
    [missed] = events(journal, "deadline_missed")
    assert missed["steps_lost"] == 3
    state.restore()
    assert events(journal, "rolled_back")[-1]["steps_lost"] == 4


def run_in_slot(script: Path, *arguments: str, descriptors: list[int], closed: bool = False) -> str:
    """One process of a slot whose commit memory a parent holds; ``closed``: a program between them closed it."""
    environ = {**os.environ, "HVD_ELASTIC_COMMIT_FDS": ",".join(map(str, descriptors))}
    command = [sys.executable, script, *arguments]
    ended = subprocess.run(
        command, env=environ, pass_fds=[] if closed else descriptors, capture_output=True, text=True, timeout=60
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout + ended.stderr


PROGRAM = """
import horovod.torch as hvd, hvd_elastic_ext.torch as elastic
hvd.init()
state = elastic.TorchState(batch=0)
state.sync()
print("found", state.batch)
state.batch += 1
state.save()
"""


def test_a_commit_is_taken_up_by_the_same_program_only(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(PROGRAM)
    descriptors = [os.memfd_create(f"commit-{index}") for index in range(2)]
    told = [run_in_slot(script, fold, descriptors=descriptors) for fold in ("one", "one", "two")]
    found = [re.findall(r"found (\d+)", text)[0] for text in told]
    for descriptor in descriptors:
        os.close(descriptor)
    assert found == ["0", "1", "0"]


def test_commit_memory_that_did_not_reach_the_process_is_said_and_nothing_else_is_touched(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    # The number is in use again, by a file of the user's own.
    script.write_text("import os\nos.dup2(os.open(__file__, os.O_RDWR), 50)\n" + PROGRAM)
    before = script.read_bytes()
    output = run_in_slot(script, descriptors=[50, 51], closed=True)
    assert "found 0" in output
    assert "HVD_ELASTIC_COMMIT_FDS=50,51 did not reach this process" in output
    assert script.read_bytes() == before


def test_an_attribute_that_a_state_was_not_given_is_told_once_and_an_unknown_one_is_an_error(
    caplog: pytest.LogCaptureFixture,
) -> None:
    state = elastic.TorchState(epoch=0, batch=0)
    state.epoch = 1
    assert not caplog.records
    state.epohc = 2
    state.epohc = 3
    [told] = caplog.messages
    assert told.startswith("state.epohc is not kept: it was not given when the State was made (did you mean 'epoch'?)")
    assert state.epohc == 3
    with pytest.raises(AttributeError, match=r"no attribute 'bach' \(did you mean 'batch'\?\); it has batch, epoch"):
        state.bach  # noqa: B018


def test_an_optimizer_is_wrapped_once() -> None:
    optimizer = elastic.wrap(torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1))
    with pytest.raises(elastic.UsageError, match="wrapped already; wrap it once"):
        elastic.wrap(optimizer)


def test_a_commit_waits_until_the_result_of_the_last_call_is_written(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    class Writing:
        def join(self) -> None:
            waited.append(len(events(journal, "committed")))

    journal = given_a_journal(monkeypatch, tmp_path)
    waited: list[int] = []
    state = elastic.TorchState(step=0)
    monkeypatch.setattr(current_calls(), "_keeping", Writing())
    state.save()
    state.save()
    assert waited == [0]
    assert len(events(journal, "committed")) == 2
