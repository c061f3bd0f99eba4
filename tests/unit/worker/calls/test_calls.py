"""The calls of one process: their numbers, and whose results it uses."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterator
from decimal import Decimal
from typing import NoReturn

import pytest
import torch

from hvd_elastic_ext.core import call_results
from hvd_elastic_ext.core.call_results import UNEQUAL
from hvd_elastic_ext.core.commit_record import Identity, Record
from hvd_elastic_ext.core.errors import StateError
from hvd_elastic_ext.worker.calls import result
from hvd_elastic_ext.worker.calls.calls import WORTH_A_THREAD, Calls, End, _limit
from hvd_elastic_ext.worker.calls.meeting import MISSING, REFUSED, Row
from hvd_elastic_ext.worker.calls.result import Generators, left_by, parts_of
from hvd_elastic_ext.worker.comms import AloneComms


@pytest.fixture
def past() -> Iterator[int]:
    descriptor = os.memfd_create("past")
    yield descriptor
    os.close(descriptor)


def keep(past: int, value: object, *, call: int, program: str = "mine") -> None:
    """Append the result of a call without a State."""
    left = left_by(call, value, step=10 * call, last=Identity(5, 1, 2, call), content=None, keep_rng=False)
    parts = parts_of(left, program=program, generators=Generators())
    assert call_results.append(past, parts, call=call, step=left.step, number=left.last.number) is None


def train() -> None:
    """Stands for a training function."""


def test_a_finished_call_gives_its_value_and_where_it_ended(past: int) -> None:
    keep(past, None, call=0)
    keep(past, {"loss": 0.25, "best": [1, 2]}, call=1)
    calls = Calls(past, program="mine")
    calls.begin(train)
    finished = calls.finished()
    assert finished is not None
    assert (finished.value, finished.step, finished.last) == ({"loss": 0.25, "best": [1, 2]}, 10, Identity(0, 0, 2, 1))
    calls.skipped(finished)
    assert (calls.upcoming, calls.end.step) == (2, 10)
    calls.begin(train)
    assert calls.finished() is None


@pytest.mark.parametrize(
    ("program", "ours", "kept"),
    [("mine", None, True), ("other", None, False), ("other", True, True), ("mine", False, False)],
)
def test_results_of_another_program_are_dropped_unless_the_commit_beside_them_is_for_this_one(
    past: int, program: str, ours: bool | None, kept: bool
) -> None:
    keep(past, None, call=0, program=program)
    Calls(past, program="mine").check_program(ours=ours)
    assert call_results.count(past) == int(kept)


def test_a_damaged_result_is_that_of_nobody(past: int) -> None:
    keep(past, None, call=0)
    os.pwrite(past, b"X", call_results.entries(past)[0].at)
    Calls(past, program="mine").check_program(ours=None)
    assert call_results.count(past) == 0


@pytest.mark.parametrize(
    ("value", "remedy"),
    [
        (object(), "it is a builtins.object, which is not a plain value; return plain values, tensors or NumPy arrays"),
        ([Decimal(1)], "it is a decimal.Decimal, which is not a plain value (at value[0]); return str(it)"),
        (torch.nn.Linear(1, 1), "it is a Linear; return its state_dict()"),
    ],
    ids=["an object", "a number", "a model"],
)
def test_what_to_return_instead_of_a_value_that_cannot_be_kept_is_said(value: object, remedy: str) -> None:
    """Defect: the remedy was that for an attribute of a State."""
    left = left_by(1, value, step=1, last=Identity(1, 1, 1, 1), content=None, keep_rng=False)
    end = "(docs/values.md), or keep it in the State"
    assert left.unfit == f"its return value cannot be kept: {remedy} {end}"


def test_a_value_that_is_not_plain_cannot_be_kept_and_the_reason_names_it() -> None:
    left = left_by(1, {"model": object()}, step=1, last=Identity(1, 1, 1, 1), content=None, keep_rng=False)
    assert left.value is None
    assert "'model'" in left.unfit


def holds_itself() -> object:
    found: list[object] = [1, 2]
    found.append(found)
    return found


def nested() -> object:
    found: object = 1
    for _ in range(3000):
        found = [found]
    return found


class Breaks(dict[str, int]):
    """A type of the script's own."""

    def keys(self) -> NoReturn:  # type: ignore[override]
        raise OSError("the database is closed")


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (holds_itself(), "or holds itself"),
        (nested(), "levels deep"),
        (10**5000, "digits"),
        (Breaks(a=1), "the database is closed"),
    ],
    ids=["holds itself", "nested", "large number", "own type"],
)
def test_whatever_a_function_returns_there_is_one_reason_and_no_error(value: object, reason: str) -> None:
    left = left_by(1, value, step=1, last=Identity(1, 1, 1, 1), content=None, keep_rng=False)
    assert left.value is None
    assert reason in left.unfit


def test_a_value_that_is_too_large_is_not_written_as_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hvd_elastic_ext.checkpoint.values.alone.to_text", None)
    large = torch.empty(1, dtype=torch.uint8).expand(result.LARGEST_VALUE)  # of one byte in memory
    left = left_by(1, {"w": [large]}, step=1, last=Identity(1, 1, 1, 1), content=None, keep_rng=False)
    assert left.unfit == "its return value has more than 256 MB as text"


class Alone:
    """A world of one."""

    def rank(self) -> int:
        return 0

    def size(self) -> int:
        return 1


LARGE = 3 * WORTH_A_THREAD


class Large:
    """A large content in memory that can be protected. Whoever asks for it waits until :attr:`may_go_on`."""

    def __init__(self) -> None:
        self.may_go_on, self.protected, self.lost = threading.Event(), False, False
        self.asked = 0

    def content(self) -> result.Content:
        self.asked += 1
        if self.asked > 2:  # its size is asked at the call's end, its bytes when the ranks meet, and after a copy
            assert self.may_go_on.wait(20)
        if self.lost:
            raise StateError("it was overwritten")
        record = Record(Identity(5, 1, 2, 1), step=10, loose=0, data=LARGE, layout=0, tree=0, local=0, call=1)
        return result.Content(record, memoryview(bytes(LARGE)))

    def protect(self) -> bool:
        self.protected = True
        return True

    def release(self) -> None:
        self.protected = False


def met_after_a_large_call(past: int, large: Large, said: list[tuple[str, dict[str, object]]]) -> Calls:
    """A process in its second call, whose ranks have just met."""
    keep(past, None, call=0)
    calls = Calls(past, program="mine", say=lambda what, **fields: said.append((what, fields)))
    calls.begin(train)
    calls.returned(
        left_by(
            1,
            7,
            step=10,
            last=Identity(5, 1, 2, 1),
            content=large.content,
            keep_rng=False,
            release=large.release,
            protect=large.protect,
        )
    )
    calls.begin(train)
    assert calls.met([calls.row()], Alone()) is not None  # type: ignore[arg-type]
    return calls


def test_a_large_result_is_written_beside_the_next_call_and_its_first_commit_waits_for_it(past: int) -> None:
    large, said = Large(), list[tuple[str, dict[str, object]]]()
    calls = met_after_a_large_call(past, large, said)
    assert (call_results.count(past), large.protected, said) == (1, True, [])
    large.may_go_on.set()
    calls.settle()  # as a commit does
    assert (call_results.count(past), large.protected) == (2, False)
    [(what, fields)] = said
    assert (what, fields["call"], fields["kept"]) == ("result", 1, True)
    assert call_results.entries(past)[1].bytes > LARGE


def test_a_large_result_that_is_overwritten_while_it_is_written_is_not_kept(past: int) -> None:
    large, said = Large(), list[tuple[str, dict[str, object]]]()
    calls = met_after_a_large_call(past, large, said)
    large.lost = True
    large.may_go_on.set()
    assert calls.row().past == 1  # a meeting waits for it, too
    assert said[0][1]["reason"] == "its last commit is gone: it was overwritten"


def test_a_value_that_is_not_plain_is_the_reason_even_if_its_text_differs_between_ranks(past: int) -> None:
    said: list[tuple[str, dict[str, object]]] = []
    keep(past, None, call=0)
    calls = Calls(past, program="mine", say=lambda what, **fields: said.append((what, fields)))
    calls.begin(train)
    left = left_by(1, lambda: 7, step=1, last=Identity(1, 1, 1, 1), content=None, keep_rng=False)
    calls.returned(left)
    calls.begin(train)
    mine = calls.row()
    calls.met([mine, mine._replace(left=mine.left + 1)], Alone())  # type: ignore[arg-type]
    assert str(said[0][1]["reason"]).startswith(left.unfit)


@pytest.mark.parametrize(
    ("value", "limit", "reason"),
    [
        (lambda: 7, None, "its return value "),
        ("x" * 5000, 4096, "its 5.08 kB and "),
        (7, 4096, None),
    ],
    ids=["not plain", "too large", "kept"],
)
def test_that_a_result_cannot_be_kept_is_said_when_the_call_ends(
    past: int, value: object, limit: int | None, reason: str | None
) -> None:
    said: list[tuple[str, dict[str, object]]] = []
    keep(past, None, call=0)
    calls = Calls(past, program="mine", say=lambda what, **fields: said.append((what, fields)), limit=limit)
    calls.begin(train)
    calls.returned(left_by(1, value, step=1, last=Identity(1, 1, 1, 1), content=None, keep_rng=False))
    assert [(what, fields["call"], fields["kept"]) for what, fields in said] == (
        [("result", 1, False)] if reason else []
    )
    assert all(str(fields["reason"]).startswith(str(reason)) for _, fields in said)


def test_without_a_launcher_the_first_rank_says_it_when_the_call_ends(
    past: int, caplog: pytest.LogCaptureFixture
) -> None:
    calls = Calls(past, program="mine")
    for _ in range(2):
        calls.begin(train)
        calls.met([calls.row()], AloneComms())
        left = left_by(calls.number, lambda: 7, step=1, last=Identity(1, 1, 1, 1), content=None, keep_rng=False)
        calls.returned(left, tells=True)
        assert [each.getMessage()[:24] for each in caplog.records] == ["call 1 cannot be skipped"]


def test_a_process_that_is_forked_while_a_result_is_written_does_not_keep_the_lock(past: int) -> None:
    def fork() -> None:
        nonlocal child
        child = os.fork()
        if not child:
            os.read(reading, 1)
            os._exit(0)

    child, (reading, writing) = 0, os.pipe()
    try:
        assert call_results.append(past, [b"a"], call=0, step=0, number=0, verify=fork) is None
        done = threading.Thread(
            target=call_results.append, args=(past, [b"b"]), kwargs={"call": 1, "step": 0, "number": 0}, daemon=True
        )
        done.start()
        done.join(20)
        assert not done.is_alive()
    finally:
        os.write(writing, b"x")
        os.waitpid(child, 0)
        os.close(reading)
        os.close(writing)
    assert call_results.count(past) == 2


best = 0.0


def assigns_outside() -> None:
    global best
    best = 1.0


def test_names_that_a_function_assigns_outside_of_itself_are_named_once(
    past: int, caplog: pytest.LogCaptureFixture
) -> None:
    count = 0

    def counts() -> None:
        nonlocal count
        count += 1

    assert list(result.rebound_names(assigns_outside)) == ["best"]
    assert list(result.rebound_names(counts)) == ["count"]
    calls = Calls(past, program="mine")
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            calls.begin(counts)
    assert len([each for each in caplog.records if "assigns count outside" in each.message]) == 1


def after_call_1(past: int, said: list[tuple[str, dict[str, object]]], *, apart: bool = True) -> Calls:
    """A process in call 2 that has run call 1 itself."""
    calls = Calls(past, program="mine", say=lambda what, **fields: said.append((what, fields)), apart=apart)
    calls.begin(train)
    assert calls.met([calls.row()], AloneComms()) is not None  # keeps what comes before the first call
    left = left_by(1, {"loss": 0.5}, step=10, last=Identity(5, 1, 2, 1), content=None, keep_rng=False)
    calls.returned(left)
    calls.begin(train)
    return calls


def test_a_rank_sends_what_it_said_that_it_has_although_its_agent_has_added_more_since(past: int) -> None:
    sent = list[torch.Tensor]()

    class Sends(AloneComms):
        def broadcast(self, data: torch.Tensor, *, root: int, name: str) -> None:
            sent.append(data)

    calls = Calls(past, program="mine")
    keep(past, None, call=0)
    calls.begin(train)
    rows = [calls.row()._replace(left=0), Row(1, 0)]
    keep(past, 7, call=1)
    arrived = calls.met(rows, Sends())
    assert arrived is not None
    arrived()
    assert [len(data) for data in sent] == [rows[0].bytes]
    other = os.memfd_create("past")
    call_results.replace(other, [sent[0].numpy().tobytes()], 1)
    assert call_results.count(other) == 1
    os.close(other)


def test_a_process_that_loses_its_world_before_the_result_is_compared_keeps_its_own(past: int) -> None:
    said: list[tuple[str, dict[str, object]]] = []
    calls = after_call_1(past, said)
    calls.lost_world()
    assert call_results.count(past) == 2
    assert [(what, fields["call"], fields["kept"]) for what, fields in said] == [("result", 1, True)]
    assert calls.met([calls.row(), calls.row()], AloneComms()) is not None
    calls.lost_world()
    assert len(said) == 1
    assert calls.row().left == 0


def test_a_result_that_turns_out_to_be_different_on_another_rank_is_taken_away(past: int) -> None:
    said: list[tuple[str, dict[str, object]]] = []
    calls = after_call_1(past, said)
    calls.lost_world()
    mine = calls.row()
    assert calls.met([mine, mine._replace(left=mine.left + 1)], AloneComms()) is not None
    assert call_results.count(past) == 1
    assert [fields["kept"] for _, fields in said] == [True, False]
    assert said[-1][1]["reason"] == UNEQUAL


def test_that_generators_differ_is_told_after_a_rank_has_kept_its_result_alone(
    past: int, caplog: pytest.LogCaptureFixture
) -> None:
    calls = after_call_1(past, [])
    calls.lost_world()
    mine = calls.row()
    for _ in range(2):
        other = mine._replace(generators=mine.generators + 1, begun=mine.begun + 1)
        calls.met([mine, other, Row(2, 2)], AloneComms())
    assert call_results.count(past) == 2
    [line] = [each.getMessage() for each in caplog.records if "random generators differ" in each.getMessage()]
    assert "after call 1" in line


def test_a_script_that_seeds_before_each_call_is_not_told_to(past: int, caplog: pytest.LogCaptureFixture) -> None:
    """Defect: a process that joins within a call has generators of its own, and the advice came after that."""
    calls = Calls(past, program="mine")
    calls.begin(train)
    calls.met([calls.row()], AloneComms())
    for call, seeds in ((1, True), (2, False)):
        last = Identity(5, 1, 2, call)
        calls.returned(left_by(call, 0.5, step=10, last=last, content=None, keep_rng=True))
        if seeds:
            torch.manual_seed(call)
        calls.begin(train)
        mine = calls.row()
        begun = mine.begun + (not seeds)
        calls.met([mine, mine._replace(generators=mine.generators + 1, begun=begun)], AloneComms())
        said = [each.getMessage() for each in caplog.records if "random generators differ" in each.getMessage()]
        assert len(said) == (not seeds)
    assert calls._begun != 0


def test_a_rank_that_has_refused_different_values_does_not_take_one_of_them_back_from_a_newcomer(past: int) -> None:
    said: list[tuple[str, dict[str, object]]] = []
    calls = after_call_1(past, said)
    mine = calls.row()
    calls.met([mine, mine._replace(left=mine.left + 1)], AloneComms())
    assert calls.row().left == REFUSED
    calls.met([calls.row(), Row(2, 2)], AloneComms())
    assert (call_results.count(past), len(said)) == (1, 1)


def test_a_newcomer_drops_the_result_that_another_rank_has_kept_alone_and_that_turns_out_to_differ(past: int) -> None:
    said: list[tuple[str, dict[str, object]]] = []
    keep(past, None, call=0)
    keep(past, 0.5, call=1)
    calls = Calls(past, program="mine", say=lambda what, **fields: said.append((what, fields)))
    calls.begin(train)
    finished = calls.finished()
    assert finished is not None
    calls.skipped(finished)
    calls.begin(train)
    calls.met([calls.row(), Row(2, 2, left=7), Row(2, 2, left=6)], AloneComms())
    assert call_results.count(past) == 1
    assert [(fields["kept"], fields["reason"]) for _, fields in said] == [(False, UNEQUAL)]


def test_that_a_call_ended_with_an_error_is_the_reason_and_so_it_is_for_later_ones(past: int) -> None:
    said: list[tuple[str, dict[str, object]]] = []
    calls = after_call_1(past, said)
    calls.met([calls.row()], AloneComms())
    end = End(20, Identity(5, 1, 2, 40))
    calls.raised(end)
    assert calls.end == end
    calls.begin(train)
    calls.met([calls.row()], AloneComms())
    calls.returned(left_by(3, 0.5, step=30, last=Identity(5, 1, 2, 60), content=None, keep_rng=False))
    calls.begin(train)
    calls.met([calls.row()], AloneComms())
    reasons = [(fields["call"], fields.get("reason")) for _, fields in said]
    assert reasons == [(1, None), (2, "it ended with an error"), (3, MISSING)]


def test_without_a_launcher_one_line_says_that_a_call_ended_with_an_error(
    past: int, caplog: pytest.LogCaptureFixture
) -> None:
    calls = Calls(past, program="mine")
    for _ in range(4):
        calls.begin(train)
        calls.met([calls.row()], AloneComms())
        calls.raised(None)
    [line] = [each.getMessage() for each in caplog.records]
    assert line.startswith("call 1 cannot be skipped: it ended with an error; ")


def test_where_no_launcher_sends_results_a_process_that_loses_its_world_keeps_nothing_alone(past: int) -> None:
    calls = after_call_1(past, [], apart=False)
    calls.lost_world()
    assert call_results.count(past) == 1
    assert calls.row().left


def test_with_a_state_that_is_not_ours_the_reason_is_told_at_the_begin_of_the_next_call(past: int) -> None:
    said: list[tuple[str, dict[str, object]]] = []
    calls = Calls(past, program="mine", say=lambda what, **fields: said.append((what, fields)))
    calls.begin(train)
    calls.never_compared()
    calls.returned_to_others({"loss": 0.5})
    assert not said  # a script with one call has nothing to say
    calls.begin(train)
    calls.never_compared()
    [(what, fields)] = said
    assert (what, fields["call"], fields["kept"]) == ("result", 1, False)
    assert "its State is Horovod's own" in str(fields["reason"])


@pytest.mark.parametrize(("given", "most"), [("1G", call_results.MOST_BYTES), ("4096", 4096), ("", None)])
def test_a_limit_that_is_not_a_number_of_bytes_is_named(
    given: str, most: int | None, caplog: pytest.LogCaptureFixture
) -> None:
    assert _limit({call_results.LIMIT: given}) == (call_results.MOST_BYTES if most is None else most)
    lines = [each.getMessage() for each in caplog.records]
    assert lines == (
        []
        if given != "1G"
        else ["HVD_ELASTIC_RESULTS_BYTES=1G is not used: write a number of bytes, such as 1073741824"]
    )
