"""One test for each cell of the table in ``docs/guarantees.md``."""

from __future__ import annotations

import functools
import json
import os
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import horovod.torch as hvd
import pytest
import torch
from torch import nn

import hvd_elastic_ext.torch as elastic
from hvd_elastic_ext.core import call_results
from hvd_elastic_ext.worker.calls import calls
from hvd_elastic_ext.worker.sync.exchange import fingerprint
from tests.contract.guarantees import test_table_of_tensorflow as of_tensorflow
from tests.contract.guarantees.judgements import (
    Lives,
    asks_to_skip,
    goes_on,
    rolls_back_exactly,
    skips_a_finished_call,
    synced_at,
)
from tests.contract.worker import run_worlds
from tests.contract.worker import test_state_in_a_world as in_a_world
from tests.contract.worker.run_worlds import HOROVODS, USERS
from tests.contract.worker.training import train
from tests.contract.worker.user_states import OLD
from tests.contract.worker.user_states_with_mixin import MIXED
from tests.integration.standby import test_standby, test_tensorflow_standby
from tests.support.processes import run_process

UNMODIFIED = (*USERS, *HOROVODS)

over_horovods = pytest.mark.parametrize("kind", HOROVODS)
over_users = pytest.mark.parametrize("kind", USERS)
unmodified = pytest.mark.parametrize("kind", UNMODIFIED)


class OfTorch:
    """A State of torch. Its weights are drawn when it is made."""

    def __init__(self, make: Any) -> None:
        net = nn.Linear(3, 2)
        self.state = make(net, torch.optim.Adam(net.parameters()), batch=0, history=[])

    def train(self) -> None:
        train(self.state)

    def look(self) -> str:
        state = self.state
        return fingerprint([state.model.state_dict(), state.optimizer.state_dict(), state.batch, state.history])


def built(make: Any) -> Any:
    return OfTorch(make).state


# Never skips sync


@pytest.mark.usefixtures("alone")
def test_our_state_never_skips_the_sync() -> None:
    assert not asks_to_skip(built(elastic.TorchState))


@over_horovods
@pytest.mark.usefixtures("alone", "handlers")
def test_a_mixin_over_horovods_state_never_skips_the_sync(kind: str) -> None:
    assert not asks_to_skip(built(MIXED[kind]))


@over_users
@pytest.mark.usefixtures("alone")
def test_a_mixin_over_a_users_state_never_skips_the_sync(kind: str) -> None:
    assert not asks_to_skip(built(MIXED[kind]))


@unmodified
@pytest.mark.usefixtures("alone", "handlers")
def test_an_unmodified_state_skips_the_sync_but_under_our_loop(kind: str) -> None:
    assert synced_at(built(OLD[kind])) == [0, 1]


# Exact roll-back


@pytest.mark.usefixtures("alone")
def test_our_state_rolls_back_exactly() -> None:
    assert rolls_back_exactly(OfTorch(elastic.TorchState))


@over_horovods
@pytest.mark.usefixtures("alone", "handlers")
def test_a_mixin_over_horovods_state_rolls_back_exactly(kind: str) -> None:
    assert rolls_back_exactly(OfTorch(MIXED[kind]))


@over_users
@pytest.mark.usefixtures("alone")
def test_a_mixin_over_a_users_state_rolls_back_exactly(kind: str) -> None:
    assert rolls_back_exactly(OfTorch(MIXED[kind]))


@unmodified
@pytest.mark.usefixtures("alone", "handlers")
def test_an_unmodified_state_does_not_roll_back_exactly(kind: str) -> None:
    assert not rolls_back_exactly(OfTorch(OLD[kind]))


# Survives its process


@functools.cache
def lives(*wanted: str, seed: int = 0, anew: int = 1) -> dict[str, Lives]:
    command = [
        sys.executable,
        "-m",
        "tests.contract.guarantees.killed_processes",
        "torch",
        str(seed),
        str(anew),
        *wanted,
    ]
    env = {"OMP_NUM_THREADS": "1", "PYTHONPATH": run_worlds.PYTHONPATH}
    with run_process(command, cwd=run_worlds.ROOT, env=env) as process:
        assert process.wait(timeout=350) == 0, process.output
        return {kind: [tuple(life) for life in seen] for kind, seen in json.loads(process.stdout).items()}


def some_lives() -> dict[str, Lives]:
    return lives("ours=4", "object_state=2", "torch_state=3", "sloppy=3", "in_place=3", "unmodified=2")


def test_a_commit_of_our_state_survives_its_process() -> None:
    assert goes_on(some_lives()["ours"])


@over_horovods
def test_a_commit_of_a_mixin_over_horovods_state_survives_its_process(kind: str) -> None:
    assert goes_on(some_lives()[kind])


@pytest.mark.parametrize("kind", ["sloppy", "in_place"])
def test_a_commit_of_a_mixin_over_a_users_state_survives_its_process(kind: str) -> None:
    assert goes_on(some_lives()[kind])


def test_a_commit_of_an_unmodified_state_dies_with_its_process() -> None:
    assert [found for found, _, _ in some_lives()["unmodified"]] == [0, 0]


@pytest.mark.soak
@pytest.mark.timeout(400)
@pytest.mark.parametrize("kind", ["ours", "object_state", "torch_state", "own", "in_place"])
def test_commits_survive_kills_at_random_moments(kind: str) -> None:
    assert goes_on(lives(f"{kind}=60", seed=random.randrange(1 << 30))[kind])


# Exact samples


def test_an_unmodified_state_with_horovods_sampler_loses_samples_after_a_removal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A removal skips the sync, and with it the new division of what is left: the old ranks' shares are missing."""
    monkeypatch.setattr("horovod.torch.elastic.sampler.size", lambda: 3)
    samplers = []
    for rank in range(3):
        monkeypatch.setattr("horovod.torch.elastic.sampler.rank", lambda rank=rank: rank)
        samplers.append(hvd.elastic.ElasticSampler(range(12), shuffle=False))
    consumed: list[int] = []
    for sampler in samplers:
        consumed += list(sampler)[:1]
        sampler.record_batch(0, 1)
    monkeypatch.setattr("horovod.torch.elastic.sampler.size", lambda: 2)
    for sampler in samplers[:2]:  # the third is gone; the training function is entered again, and nothing divided anew
        consumed += list(sampler)
    assert sorted(consumed) != list(range(12))


# Several training functions


def skips(make: Any) -> bool:
    def one_program() -> Iterator[OfTorch]:
        torch.manual_seed(1)
        return (OfTorch(make) for _ in range(2))

    return skips_a_finished_call(one_program)


@pytest.fixture
def a_past(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A slot's memory for results, which outlives its processes."""
    past = os.memfd_create("past")
    monkeypatch.setenv(call_results.RESULTS, str(past))
    yield
    calls.forget()
    os.close(past)


@pytest.mark.usefixtures("alone", "a_past")
def test_a_call_with_our_state_is_skipped_when_it_is_over() -> None:
    assert skips(elastic.TorchState)


@over_horovods
@pytest.mark.usefixtures("alone", "a_past", "handlers")
def test_a_call_with_a_mixin_over_horovods_state_is_skipped_when_it_is_over(kind: str) -> None:
    assert skips(MIXED[kind])


@over_users
@pytest.mark.usefixtures("alone", "a_past")
def test_a_call_with_a_mixin_over_a_users_state_is_skipped_when_it_is_over(kind: str) -> None:
    assert skips(MIXED[kind])


@unmodified
@pytest.mark.usefixtures("alone", "a_past", "handlers")
def test_a_call_with_an_unmodified_state_is_run_again_by_whoever_comes_later(kind: str) -> None:
    assert not skips(OLD[kind])


# The table itself


HOMES = {
    **globals(), **vars(in_a_world), **vars(test_standby), **vars(of_tensorflow), **vars(test_tensorflow_standby)
}  # fmt: skip


def table(page: Path) -> list[list[str]]:
    """The cells of a page's table of States, the name of the row first."""
    lines = [line for line in page.read_text().splitlines() if line.startswith("| **")]
    return [[cell.strip() for cell in line.strip().strip("|").split("|")] for line in lines]


def test_every_cell_of_the_table_has_its_test() -> None:
    tests, page = table(Path(__file__).parent / "README.md"), table(Path(__file__).parents[3] / "docs/guarantees.md")
    assert [row[0] for row in tests] == [row[0] for row in page]
    assert {len(row) for row in tests} == {len(row) for row in page} == {8}
    named = [cell.strip("`") for row in tests for cell in row[1:]]
    assert [name for name in named if not callable(HOMES.get(name))] == []
    assert len(set(named)) == 8 * 7
