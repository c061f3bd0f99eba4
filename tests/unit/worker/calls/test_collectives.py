"""What collectives returned is given again to the same calls, and to no others."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any, Final

import pytest
import torch

from hvd_elastic_ext.checkpoint.format.result_file import Head, Result
from hvd_elastic_ext.core import call_results
from hvd_elastic_ext.worker.calls.calls import Between, Calls
from hvd_elastic_ext.worker.calls.collectives import (
    MOST_BYTES,
    Entry,
    Record,
    Replay,
    digest,
    first_other,
    plain,
    read,
)
from hvd_elastic_ext.worker.calls.meeting import EMPTY
from hvd_elastic_ext.worker.calls.result import Finished
from hvd_elastic_ext.worker.comms import AloneComms
from hvd_elastic_ext.worker.process.standby import CallOver

MEAN: Final = ("allreduce", "mean", "float32[1]")
CONFIG: Final = ("broadcast_object", None, "")


def record(*calls: tuple[tuple[str, str | None, str], Any]) -> Record:
    found = Record()
    for call, value in calls:
        found.end(found.begin(*call, size=2), value)
    return found


def entries(found: Record) -> list[Entry]:
    """As they are after they were stored."""
    return read(plain(found.entries))


def test_the_same_calls_get_what_the_others_got() -> None:
    values = [torch.tensor([1.5]), {"lr": 0.5, "layers": (1, 2)}, [torch.tensor([1], dtype=torch.bfloat16)], None]
    calls = [MEAN, CONFIG, ("grouped_allreduce", "two", "bfloat16[1]"), CONFIG]
    replay = Replay(entries(record(*zip(calls, values, strict=True))))
    found = []
    for call in calls:
        got = replay.next(*call)
        assert got is not None, replay.why
        found.append(got.value)
    assert repr(found) == repr(values)
    assert replay.next(*MEAN) is None
    assert replay.why == "the others called no further one there"


@pytest.mark.parametrize(
    ("call", "why"),
    [
        (("allreduce", "sum", "float32[1]"), "the others called hvd.allreduce(name='mean') there"),
        (("allreduce_", "mean", "float32[1]"), "the others called hvd.allreduce(name='mean') there"),
        (("allreduce", "mean", "float32[2]"), "the others passed float32[1], not float32[2]"),
    ],
)
def test_another_order_name_kind_shape_or_type_ends_it_for_all_that_follow(
    call: tuple[str, str | None, str], why: str
) -> None:
    replay = Replay(entries(record((MEAN, torch.tensor([1.5])), (MEAN, torch.tensor([2.5])))))
    assert replay.next(*MEAN) is not None
    assert replay.next(*call) is None
    assert replay.why == why
    assert replay.next(*MEAN) is None
    assert replay.why == why


def test_nothing_is_known_without_a_record() -> None:
    replay = Replay(None)
    assert replay.next(*MEAN) is None
    assert "not known" in replay.why


def test_a_value_that_is_not_plain_is_named_and_those_after_it_are_recorded() -> None:
    found = record((CONFIG, {"model": object()}), (MEAN, torch.tensor([1.5])))
    replay = Replay(entries(found))
    assert replay.next(*CONFIG) is None
    assert "'model'" in replay.why
    assert found.entries[1].value is not None


class Broken:
    @property
    def nbytes(self) -> int:
        raise RuntimeError("no size\nis known")


def test_a_value_that_fails_when_it_is_looked_at_fails_no_script() -> None:
    found = record((CONFIG, Broken()), (MEAN, torch.tensor([1.5])), (MEAN, torch.eye(2).to_sparse()))
    assert found.entries[0].why == "it cannot be kept: no size is known"
    assert [each.value is None for each in found.entries] == [True, False, True]


@pytest.mark.parametrize(
    "large",
    [torch.zeros(MOST_BYTES + 1, dtype=torch.uint8), {"data": ["x" * (MOST_BYTES // 2)] * 3}, list(range(MOST_BYTES))],
    ids=["tensor", "text", "list"],
)
def test_what_is_too_large_ends_the_record_and_is_named(large: object) -> None:
    found = record((MEAN, torch.tensor([1.5])), (CONFIG, large), (MEAN, torch.tensor([1.5])))
    replay = Replay(entries(found))
    assert replay.next(*MEAN) is not None
    assert replay.next(*CONFIG) is None
    assert (
        replay.why
        == "what it returned to the others was not recorded: with it, the recorded results have more than 4 MiB"
    )
    assert len(found.entries) == 2


def test_all_results_together_have_a_limit() -> None:
    part = torch.zeros(MOST_BYTES // 3 - 1000, dtype=torch.uint8)
    found = record(*[(MEAN, part)] * 4)
    assert [each.value is not None for each in found.entries] == [True, True, True, False]
    many = record(*[(MEAN, 1.0)] * 20_000)
    assert len(many.entries) < 17_000


def test_ranks_with_different_results_have_different_digests_unless_each_rank_gets_its_own() -> None:
    def of(kind: str, value: float) -> int:
        return record(((kind, None, ""), torch.tensor([value]))).digest

    assert of("allreduce", 1.0) == of("allreduce", 1.0) != of("allreduce", 2.0)
    assert of("alltoall", 1.0) == of("alltoall", 2.0)
    assert Record().digest == digest([]) == EMPTY


@pytest.mark.parametrize("wrong", [["x"], [[1, None, "", 2, None, ""]], [["a", None, "", "2", None, ""]], [[1, 2]]])
def test_a_record_that_is_not_valid_is_refused(wrong: list[Any]) -> None:
    with pytest.raises(ValueError, match="not valid"):
        read(wrong)


# --- from one process to the next, by the past of a slot


@pytest.fixture
def past() -> Iterator[int]:
    descriptor = os.memfd_create("past")
    yield descriptor
    os.close(descriptor)


def train() -> None:
    """Stands for a training function."""


def after_first_sync(past: int, said: list[Any], *values: float, program: str = "mine") -> Calls:
    """A process that has run collectives, and has come to the first sync of its first call."""
    calls = Calls(past, program=program, say=lambda what, **fields: said.append((what, fields)))
    between = calls.between
    assert between is not None
    for value in values:
        between.record.end(between.record.begin(*MEAN, size=2), torch.tensor([value]))
    calls.begin(train)
    assert calls.between is None
    calls.met([calls.row()], AloneComms())
    return calls


def late(past: int, *, program: str = "mine") -> Between:
    between = Calls(past, program=program, alone=lambda: True).between
    assert between is not None
    assert between.replays
    return between


def got(between: Between) -> list[float]:
    found = []
    while (each := between.replay.next(*MEAN)) is not None:
        found.append(each.value.item())
    return found


def test_what_collectives_returned_before_the_first_call_is_kept_at_its_first_sync(past: int) -> None:
    said: list[Any] = []
    calls = after_first_sync(past, said, 1.5, 2.5)
    assert [(what, fields["call"], fields["kept"]) for what, fields in said] == [("result", 0, True)]
    assert not calls.unkept
    assert got(late(past)) == [1.5, 2.5]
    assert got(late(past, program="other")) == []


def test_a_prologue_without_collectives_says_nothing(past: int) -> None:
    said: list[Any] = []
    after_first_sync(past, said)
    assert said == []
    assert call_results.count(past) == 1
    assert got(late(past)) == []


def test_a_job_that_starts_again_keeps_what_collectives_return_then(past: int) -> None:
    after_first_sync(past, [], 1.5)
    said: list[Any] = []
    after_first_sync(past, said, 2.5, 3.5)
    assert got(late(past)) == [2.5, 3.5]
    after_first_sync(past, said, 2.5, 3.5)  # the same ones
    assert got(late(past)) == [2.5, 3.5]
    assert [what for what, _ in said] == ["result"] * 2
    after_first_sync(past, [], 4.5, program="other")
    assert got(late(past, program="other")) == [4.5]


def test_all_ranks_of_a_job_that_starts_again_know_that_they_passed_a_call_together(past: int) -> None:
    after_first_sync(past, [], 1.5)
    assert call_results.append(past, [b"{}"], call=1, step=3, number=4) is None
    calls = Calls(past, program="mine")
    calls.begin(train)
    with pytest.raises(CallOver):
        calls.met([calls.row()], AloneComms())
    calls.skipped(Finished(1, 3, calls.end.last, Result(Head("mine"), *[memoryview(b"")] * 3), None, {}))
    assert calls.between is not None
    assert (calls.between.together, calls.between.behind) == (True, False)
    ahead = calls.row()._replace(call=3, past=3)
    calls.begin(train)
    call_results.append(past, [b"{}"], call=2, step=3, number=4)
    with pytest.raises(CallOver):
        calls.met([calls.row(), ahead], TwoRanks())
    calls.skipped(Finished(2, 3, calls.end.last, Result(Head("mine"), *[memoryview(b"")] * 3), None, {}))
    assert (calls.between.together, calls.between.behind) == (False, True)


def test_a_job_that_starts_again_names_a_collective_that_returns_something_else_than_in_the_calls_that_are_over(
    past: int, caplog: pytest.LogCaptureFixture
) -> None:
    after_first_sync(past, [], 1.5, 2.5)
    after_first_sync(past, [], 1.5, 2.0)
    assert not caplog.records  # no call is over
    for call in (1, 2):
        assert call_results.append(past, [b"{}"], call=call, step=3, number=4) is None
    for values in ((1.5, 3.5), (1.5, 3.5, 7.0)):
        with pytest.raises(CallOver):
            after_first_sync(past, [], *values)
    (line,) = [record.getMessage() for record in caplog.records]
    assert "when calls 1 to 2 were trained" in line
    assert line.startswith(f"{entries(record((MEAN, 3.5)))[0].words} before the first call returns something else")


def test_what_another_number_of_ranks_returns_is_not_named_unless_it_is_from_one_rank() -> None:
    before, now = (entries(record((MEAN, 1.5), (CONFIG, value))) for value in (1, 2))
    now = [each._replace(size=3) for each in now]
    assert first_other(before, [now[0]._replace(value="2.5"), now[1]]) == now[1]
    assert first_other(before, [now[1], now[0]]) is None  # they are called in another order
    assert first_other(before, before) is None


class TwoRanks(AloneComms):
    def size(self) -> int:
        return 2


def test_one_that_was_alone_before_its_call_keeps_nothing_of_its_own(past: int) -> None:
    calls = Calls(past, program="mine", alone=lambda: True)
    calls.begin(train)
    assert calls.row().collectives == 0


def test_a_record_without_room_is_kept_without_its_values(past: int) -> None:
    calls = Calls(past, program="mine", limit=2000)
    assert calls.between is not None
    calls.between.record.end(calls.between.record.begin(*CONFIG, size=2), "x" * 4000)
    calls.begin(train)
    calls.met([calls.row()], AloneComms())
    replay = late(past).replay
    assert replay.next(*CONFIG) is None
    assert "no room" in replay.why


def test_a_start_without_room_for_another_record_says_so_and_goes_on(
    past: int, caplog: pytest.LogCaptureFixture
) -> None:
    after_first_sync(past, [], 1.5)
    calls = Calls(past, program="mine", limit=10)
    assert calls.between is not None
    calls.between.record.end(calls.between.record.begin(*MEAN, size=2), torch.tensor([2.5]))
    calls.begin(train)
    calls.met([calls.row()], AloneComms())
    assert "there is no room (HVD_ELASTIC_RESULTS_BYTES)" in caplog.text
    assert got(late(past)) == [1.5]


def test_a_damaged_past_tells_nothing_and_nothing_fails(past: int) -> None:
    after_first_sync(past, [], 1.5)
    os.pwrite(past, b"X", call_results.entries(past)[0].at)
    assert got(late(past)) == []
