"""The program that makes checkpoints, with commits of the worker's own in real memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from hvd_elastic_ext.checkpoint.archive import write
from hvd_elastic_ext.checkpoint.programs import agent_requests, checkpoint_requests
from hvd_elastic_ext.checkpoint.stores.store import open_store
from hvd_elastic_ext.checkpoint.values import trees
from hvd_elastic_ext.checkpoint.values.read import read
from hvd_elastic_ext.core.commit_record import Identity
from hvd_elastic_ext.worker.commits.buffer import Commit, CommitBuffer
from hvd_elastic_ext.worker.commits.memory import open_sides
from tests.integration.checkpoint.made_checkpoints import done, kept, save, trained, written
from tests.support.checkpoints import newest_intact
from tests.support.waiting import wait_until

IDENTITY = Identity(12345, 0, 3, 9)
AUTOGROUP = "/proc/self/autogroup"
PROGRAM = [sys.executable, "-m", "hvd_elastic_ext.checkpoint.programs.agent_requests"]


def state(commit: Commit) -> dict[str, object]:
    """What a process makes of a commit that it finds: read as what is not its own is read."""

    def at(index: int, kind: str) -> object:
        return commit.views[index]

    return {name: read(text, at) for name, text in trees.decode(commit.tree).items()}


def demand_equal(one: object, other: object) -> None:
    assert type(one) is type(other)
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        assert (one.dtype, one.shape, one.stride()) == (other.dtype, other.shape, other.stride())
        assert torch.equal(one, other)
    elif isinstance(one, dict) and isinstance(other, dict):
        assert one.keys() == other.keys()
        for key, value in one.items():
            demand_equal(value, other[key])
    elif isinstance(one, list | tuple) and isinstance(other, list | tuple):
        assert len(one) == len(other)
        for inner, beside in zip(one, other, strict=True):
            demand_equal(inner, beside)
    else:
        assert one == other


def test_what_two_ranks_saved_fills_the_memory_of_two(tmp_path: Path) -> None:
    model = trained()
    into = {str(rank): [os.memfd_create("new"), os.memfd_create("spare")] for rank in range(2)}
    with kept(model, IDENTITY) as one, kept(model, IDENTITY, rank=1) as other:
        name = save(tmp_path, [one, other], job="digits")
        answer = done({"do": "load", "place": str(tmp_path), "ranks": {"0": 0, "1": 1}, "sides": into})
        assert answer["path"] == f"{tmp_path}/{name}"
        assert (answer["slots"], answer["passed_over"], answer["facts"]) == ([0, 1], [], {"job": "digits"})
        saved = one.buffer.last()
        assert saved is not None
        for rank in range(2):
            commit = CommitBuffer(open_sides(into[str(rank)])).last()
            assert commit is not None
            assert (commit.record.identity, commit.record.step) == (IDENTITY, 40)
            assert commit.record.stored
            demand_equal(state(commit), state(saved))
            assert read(trees.decode_value(commit.local), lambda *_: None)["rng"] == {"seed": rank}
    for descriptor in (each for memory in into.values() for each in memory):
        os.close(descriptor)


def test_nothing_on_storage_is_pickled(tmp_path: Path) -> None:
    with kept(trained(), IDENTITY) as one:
        name = save(tmp_path, [one])
    for path in (tmp_path / name).glob("*.json"):
        assert "gAW" not in path.read_text(), f"{path.name} holds what a pickle of protocol 5 begins with, in base64"
        json.loads(path.read_text())


def test_a_commit_that_is_not_there_is_not_written(tmp_path: Path) -> None:
    with kept(trained(), IDENTITY) as one:
        request = written(tmp_path, one)
        answer = agent_requests.answered({**request, "commit": [*IDENTITY._replace(number=10)]})
    assert answer["for_good"]
    assert "is not in that memory" in answer["failed"]
    assert list(tmp_path.iterdir()) == []


def test_a_commit_that_is_replaced_while_it_is_written_is_no_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with kept(trained(), IDENTITY) as one:

        def replaced(*arguments: Any, **named: Any) -> Any:
            files = write.write_part(*arguments, **named)
            one.buffer.relabel(IDENTITY._replace(number=10))
            return files

        monkeypatch.setattr(checkpoint_requests, "write", SimpleNamespace(write_part=replaced))
        assert agent_requests.answered(written(tmp_path, one))["for_good"]


@pytest.mark.parametrize("own", [True, False], ids=["in a session of its own", "in another's session"])
@pytest.mark.parametrize(
    ("request_", "nice"), [({"do": "verify"}, 5), ({"do": "write", "urgent": True}, 0), ({"do": "load"}, 0)]
)
def test_the_program_gives_way_unless_training_waits_for_it(request_: dict[str, object], nice: int, own: bool) -> None:
    code = (
        "import os; from hvd_elastic_ext.checkpoint.programs import agent_requests as program; "
        f"group = lambda: open({AUTOGROUP!r}).read().split()[-1:] if os.path.exists({AUTOGROUP!r}) else None; "
        "program.answered = lambda request, say: {'nice': os.nice(0), 'group': group()}; program.main()"
    )
    command = [sys.executable, "-c", code]
    ran = subprocess.run(
        command, input=json.dumps(request_), capture_output=True, text=True, check=True, start_new_session=own
    )
    found = json.loads(ran.stdout)
    assert found["nice"] == min(os.nice(0) + nice, 19)
    if Path(AUTOGROUP).exists():  # there, nice counts only within a session; other programs' sessions stay as they are
        before = Path(AUTOGROUP).read_text().split()[-1:]  # empty for a session older than autogroups, such as init's
        assert found["group"] == ([str(nice)] if own else before)


def test_one_that_is_killed_while_it_writes_leaves_what_was_sealed(tmp_path: Path) -> None:
    large = trained(20_000)  # some 13 MB: long enough to be met
    with kept(trained(), IDENTITY) as one, kept(large, IDENTITY._replace(number=10)) as other:
        name = save(tmp_path, [one])
        before = set(tmp_path.rglob("shard-*"))
        request = json.dumps({**written(tmp_path, other), "urgent": True})
        with subprocess.Popen(PROGRAM, stdin=subprocess.PIPE, text=True, pass_fds=[other.descriptor]) as process:
            assert process.stdin is not None
            process.stdin.write(request)
            process.stdin.close()
            wait_until(lambda: set(tmp_path.rglob("shard-*")) - before, what="a file that is written", timeout=60)
            process.kill()
        assert newest_intact(open_store(str(tmp_path)))[0] == name
        again = save(tmp_path, [other])
        assert newest_intact(open_store(str(tmp_path)))[0] == again
