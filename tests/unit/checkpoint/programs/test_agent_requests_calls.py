"""Checkpoints of several training calls, from the memory of slots and back."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from hvd_elastic_ext.checkpoint.format.manifest import RESULTS
from hvd_elastic_ext.checkpoint.programs import agent_requests
from hvd_elastic_ext.checkpoint.stores.store import open_store
from hvd_elastic_ext.checkpoint.transfer import slot_memory
from hvd_elastic_ext.core import call_results
from hvd_elastic_ext.core.commit_record import PAGE, Record
from tests.support.checkpoints import Held, append, held, identity, past, result_of, results_in, save

CONTENTS = [b"call 0", result_of(held(seed=1)), result_of(held(seed=2))]


@dataclass
class Slot:
    """A slot's memory: of its commits, and of its results."""

    sides: list[int]
    past: int

    def hold(self, commit: Held) -> int:
        """Seal a commit here, as after a transfer; the number of its side."""
        with slot_memory.writing(self.sides) as target:
            with slot_memory.room(target.descriptor, commit.record.shared) as into:
                into[:] = commit.commit[: commit.record.shared]
            target.seal(commit.record, commit.commit[commit.record.shared :])
            return self.sides.index(target.descriptor)

    def held(self) -> Record:
        found = slot_memory.held(self.sides)
        assert found is not None
        return found[1].record


@contextmanager
def slot(*contents: bytes) -> Iterator[Slot]:
    with ExitStack() as stack:
        sides = [os.memfd_create(f"side-{number}") for number in range(3)]
        for each in sides:
            stack.callback(os.close, each)
        yield Slot(sides, stack.enter_context(past(*contents)))


def asked(place: Path, slots: dict[str, Slot], **request: Any) -> dict[str, Any]:
    sides = {number: each.sides for number, each in slots.items()}
    pasts = {number: each.past for number, each in slots.items()}
    return agent_requests.answered({**request, "place": str(place), "sides": sides, "pasts": pasts})


def written(place: Path, of: Slot, commit: Held, **facts: Any) -> dict[str, Any]:
    """Write and complete a checkpoint of a slot's memory; the answer to the latter."""
    side = of.hold(commit)
    name = {"commit": [*commit.record.identity], "parts": 1}
    answer = asked(place, {"0": of}, do="write", shares={"0": [0, 0, side]}, **name)
    return asked(place, {"0": of}, do="seal", world=1, keep=3, written=[answer], facts=facts, **name)


def test_a_checkpoint_brings_its_call_and_the_results_before_it_to_every_slot(tmp_path: Path) -> None:
    commit = held(identity(5), seed=5, call=3)
    with slot(*CONTENTS) as source, slot() as first, slot(b"of another job") as second:
        sealed = written(tmp_path, source, commit)
        assert (sealed["call"], "not_resumable" in sealed) == (3, False)
        answer = asked(tmp_path, {"0": first, "1": second}, do="load", ranks={"0": 0, "1": 0})
        assert (answer["call"], answer["slots"], answer["passed_over"]) == (3, [0, 1], [])
        for each in (first, second):
            assert results_in(each.past) == CONTENTS
            assert (each.held().call, each.held().identity) == (3, commit.record.identity)


def test_a_process_that_finds_the_commit_finds_the_results_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    there = []
    seal = slot_memory.Target.seal
    with slot(*CONTENTS) as source, slot() as first, slot() as second:
        written(tmp_path, source, held(call=3))
        slots = {"0": first, "1": second}

        def sealing(target: slot_memory.Target, record: Record, own: bytes | None = None) -> None:
            (of,) = [each for each in slots.values() if target.descriptor in each.sides]
            there.append(call_results.count(of.past))
            seal(target, record, own)

        monkeypatch.setattr(slot_memory.Target, "seal", sealing)
        asked(tmp_path, slots, do="load", ranks={"0": 0, "1": 0})
    assert there == [3, 3]


def test_only_the_writer_of_the_first_part_writes_the_results(tmp_path: Path) -> None:
    commit = held(call=2)
    with slot(*CONTENTS) as writer:
        side = writer.hold(commit)
        name = {"commit": [*commit.record.identity], "parts": 2}
        second = asked(tmp_path, {"0": writer}, do="write", shares={"0": [1, 1, side]}, **name)
        assert (second["results"], open_store(str(tmp_path)).sizes(RESULTS)) == ([], {})
        first = asked(tmp_path, {"0": writer}, do="write", shares={"0": [0, 0, side]}, **name)
        assert [each["file"]["number"] for each in first["results"]] == [0, 1]


def damage(place: Path, call: int) -> None:
    (file,) = (place / RESULTS).glob(f"result-{call:05d}-*")
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)


def test_a_checkpoint_with_a_damaged_result_is_passed_over_in_one_line_for_the_one_before(tmp_path: Path) -> None:
    older, newer = held(identity(5), call=2), held(identity(6), call=3, step=60)
    with slot(*CONTENTS) as source, slot() as target:
        written(tmp_path, source, older)
        written(tmp_path, source, newer)
        damage(tmp_path, 2)
        answer = asked(tmp_path, {"0": target}, do="load", ranks={"0": 0})
        assert answer["path"].endswith(older.name)
        [line] = answer["passed_over"]
        assert line.startswith(f"{newer.name} (step 60): result-00002-")
        assert line.endswith("block 0 of 1 is not what was written")
        assert results_in(target.past) == CONTENTS[:2]
        assert (target.held().call, target.held().step) == (2, 40)
        assert asked(tmp_path, {}, do="verify", name=newer.name)["whole"] is False


def test_with_damaged_results_alone_nothing_is_put_into_memory(tmp_path: Path) -> None:
    with slot(*CONTENTS) as source, slot() as target:
        written(tmp_path, source, held(call=3))
        damage(tmp_path, 1)
        answer = asked(tmp_path, {"0": target}, do="load", ranks={"0": 0})
        assert "1 checkpoint in" in answer["failed"]
        assert slot_memory.held(target.sides) is None
        assert results_in(target.past) == []


def test_a_checkpoint_without_a_result_before_its_call_is_not_resumed_from(tmp_path: Path) -> None:
    older, newer = held(identity(5), call=2), held(identity(6), call=3)
    lacks = "it is of call 3, and the result of call 2 was not kept"
    with slot(*CONTENTS[:2]) as source, slot() as target:
        written(tmp_path, source, older)
        sealed = written(tmp_path, source, newer)
        resumable = (sealed["resumable"], sealed["resumable_step"])
        assert (sealed["not_resumable"], *resumable) == (lacks, f"{tmp_path}/{older.name}", 40)
        seen = asked(tmp_path, {"0": target}, do="held")
        assert (seen["newest"]["name"], seen["newest"]["call"]) == (older.name, 2)
        answer = asked(tmp_path, {"0": target}, do="load", ranks={"0": 0})
        assert answer["path"].endswith(older.name)
        assert answer["passed_over"] == [f"{newer.name} (step 40): {lacks}"]


def test_the_end_of_training_is_the_end_though_no_job_can_resume_from_it(tmp_path: Path) -> None:
    with slot(*CONTENTS[:1]) as source, slot() as target:
        written(tmp_path, source, held(call=3), finished="this command")
        answer = asked(tmp_path, {"0": target}, do="load", ranks={"0": 0}, done="this command")
        assert answer["done"] is True
        assert asked(tmp_path, {"0": target}, do="held")["newest"]["finished"] == "this command"
        failed = asked(tmp_path, {"0": target}, do="load", ranks={"0": 0}, done="another one")["failed"]
        assert failed.startswith(f"1 checkpoint in {tmp_path} and none can be used (")
        assert "it is of call 3, and the result of call 1 was not kept); let each call return plain values" in failed
        assert failed.endswith(" name another --checkpoint-dir to start training from scratch")


def test_a_slot_with_a_newer_commit_keeps_it_and_its_results(tmp_path: Path) -> None:
    with slot(*CONTENTS[:2]) as source, slot(CONTENTS[0], b"another result", b"one more") as target:
        written(tmp_path, source, held(identity(5), call=2))
        target.hold(held(identity(9), call=3))
        there = results_in(target.past)
        answer = asked(tmp_path, {"0": target}, do="load", ranks={"0": 0})
        assert answer["held"] == [*identity(9)[1:], 40]
        assert results_in(target.past) == there


def test_a_job_goes_on_from_a_checkpoint_and_its_next_ones_name_the_same_files(tmp_path: Path) -> None:
    with slot(*CONTENTS[:2]) as source, slot() as target:
        written(tmp_path, source, held(identity(5), call=2))
        before = open_store(str(tmp_path)).sizes(RESULTS)
        asked(tmp_path, {"0": target}, do="load", ranks={"0": 0})
        append(target.past, CONTENTS[2], 2)
        written(tmp_path, target, held(identity(1, generation=2), call=3))
        after = open_store(str(tmp_path)).sizes(RESULTS)
        assert before.items() < after.items()
        assert len(after) == 3


def test_a_checkpoint_of_a_version_without_calls_is_loaded_into_a_slot_with_a_past(tmp_path: Path) -> None:
    save(open_store(str(tmp_path)), held())
    with slot() as target:
        answer = asked(tmp_path, {"0": target}, do="load", ranks={"0": 0})
        assert (answer["call"], target.held().call, results_in(target.past)) == (0, 0, [])
        found = os.pread(target.sides[0], 10, PAGE)
        assert found == held().data[:10]
