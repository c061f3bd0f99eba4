"""What is given to a function and what it returns, without a job around it."""

from __future__ import annotations

import datetime
import json
import os
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch

import hvd_elastic_ext.torch as elastic
from hvd_elastic_ext.core.errors import JobFailed, UsageError
from hvd_elastic_ext.jobs.local import results
from hvd_elastic_ext.jobs.local.run import _error, _results
from hvd_elastic_ext.jobs.local.script import script_of
from tests.unit.jobs.local import made_here


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    where = {"rank": 0, "size": 1}
    monkeypatch.setattr(elastic, "rank", lambda: where["rank"])
    monkeypatch.setattr(elastic, "size", lambda: where["size"])
    return where


def ended(folder: Path, value: Any) -> None:
    (folder / results.GIVEN).write_text(results.text_of({"args": [value], "kwargs": {}}, "given"))
    results.run_and_store(lambda given: given, str(folder))


def test_results_are_arrays_scalars_tensors_and_tuples_by_rank(tmp_path: Path, place: dict[str, int]) -> None:
    place["size"] = 2
    for rank in (1, 0):
        place["rank"] = rank
        ended(tmp_path, (rank, numpy.float64(0.5), numpy.ones(2), torch.ones(2), {1: "one"}))
    first, second = _results(tmp_path)
    assert (first[0], second[0], first[1], first[4]) == (0, 1, 0.5, {1: "one"})
    assert type(first) is tuple
    assert type(first[2]) is numpy.ndarray
    assert torch.equal(second[3], torch.ones(2))


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (
            {"a": [datetime.datetime(2026, 1, 1)]},
            "result['a'][0]: it is a datetime.datetime, which is not a plain value; send it.isoformat()",
        ),
        (
            object(),
            "result: it is a builtins.object, which is not a plain value; send plain values, tensors or NumPy arrays",
        ),
        (torch.nn.Linear(1, 1), "result: it is a Linear; send its state_dict()"),
    ],
)
def test_what_cannot_be_sent_back_is_told_in_the_error(
    tmp_path: Path, place: dict[str, int], value: Any, why: str
) -> None:
    (tmp_path / results.GIVEN).write_text(results.text_of({"args": [], "kwargs": {}}, "given"))
    results.run_and_store(lambda: value, str(tmp_path))
    with pytest.raises(JobFailed) as failed:
        _results(tmp_path)
    assert str(failed.value) == f"run: what rank 0 returned cannot be sent back: {why}"


def test_a_rank_without_a_result_is_told(tmp_path: Path, place: dict[str, int]) -> None:
    with pytest.raises(JobFailed, match="no rank has left a result on this machine"):
        _results(tmp_path)
    place["size"] = 3
    ended(tmp_path, 1)
    with pytest.raises(JobFailed, match="of 3 ranks these have left no result on this machine: 1, 2;"):
        _results(tmp_path)


def test_the_error_of_a_function_is_left_for_whoever_waits(tmp_path: Path, place: dict[str, int]) -> None:
    def fails(value: int) -> None:
        raise ValueError(f"no luck\nwith {value}")

    (tmp_path / results.GIVEN).write_text(results.text_of({"args": [7], "kwargs": {}}, "given"))
    assert _error(tmp_path) == ""
    with pytest.raises(ValueError, match="no luck"):
        results.run_and_store(fails, str(tmp_path))
    assert _error(tmp_path) == "ValueError: no luck with 7"


def test_a_function_that_joins_no_world_joins_it_at_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    joined: list[int] = []

    def rank() -> int:
        if not joined:
            raise UsageError("this process is in no world yet")
        return 0

    monkeypatch.setattr(elastic, "rank", rank)
    monkeypatch.setattr(elastic, "size", lambda: 1)
    monkeypatch.setattr(elastic, "init", lambda: joined.append(1))
    ended(tmp_path, 5)
    assert _results(tmp_path) == [5]


def test_nothing_that_is_left_is_pickled(tmp_path: Path, place: dict[str, int]) -> None:
    ended(tmp_path, torch.ones(1))
    for path in tmp_path.iterdir():
        json.loads(path.read_text())
    assert "pickle" not in script_of(made_here.train)


def test_results_are_those_of_the_last_world_also_if_a_rank_of_a_larger_one_had_ended(
    tmp_path: Path, place: dict[str, int]
) -> None:
    for at, (rank, size) in enumerate([(2, 3), (0, 3), (1, 2), (0, 2)]):
        place |= {"rank": rank, "size": size}
        ended(tmp_path, (rank, size))
        os.utime(tmp_path / results.RESULT.format(rank=rank), (at, at))
    assert _results(tmp_path) == [(0, 2), (1, 2)]


def test_a_result_that_holds_itself_ends_no_training(tmp_path: Path, place: dict[str, int]) -> None:
    value: list[Any] = []
    value.append(value)
    (tmp_path / results.GIVEN).write_text(results.text_of({"args": [], "kwargs": {}}, "given"))
    results.run_and_store(lambda: value, str(tmp_path))
    with pytest.raises(JobFailed, match=r"sent back: result\[0\].*: it is nested more than .*, or holds itself;"):
        _results(tmp_path)
