"""Files of the user's own and the State that they are of: what is in neither, and what their functions may not do."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from hvd_elastic_ext.checkpoint.programs import agent_requests
from hvd_elastic_ext.checkpoint.values import trees
from hvd_elastic_ext.checkpoint.values.write import write
from hvd_elastic_ext.core.commit_record import Identity
from hvd_elastic_ext.core.errors import StateError
from hvd_elastic_ext.worker.commits.buffer import CommitBuffer
from hvd_elastic_ext.worker.commits.memory import open_sides
from hvd_elastic_ext.worker.state import user_files
from hvd_elastic_ext.worker.state.keeper import Keeper, WorkerSettings
from hvd_elastic_ext.worker.state.slot_memory import HeldCommit
from hvd_elastic_ext.worker.state.user_files import Checkpoint
from tests.unit.worker.lockstep import LockstepComms, in_lockstep
from tests.unit.worker.made_commits import keeper_of, memory_files
from tests.unit.worker.state.test_held_commit import Said, commit

LOCAL = trees.encode_value(write({"program": "", "rng": None}, []))


def saves(folder: Path) -> None:
    (folder / "file").write_bytes(b"abc")


def loads(folder: Path) -> None: ...


def state_of(
    comms: LockstepComms, memory: list[int], functions: Checkpoint | None, *, seed: int = 0, last_commit: bool = False
) -> tuple[Keeper, nn.Linear, HeldCommit, Said]:
    link, settings = Said(), WorkerSettings(last_commit=last_commit)
    options = {"link": link, "settings": settings, "keep_rng": False, "checkpoint": functions}
    keeper, owner, held = keeper_of(comms, memory, seed=seed, **options)
    return keeper, owner.model, held, link


@pytest.fixture
def resumed(tmp_path: Path, memory: list[int]) -> Iterator[list[list[int]]]:
    """Memory of two ranks that such a checkpoint was loaded into."""
    buffer = CommitBuffer(open_sides(memory))
    commit(buffer, 1)
    with user_files.written(Checkpoint(saves, loads), LOCAL) as files:
        side = buffer.keep_instead(files, Identity(7, 0, 1, 1), step=1)
    whole = {"place": str(tmp_path), "commit": [7, 0, 1, 1], "parts": 1, "sides": {"0": memory, "1": memory}}
    written = agent_requests.answered({"do": "write", **whole, "shares": {"0": [0, 0, side], "1": [None, 1, side]}})
    agent_requests.answered({"do": "seal", **whole, "world": 2, "written": [written], "keep": 3})
    with memory_files(3) as one, memory_files(3) as other:
        sides = {"0": list(one), "1": list(other)}
        load = {"do": "load", "place": str(tmp_path), "ranks": {"0": 0, "1": 1}, "sides": sides}
        assert agent_requests.answered(load)["slots"] == [0, 1]
        yield list(sides.values())


def test_what_load_leaves_out_is_the_same_on_all_ranks_in_the_end(resumed: list[list[int]]) -> None:
    def rank_main(comms: LockstepComms) -> Any:
        keeper, net, *_ = state_of(comms, resumed[comms.rank()], Checkpoint(saves, loads), seed=comms.rank())
        keeper.sync()
        return net.weight.detach().clone()

    (first, second), _ = in_lockstep(2, rank_main)
    assert bool((first == second).all())


def test_a_load_that_looks_for_updates_is_refused_in_one_line(resumed: list[list[int]]) -> None:
    keeper: Any = None

    def looks(folder: Path) -> None:
        keeper.hosts_changed()

    def rank_main(comms: LockstepComms) -> None:
        nonlocal keeper
        keeper, *_ = state_of(comms, resumed[0], Checkpoint(saves, looks))
        with pytest.raises(
            StateError, match="load of checkpoint= raised UsageError: load of checkpoint= commits, assig"
        ):
            keeper.sync()

    in_lockstep(1, rank_main)


@pytest.mark.parametrize("does", ["commits", "looks"])
def test_a_save_that_commits_or_looks_for_updates_costs_its_checkpoint_and_nothing_more(
    memory: list[int], does: str
) -> None:
    keeper: Any = None

    def wrong(folder: Path) -> None:
        saves(folder)
        keeper.save() if does == "commits" else keeper.hosts_changed()

    def rank_main(comms: LockstepComms) -> Any:
        nonlocal keeper
        keeper, _, held, link = state_of(comms, memory, Checkpoint(wrong, loads))
        keeper.sync()
        held.request({"tell": "keep", "commit": [0, 1, 1]})
        keeper.save()
        keeper.save()
        return link.heard

    ([[(what, said)]], _) = in_lockstep(1, rank_main)
    assert what == "commit_not_kept"
    assert "UsageError: save of checkpoint= commits, assigns" in said["failed"]


@pytest.mark.parametrize("own", [False, True])
def test_what_training_was_left_with_is_committed_once_more_and_the_files_are_saved_of_that(
    memory: list[int], tmp_path: Path, *, own: bool
) -> None:
    def rank_main(comms: LockstepComms) -> Any:
        functions = Checkpoint(saves, loads) if own else None
        keeper, net, _, link = state_of(comms, memory, functions, last_commit=True)
        keeper.sync()
        keeper.save()
        with torch.no_grad():
            net.weight.fill_(7.0)  # what was trained since the last commit
        keeper.returned()
        net.weight.detach().fill_(0.0)
        keeper.restore(world_lost=False)
        return link.heard, keeper._buffer.record, net.weight.detach().clone()

    ([(heard, record, weight)], _) = in_lockstep(1, rank_main)
    assert bool((weight == 7.0).all())
    assert record.identity.number == 2
    if not own:
        assert not heard
        return
    [(what, said)] = heard
    assert (what, said["commit"], said["files"]) == ("last_commit", record.identity, True)
    request = {"place": str(tmp_path), "commit": list(record.identity), "parts": 1, "sides": {"0": memory}}
    answer = agent_requests.answered({"do": "write", **request, "shares": {"0": [0, 0, said["side"]]}})
    assert "failed" not in answer


@pytest.mark.parametrize("changed", [False, True])
def test_a_script_that_leaves_the_training_function_is_committed_once_more_if_anything_has_changed(
    memory: list[int], *, changed: bool
) -> None:
    def rank_main(comms: LockstepComms) -> Any:
        keeper, net, *_ = state_of(comms, memory, None, last_commit=True)
        keeper.sync()
        keeper.save()
        if changed:
            with torch.no_grad():
                net.weight.fill_(7.0)
        keeper.left()
        number = keeper._buffer.record.identity.number
        keeper.restore(world_lost=False)
        return number, bool((net.weight == 7.0).all())

    assert in_lockstep(1, rank_main)[0] == [(2, True) if changed else (1, False)]


def test_a_last_commit_or_files_that_fail_are_told_and_training_is_done_all_the_same(memory: list[int]) -> None:
    def fails(folder: Path) -> None:
        raise OSError("the license server is away")

    def rank_main(comms: LockstepComms) -> Any:
        keeper, _, _, link = state_of(comms, memory, Checkpoint(fails, loads), last_commit=True)
        keeper.sync()
        keeper.returned()
        number = keeper._buffer.record.identity.number
        keeper.seal = lambda: fails(Path())
        keeper.returned()
        return link.heard, number, keeper._buffer.record.identity.number

    ([(heard, first, second)], _) = in_lockstep(1, rank_main)
    assert not heard  # the commit itself is what there is
    assert first == second == 1


def test_without_checkpoints_the_end_of_training_costs_no_commit(memory: list[int]) -> None:
    def rank_main(comms: LockstepComms) -> Any:
        keeper, *_ = state_of(comms, memory, None)
        keeper.sync()
        keeper.returned()
        return keeper._buffer.record.identity.number

    assert in_lockstep(1, rank_main)[0] == [0]
