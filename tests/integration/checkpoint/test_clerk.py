"""The process that makes checkpoints, with commits of the worker's own in real memory."""

from __future__ import annotations

import json
import os
from pathlib import Path

import psutil
import pytest
import torch

from hvd_elastic_ext.checkpoint.values import trees
from hvd_elastic_ext.checkpoint.values.read import read
from hvd_elastic_ext.core.commit_record import Identity
from hvd_elastic_ext.worker.commits.buffer import Commit, CommitBuffer
from hvd_elastic_ext.worker.commits.memory import open_sides
from tests.integration.checkpoint.kit import Kept, clerk, kept, save, trained
from tests.support.waiting import wait_until

IDENTITY = Identity(12345, 0, 3, 9)


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


def test_what_two_ranks_saved_fills_the_memory_of_three(tmp_path: Path) -> None:
    store, model = str(tmp_path / "store"), trained()
    into = [os.memfd_create("new") for _ in range(3)]
    with kept(model, IDENTITY) as one, kept(model, IDENTITY, rank=1) as other:
        with clerk([one.descriptor, other.descriptor, *into]) as asked:
            name = save(asked, store, [one, other], score=0.25, facts={"job": "digits"})
            found = asked.done(do="find", store=store, verify=True)
            assert (found["newest"]["name"], found["passed_over"]) == (name, [])
            assert (found["newest"]["score"], found["newest"]["facts"]) == (0.25, {"job": "digits"})
            targets = [{"fd": fd, "rank": rank, "sequence": 4} for rank, fd in enumerate(into)]
            told = asked.done(do="load", store=store, name=name, into=targets)
        assert [one["local"] for one in told["into"]] == [True, True, False]
        saved = one.buffer.last()
        assert saved is not None
        for rank, descriptor in enumerate(into):
            buffer = CommitBuffer(open_sides([descriptor, os.memfd_create("spare")]))
            commit = buffer.last()
            assert commit is not None
            assert (commit.record.identity, commit.record.step) == (IDENTITY, 40)
            assert commit.record.stored
            demand_equal(state(commit), state(saved))
            if rank < 2:
                assert read(trees.decode_value(commit.local), lambda *_: None)["rng"] == {"seed": rank}
            else:
                assert commit.local == b""
    for descriptor in into:
        os.close(descriptor)


def test_nothing_on_storage_is_pickled(tmp_path: Path) -> None:
    with kept(trained(), IDENTITY) as one, clerk([one.descriptor]) as asked:
        name = save(asked, str(tmp_path), [one])
    for path in (tmp_path / name).glob("*.json"):
        assert "gAW" not in path.read_text(), f"{path.name} holds what a pickle of protocol 5 begins with, in base64"
        json.loads(path.read_text())


def test_a_commit_that_is_not_there_is_not_written(tmp_path: Path) -> None:
    with kept(trained(), IDENTITY) as one, clerk([one.descriptor]) as asked:
        other = IDENTITY._replace(number=10)
        order = {"fd": one.descriptor, "identity": other, "part": 0, "parts": 1, "rank": 0}
        told = asked.do(do="write", store=str(tmp_path), **order)
    assert (told["ok"], told["transient"]) == (False, False)
    assert "is not in that memory" in told["error"]
    assert list(tmp_path.iterdir()) == []


def test_a_load_that_fails_leaves_no_commit_in_the_memory(tmp_path: Path) -> None:
    with kept(trained(), IDENTITY) as one, kept(trained(), IDENTITY) as target:
        with clerk([one.descriptor, target.descriptor]) as asked:
            name = save(asked, str(tmp_path), [one])
            shard = next((tmp_path / name).glob("shard-*"))
            data = bytearray(shard.read_bytes())
            data[-1] ^= 1
            shard.write_bytes(data)
            into = [{"fd": target.descriptor, "rank": 0, "sequence": 9}]
            told = asked.do(do="load", store=str(tmp_path), name=name, into=into)
            assert (told["ok"], told["damaged"]) == (False, True)
            checked = asked.done(do="verify", store=str(tmp_path), name=name)
            assert not checked["whole"]
        assert target.buffer.record is None


@pytest.mark.parametrize(
    "line",
    ["", "{", "[]", "7", '{"do": "dance"}', '{"do": "write"}', '{"do": "find", "store": 7}',
     '{"do": "load", "store": "x"}', '{"do": "find", "store": ""}', '{"do": "find", "store": "nobody://x"}',
     "[" * 100_000],
)  # fmt: skip
def test_an_order_that_makes_no_sense_is_answered_and_the_next_one_done(line: str, tmp_path: Path) -> None:
    with clerk() as asked:
        asked.say(line)
        told = asked.answer()
        assert not told["ok"]
        assert "\n" not in told["error"]
        assert asked.done(do="find", store=str(tmp_path))["entries"] == []


def test_it_gives_way_unless_it_is_urgent(tmp_path: Path) -> None:
    usual = os.nice(0)
    with clerk() as asked:
        assert asked.done(do="find", store=str(tmp_path))["nice"] == min(usual + 15, 19)
        assert asked.done(do="find", store=str(tmp_path), urgent=True)["nice"] == usual
        process = psutil.Process(asked.process.pid)
        assert process.ionice() == (psutil.IOPRIO_CLASS_BE, 7)


def wait_for_more(folder: Path, before: int) -> None:
    wait_until(lambda: len(set(folder.rglob("shard-*"))) > before, what="a file that is written", timeout=60)


def test_one_that_is_killed_while_it_writes_leaves_what_was_sealed(tmp_path: Path) -> None:
    store, model = str(tmp_path), trained()
    large = trained(20_000)  # some 13 MB: long enough to be met
    with kept(model, IDENTITY) as one, kept(large, IDENTITY._replace(number=10)) as other:
        with clerk([one.descriptor]) as asked:
            name = save(asked, store, [one])
        for _ in range(3):
            with clerk([other.descriptor]) as asked:
                asked.done(do="find", store=store)
                before = len(set(tmp_path.rglob("shard-*")))
                order = {"fd": other.descriptor, "identity": other.record.identity, "part": 0, "parts": 1, "rank": 0}
                asked.ask(do="write", store=store, urgent=True, **order)
                wait_for_more(tmp_path, before)
                asked.process.kill()
        with clerk([other.descriptor]) as asked:
            assert asked.done(do="find", store=store, verify=True)["newest"]["name"] == name
            again = save(asked, store, [other])
            assert asked.done(do="find", store=store, verify=True)["newest"]["name"] == again


def test_old_ones_go_and_what_is_written_now_stays(tmp_path: Path) -> None:
    def later(one: Kept, number: int) -> Identity:
        identity = one.record.identity._replace(number=number)
        one.buffer.relabel(identity)
        return identity

    with kept(trained(), IDENTITY) as one, clerk([one.descriptor]) as asked:
        names = []
        for number in (9, 10, 11):
            identity = later(one, number)
            names.append(
                save(asked, str(tmp_path), [Kept(one.descriptor, one.record._replace(identity=identity), one.buffer)])
            )
        told = asked.done(do="prune", store=str(tmp_path), keep={"last": 1}, active=[names[0]])
        assert [named["name"] for named in told["removed"]] == [names[1]]
        asked.done(do="remove", store=str(tmp_path), name=names[0])
        assert [path.name for path in tmp_path.iterdir()] == [names[2]]
